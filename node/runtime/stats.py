"""What the processes of a node have counted, in mapped files that outlive them.

One process writes a file, `keelog/run/stats/…`, and it is kept over restarts. A file is 8-byte
numbers in the machine's order, after a header of two: magic with the version of this layout, and a
CRC of what the numbers mean. Each store is one aligned number, never torn. A reader takes
any other layout as missing, and its owner replaces it.

A stats page, `<role>-<index>`, has the numbers of `stats_series.SERIES` of one process slot. Its
one writer counts in memory and stores what has changed now and then: a kill loses the last moment.
A histogram is BUCKETS numbers: bucket n, up to the last, counts values below 2**n and not below
2**(n - 1); the last number is the sum of all values.

Counts by topic are in `<role>-<index>.topics`. The first TOPICS_MAX topics have an entry each, all
later ones share the first of the file. An entry is a name (length byte and UTF-8, 256 bytes),
messages and bytes; the number of names comes first, and is stored after a new name.
"""

import logging
import mmap
import os
import re
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.state_page import run_dir
from node.runtime.stats_series import SERIES, Family, Series, SeriesKind, series
from node.runtime.store_paths import IrregularFile, held_open, open_regular

log = logging.getLogger("keelog.stats")

STATS_DIR = "stats"
STATS_MAGIC = 0x4B45454C4F475301
"""KEELOGS, layout 1."""
PLAUSIBLE_BELOW = 1 << 63
"""No count reaches this."""
_HEADER = 2
_PAGE_BYTES = 4096
Kept = TypeVar("Kept")

BUCKETS = 64
SUM = BUCKETS - 1
"""The place of the sum in a histogram. No value reaches 2**62."""
_PAGE_SLOT = re.compile(r"([a-z]{1,16})-(\d{1,9})")

TOPICS_MAX = 500
"""Topics with counts of their own, in each file and in a scrape: each is a label's value."""
OTHER_TOPICS = "_other"
_TOPIC_NAME = 256 // 8
_TOPIC_NAME_BYTES_MAX = 255
_TOPIC_ENTRY = _TOPIC_NAME + 2
_TOPICS_FIRST = 1
_TOPICS_NUMBERS = _TOPICS_FIRST + (TOPICS_MAX + 1) * _TOPIC_ENTRY
_TOPICS_LAYOUT = zlib.crc32(b"topics: name, messages, bytes")
_TOPICS_SLOT = re.compile(r"([a-z]{1,16})-\d{1,9}\.topics")


class Counts:
    """The numbers of one process, in memory. Add to `numbers` at a series' place."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.numbers = [0] * _layout(role).numbers

    def place(self, family: Family, **labels: str) -> int:
        """Where a series begins in `numbers`."""
        return _layout(self.role).places[series(family, **labels)]

    def observe(self, place: int, value: int, times: int = 1) -> None:
        """Enters a value, ns for durations, into the histogram at `place`."""
        self.numbers[place + value.bit_length()] += times
        self.numbers[place + SUM] += value * times


class StatsPage:
    """A slot's page, for its one writer. Without a file it counts all the same, in memory."""

    def __init__(self, root: Path, role: str, index: int) -> None:
        """Goes on from what the slot counted before; gauges begin at 0."""
        self.counts = Counts(role)
        path, read = stats_dir(root) / f"{role}-{index}", partial(_read_page, role=role)
        places, count, crc = _layout(role)
        self._file, _ = _open_or_warn(path, crc, count, read, "counts are not kept")
        if self._file is None:
            return
        self._stored = self._file.numbers.tolist()
        self.counts.numbers[:] = self._stored
        for one, place in places.items():
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


