"""A group of requests becomes bytes in the log: check, place, seal, one write.

An `AppendRequest` has records of one client, its claims about them, and where they were stored. One
bad record refuses its request, before any offset is given.

`Placement` alone says where the next records go: their log offset, their store time, their offset
in each queue. Every way of making a record's bytes takes its places from it, so that no two ways
can disagree about the next one.

Which way makes the bytes depends on the requests and on the kernel, which not every installation
has; all of them write the same bytes. `Runs` does the common request in one pass of the compiled
kernel. A `CheckedBatch` does any request in two steps: its records are checked, then sealed with
the places that they got. There are three of these: compiled, as numpy columns, and record by
record, which is the tests' oracle.
"""

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from node.store.checkpoints import Tails
from node.store.config.topics_file import Topic
from node.writer.log.commit_log import CommitLog
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, MessageTooLarge, MqError
from protocol.ids import Queue, queue_of
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.names import QUEUE_ID_MAX, check_topic_for_send
from protocol.record.codec import BORN_HOST_V6, SHORT_HEAD
from protocol.record.columns import Ints, RecordColumns
from protocol.record.encode import ANY_QUEUE, NewMessage, pack_record
from protocol.record.kernel_append import (
    ANY_QUEUE_FLAG,
    CHECKED_FLAG,
    AppendGroup,
    Put,
    PutKernel,
    SealedRuns,
)
from protocol.record.patch import (
    PLAIN_RECORDS_MAX,
    AppendRules,
    PlainRow,
    StoreStamp,
    check_columns,
    check_plain,
    patch_columns,
    patch_plain,
)
from protocol.record.properties import EMPTY_CRC_PROPERTY

FEW_QUEUES_MAX = 4
"""Where a group has records of more queues, most likely every queue worker has some."""

Places = list[tuple[int, int]]
"""Of each part, in order: the queue's id, and the offset of the first record there."""

_QUEUE_ID_AT, _BODY_LENGTH_AT = (SHORT_HEAD.offsets[name] for name in ("queue_id", "body_length"))
_BODY_AT = SHORT_HEAD.size


