"""In which order a comparison runs: groups of loads that share a broker, and turns that alternate.

A group starts its sides, then each load is prepared on both, warmed up once on each (discarded),
and run in rounds: A B A B. The estimate adds what these steps usually take.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.rivals.results import Figures
from scripts.rivals.rows import (
    AUTO_BATCH,
    CRC_OFF,
    DEFAULT_HEAP,
    OBJECTS,
    OURS,
    POOL,
    THEIRS,
    Load,
)

RATES_WARM_UP_S = 6.0
"""RocketMQ's producers are steady after 5-6 s; its consumers gain for longer, see DRAINS."""
READS_WARM_UP_S, READS_WARM_UP_MAX = 25.0, 8
"""For so long RocketMQ's consumers become faster; and the turns that are discarded at most."""
GROUP_START_S = 12.0
SETTLE_S = 2.0
"""To wake up before a turn, and until all is dispatched and written back after it."""
START_OF_OURS_S = 2.5
"""Processes of a load start for each turn, and warm up for a second."""
SIDE_COLUMN_ROUNDS_MAX = 3
"""Of sides beside those whose ratios decide."""
SPECIAL_BROKERS = {DEFAULT_HEAP: "default heap", POOL: "transient store pool"}


class Side:
    """One side of a comparison in a group of loads; by itself nothing runs between its turns."""

    def start(self) -> None:
        """Starts what all loads of the group share."""

    def prepare(self, load: Load) -> None:
        """Prepares a load for its first turn."""

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        """One turn; everything is dispatched when this returns."""
        raise NotImplementedError

    def pids(self) -> list[int]:
        """Its processes in the order in which they may be stopped: clients before servers."""
        return []

    def wake(self) -> None:
        """A few messages, after its processes were stopped."""

    def close(self) -> None:
        """Ends it and removes what it stored."""


@dataclass(frozen=True, slots=True)
class LoadGroup:
    """Loads that share what runs on each side."""

    name: str
    loads: tuple[Load, ...]


def group_of(load: Load) -> str:
    """The name of a load's group."""
    for side, name in SPECIAL_BROKERS.items():
        if side in load.sides:
            return name
    if load.kind in ("dispatch", "alone"):
        return "in process"
    if load.kind == "restart":
        return load.name
    return "SYNC_FLUSH" if load.sync else "ASYNC_FLUSH"


def groups(loads: Sequence[Load], only: str = "") -> list[LoadGroup]:
    """Groups in the order of their first loads. `only`: `ours` or `rocketmq` and its variants."""
    found: dict[str, list[Load]] = {}
    for load in loads:
        if any(wanted(side, only) for side in load.sides):
            found.setdefault(group_of(load), []).append(load)
    return [LoadGroup(name, tuple(members)) for name, members in found.items()]


def wanted(side: str, only: str) -> bool:
    """Whether a side runs; its variants go with it."""
    return not only or side.startswith(only)


def rounds_of(load: Load, rounds: int, side: str = OURS) -> int:
    """How many rounds a side of a load gets."""
    aside = side in (CRC_OFF, AUTO_BATCH)
    return min(rounds, load.rounds_max, SIDE_COLUMN_ROUNDS_MAX if aside else rounds)


def warm_ups(load: Load, side: str, seconds: float) -> list[float]:
    """Seconds of the turns that are discarded before the first round."""
    java = side.startswith(THEIRS)
    if load.kind == "restart":
        return []
    if load.kind == "dispatch":
        return [seconds] if java else []
    if load.kind in ("consume", "find"):
        turns = math.ceil(READS_WARM_UP_S / (load.turn_s or seconds))
        return [seconds] * (min(turns, READS_WARM_UP_MAX) if java else 1)
    return [RATES_WARM_UP_S if java else 1.0]


def estimate_s(loads: Sequence[Load], rounds: int, seconds: float, only: str = "") -> float:
    """Seconds that the whole will take, roughly."""
    return sum(
        GROUP_START_S + sum(load_s(load, rounds, seconds, only) for load in group.loads)
        for group in groups(loads, only)
    )


def load_s(load: Load, rounds: int, seconds: float, only: str = "") -> float:
    """Seconds of one load, on all of its sides."""
    total = 0.0
    for side in load.sides:
        if not wanted(side, only):
            continue
        ours = START_OF_OURS_S if side.startswith(OURS) else 0.0
        # These two share what another side has stored.
        total += 0.0 if side in (OBJECTS, AUTO_BATCH) else load.fill_s
        turn_s = (load.turn_s or seconds) + SETTLE_S
        total += rounds_of(load, rounds, side) * (turn_s + ours)
        total += sum(min(one, load.turn_s or one) + ours for one in warm_ups(load, side, seconds))
    return total


def plan_text(loads: Sequence[Load], rounds: int, seconds: float, only: str = "") -> str:
    """The loads that will be run, and about how long they take."""
    lines = []
    for group in groups(loads, only):
        lines.append(f"{group.name}:")
        for load in group.loads:
            sides = ", ".join(side for side in load.sides if wanted(side, only))
            minutes = load_s(load, rounds, seconds, only) / 60
            lines.append(
                f"  {load.name:16} {load.title}: {rounds_of(load, rounds)} rounds of {sides}"
                f" (~{minutes:.1f} min)"
            )
    whole = estimate_s(loads, rounds, seconds, only) / 60
    lines.append(f"about {whole:.0f} minutes in all, with {seconds:g} s for each turn")
    return "\n".join(lines)
