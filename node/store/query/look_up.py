"""Look-ups: messages by key and store time, a queue offset by store time.

`find` yields messages newest first; each record's text confirms it. `offset_by_time` finds an
offset as RocketMQ does (ConsumeQueue#getOffsetInQueueByTime).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from node.runtime.process import met_damage
from node.store.file_cache import FileVanished
from node.store.indexes import END_OF_TIME, Candidate
from node.store.log.reader import LogReader
from node.store.opening import Store
from node.store.query.pull import store_time
from node.store.queues import FilePart, QueueReader
from protocol.derived.file_layouts import TAGS_KEY_PREFIX
from protocol.errors import BadRequest, MessageDamaged, NotFound, StoreDamaged, UnknownTopic
from protocol.record.codec import Record
from protocol.record.java_hash import java_text
from protocol.record.properties import KEYS, TAGS, UNIQUE_KEY, decode_raw_properties, split_keys

BYTES_MAX = 1 << 30
CANDIDATES_MAX = 10_000
"""The entries that one page looks at; a page with few records may still have a cursor."""
DAMAGED_MAX = 64
"""The damaged records that one page passes over."""
NEIGHBOURS_MAX = 64
"""Messages on each side of a damaged one that are looked at for its time."""

_UNIQUE_KEY, _KEYS, _TAGS = UNIQUE_KEY.encode(), KEYS.encode(), TAGS.encode()


@dataclass(frozen=True, slots=True)
class FindRequest:
    """A look-up by key. `begin` and `end` are store times in ms, inclusive and exact.

    `unique`: only records whose UNIQ_KEY is the key. `cursor`: that of the page before. The page
    ends with the record that brings it to `bytes_max`. `skip_damaged`: a record that cannot be
    read, which may have the key, costs the page that record.
    """

    topic: str
    key: str
    begin: int = 0
    end: int = END_OF_TIME
    limit: int = 64
    cursor: str | None = None
    unique: bool = False
    bytes_max: int = BYTES_MAX
    skip_damaged: bool = False


@dataclass(frozen=True, slots=True)
class FindPage:
    """Records, newest first, and the cursor of the next page; None after the last one.

    `damaged`: the errors of those that were passed over.
    """

    records: list[Record]
    cursor: str | None
    damaged: Sequence[StoreDamaged] = ()


def find(store: Store, request: FindRequest) -> FindPage:
    """Finds one page. Raises UnknownTopic, BadRequest for a malformed cursor, StoreDamaged."""
    after, last_offset = _parse_cursor(request.cursor)
    records: list[Record] = []
    damaged: list[StoreDamaged] = []
    size = 0
    candidates = store.index.candidates(
        request.topic, request.key, request.begin, request.end, after
    )
    for seen, candidate in enumerate(candidates):
        is_full = len(records) >= request.limit or size >= request.bytes_max
        is_full |= len(damaged) >= DAMAGED_MAX
        if is_full or seen >= CANDIDATES_MAX:
            assert after is not None
            return FindPage(records, _cursor(after), damaged)
        after = candidate
        # After a crash RocketMQ enters the last record of a file again in the next one.
        if candidate.physical_offset == last_offset:
            continue
        last_offset = candidate.physical_offset
        try:
            record = _confirmed(store, candidate.physical_offset, request)
        except FileVanished:
            raise
        except StoreDamaged as error:
            if not request.skip_damaged:
                raise
            met_damage.note(error)
            damaged.append(error)
            continue
        if record is not None:
            records.append(record)
            size += record.size
    if (
        not records
        and not damaged
        and request.cursor is None
        and not store.has_topic(request.topic)
    ):
        raise UnknownTopic(
            f"there is no topic {request.topic[:80]!a}", "see the topics with: keelog topic ls"
        )
    return FindPage(records, None, damaged)


def _confirmed(store: Store, offset: int, request: FindRequest) -> Record | None:
    try:
        record = store.look_up(offset)
    except NotFound:
        return None  # deleted by retention, removed, or not readable yet
    if not request.begin <= record.head.store_timestamp <= request.end:
        return None
    return record if record.topic == request.topic and _has_key(record, request) else None


def _has_key(record: Record, request: FindRequest) -> bool:
    # As `record.unique_key`, `.keys` and `.tags`, without decoding the other properties.
    pairs = decode_raw_properties(record.properties_raw)
    if java_text(pairs.get(_UNIQUE_KEY, b"")) == request.key:
        return True
    if request.unique:
        return False
    if request.key in split_keys(java_text(pairs.get(_KEYS, b""))):
        return True
    tags = java_text(pairs.get(_TAGS, b""))
    return bool(tags) and request.key == TAGS_KEY_PREFIX + tags


def _cursor(candidate: Candidate) -> str:
    return f"{candidate.file}:{candidate.entry}:{candidate.physical_offset}"


def _parse_cursor(cursor: str | None) -> tuple[Candidate | None, int]:
    if cursor is None:
        return None, -1
    file, _, rest = cursor.partition(":")
    entry, _, offset = rest.partition(":")
    if not (file.isdigit() and entry.isdigit() and offset.isdigit() and cursor.isascii()):
        raise BadRequest(f"{cursor[:80]!a} is no cursor", "use the cursor of the page before")
    return Candidate(file, int(entry), int(offset)), int(offset)


class Boundary(Enum):
    """Which message counts if no message has exactly the time, or several do."""

    LOWER = "lower"
    """The first at or after the time."""
    UPPER = "upper"
    """The last at or before the time."""


def offset_by_time(
    log: LogReader, queue: QueueReader | None, timestamp: int, boundary: Boundary = Boundary.LOWER
) -> int:
    """The queue offset, within [`min_offset`, `max_offset`]; 0 for a queue that does not exist.

    As in RocketMQ, the search does not follow equal times from one queue file into another.
    The time of a damaged message lies between those of its neighbours. Where that does not decide,
    it counts so that the result is never after a message that it should be at.
    """
    if queue is None:
        return 0
    search = _TimeSearch(log, queue, timestamp, boundary)
    part = search.choose_file()
    found = 0 if part is None else search.in_file(part)
    return min(max(found, queue.min_offset), queue.max_offset)


class _TimeSearch:
    def __init__(
        self, log: LogReader, queue: QueueReader, timestamp: int, boundary: Boundary
    ) -> None:
        self._log = log
        self._queue = queue
        self._timestamp = timestamp
        self._is_lower = boundary is Boundary.LOWER

    def _time(self, number: int) -> int:
        """The store time of a message, or one that compares in the same way; -1 without one."""
        unit = self._queue.unit(number)
        if unit is None:
            return -1
        try:
            return store_time(self._log, self._queue, number, unit)
        except MessageDamaged as damage:
            met_damage.note(damage)
            return self._time_of_damaged(number)

    def _time_of_damaged(self, number: int) -> int:
        wanted, is_lower = self._timestamp, self._is_lower
        low, high = self._queue.min_offset, self._queue.max_offset
        after = self._first_time(range(number + 1, min(number + 1 + NEIGHBOURS_MAX, high)))
        if after is not None and (after < wanted or (after == wanted and not is_lower)):
            return after
        before = self._first_time(range(number - 1, max(number - 1 - NEIGHBOURS_MAX, low - 1), -1))
        if before is not None and (before > wanted or (before == wanted and is_lower)):
            return before
        return wanted if is_lower else wanted + 1

    def _first_time(self, numbers: range) -> int | None:
        """That of the first message that can be read."""
        for number in numbers:
            unit = self._queue.unit(number)
            with suppress(MessageDamaged):
                if (
                    unit is not None
                    and (found := store_time(self._log, self._queue, number, unit)) >= 0
                ):
                    return found
        return None

    def choose_file(self) -> FilePart | None:
        """The file to search. An unknown time counts as -1; the last file's end is not read."""
        parts, timestamp = self._queue.file_parts(), self._timestamp
        if self._is_lower:
            for part in parts[:-1]:
                if self._known(part.end - 1) >= timestamp:
                    return part
            return parts[-1] if parts else None
        for part in reversed(parts):
            if self._known(part.first) <= timestamp:
                return part
        return None

    def _known(self, number: int) -> int:
        time = self._time(number)
        return time if time > 0 else -1

    def in_file(self, part: FilePart) -> int:
        """The broker's search in one file's units (binarySearchInQueueByTime)."""
        timestamp, is_lower = self._timestamp, self._is_lower
        floor, ceiling = max(part.first, self._queue.min_offset), part.end - 1
        if self._time(ceiling) < timestamp:
            return ceiling + 1 if is_lower else ceiling
        if self._time(floor) > timestamp:
            return part.first if is_lower else 0
        left = right = max(part.first - 1, 0)
        low, high = floor, ceiling
        while high >= low:
            # The broker halves positions within the file, so the middle counts from there.
            middle = part.first + (low - part.first + high - part.first) // 2
            unit = self._queue.unit(middle)
            if unit is None or 0 <= unit.physical_offset < self._log.min_offset:
                low, left = middle + 1, middle
                continue
            time = self._time(middle)
            if time < 0:
                return 0
            if time == timestamp:
                return self._outermost(middle, floor if is_lower else ceiling, timestamp)
            if time > timestamp:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        return right if is_lower else left

    def _outermost(self, number: int, bound: int, timestamp: int) -> int:
        """The last unit of equal time towards `bound`."""
        step = 1 if bound > number else -1
        while number != bound and self._time(number + step) == timestamp:
            number += step
        return number