class TopicCounts:
    """The counts of one process, in memory until `publish`. Without a file it counts as well."""

    def __init__(self, root: Path, role: str, index: int) -> None:
        """Goes on from what the slot counted before."""
        path, what = stats_dir(root) / f"{role}-{index}.topics", "counts by topic are not kept"
        self._file, kept = _open_or_warn(path, _TOPICS_LAYOUT, _TOPICS_NUMBERS, _read_topics, what)
        if kept is None:
            kept = {}
        self._other = list(kept.pop(OTHER_TOPICS, (0, 0)))
        self._named = {topic: list(count) for topic, count in kept.items()}
        self._shown = [self._other.copy(), *(count.copy() for count in self._named.values())]

    def add(self, topic: str, messages: int, size: int = 0) -> None:
        count = self._named.get(topic)
        if count is None:
            count = self._other
            if self._takes(topic):
                count = self._named[topic] = [0, 0]
        count[0] += messages
        count[1] += size

    def _takes(self, topic: str) -> bool:
        """Whether a new topic gets an entry."""
        fits = len(self._named) < TOPICS_MAX and len(topic.encode()) <= _TOPIC_NAME_BYTES_MAX
        return fits and topic != OTHER_TOPICS

    def publish(self) -> None:
        """Shows the counts since the last time."""
        if self._file is None:
            return
        numbers, shown = self._file.numbers, self._shown
        for topic in list(self._named)[len(shown) - 1 :]:
            at = _TOPICS_FIRST + len(shown) * _TOPIC_ENTRY
            numbers[at : at + _TOPIC_NAME] = _packed(topic)
            shown.append([0, 0])
            numbers[0] = len(shown) - 1
        for place, count in enumerate((self._other, *self._named.values())):
            if count != shown[place]:
                at = _TOPICS_FIRST + place * _TOPIC_ENTRY + _TOPIC_NAME
                numbers[at], numbers[at + 1] = count
                shown[place] = count.copy()

    def close(self) -> None:
        self.publish()
        if self._file is not None:
            self._file.close()
            self._file = None


class Histogram(NamedTuple):
    """How many values fell into each bucket, and their sum."""

    buckets: tuple[int, ...]
    """Number n counts values below 2**n that number n - 1 does not count."""
    value_sum: int

    @property
    def total(self) -> int:
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
    found = []
    for path, match in _files(root, _PAGE_SLOT):
        numbers = _read_page(path, match[1]) if match[1] in SERIES else None
        if numbers is not None:
            found.append(_slot_stats(match[1], int(match[2]), numbers))
    return sorted(found, key=lambda one: (one.role, one.index))