class RepeatedMessage(NamedTuple):
    """Where the first message with the unique key of a repeated one is stored."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int


@dataclass(slots=True)
class AppendRequest:
    """Records of one client, back to back, and the outcome of their append.

    `count`, `sizes` (u32 little-endian each, or empty) and `crc` (of all records; None: not
    checked) are the client's claims, which the appender checks. `any_queue` lets the node choose
    one queue for all. `Appender.append` sets either `error` or the fields after it.
    """

    records: bytes | memoryview
    count: int
    sizes: bytes = b""
    any_queue: bool = False
    crc: int | None = None
    checked_rows: list[PlainRow] | None = None
    """Set when the node encoded the records itself, so that they need no check."""
    is_inner: bool = False
    """Whether the node's own processes sent it: they write to the system's topics, too."""
    draft: Put | None = None
    """A message that the node still has to encode: `records` is empty until then."""
    draft_bytes: int = 0
    """The size of the record that a draft becomes."""
    repeats: dict[int, RepeatedMessage] | None = None
    """Of a request that asks for each unique key to be stored once: its messages, by their place
    in it, that were stored before. None for one that does not ask."""
    error: MqError | None = None
    physical_offset: int = -1
    store_timestamp: int = 0
    queues: Sequence[tuple[str, int, int, int]] = ()
    """For each queue: topic, queue id, first queue offset, count."""

    @property
    def size(self) -> int:
        """The bytes of its records, also while they are a draft."""
        return len(self.records) if self.draft is None else self.draft_bytes

    @property
    def end(self) -> int:
        """The log offset after its last record."""
        return self.physical_offset + self.size

    def encode(self, crc: bool) -> None:
        """Encodes a draft. `crc`: the record gets room for the checksum of the whole."""
        put = self.draft
        if put is None:
            return
        message = NewMessage(
            topic=put.topic,
            body=put.body,
            queue_id=put.queue_id,
            flag=put.flag,
            sys_flag=put.sys_flag,
            born_timestamp=put.born_timestamp,
            born_host=put.born_host,
            reconsume_times=put.reconsume_times,
        )
        properties = put.properties + (EMPTY_CRC_PROPERTY if crc else b"")
        self.records = pack_record(message, properties)
        host_bits = BORN_HOST_V6 if put.born_host.is_v6 else 0
        row = PlainRow(0, len(self.records), put.topic, put.queue_id, host_bits)
        self.checked_rows, self.draft = [row], None


class QueueRows(NamedTuple):
    """Records of one request for one queue; the queue is -1 while it has to be chosen."""

    topic: str
    queue_id: int
    rows: int


class Placement:
    """Owns the next offset of every queue. Not thread-safe: the writer's one thread calls it."""

    def __init__(
        self,
        log: CommitLog,
        tails: dict[Queue, int],
        last_store_timestamp: int = 0,
        last_record_offset: int = 0,
    ) -> None:
        self.log = log
        self.tails = tails
        self.last_store_timestamp = last_store_timestamp
        self.last_record_offset = last_record_offset
        self.records = 0
        """How many this process has appended."""

    def store_time(self, now_ms: int) -> int:
        """The time that the next records get: store times never run backwards."""
        return max(self.last_store_timestamp, now_ms)

    def place(
        self, request: AppendRequest, start: int, store_time: int, queue: Queue, first: int
    ) -> None:
        """Gives a request of one queue its places: log offset `start`, queue offset `first`.

        `write` has to follow.
        """
        topic, queue_id = queue
        self.tails[queue] = first + request.count
        request.physical_offset = start
        request.store_timestamp = store_time
        request.queues = ((topic, queue_id, first, request.count),)

    def place_parts(
        self, request: AppendRequest, start: int, store_time: int, parts: Sequence[QueueRows]
    ) -> Places:
        """As `place`, for a request of any number of queues; returns the parts' places."""
        tails = self.tails
        queues: list[tuple[str, int, int, int]] = []
        places: Places = []
        for topic, queue_id, rows in parts:
            queue = queue_of(topic, queue_id)
            first = tails.get(queue, 0)
            tails[queue] = first + rows
            queues.append((topic, queue_id, first, rows))
            places.append((queue_id, first))
        request.physical_offset = start
        request.store_timestamp = store_time
        request.queues = queues
        return places

    def write(
        self, sealed: bytes | bytearray | memoryview, rows: int, last_at: int, store_time: int
    ) -> None:
        """Appends the records that were placed, of which the last begins at `last_at`.

        Raises OSError when the log cannot be written: the process must end.
        """
        start = self.log.append(sealed)
        self.last_store_timestamp = store_time
        self.last_record_offset = start + last_at
        self.records += rows

    def snapshot(self) -> Tails:
        """The queues' ends as they are now, for our file of them."""
        return Tails(
            self.log.end, dict(self.tails), self.last_record_offset, self.last_store_timestamp
        )


class SealedBatch(NamedTuple):
    """Records as the log gets them, and where the last one begins."""

    data: bytearray | memoryview
    last_at: int


class CheckedBatch(Protocol):
    """Requests whose records are good. Only their queues have to be looked at."""

    requests: list[AppendRequest]
    parts: list[list[QueueRows]]
    """Of each request, in the order of their first records."""

    def seal(self, places: Places, base: int, stamp: StoreStamp) -> SealedBatch:
        """Fills in all that the node adds to its records; `base`: log offset of the first."""


