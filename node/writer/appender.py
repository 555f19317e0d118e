"""A group of requests becomes bytes in the log: check, place, seal, one write.

An `AppendRequest` has records of one client, its claims about them, and where they were stored. One
bad record refuses its request, before any offset is given.

`Placement` alone says where the next records go: their log offset, their store time, their offset
in each queue. Both ways of making a record's bytes, compiled and plain (`protocol.record.append`),
take their places from it, so that they cannot disagree about the next one.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from node.store.checkpoints import Tails
from node.writer.log.commit_log import CommitLog
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, MessageTooLarge, MqError
from protocol.ids import Queue, queue_of
from protocol.record.append import AppendPart, Put, Sealer, topic_of
from protocol.record.codec import SHORT_HEAD
from protocol.record.encode import ANY_QUEUE, pack_fields
from protocol.record.patch import AppendRules, SentRecords
from protocol.record.properties import EMPTY_CRC_PROPERTY

FEW_QUEUES_MAX = 4
"""Where a group has records of more queues, most likely every queue worker has some."""

_QUEUE_ID_AT, _BODY_LENGTH_AT = (SHORT_HEAD.offsets[name] for name in ("queue_id", "body_length"))
_BODY_AT = SHORT_HEAD.size


class RepeatedMessage(NamedTuple):
    """Where the first message with the unique key of a repeated one is stored."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int


@dataclass(slots=True)
class AppendRequest(SentRecords):
    """Records of one client, and the outcome of their append.

    `Appender.append` sets either `error` or the fields after it.
    """

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
        return len(self.records) or self.draft_bytes

    @property
    def end(self) -> int:
        """The log offset after its last record."""
        return self.physical_offset + self.size

    def encode(self, crc: bool) -> None:
        """Encodes a draft. `crc`: the record gets room for the checksum of the whole."""
        if self.draft is not None:
            put, self.draft = self.draft, None
            properties = put.properties + (EMPTY_CRC_PROPERTY if crc else b"")
            self.records = pack_fields(put.topic, put.body, put.queue_id, properties, *put[4:])


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

    def place_parts(
        self, request: AppendRequest, start: int, store_time: int, parts: Sequence[AppendPart]
    ) -> list[tuple[int, int]]:
        """Gives a request its places, from log offset `start` on; returns those of its parts.

        `write` has to follow.
        """
        tails = self.tails
        queues: list[tuple[str, int, int, int]] = []
        places: list[tuple[int, int]] = []
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


