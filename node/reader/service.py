"""Serves the requests to a reader: answers them, or leaves pulls to the desk. No sockets, no clock.

Answers leave through a function; times are seconds of the caller's monotonic clock. Answers and
refusals are counted by operation, and their latency: of requests answered at once, without long
polls.

`fetch` serves raw bytes of a store's files to clients that decode them, and `layout` lists what
they can fetch. A client names a file by its content, never by a path. It gets nothing at or above
the readable end of the log or the visible end of a queue. Bytes of before may be of an epoch
that recovery took back: a record proves itself by its place and checksum, a unit by its record.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from time import monotonic_ns
from typing import Any

import numpy as np

from node.reader.answers import (
    Answer,
    find_messages,
    get,
    list_all_topics,
    offsets,
    parse_get,
    parse_pull,
    seek,
)
from node.reader.pull_desk import Held, PullDesk
from node.runtime.process import met_damage
from node.runtime.shortage import as_refusal
from node.runtime.stats import Counts, TopicCounts
from node.runtime.stats_series import (
    CODES,
    DURATION,
    INDEX_LOOKUPS,
    LOOKUPS,
    OK,
    OTHER,
    READER,
    READER_OPS,
    REQUESTS,
)
from node.serving.request_server import BadFrames, Payload, Received
from node.store.config.topics_file import TopicsFile
from node.store.file_cache import FileVanished
from node.store.indexes import IndexFile, readable_end
from node.store.opening import RunningStore
from node.store.query.pull import TransferLimits
from node.store.queues import list_topics
from protocol import errors, requests
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.derived.removed import Removed
from protocol.ids import Queue
from protocol.names import is_folder_name
from protocol.wire.frames import (
    Header,
    answer,
    check_envelope,
    id_within,
    refusal,
    request_id,
    unpack,
)

PULL = "pull"

LAYOUT_QUEUES_MAX = 200
"""The most queues in one answer to `layout`: the first look at a queue takes 0.1 ms."""
_FETCH_AGAIN = "it was deleted; ask for the layout again"

HEADER_BYTES_MAX = 128 * 1024
"""More than any request to a reader needs."""

Send = Callable[[bytes, Header, Payload | None], bool]


class ReaderService:
    """Replies to requests from the desk's store."""

    def __init__(
        self,
        store: RunningStore,
        topics: TopicsFile,
        limits: TransferLimits,
        send: Send,
        shards: int,
    ) -> None:
        self.desk = PullDesk(store, self._deliver, shards)
        self.stats = ReaderStats()
        """Its owner may replace it before the first request."""
        self.requests = 0
        self.look_ups = 0
        """Those that were answered at once, and were no pulls."""
        self._topics = topics
        self._limits = limits
        self._send = send

    def handle(self, received: Received | BadFrames, now: float) -> None:
        """Replies to one request, or holds it. Never raises for what a client sent."""
        self.requests += 1
        desk = self.desk
        desk.note_removals()
        began, pulls = monotonic_ns(), self.stats.pulls
        if isinstance(received, BadFrames):
            self._refuse(received.peer, received.request_id, "", received.error)
            return
        number, operation = 0, ""
        try:
            header = unpack(received.header, HEADER_BYTES_MAX)
            number = request_id(header)
            operation = check_envelope(header)
            if received.payload is not None:
                raise errors.BadRequest("a reader takes one frame, two came")
            if operation == PULL:
                wanted = parse_pull(header, desk.store.settings, self._limits)
                desk.pull(received.peer, number, wanted, now)
                if self.stats.pulls != pulls:
                    self.stats.took(operation, monotonic_ns() - began)
                return
            found = desk.again(lambda: self._answer(operation, header, now))
        except (errors.MqError, OSError) as error:
            number = number or id_within(received.header)
            place = str(desk.store.root)
            # No name for the refusal: its traceback would keep this frame, and the request, alive.
            self._refuse(received.peer, number, operation, as_refusal(error, place))
        else:
            self.look_ups += 1
            self._send(received.peer, answer(number, **found.fields), found.payload)
            self.stats.answered(operation, monotonic_ns() - began)

    def refuse(self, received: Received | BadFrames, error: errors.MqError) -> None:
        """Refuses one request with `error`, whatever it asks for."""
        if isinstance(received, BadFrames):
            number = received.request_id
        else:
            try:
                number = request_id(unpack(received.header, HEADER_BYTES_MAX))
            except errors.BadRequest:
                number = id_within(received.header)
        self._refuse(received.peer, number, "", error)

    def _refuse(self, peer: bytes, number: int, operation: str, error: errors.MqError) -> None:
        header = refusal(number, error)
        self.stats.refused(operation, header["error"])
        self._send(peer, header, None)

    def _deliver(
        self, held: Held, found: Answer | errors.MqError, extra: Mapping[str, Any]
    ) -> bool:
        """Sends what the desk has for a pull; False when the peer is gone."""
        if isinstance(found, errors.MqError):
            header, payload = refusal(held.request_id, found), None
        else:
            header, payload = answer(held.request_id, **found.fields, **extra), found.payload
        self.stats.pulled(held.queue.topic, header, payload)
        return self._send(held.peer, header, payload)

    def _answer(self, operation: str, header: Header, now: float) -> Answer:
        if operation == "ping":
            return Answer({})
        desk = self.desk
        desk.check_followed()
        store, tail = desk.store, desk.tail
        match operation:
            case "get":
                wanted = parse_get(header)
                desk.see_end(now)
                return get(store, tail, wanted)
            case "find":
                found = find_messages(store, self._topics, requests.FIND.parse(header))
                self.stats.looked_up(bool(found.fields["count"]))
                return found
            case "offsets":
                asked = requests.OFFSETS.parse(header)
                desk.see_end(now)
                return offsets(store, tail, self._topics, asked)
            case "seek":
                return seek(store, requests.SEEK.parse(header))
            case "fetch":
                return fetch(store, header)
            case "layout":
                return layout(store, requests.LAYOUT.parse(header))
            case "topics":
                return list_all_topics(store, self._topics)
        raise errors.UnknownOperation(
            f"a reader knows no operation {operation[:40]!a}",
            "pull, get, find, offsets, seek, topics, fetch, layout or ping",
        )