class Appender:
    """Appends requests at the places that `placement` gives. Not thread-safe, as that."""

    def __init__(
        self, placement: Placement, topics: TopicTable, rules: AppendRules, store_host: bytes
    ) -> None:
        self._placement = placement
        self._topics = topics
        self._rules = rules
        self._store_host = store_host
        self._put: PutKernel | None = None
        self._runs: Runs | None = None
        self._group: AppendGroup | None = None
        compiled = loader.active()
        if compiled is not None:
            self._put = PutKernel(compiled, rules, store_host)
            self._runs = Runs(compiled, rules, topics, placement)
            self._group = AppendGroup(compiled, rules)

    def append(self, requests: list[AppendRequest], now_ms: int) -> None:
        """Appends all that is good, in order, and fills in each request's outcome.

        Raises OSError when the log cannot be written: the process must end.
        """
        if len(requests) == 1 and self._append_draft(requests[0], now_ms):
            return
        for request in requests:
            if request.draft is not None:
                request.encode(self._rules.crc)
        stamp = StoreStamp(self._placement.store_time(now_ms), self._store_host)
        runs = self._runs
        while requests:
            done = runs.append(requests, stamp) if runs is not None else 0
            if not done:
                done = self._append_batch(requests, stamp)
            if done == len(requests):
                return
            requests = requests[done:]

    def put(self, put: Put, now_ms: int) -> tuple[int, int, int] | None:
        """Appends one message; returns its log offset, queue and queue offset.

        None where `append` has to do it: without the kernel, for a topic or head out of the common,
        or at the end of a segment. Raises OSError as `append`.
        """
        placement, topic = self._placement, put.topic
        log, tails = placement.log, placement.tails
        queue_id = self._topics.queue_for(topic, put.queue_id)
        if self._put is None or queue_id is None:
            return None
        start, queue, time = log.end, queue_of(topic, queue_id), placement.store_time(now_ms)
        offset = tails.get(queue, 0)
        record = self._put.record(put, _raw(topic), queue_id, offset, start, time)
        if record is None or len(record) > log.fitting_bytes:
            return None
        tails[queue] = offset + 1
        placement.write(record, 1, 0, time)
        return start, queue_id, offset

    def _append_draft(self, request: AppendRequest, now_ms: int) -> bool:
        put = request.draft
        placed = None if put is None else self.put(put, now_ms)
        if put is None or placed is None:
            return False
        request.physical_offset, queue_id, offset = placed
        request.store_timestamp = self._placement.last_store_timestamp
        request.queues = ((put.topic, queue_id, offset, 1),)
        return True

    def _append_batch(self, requests: list[AppendRequest], stamp: StoreStamp) -> int:
        """The first requests, as many as fit into the segment together; returns how many.

        One that does not fit goes alone, into the next segment.
        """
        log, placement, time = self._placement.log, self._placement, stamp.store_timestamp
        count, size, is_inner = 1, len(requests[0].records), requests[0].is_inner
        for request in requests[1:]:
            if request.is_inner != is_inner or not log.fits(size + len(request.records)):
                break
            size += len(request.records)
            count += 1
        if size > log.request_bytes_max:
            requests[0].error = MessageTooLarge(
                f"{size} bytes fit into no segment of {log.segment_bytes}",
                "send smaller messages or batches",
            )
            return 1
        batch = self._check(requests[:count])
        if batch is None:
            return count
        try:
            log.make_room(size)
        except MqError as error:
            requests[0].error = error
            return 1
        base = start = log.end
        places: Places = []
        rows = 0
        for request, parts in zip(batch.requests, batch.parts, strict=True):
            places += placement.place_parts(request, start, time, parts)
            start += len(request.records)
            rows += request.count
        sealed = batch.seal(places, base, stamp)
        placement.write(sealed.data, rows, sealed.last_at, time)
        return count

    def _check(self, requests: list[AppendRequest]) -> CheckedBatch | None:
        """The good ones as a batch, None where none is; the others get their error."""
        is_inner = requests[0].is_inner
        rules = self._rules._replace(inner=is_inner)
        if self._group is not None and not is_inner:
            compiled = compiled_batch(requests, self._group)
            if compiled is not None:
                with suppress(MqError):
                    return self._with_queues(compiled)
        is_small = sum([request.count for request in requests]) <= PLAIN_RECORDS_MAX
        check: Check = plain_batch if is_small else columns_batch
        try:
            return self._with_queues(check(requests, rules))
        except MqError as error:
            if len(requests) == 1:
                requests[0].error = error
                return None
        # One of them is bad: each is checked alone, and the good ones go together.
        for request in requests:
            try:
                self._with_queues(check([request], rules))
            except MqError as error:
                request.error = error
        good = [request for request in requests if request.error is None]
        return self._with_queues(check(good, rules)) if good else None

    def _with_queues(self, batch: CheckedBatch) -> CheckedBatch:
        """Checks a batch's queues, and chooses those that the requests leave to the node.

        Raises the MqError of one of the requests; only a topic's turn has changed then.
        """
        topics = self._topics
        if batch.requests[0].is_inner:
            for request, parts in zip(batch.requests, batch.parts, strict=True):
                if request.any_queue:
                    self._choose_queue(parts, topics.for_inner)
                    continue
                for part in parts:
                    topics.check_queue(topics.for_inner(part.topic), part.queue_id)
            return batch
        names = {part.topic for parts in batch.parts for part in parts}
        if len(names) > 1:
            topics.make(names)
        for request, parts in zip(batch.requests, batch.parts, strict=True):
            if request.any_queue:
                self._choose_queue(parts, topics.for_send)
                continue
            for part in parts:
                topics.check_queue(topics.for_send(part.topic), part.queue_id)
        return batch

    def _choose_queue(self, parts: list[QueueRows], find: Callable[[str], Topic]) -> None:
        """Names the queue of a request that names none. Raises BadRequest for many topics."""
        if len(parts) != 1:
            raise BadRequest(
                f"queue -1 with {len(parts)} topics", "send one topic a batch, or name the queues"
            )
        topic, _, rows = parts[0]
        queue_id = self._topics.choose_queue(find(topic))
        parts[0] = QueueRows(topic, queue_id, rows)


