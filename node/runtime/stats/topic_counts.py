"""Counts by topic of a process slot, over its restarts: `keelog/run/stats/<role>-<index>.topics`.

The first TOPICS_MAX topics have an entry each, all later ones share the first of the file. An entry
is a name (length byte and UTF-8, 256 bytes), messages and bytes; the number of names comes first,
and is stored after a new name.
"""

import logging
import re
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from node.runtime.event_log import fields
from node.runtime.stats.file import PLAUSIBLE_BELOW, StatsFile, read_numbers, replace, stats_dir

log = logging.getLogger("keelog.stats")

TOPICS_MAX = 500
"""Topics with counts of their own, in each file and in a scrape: each is a label's value."""
OTHER_TOPICS = "_other"
_NAME = 256 // 8
_NAME_BYTES_MAX = 255
_ENTRY = _NAME + 2
_FIRST = 1
_NUMBERS = _FIRST + (TOPICS_MAX + 1) * _ENTRY
_LAYOUT = zlib.crc32(b"topics: name, messages, bytes")
_SLOT = re.compile(r"([a-z]{1,16})-\d{1,9}\.topics")


class Count(NamedTuple):
    """Of a topic."""

    messages: int
    bytes: int


class TopicCounts:
    """The counts of one process, in memory until `publish`. Without a file it counts as well."""

    def __init__(self, root: Path, role: str, index: int) -> None:
        """Goes on from what the slot counted before."""
        self._other = [0, 0]
        self._named: dict[str, list[int]] = {}
        self._shown: list[list[int]] = []
        self._file: StatsFile | None = None
        path = stats_dir(root) / f"{role}-{index}.topics"
        try:
            kept = _read(path)
            if kept is None:
                replace(path, _LAYOUT, _NUMBERS)
                kept = {}
            self._file = StatsFile(path, _LAYOUT, _NUMBERS)
        except OSError as error:
            told = fields(file=path, why=error.strerror or error)
            log.warning("counts by topic are not kept", extra=told)
            return
        self._other = list(kept.pop(OTHER_TOPICS, (0, 0)))
        self._named = {topic: list(count) for topic, count in kept.items()}
        self._shown = [self._other.copy(), *(count.copy() for count in self._named.values())]

    def add(self, topic: str, messages: int, size: int = 0) -> None:
        """Adds messages and their bytes."""
        count = self._named.get(topic)
        if count is None:
            count = self._other
            if self._takes(topic):
                count = self._named[topic] = [0, 0]
        count[0] += messages
        count[1] += size

    def _takes(self, topic: str) -> bool:
        """Whether a new topic gets an entry."""
        fits = len(self._named) < TOPICS_MAX and len(topic.encode()) <= _NAME_BYTES_MAX
        return fits and topic != OTHER_TOPICS

    def publish(self) -> None:
        """Shows the counts since the last time."""
        if self._file is None:
            return
        numbers, shown = self._file.numbers, self._shown
        for topic in list(self._named)[len(shown) - 1 :]:
            at = _FIRST + len(shown) * _ENTRY
            numbers[at : at + _NAME] = _packed(topic)
            shown.append([0, 0])
            numbers[0] = len(shown) - 1
        for place, count in enumerate((self._other, *self._named.values())):
            if count != shown[place]:
                at = _FIRST + place * _ENTRY + _NAME
                numbers[at], numbers[at + 1] = count
                shown[place] = count.copy()

    def close(self) -> None:
        """Shows the last counts; the file stays."""
        self.publish()
        if self._file is not None:
            self._file.close()
            self._file = None


def _packed(topic: str) -> memoryview:
    raw = topic.encode()
    return memoryview(bytes((len(raw),)) + raw.ljust(_NAME_BYTES_MAX, b"\0")).cast("Q")


def _read(path: Path) -> dict[str, Count] | None:
    """Counts by topic, in the order of the file, with those of all others; None: another file."""
    numbers = read_numbers(path, _LAYOUT, _NUMBERS)
    if numbers is None or numbers[0] > TOPICS_MAX:
        return None
    found = {}
    for place in range(numbers[0] + 1):
        at = _FIRST + place * _ENTRY
        raw = array("Q", numbers[at : at + _NAME]).tobytes()
        count = Count(*numbers[at + _NAME : at + _ENTRY])
        try:
            topic = raw[1 : 1 + raw[0]].decode() if place else OTHER_TOPICS
        except UnicodeDecodeError:
            return None
        if topic in found or not topic or max(count) >= PLAUSIBLE_BELOW:
            return None
        found[topic] = count
    return found


def read_topics(root: Path, role: str) -> Mapping[str, Count]:
    """By topic, all slots of a role together."""
    try:
        paths = sorted(stats_dir(root).iterdir())
    except OSError:
        return {}
    sums: dict[str, Count] = {}
    for path in paths:
        match = _SLOT.fullmatch(path.name)
        if match is not None and match[1] == role:
            for topic, count in (_read(path) or {}).items():
                before = sums.get(topic, Count(0, 0))
                sums[topic] = Count(before.messages + count.messages, before.bytes + count.bytes)
    return sums
