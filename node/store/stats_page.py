"""Stats pages: what each process slot has counted, over all its restarts.

One mapped file a slot, `keelog/run/stats/<role>-<index>`: 8-byte numbers in the machine's order, a
header of two (magic with the layout's version; CRC of what is counted), then those of
`stats_series.SERIES`. Its one writer counts in memory and stores what has changed now and then, so
a kill loses the last moment; each store is one aligned number, never torn. Whoever opens a page
that is not of this layout, or not plausible, takes it as missing; the slot's owner replaces it.

A histogram is BUCKETS numbers: bucket n, up to the last, counts values below 2**n and not below
2**(n - 1); the last number is the sum of all values.
"""

import logging
import mmap
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from node.store.state_page import run_dir
from node.store.stats_series import SERIES, Family, Kind, Series, series

log = logging.getLogger("keelog.stats")

STATS_DIR = "stats"
STATS_MAGIC = 0x4B45454C4F475301
"""KEELOGS, layout 1."""
BUCKETS = 64
SUM = BUCKETS - 1
"""Where in a histogram the sum stands. No value reaches 2**62."""
_HEADER = 2
_PAGE_BYTES = 4096
_PLAUSIBLE_BELOW = 1 << 63
_SLOT = re.compile(r"([a-z]{1,16})-(\d{1,9})")


def stats_dir(root: Path) -> Path:
    """Where the pages are."""
    return run_dir(root) / STATS_DIR


def _width(one: Series) -> int:
    return BUCKETS if one.family.kind in (Kind.SECONDS, Kind.SIZES) else 1


@cache
def _places(role: str) -> Mapping[Series, int]:
    """Where the numbers of each series begin, behind the header."""
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


def _file_bytes(role: str) -> int:
    size = (_HEADER + _number_count(role)) * 8
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


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
    """A slot's page in the hands of its one writer. What cannot be kept is counted all the same."""

    def __init__(self, root: Path, role: str, index: int) -> None:
        """Goes on from what the slot counted before; gauges begin at 0."""
        self.counts = Counts(role)
        self._map: mmap.mmap | None = None
        self._numbers: memoryview | None = None
        path = stats_dir(root) / f"{role}-{index}"
        try:
            self._open(path)
        except OSError as error:
            # A full disk, or one that has become read-only, must not end what still serves.
            log.warning("counts are not kept: %s: %s", path, error.strerror or error)

    def _open(self, path: Path) -> None:
        role = self.counts.role
        kept = _read(path, role)
        if kept is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(path, role)
        else:
            self.counts.numbers[:] = kept
            for one, place in _places(role).items():
                if one.family.kind is Kind.GAUGE:
                    self.counts.numbers[place] = 0
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, _file_bytes(role), access=mmap.ACCESS_WRITE)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._map).cast("Q")
        self._stored = self._numbers[_HEADER : _HEADER + len(self.counts.numbers)].tolist()
        self.publish()

    def publish(self) -> None:
        """Shows what has been counted since the last time."""
        if self._numbers is None:
            return
        numbers, stored = self._numbers, self._stored
        if stored == self.counts.numbers:
            return
        for place, value in enumerate(self.counts.numbers):
            if value != stored[place]:
                numbers[_HEADER + place] = stored[place] = value

    def close(self) -> None:
        """Shows the last counts and gives the mapping back; the file stays."""
        self.publish()
        if self._numbers is not None and self._map is not None:
            self._numbers.release()
            self._map.close()
            self._numbers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _replace(path: Path, role: str) -> None:
    """An empty page, in place of whatever is there. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        # With a block behind every byte: a store into a hole of a full disk ends the process.
        os.posix_fallocate(descriptor, 0, _file_bytes(role))
        head = memoryview(bytearray(_HEADER * 8)).cast("Q")
        head[0], head[1] = STATS_MAGIC, _layout(role)
        os.pwrite(descriptor, head, 0)
    finally:
        os.close(descriptor)
    temporary.replace(path)


def _read(path: Path, role: str) -> Sequence[int] | None:
    """The numbers of a page; None where there is none of this layout, or it cannot be."""
    size = _file_bytes(role)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_size != size:
            return None
        # Mapped, as a read may tear a number that is being stored.
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as mapped:
            numbers = memoryview(mapped).cast("Q").tolist()
    finally:
        os.close(descriptor)
    if numbers[:_HEADER] != [STATS_MAGIC, _layout(role)]:
        return None
    found = numbers[_HEADER : _HEADER + _number_count(role)]
    return found if max(found) < _PLAUSIBLE_BELOW else None


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
        """What came after an earlier look."""
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
    """What a slot has counted: counters and gauges in `values`, durations in ns in `histograms`."""

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