Check = Callable[[list[AppendRequest], AppendRules], CheckedBatch]


class Runs:
    """The common request, checked and sealed in one pass: all its records go to one queue.

    The first record names that queue, and nobody has checked it yet. It is read as a guess: the
    kernel takes the request only when every record agrees with it.
    """

    def __init__(
        self, compiled: Kernel, rules: AppendRules, topics: TopicTable, placement: Placement
    ) -> None:
        self._sealed = SealedRuns(compiled, rules)
        self._queue_for = topics.queue_for
        self._placement = placement

    def append(self, requests: Sequence[AppendRequest], stamp: StoreStamp) -> int:
        """Appends the first of the requests, in one write; returns how many.

        It stops before one that is of another kind, may be bad, or does not fit into the segment.
        """
        sealed, log = self._sealed, self._placement.log
        base, bytes_max = log.end, log.fitting_bytes
        if len(requests) == 1:
            sealed.clear(len(requests[0].records), base, stamp)
        else:
            sealed.clear(sum([len(request.records) for request in requests]), base, stamp)
        taken = rows = 0
        for request in requests:
            if sealed.end + len(request.records) > bytes_max:
                break
            if not self._add(request, base, stamp):
                break
            taken += 1
            rows += request.count
        if taken:
            self._placement.write(sealed.records, rows, sealed.last_at, stamp.store_timestamp)
        return taken

    def _add(self, request: AppendRequest, base: int, stamp: StoreStamp) -> bool:
        records, sealed, placement = request.records, self._sealed, self._placement
        topic_at = _BODY_AT + int.from_bytes(records[_BODY_LENGTH_AT:_BODY_AT], "big")
        if topic_at >= len(records):
            return False
        raw = bytes(records[topic_at + 1 : topic_at + 1 + records[topic_at]])
        topic = _topic_of(raw)
        if topic is None:
            return False
        flags = CHECKED_FLAG if request.checked_rows is not None else 0
        wanted = ANY_QUEUE
        if request.any_queue:
            flags |= ANY_QUEUE_FLAG
        else:
            named = records[_QUEUE_ID_AT : _QUEUE_ID_AT + 4]
            wanted = int.from_bytes(named, "big", signed=True)
            if wanted == ANY_QUEUE:
                return False
        queue_id = self._queue_for(topic, wanted)
        if queue_id is None:
            return False
        queue, start = queue_of(topic, queue_id), base + sealed.end
        first = placement.tails.get(queue, 0)
        crc = -1 if request.crc is None else request.crc
        if not sealed.add(records, request.count, crc, request.sizes, flags, raw, queue_id, first):
            return False
        placement.place(request, start, stamp.store_timestamp, queue, first)
        return True