def _files(root: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    try:
        paths = sorted(stats_dir(root).iterdir())
    except OSError:
        return []
    return [(path, match) for path in paths if (match := pattern.fullmatch(path.name))]


def _slot_stats(role: str, index: int, numbers: Sequence[int]) -> SlotStats:
    values, histograms = {}, {}
    for one, place in _layout(role).places.items():
        if _width(one) == 1:
            values[one] = numbers[place]
        else:
            buckets = tuple(numbers[place : place + SUM])
            histograms[one] = Histogram(buckets, numbers[place + SUM])
    return SlotStats(role, index, values, histograms)


class Count(NamedTuple):
    messages: int
    bytes: int


def read_topics(root: Path, role: str) -> Mapping[str, Count]:
    """By topic, all slots of a role together."""
    sums: dict[str, Count] = {}
    for path, match in _files(root, _TOPICS_SLOT):
        for topic, count in (_read_topics(path) or {}).items() if match[1] == role else ():
            before = sums.get(topic, Count(0, 0))
            sums[topic] = Count(before.messages + count.messages, before.bytes + count.bytes)
    return sums


class StatsFile:
    """A file in the hands of its one writer."""

    def __init__(self, path: Path, count: int) -> None:
        """Opens one that has `count` numbers. Raises OSError."""
        with held_open(open_regular(path, os.O_RDWR)) as descriptor:
            # A copied store may have holes here, too.
            _write_file(descriptor, os.pread(descriptor, _file_bytes(count), 0))
            self._map = mmap.mmap(descriptor, _file_bytes(count), access=mmap.ACCESS_WRITE)
        self._all = memoryview(self._map).cast("Q")
        self.numbers = self._all[_HEADER : _HEADER + count]

    def close(self) -> None:
        """Gives the mapping back; the file stays."""
        self.numbers.release()
        self._all.release()
        self._map.close()


def _open_or_warn(
    path: Path, layout: int, count: int, read: Callable[[Path], Kept | None], warning: str
) -> tuple[StatsFile | None, Kept | None]:
    """The file, and what it holds; an empty one where that makes no sense. None where there can be
    no file: a full disk, or one that has become read-only, must not end a process that can serve.
    """
    try:
        kept = read(path)
        if kept is None:
            _replace_file(path, layout, count)
        return StatsFile(path, count), kept
    except OSError as error:
        log.warning(warning, extra=fields(file=path, why=error.strerror or error))
        return None, None


def stats_dir(root: Path) -> Path:
    return run_dir(root) / STATS_DIR


def _file_bytes(count: int) -> int:
    return -(-(_HEADER + count) * 8 // _PAGE_BYTES) * _PAGE_BYTES


def _replace_file(path: Path, layout: int, count: int) -> None:
    """An empty file, in place of whatever is there. Raises OSError."""
    disk.make_dir(path.parent)
    temporary = path.with_name(path.name + ".new")
    with held_open(open_regular(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)) as descriptor:
        # With a block after every byte: a store into a hole of a full disk ends the process.
        data = bytearray(_file_bytes(count))
        head = memoryview(data).cast("Q")
        head[0], head[1] = STATS_MAGIC, layout
        _write_file(descriptor, data)
    temporary.replace(path)


def _write_file(descriptor: int, data: bytes | bytearray) -> None:
    """The whole file. Raises OSError. Beside the seam to the disk: counts need not be durable."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], written)


def read_numbers(path: Path, layout: int, count: int) -> list[int] | None:
    """The present numbers; None if there is no file of this layout."""
    size = _file_bytes(count)
    try:
        descriptor = open_regular(path)
    except (OSError, IrregularFile):
        return None
    with held_open(descriptor):
        if os.fstat(descriptor).st_size != size:
            return None
        # Mapped, as a read may tear a number that is being stored.
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as mapped:
            numbers = memoryview(mapped).cast("Q").tolist()
    if numbers[:_HEADER] != [STATS_MAGIC, layout]:
        return None
    return numbers[_HEADER : _HEADER + count]


def _width(one: Series) -> int:
    return BUCKETS if one.family.kind in (SeriesKind.SECONDS, SeriesKind.SIZES) else 1


class _PageLayout(NamedTuple):
    places: Mapping[Series, int]
    """Where the numbers of each series begin, after the header."""
    numbers: int
    """How many there are."""
    crc: int
    """Of what is counted, and in which order."""


@cache
def _layout(role: str) -> _PageLayout:
    places, end = {}, 0
    for one in SERIES[role]:
        places[one] = end
        end += _width(one)
    names = [f"{one.family.name} {one.family.kind.value} {one.labels}" for one in SERIES[role]]
    crc = zlib.crc32("\n".join((role, str(BUCKETS), *names)).encode())
    return _PageLayout(places, end, crc)


def _read_page(path: Path, role: str) -> Sequence[int] | None:
    """The numbers of a page; None where there is none of this layout, or it cannot be."""
    layout = _layout(role)
    found = read_numbers(path, layout.crc, layout.numbers)
    return found if found is not None and max(found) < PLAUSIBLE_BELOW else None


def _packed(topic: str) -> memoryview:
    raw = topic.encode()
    return memoryview(bytes((len(raw),)) + raw.ljust(_TOPIC_NAME_BYTES_MAX, b"\0")).cast("Q")


def _read_topics(path: Path) -> dict[str, Count] | None:
    """Counts by topic, in the order of the file, with those of all others; None: another file."""
    numbers = read_numbers(path, _TOPICS_LAYOUT, _TOPICS_NUMBERS)
    if numbers is None or numbers[0] > TOPICS_MAX:
        return None
    found = {}
    for place in range(numbers[0] + 1):
        at = _TOPICS_FIRST + place * _TOPIC_ENTRY
        raw = array("Q", numbers[at : at + _TOPIC_NAME]).tobytes()
        count = Count(*numbers[at + _TOPIC_NAME : at + _TOPIC_ENTRY])
        try:
            topic = raw[1 : 1 + raw[0]].decode() if place else OTHER_TOPICS
        except UnicodeDecodeError:
            return None
        if topic in found or not topic or max(count) >= PLAUSIBLE_BELOW:
            return None
        found[topic] = count
    return found
