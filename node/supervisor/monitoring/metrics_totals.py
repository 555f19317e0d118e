"""Counters that keep growing when a process ends and its successor counts from 0 again."""

from typing import NamedTuple


class _ProcessRun(NamedTuple):
    pid: int | None
    counted: float
    total: float


class RunTotals:
    """Sums of counts that begin anew with each process of a slot."""

    def __init__(self) -> None:
        self._runs: dict[str, _ProcessRun] = {}

    def of(self, slot: str, pid: int | None, count: float) -> float:
        """All that the slot has counted. A page keeps a predecessor's count until the next one is
        stored, so an equal count under a new pid has not begun anew."""
        last = self._runs.get(slot, _ProcessRun(pid, 0, 0))
        if count == last.counted:
            return last.total
        anew = count < last.counted or pid != last.pid
        total = last.total + (count if anew else count - last.counted)
        self._runs[slot] = _ProcessRun(pid, count, total)
        return total


class HighWater:
    """The highest value seen: a starting writer shows its offsets too low for a while."""

    def __init__(self) -> None:
        self._highest = 0

    def of(self, value: int) -> int:
        """The highest one, this one included."""
        self._highest = max(self._highest, value)
        return self._highest