@dataclass(slots=True)
class CompiledBatch:
    """A batch in the kernel's buffer. The next one takes its place."""

    requests: list[AppendRequest]
    parts: list[list[QueueRows]]
    group: AppendGroup

    def seal(self, places: Places, base: int, stamp: StoreStamp) -> SealedBatch:
        """As `CheckedBatch.seal`."""
        self.group.seal(places, base, stamp)
        return SealedBatch(self.group.records, self.group.last_at)


def compiled_batch(requests: list[AppendRequest], group: AppendGroup) -> CompiledBatch | None:
    """None where another way has to look at the requests, and to say what is wrong."""
    group.clear(len(requests), sum(len(one.records) + len(one.sizes) for one in requests))
    for request in requests:
        crc = -1 if request.crc is None else request.crc
        flags = ANY_QUEUE_FLAG * request.any_queue
        flags += CHECKED_FLAG * (request.checked_rows is not None)
        group.add(request.records, request.count, crc, request.sizes, flags)
    found = group.check()
    if found is None:
        return None
    parts: list[list[QueueRows]] = [[] for _ in requests]
    for own, sealable in zip(parts, found, strict=True):
        for raw, queue_id, rows in sealable:
            topic = _topic_of(raw)
            if topic is None:
                return None
            own.append(QueueRows(topic, queue_id, rows))
    return CompiledBatch(requests, parts, group)


@dataclass(slots=True)
class ColumnsBatch:
    """A batch as numpy columns: for many records. `part_of` numbers each record's part."""

    requests: list[AppendRequest]
    parts: list[list[QueueRows]]
    buffer: bytearray
    columns: RecordColumns
    part_of: Ints
    crc: bool

    def seal(self, places: Places, base: int, stamp: StoreStamp) -> SealedBatch:
        """As `CheckedBatch.seal`."""
        start, part_of = self.columns.start, self.part_of
        queue_id, first = np.array(places, np.int64).T
        counts = np.bincount(part_of)
        # A record's rank is its place among the records of its part.
        rank = np.empty(len(part_of), np.int64)
        ranks = np.arange(len(part_of)) - np.repeat(np.cumsum(counts) - counts, counts)
        rank[np.argsort(part_of, kind="stable")] = ranks
        offsets = first[part_of] + rank
        patch_columns(self.columns, queue_id[part_of], offsets, start + base, stamp, self.crc)
        return SealedBatch(self.buffer, int(start[-1]))


def columns_batch(requests: list[AppendRequest], rules: AppendRules) -> ColumnsBatch:
    """Raises the MqError of one of the requests."""
    for request in requests:
        check_crc(request)
    buffer = bytearray().join([request.records for request in requests])
    checked = check_columns(np.frombuffer(buffer, np.uint8), rules)
    columns, topics, topic_id = checked.columns, checked.topics, checked.topic_id
    ends = np.cumsum([len(request.records) for request in requests])
    bounds = [0, *np.searchsorted(columns.start, ends).tolist()]
    for request, first, last in zip(requests, bounds[:-1], bounds[1:], strict=True):
        check_sizes(request, columns.size[first:last].tolist())
    owner = np.repeat(np.arange(len(requests)), np.diff(bounds))
    any_queue = np.array([request.any_queue for request in requests])
    queue_id = np.where(any_queue[owner], ANY_QUEUE, columns.queue_id)
    key = (owner * len(topics) + topic_id) * (QUEUE_ID_MAX + 2) + queue_id - ANY_QUEUE
    _, rows, number, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(rows)
    parts: list[list[QueueRows]] = [[] for _ in requests]
    for row, count in zip(rows[order].tolist(), counts[order].tolist(), strict=True):
        part = QueueRows(topics[topic_id[row]], int(queue_id[row]), count)
        parts[owner[row]].append(part)
    return ColumnsBatch(requests, parts, buffer, columns, np.argsort(order)[number], rules.crc)


