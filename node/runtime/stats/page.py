"""Stats pages: what each process slot has counted, over all its restarts.

One file a slot, `keelog/run/stats/<role>-<index>`, with the numbers of `stats_series.SERIES`. Its
one writer counts in memory and stores what has changed now and then: a kill loses the last moment.

A histogram is BUCKETS numbers: bucket n, up to the last, counts values below 2**n and not below
2**(n - 1); the last number is the sum of all values.
"""

import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from node.runtime.event_log import fields
from node.runtime.stats.file import PLAUSIBLE_BELOW, StatsFile, read_numbers, replace, stats_dir
from node.runtime.stats.series import SERIES, Family, Series, SeriesKind, series

log = logging.getLogger("keelog.stats")

BUCKETS = 64
SUM = BUCKETS - 1
"""The place of the sum in a histogram. No value reaches 2**62."""
_SLOT = re.compile(r"([a-z]{1,16})-(\d{1,9})")


def _width(one: Series) -> int:
    return BUCKETS if one.family.kind in (SeriesKind.SECONDS, SeriesKind.SIZES) else 1


@cache
def _places(role: str) -> Mapping[Series, int]:
    """Where the numbers of each series begin, after the header."""
    places, end = {}, 0
    for one in SERIES[role]:
        places[one] = end
        end += _width(one)
    return places


@cache
def _number_count(role: str) -> int:
    return sum(_width(one) for one in SERIES[role])


@cache
def _layout(role: str) -> int:
    """Says what is counted, and in which order."""
    names = [f"{one.family.name} {one.family.kind.value} {one.labels}" for one in SERIES[role]]
    return zlib.crc32("\n".join((role, str(BUCKETS), *names)).encode())


class Counts:
    """The numbers of one process, in memory. Add to `numbers` at a series' place."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.numbers = [0] * _number_count(role)

    def place(self, family: Family, **labels: str) -> int:
        """Where a series begins in `numbers`."""
        return _places(self.role)[series(family, **labels)]

    def observe(self, place: int, value: int, times: int = 1) -> None:
        """Enters a value, ns for durations, into the histogram at `place`."""
        self.numbers[place + value.bit_length()] += times
        self.numbers[place + SUM] += value * times


class StatsPage:
    """A slot's page, for its one writer. Without a file it counts all the same, in memory."""

    def __init__(self, root: Path, role: str, index: int) -> None:
        """Goes on from what the slot counted before; gauges begin at 0."""
        self.counts = Counts(role)
        self._file: StatsFile | None = None
        path = stats_dir(root) / f"{role}-{index}"
        try:
            self._open(path)
        except OSError as error:
            # A full disk, or one that has become read-only, must not end a process that can serve.
            told = fields(file=path, why=error.strerror or error)
            log.warning("counts are not kept", extra=told)

    def _open(self, path: Path) -> None:
        role = self.counts.role
        if _read(path, role) is None:
            replace(path, _layout(role), _number_count(role))
        self._file = StatsFile(path, _layout(role), _number_count(role))
        self._stored = self._file.numbers.tolist()
        self.counts.numbers[:] = self._stored
        for one, place in _places(role).items():
            if one.family.kind is SeriesKind.GAUGE:
                self.counts.numbers[place] = 0
        self.publish()

    def publish(self) -> None:
        """Shows what has been counted since the last time."""
        if self._file is None or self._stored == self.counts.numbers:
            return
        numbers, stored = self._file.numbers, self._stored
        for place, value in enumerate(self.counts.numbers):
            if value != stored[place]:
                numbers[place] = stored[place] = value

    def close(self) -> None:
        """Shows the last counts and gives the mapping back; the file stays."""
        self.publish()
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(path: Path, role: str) -> Sequence[int] | None:
    """The numbers of a page; None where there is none of this layout, or it cannot be."""
    found = read_numbers(path, _layout(role), _number_count(role))
    return found if found is not None and max(found) < PLAUSIBLE_BELOW else None


class Histogram(NamedTuple):
    """How many values fell into each bucket, and their sum."""

    buckets: tuple[int, ...]
    """Number n counts values below 2**n that number n - 1 does not count."""
    value_sum: int

    @property
    def total(self) -> int:
        """How many values there are."""
        return sum(self.buckets)

    def since(self, earlier: "Histogram") -> "Histogram":
        """The values that came after an earlier look."""
        pairs = zip(self.buckets, earlier.buckets, strict=True)
        return Histogram(
            tuple(now - before for now, before in pairs), self.value_sum - earlier.value_sum
        )

    def plus(self, other: "Histogram") -> "Histogram":
        """Both together: two slots of a role."""
        pairs = zip(self.buckets, other.buckets, strict=True)
        return Histogram(tuple(one + two for one, two in pairs), self.value_sum + other.value_sum)

    def quantile(self, part: float) -> float | None:
        """Below it lies `part` of the values: exact to its bucket, spread evenly within."""
        wanted, below = part * self.total, 0
        for number, count in enumerate(self.buckets):
            if count and below + count >= wanted:
                low = 1 << number >> 1
                return low + ((1 << number) - low) * (wanted - below) / count
            below += count
        return None


@dataclass(frozen=True, slots=True)
class SlotStats:
    """The counts of a slot: counters and gauges in `values`, durations in ns in `histograms`."""

    role: str
    index: int
    values: Mapping[Series, int]
    histograms: Mapping[Series, Histogram]


def read_stats(root: Path) -> list[SlotStats]:
    """All pages of a node, those of slots that run no more included; by role and index."""
    try:
        paths = list(stats_dir(root).iterdir())
    except OSError:
        return []
    found = []
    for path in paths:
        match = _SLOT.fullmatch(path.name)
        if match is not None and match[1] in SERIES:
            numbers = _read(path, match[1])
            if numbers is not None:
                found.append(_slot_stats(match[1], int(match[2]), numbers))
    return sorted(found, key=lambda one: (one.role, one.index))


def _slot_stats(role: str, index: int, numbers: Sequence[int]) -> SlotStats:
    values, histograms = {}, {}
    for one, place in _places(role).items():
        if _width(one) == 1:
            values[one] = numbers[place]
        else:
            buckets = tuple(numbers[place : place + SUM])
            histograms[one] = Histogram(buckets, numbers[place + SUM])
    return SlotStats(role, index, values, histograms)