class Appender:
    """Appends requests at the places that `placement` gives. Not thread-safe, as that."""

    def __init__(
        self, placement: Placement, topics: TopicTable, rules: AppendRules, store_host: bytes
    ) -> None:
        self._placement = placement
        self._topics = topics
        self._rules = rules
        self._sealer = Sealer(rules, store_host)

    def append(self, requests: list[AppendRequest], now_ms: int) -> None:
        """Appends all that is good, in order, and fills in each request's outcome.

        Raises OSError when the log cannot be written: the process must end.
        """
        draft = requests[0].draft if len(requests) == 1 else None
        if draft is not None and self._append_draft(requests[0], draft, now_ms):
            return
        placement, sealer = self._placement, self._sealer
        log, size = placement.log, 0
        for request in requests:
            if request.draft is not None:
                request.encode(self._rules.crc)
            size += len(request.records)
        # Store times never run backwards.
        time = max(placement.last_store_timestamp, now_ms)
        sealer.begin(size, log.end, time)
        tries_run, knows_new = sealer.is_compiled, len(requests) == 1
        for number, request in enumerate(requests):
            is_fitting = log.end + sealer.end + len(request.records) <= log.full_at
            if is_fitting and tries_run and self._add_run(request, time):
                continue
            try:
                if not knows_new and self._is_new(request):
                    self._make_topics(requests[number:])
                    knows_new = True
                self._add(request, is_fitting, time)
                # Where one has records of several queues, the next most likely has them, too.
                tries_run = sealer.is_compiled and len(request.queues) < 2
            except MqError as error:
                request.error = error
        if sealer.rows:
            placement.write(sealer.records, sealer.rows, sealer.last_at, time)

    def put(self, put: Put, now_ms: int) -> tuple[int, int, int] | None:
        """Appends one message; returns its log offset, queue and queue offset.

        None where `append` has to do it: without the kernel, for a topic or head out of the common,
        or at the end of a segment. Raises OSError as `append`.
        """
        placement, sealer, topic = self._placement, self._sealer, put.topic
        log, tails = placement.log, placement.tails
        queue_id = self._topics.queue_for(topic, put.queue_id) if sealer.is_compiled else None
        if queue_id is None:
            return None
        start, queue = log.end, queue_of(topic, queue_id)
        time, offset = max(placement.last_store_timestamp, now_ms), tails.get(queue, 0)
        record = sealer.put(put, _raw(topic), queue_id, offset, start, time)
        if record is None or start + len(record) > log.full_at:
            return None
        tails[queue] = offset + 1
        placement.write(record, 1, 0, time)
        return start, queue_id, offset

    def _append_draft(self, request: AppendRequest, put: Put, now_ms: int) -> bool:
        placed = self.put(put, now_ms)
        if placed is None:
            return False
        request.physical_offset, queue_id, offset = placed
        request.store_timestamp = self._placement.last_store_timestamp
        request.queues = ((put.topic, queue_id, offset, 1),)
        return True

    def _add_run(self, request: AppendRequest, time: int) -> bool:
        """Seals the common request, all of whose records go to one queue.

        The first record names that queue, and nobody has checked it yet. It is read as a guess: the
        kernel takes the request only when every record agrees with it.
        """
        records, sealer, placement = request.records, self._sealer, self._placement
        raw = _first_topic(records)
        topic = topic_of(raw)
        if topic is None:
            return False
        wanted = ANY_QUEUE
        if not request.any_queue:
            named = records[_QUEUE_ID_AT : _QUEUE_ID_AT + 4]
            wanted = int.from_bytes(named, "big", signed=True)
            if wanted == ANY_QUEUE:
                return False
        queue_id = self._topics.queue_for(topic, wanted)
        if queue_id is None:
            return False
        queue, start = queue_of(topic, queue_id), placement.log.end + sealer.end
        first = placement.tails.get(queue, 0)
        if not sealer.run(request, raw, queue_id, first):
            return False
        placement.tails[queue] = first + request.count
        request.physical_offset, request.store_timestamp = start, time
        request.queues = ((topic, queue_id, first, request.count),)
        return True

    def _add(self, request: AppendRequest, is_fitting: bool, time: int) -> None:
        """Checks and seals any request. One that does not fit goes into the next segment.

        Raises the MqError that the request is refused for, and OSError.
        """
        placement, sealer, size = self._placement, self._sealer, len(request.records)
        log = placement.log
        if size > log.request_bytes_max:
            raise MessageTooLarge(
                f"{size} bytes fit into no segment of {log.segment_bytes}",
                "send smaller messages or batches",
            )
        parts = self._with_queues(request, sealer.check(request, request.is_inner))
        if not is_fitting:
            if sealer.rows:
                placement.write(sealer.records, sealer.rows, sealer.last_at, time)
            try:
                log.make_room(size)
            finally:
                sealer.begin(0, log.end, time)
        start = log.end + sealer.end
        sealer.seal(request, placement.place_parts(request, start, time, parts))

    def _is_new(self, request: AppendRequest) -> bool:
        """Whether its first record seems to be of a topic that is not there yet."""
        topic = topic_of(_first_topic(request.records))
        return topic is not None and not self._topics.has(topic)

    def _make_topics(self, requests: Sequence[AppendRequest]) -> None:
        """Makes the topics that good requests of a turn are the first of, with one save of the
        table: thousands of requests for new topics would wait for as many."""
        names: set[str] = set()
        for request in requests:
            if not request.is_inner:
                with suppress(MqError):
                    parts = self._sealer.check(request)
                    if len(parts) == 1 or not request.any_queue:  # else it is refused
                        names.update(part.topic for part in parts)
        self._topics.make(names)

    def _with_queues(self, request: AppendRequest, parts: list[AppendPart]) -> list[AppendPart]:
        """Checks a request's queues, or chooses the one that it leaves to the node.

        Raises the MqError that the request is refused for; only a topic's turn has changed then.
        """
        topics = self._topics
        find = topics.for_inner if request.is_inner else topics.for_send
        if request.any_queue:
            if len(parts) != 1:
                raise BadRequest(
                    f"queue -1 with {len(parts)} topics",
                    "send one topic a batch, or name the queues",
                )
            topic, _, rows = parts[0]
            return [AppendPart(topic, topics.choose_queue(find(topic)), rows)]
        names = {part.topic for part in parts}
        if len(names) > 1 and not request.is_inner:
            topics.make(names)
        for part in parts:
            topics.check_queue(find(part.topic), part.queue_id)
        return parts


def queues_of(requests: list[AppendRequest]) -> set[Queue] | None:
    """The queues that appended requests went to; None for more than FEW_QUEUES_MAX of them."""
    if len(requests) > FEW_QUEUES_MAX:
        return None
    queues = {Queue(topic, queue_id) for one in requests for topic, queue_id, *_ in one.queues}
    return queues if len(queues) <= FEW_QUEUES_MAX else None


def _first_topic(records: bytes | memoryview) -> bytes:
    """The topic that the first record seems to have; empty for none."""
    topic_at = _BODY_AT + int.from_bytes(records[_BODY_LENGTH_AT:_BODY_AT], "big")
    if topic_at >= len(records):
        return b""
    return bytes(records[topic_at + 1 : topic_at + 1 + records[topic_at]])


@lru_cache(maxsize=4096)
def _raw(topic: str) -> bytes:
    return topic.encode()