class ReaderStats:
    """Counts for the reader's one thread."""

    def __init__(self, counts: Counts | None = None, topics: TopicCounts | None = None) -> None:
        """`counts`: those of a stats page; `topics`: messages by topic. All may be absent."""
        self._counts = counts = Counts(READER) if counts is None else counts
        self._numbers = counts.numbers
        self._ok = {op: counts.place(REQUESTS, op=op, code=OK) for op in READER_OPS}
        self._durations = {op: counts.place(DURATION, op=op) for op in READER_OPS}
        self._pull_ok = self._ok[PULL]
        self._hit, self._miss = (counts.place(INDEX_LOOKUPS, result=one) for one in LOOKUPS)
        self._topics = topics
        self.pulls = 0
        """The answers to pulls, refusals included."""

    def pulled(self, topic: str, header: Header, payload: Payload | None) -> None:
        """Counts the answer to a pull, which may be a refusal."""
        self.pulls += 1
        if not header["ok"]:
            self.refused(PULL, header["error"])
            return
        self._numbers[self._pull_ok] += 1
        if payload is not None and self._topics is not None:
            self._topics.add(topic, header["count"], len(payload))

    def answered(self, operation: str, took: int) -> None:
        """Counts the answer to another request that succeeded; it took `took` ns."""
        self._numbers[self._ok.get(operation, self._ok[OTHER])] += 1
        self.took(operation, took)

    def took(self, operation: str, took: int) -> None:
        """Counts the latency, in ns, of an answer that was given at once."""
        self._counts.observe(self._durations.get(operation, self._durations[OTHER]), took)

    def refused(self, operation: str, error: Header) -> None:
        """Counts a refusal, and notes the damage that it is about."""
        status = error["status"]
        op = operation if operation in READER_OPS else OTHER
        code = status if status in CODES else CODES[-1]
        self._numbers[self._counts.place(REQUESTS, op=op, code=code)] += 1
        if status == errors.CorruptError.status:
            met_damage.note_place(error["where"], error["offset"], error["found"])

    def looked_up(self, is_hit: bool) -> None:
        """Counts a look-up by key."""
        self._numbers[self._hit if is_hit else self._miss] += 1


def fetch(store: RunningStore, header: Header) -> Answer:
    """Raw bytes of a file, fewer than asked for where the file or its readable part ends.

    Raises BadRequest, also for anything that could be a path; NotFound for bytes that retention has
    removed, ServiceNotAvailable while a queue worker resumes, StoreDamaged.
    """
    kind, offset, bytes_max = requests.FETCH.values(header)
    try:
        if kind == requests.FETCH_LOG:
            payload = _of_log(store, offset, bytes_max)
        elif kind == requests.FETCH_QUEUE:
            payload = _of_queue(
                store, Queue(*requests.FETCHED_QUEUE.parse(header)), offset, bytes_max
            )
        else:
            payload = _of_index(store, requests.FETCHED_INDEX.parse(header).file, offset, bytes_max)
    except FileVanished as gone:
        raise errors.NotFound(gone.reason, _FETCH_AGAIN) from None
    fields = {"bytes": len(payload), "epoch": store.epoch}
    return Answer(fields, payload if len(payload) else None)


