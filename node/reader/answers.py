"""Parses requests to a reader, and makes their answers from the open store; no sockets, no waiting.

It parses those that `protocol.requests` does not describe completely. Parsing touches neither files
nor sockets, and checks the type and range of every value.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from node.reader.tail_cache import TailCache, Taken
from node.runtime.process import met_damage, now_ms
from node.runtime.settings import Settings
from node.serving.request_server import Payload
from node.store.config.topics_file import Topic, TopicsFile
from node.store.file_cache import FileVanished
from node.store.opening import RunningStore
from node.store.query.filters import parse_tags
from node.store.query.look_up import Boundary, FindPage, FindRequest, find, offset_by_time
from node.store.query.pull import (
    PulledRecords,
    PullRequest,
    PullStatus,
    TransferLimits,
    get_message,
)
from node.store.query.verified_read import record_of, store_time
from node.store.queues import bytes_of, list_topics
from protocol import requests
from protocol.errors import BadRequest, CorruptError, NotFound, StoreDamaged, UnknownTopic
from protocol.ids import Queue, parse_offset_message_id
from protocol.names import is_folder_name
from protocol.record.codec import Record, decode
from protocol.request_fields import RequestLayout, out_of_range
from protocol.wire.frames import Header

_GET_FORMS: dict[str, RequestLayout[Any]] = {
    "physical_offset": requests.GET_BY_OFFSET,
    "msg_id": requests.GET_BY_ID,
    "unique_key": requests.GET_BY_KEY,
    "offset": requests.GET_BY_QUEUE,
}
"""The ways to name a record, by the field that only one of them has."""

Get = requests.GetByOffset | requests.GetById | requests.GetByKey | requests.GetByQueue

T = TypeVar("T")
NO_TIME = -1
"""Of a message that is not there (DefaultMessageStore#getMessageStoreTimeStamp)."""
FIND_BYTES_MAX = 4 << 20
"""A page of found records ends with the one that exceeds this."""
_TRY_TOPICS = "see the topics with: keelog topic ls"
_TRY_KEYS = (
    "the index follows the log by some milliseconds: again in a moment, or look for a key of the"
    " message: keelog msg find --topic T --key K"
)


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull: where it begins, what it takes, and how long it may be held."""

    queue: Queue
    offset: int
    request: PullRequest
    wait_ms: int
    tags: str = ""
    """The expression: equal pulls share one look."""
    tags_kind: str = ""
    """Its language, if it is not that of tags."""
    stream: bool = False
    """Whether it gets an answer each time when its queue grows; such a pull waits."""
    patience_ms: int = 0
    """How late its answer may come."""
    generation: int | None = None
    """A log offset at which its place was known; None: it is taken as it is."""


def parse_pull(header: Header, settings: Settings, limits: TransferLimits) -> Pull:
    """Parses a pull. Any offset is valid: one outside the queue has its own status (RocketMQ).

    `limits` apply where the request has none of its own.
    """
    asked = requests.PULL.values(header)
    topic, queue_id, offset, count, size, tags, wait_ms, stream, patience_ms, generation = asked
    if wait_ms > settings.long_polling_ms_max:
        raise out_of_range("wait_ms", wait_ms, 0, settings.long_polling_ms_max)
    request = _pull_request(
        tags,
        count,
        size,
        limits,
        settings.max_filter_message_size,
        settings.travel_cq_file_num_when_get_message,
    )
    queue = Queue(topic, queue_id)
    is_stream = stream and wait_ms > 0
    return Pull(queue, offset, request, wait_ms, tags, "", is_stream, patience_ms, generation)


@lru_cache(maxsize=256)
def _pull_request(
    tags: str,
    count: int | None,
    size: int | None,
    limits: TransferLimits,
    filter_bytes_max: int,
    files_max: int,
) -> PullRequest:
    """Cached, as consumers repeat their pulls. Raises BadRequest for malformed tags."""
    if count is not None:
        limits = limits._replace(count_max=count, cold_count_max=count)
    if size is not None:
        limits = limits._replace(bytes_max=size, cold_bytes_max=size)
    return PullRequest(
        max_messages=count or requests.PULL_MESSAGES_DEFAULT,
        total_bytes_max=size or requests.PULL_BYTES_DEFAULT,
        limits=limits,
        tags=parse_tags(tags),
        exact=True,
        filter_bytes_max=filter_bytes_max,
        files_max=files_max,
    )


def parse_get(header: Header) -> Get:
    """Parses one of the four ways to name a record. Raises BadRequest for none or several."""
    forms = [form for form in _GET_FORMS if header.get(form) is not None]
    if len(forms) != 1:
        raise BadRequest(
            f"get names {' and '.join(forms) or 'no record'}",
            "name physical_offset, msg_id, topic and unique_key, or topic, queue and offset",
        )
    found: Get = _GET_FORMS[forms[0]].parse(header)
    return found


class Answer(NamedTuple):
    """The fields and the payload frame, if any, of the answer to a request that succeeded."""

    fields: dict[str, Any]
    payload: Payload | None = None

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return 0 if self.payload is None else len(self.payload)


def look_again(store: RunningStore, look: Callable[[], T]) -> T:
    """Calls `look`, and once more, after a refresh, if retention has just removed a file."""
    try:
        return look()
    except FileVanished:
        store.refresh()
        return look()


def pull(store: RunningStore, wanted: Pull) -> PulledRecords:
    """Pulls as RocketMQ's getMessage does. Raises StoreDamaged, MessageDamaged."""
    return get_message(store.log, store.queue(*wanted.queue), wanted.offset, wanted.request)


def is_waiting_status(result: PulledRecords, offset: int) -> bool:
    """True if a broker would hold the pull: it maps to PULL_NOT_FOUND (format 12.3)."""
    match result.status:
        case PullStatus.OFFSET_OVERFLOW_ONE | PullStatus.OFFSET_FOUND_NULL:
            return True
        case PullStatus.NO_MESSAGE_IN_QUEUE:
            return offset == 0
        case _:
            return False


def pull_answer(result: PulledRecords) -> Answer:
    """The records as stored, in one frame, and the size of each."""
    fields = {
        "status": result.status,
        "next_begin_offset": result.next_begin_offset,
        "min_offset": result.min_offset,
        "max_offset": result.max_offset,
        "count": result.count,
        "sizes": result.packed_sizes(),
    }
    return Answer(fields, result.payload if result.count else None)


def tail_answer(taken: Taken, min_offset: int) -> Answer:
    """As `pull_answer`, for records of the tail cache."""
    records = taken.records
    fields = {
        "status": taken.status,
        "next_begin_offset": taken.next_begin_offset,
        "min_offset": min_offset,
        "max_offset": taken.max_offset,
        "count": len(records),
        "sizes": struct.pack(f"<{len(records)}I", *map(len, records)),
    }
    return Answer(fields, b"".join(records) if records else None)


def get(store: RunningStore, tail: TailCache, wanted: Get) -> Answer:
    """One record. Raises NotFound, StoreDamaged, MessageDamaged."""
    match wanted:
        case requests.GetByOffset(offset):
            raw = store.look_up(offset).raw
        case requests.GetById(message_id):
            raw = _by_id(store, message_id).raw
        case requests.GetByKey():
            raw = _by_key(store, wanted).raw
        case requests.GetByQueue(topic, queue_id, offset, generation):
            store.removed.check_place(topic, generation)
            raw = tail.record(Queue(topic, queue_id), offset) or _by_queue(store, wanted).raw
    return Answer({"size": len(raw)}, raw)


def _by_id(store: RunningStore, message_id: str) -> Record:
    record = store.look_up(parse_offset_message_id(message_id)[1])
    if record.message_id != message_id.upper():
        raise NotFound(
            f"no record has the id {message_id}: at its place is {record.message_id}",
            "ask the node that stored it",
        )
    return record


def _by_key(store: RunningStore, wanted: requests.GetByKey) -> Record:
    """Raises StoreDamaged where a damaged record may be it, and no other is."""
    cursor: str | None = None
    damage: StoreDamaged | None = None
    while True:
        request = FindRequest(
            wanted.topic, wanted.unique_key, limit=1, cursor=cursor, unique=True, skip_damaged=True
        )
        try:
            page = find(store, request)
        except UnknownTopic:
            break
        if page.records:
            return page.records[0]
        damage, cursor = next(iter(page.damaged), damage), page.cursor
        if cursor is None:
            break
    if damage is not None:
        raise damage
    raise NotFound(f"topic {wanted.topic} has no message with this unique key", _TRY_KEYS)


def _by_queue(store: RunningStore, wanted: requests.GetByQueue) -> Record:
    topic, queue_id, offset, _ = wanted
    queue = store.queue(topic, queue_id)
    unit = queue.unit(offset) if queue is not None else None
    if queue is None or unit is None or offset < queue.min_offset:
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        raise NotFound(
            f"queue {queue_id} of {topic} has no message {offset}: it holds [{low}, {high})",
            f"keelog topic describe {topic}",
        )
    return record_of(store.log, queue, offset, unit)


def find_messages(store: RunningStore, topics: TopicsFile, wanted: requests.FindFields) -> Answer:
    """A page of records with a key. Raises UnknownTopic, BadRequest for a cursor, StoreDamaged."""
    request = FindRequest(
        topic=wanted.topic,
        key=wanted.key,
        begin=wanted.begin,
        end=wanted.end,
        limit=wanted.max_messages,
        bytes_max=FIND_BYTES_MAX,
        cursor=wanted.cursor,
        unique=wanted.unique,
        skip_damaged=wanted.skip_damaged,
    )
    try:
        page = find(store, request)
    except UnknownTopic:
        need_topic(store, topics, wanted.topic)
        page = FindPage([], None)  # the topic exists, but never had a message
    records = [record.raw for record in page.records]
    sizes = struct.pack(f"<{len(records)}I", *map(len, records))
    fields = {"count": len(records), "sizes": sizes, "cursor": page.cursor}
    if page.damaged:
        fields["damaged"] = [
            [error.where, error.offset, error.found, error.hint] for error in page.damaged
        ]
    return Answer(fields, b"".join(records) if records else None)


def seek(store: RunningStore, wanted: requests.SeekFields) -> Answer:
    """The queue offset at a store time; as in a broker 0 for a queue that does not exist."""
    topic, queue_id, timestamp, boundary = wanted
    queue = store.queue(topic, queue_id)
    return Answer({"offset": offset_by_time(store.log, queue, timestamp, Boundary(boundary))})


def offsets(
    store: RunningStore, tail: TailCache, topics: TopicsFile, wanted: requests.OffsetsFields
) -> Answer:
    """The bounds of a topic's queues. Raises UnknownTopic."""
    known = need_topic(store, topics, wanted.topic)
    if wanted.queue_id is not None:
        ids: Iterable[int] = [wanted.queue_id]
    else:
        named = range(known.read_queues) if known is not None else ()
        ids = sorted({*named, *store.queue_ids(wanted.topic)})
    queues = [Queue(wanted.topic, number) for number in ids]
    rows = [_bounds(store, tail, queue) for queue in queues]
    if wanted.sizes:
        rows = [row | _held(store, tail, queue) for row, queue in zip(rows, queues, strict=True)]
    asked = wanted.stored_at or {}
    for row, queue in zip(rows, queues, strict=True):
        if (offset := asked.get(queue.queue_id)) is not None:
            row["stored_ms"] = time_at(store, tail, queue, offset)
    generation = store.removed.horizon(wanted.topic)
    return Answer({"queues": rows, "generation": generation, "now_ms": now_ms()})


def time_at(store: RunningStore, tail: TailCache, queue: Queue, offset: int) -> int:
    """When a message was stored, in ms since 1970; NO_TIME where there is none that can be read."""
    raw = tail.record(queue, offset) if offset >= 0 else None
    if raw is not None:
        record = decode(raw, 0)
        return record.head.store_timestamp if isinstance(record, Record) else NO_TIME

    def look() -> int:
        reader = store.queue(*queue)
        if reader is None or not reader.min_offset <= offset < reader.max_offset:
            return NO_TIME
        unit = reader.unit(offset)
        return NO_TIME if unit is None else store_time(store.log, reader, offset, unit)

    try:
        return look_again(store, look)
    except CorruptError as damage:
        met_damage.note(damage)
        return NO_TIME


def bounds_of(store: RunningStore, tail: TailCache, queue: Queue) -> tuple[int, int]:
    """The minimum offset of a queue, and the offset of its next message."""
    reader = store.queue(*queue)
    low, high = (0, 0) if reader is None else (reader.min_offset, reader.max_offset)
    return low, max(high, tail.end_of(queue) or 0)


def _held(store: RunningStore, tail: TailCache, queue: Queue) -> dict[str, Any]:
    """What a queue holds: its bytes in the log, and the store time of its first message; None for a
    queue without one, or while it cannot be read."""
    reader = store.queue(*queue)
    if reader is None:
        return {"bytes": 0, "oldest_ms": None}
    oldest_ms = time_at(store, tail, queue, reader.min_offset)
    return {"bytes": bytes_of(reader), "oldest_ms": None if oldest_ms == NO_TIME else oldest_ms}


def _bounds(store: RunningStore, tail: TailCache, queue: Queue) -> dict[str, Any]:
    low, high = bounds_of(store, tail, queue)
    return {
        "queue_id": queue.queue_id,
        "min_offset": low,
        "max_offset": high,
        "behind": not tail.tells_end(store, queue),
    }


def list_all_topics(store: RunningStore, topics: TopicsFile) -> Answer:
    """The topics of config/topics.json, and those that only have a folder in consumequeue/."""
    topics.reload()
    stored = filter(store.shows, filter(is_folder_name, list_topics(store.root)))
    names = sorted({*topics.topics, *stored})
    return Answer({"topics": [_row(store, name, topics.topics.get(name)) for name in names]})


def _row(store: RunningStore, name: str, known: Topic | None) -> dict[str, Any]:
    stored = max(store.queue_ids(name), default=-1) + 1
    topic = known or Topic(name, stored, stored)
    return {
        "topic": name,
        "queues": max(topic.read_queues, topic.write_queues, stored),
        "read_queues": topic.read_queues,
        "retention_hours": topic.retention_hours,
        "write_queues": topic.write_queues,
        "perm": topic.perm,
    }


def need_topic(store: RunningStore, topics: TopicsFile, name: str) -> Topic | None:
    """The topic's settings; None if it only has files. Raises UnknownTopic."""
    topics.reload()
    known = topics.topics.get(name)
    if known is None and not store.queue_ids(name):
        raise UnknownTopic(f"there is no topic {name}", _TRY_TOPICS)
    return known