@dataclass(slots=True)
class PlainBatch:
    """A batch record by record: for few. `rows` count from the buffer's begin."""

    requests: list[AppendRequest]
    parts: list[list[QueueRows]]
    buffer: bytearray
    rows: list[PlainRow]
    part_of: list[int]
    crc: bool

    def seal(self, places: Places, base: int, stamp: StoreStamp) -> SealedBatch:
        """As `CheckedBatch.seal`."""
        following = [first for _, first in places]
        for row, part in zip(self.rows, self.part_of, strict=True):
            placed = replace(row, queue_id=places[part][0])
            patch_plain(self.buffer, placed, following[part], base + row.start, stamp, self.crc)
            following[part] += 1
        return SealedBatch(self.buffer, self.rows[-1].start)


def plain_batch(requests: list[AppendRequest], rules: AppendRules) -> PlainBatch:
    """Raises the MqError of one of the requests."""
    batch = PlainBatch(requests, [], bytearray(), [], [], rules.crc)
    part_count = 0
    for request in requests:
        rows = request.checked_rows
        if rows is None:
            check_crc(request)
            rows = check_plain(request.records, rules)
            check_sizes(request, [row.size for row in rows])
        start = len(batch.buffer)
        batch.buffer.extend(request.records)
        numbers: dict[Queue, int] = {}
        counts: list[int] = []
        for row in rows:
            queue = queue_of(row.topic, ANY_QUEUE if request.any_queue else row.queue_id)
            number = numbers.setdefault(queue, len(counts))
            if number == len(counts):
                counts.append(0)
            counts[number] += 1
            batch.part_of.append(part_count + number)
            batch.rows.append(replace(row, start=start + row.start) if start else row)
        part_count += len(counts)
        batch.parts.append([QueueRows(*queue, counts[n]) for queue, n in numbers.items()])
    return batch


def check_crc(request: AppendRequest) -> None:
    """Raises BadRequest unless the records' CRC-32 is the one that the request names."""
    if request.crc is not None and (found := zlib.crc32(request.records)) != request.crc:
        raise BadRequest(f"the frame's CRC-32 is {found}, the header says {request.crc}")


def check_sizes(request: AppendRequest, sizes: list[int]) -> None:
    """Raises BadRequest unless the records are as many and as long as the request says."""
    if request.count != len(sizes) or sum(sizes) != len(request.records):
        raise BadRequest(
            f"the header says {request.count} records in {len(request.records)} bytes, "
            f"the frame holds {len(sizes)} in {sum(sizes)}",
            "count and sizes must agree with the records",
        )
    if request.sizes and request.sizes != np.array(sizes, "<u4").tobytes():
        raise BadRequest("the sizes in the header are not those of the records")


def queues_of(requests: list[AppendRequest]) -> set[Queue] | None:
    """The queues that appended requests went to; None for more than FEW_QUEUES_MAX of them."""
    if len(requests) > FEW_QUEUES_MAX:
        return None
    queues = {Queue(topic, queue_id) for one in requests for topic, queue_id, *_ in one.queues}
    return queues if len(queues) <= FEW_QUEUES_MAX else None


@lru_cache(maxsize=4096)
def _topic_of(raw: bytes) -> str | None:
    """A stored topic's name; None for bytes that no topic has."""
    try:
        name = raw.decode()
        check_topic_for_send(name)
    except (UnicodeDecodeError, MqError):
        return None
    return name


@lru_cache(maxsize=4096)
def _raw(topic: str) -> bytes:
    return topic.encode()