def _of_log(store: RunningStore, offset: int, bytes_max: int) -> memoryview | bytes:
    log = store.log
    if offset < log.min_offset:
        raise errors.NotFound(f"the log begins at {log.min_offset}, not at {offset}", _FETCH_AGAIN)
    if offset >= log.end:
        return b""
    segment = log.segment_at(offset)
    position = offset - segment.start
    end = min(position + bytes_max, min(segment.end, log.end) - segment.start)
    return segment.view()[position:end]


def _of_queue(store: RunningStore, queue: Queue, first: int, bytes_max: int) -> bytes:
    """`first`: the number of the first unit."""
    topic, queue_id = queue
    count = max(bytes_max // UNIT_BYTES, 1)
    reader = store.queue(topic, queue_id)
    end = 0 if reader is None else reader.max_offset
    if first + count > end and store.is_resuming(queue):
        raise errors.ServiceNotAvailable(
            f"the queue worker of {topic} is behind the log", "again later"
        )
    if reader is None or first < reader.first:
        begin = 0 if reader is None else reader.first
        raise errors.NotFound(f"queue {queue_id} of {topic} begins at {begin}", _FETCH_AGAIN)
    return reader.units(first, count).tobytes()


def _of_index(store: RunningStore, name: str, position: int, bytes_max: int) -> bytes:
    (file,) = store.index_folder.open([name], trusts_slots=True)
    end = file.geometry.entry_position(readable_end(file, store.log.end))
    # Copied: a worker goes on writing to the file while ZeroMQ sends.
    return bytes(file.read(position, max(min(bytes_max, end - position), 0)))


def layout(store: RunningStore, wanted: requests.LayoutFields) -> Answer:
    """Bounds, segments, and a page of queues; no queues if nothing has changed since `known`.

    Raises StoreDamaged.
    """
    log = store.log
    token = store.token
    is_same = wanted.known == token and wanted.after is None
    page = [] if is_same else _layout_page(store, wanted)
    queues = [_queue_row(store, queue) for queue in page[:LAYOUT_QUEUES_MAX]]
    last = page[LAYOUT_QUEUES_MAX - 1] if len(page) > LAYOUT_QUEUES_MAX else None
    starts = [segment.start for segment in log.segments.segments]
    fields: dict[str, Any] = {
        "token": token,
        "same": is_same,
        "epoch": store.epoch,
        "min_offset": log.min_offset,
        "readable": log.end,
        "followed": store.followed,
        "segment_bytes": log.segment_bytes,
        "segments": b"" if is_same else np.array(starts, "<i8").tobytes(),
        "queue_file_bytes": store.queue_file_bytes,
        "queues": [row for row in queues if row is not None],
        "cursor": None if last is None else f"{last.topic}/{last.queue_id}",
        "index": [_index_row(store, file) for file in store.index.files()]
        if wanted.with_index and not is_same
        else [],
        "removed": [] if is_same else _removed_rows(store.removed),
    }
    return Answer(fields)


def _removed_rows(removed: Removed) -> list[list[Any]]:
    """Topic, queue or nil for all of them, and the log offset below which messages are removed."""
    topics = [[name, None, topic.horizon] for name, topic in removed.topics.items()]
    return topics + [[*queue, begin] for queue, begin in removed.queues.items()]


def _layout_page(store: RunningStore, wanted: requests.LayoutFields) -> list[Queue]:
    """The queues after `after`; one more than an answer takes shows that more follow."""
    queues = _queues_from(store, wanted)
    rest = (queue for queue in queues if wanted.after is None or queue > wanted.after)
    return list(islice(rest, LAYOUT_QUEUES_MAX + 1))


def _queues_from(store: RunningStore, wanted: requests.LayoutFields) -> Iterator[Queue]:
    asked = list_topics(store.root) if wanted.topics is None else sorted(set(wanted.topics))
    names = filter(is_folder_name, asked)
    for topic in names:
        if wanted.after is None or topic >= wanted.after.topic:
            yield from (Queue(topic, number) for number in store.queue_ids(topic))


def _queue_row(store: RunningStore, queue: Queue) -> list[Any] | None:
    reader = store.queue(*queue)
    if reader is None:
        return None
    bounds = [reader.first, reader.min_offset, reader.max_offset]
    return [queue.topic, queue.queue_id, *bounds, store.is_resuming(queue)]


def _index_row(store: RunningStore, file: IndexFile) -> list[Any]:
    slots, numbers = file.geometry.slot_count, file.geometry.index_num
    return [
        *(file.name, slots, numbers, file.header.begin_timestamp),
        readable_end(file, store.log.end),
    ]
