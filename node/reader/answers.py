"""Makes the answers to requests other than pulls from the open store; no sockets, no waiting.

`fetch` serves raw bytes of a store's files to clients that decode them, and `layout` lists what
they can fetch. A client names a file by its content, never by a path. It gets nothing at or above
the readable end of the log or the visible end of a queue. Bytes of before may be of an epoch
that recovery took back: a record proves itself by its place and checksum, a unit by its record.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from node.access.asking import PortAsker
from node.reader.tail_cache import TailCache
from node.runtime.process import met_damage, now_ms
from node.serving.request_server import Payload
from node.store.config.topics_file import Topic, TopicsFile
from node.store.file_cache import FileVanished
from node.store.indexes import readable_end
from node.store.opening import RunningStore
from node.store.query import look_up
from node.store.query.pull import record_of, store_time
from node.store.queues import bytes_of, list_topics
from protocol import errors, requests
from protocol.access.decision import Kind
from protocol.access.needs import topic_that_counts
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.ids import Queue, parse_offset_message_id
from protocol.names import is_folder_name
from protocol.record.codec import Record, decode
from protocol.request_fields import RequestLayout
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
LAYOUT_QUEUES_MAX = 200
"""The most queues in one answer to `layout`: the first look at a queue takes 0.1 ms."""
_FETCH_AGAIN = "it was deleted; ask for the layout again"
_TRY_TOPICS = "see the topics with: keelog topic ls"
_TRY_KEYS = (
    "the index follows the log by some milliseconds: again in a moment, or look for a key of the"
    " message: keelog msg find --topic T --key K"
)


def parse_get(header: Header) -> Get:
    """Parses one of the four ways to name a record. Raises BadRequest for none or several."""
    forms = [form for form in _GET_FORMS if header.get(form) is not None]
    if len(forms) != 1:
        raise errors.BadRequest(
            f"get names {' and '.join(forms) or 'no record'}",
            "name physical_offset, msg_id, topic and unique_key, or topic, queue and offset",
        )
    found: Get = _GET_FORMS[forms[0]].parse(header)
    return found


class Answer(NamedTuple):
    """The fields and the payload frame, if any, of the answer to a request that succeeded."""

    fields: dict[str, Any]
    payload: Payload | None = None


def look_again(store: RunningStore, look: Callable[[], T]) -> T:
    """Calls `look`, and once more, after a refresh, if retention has just removed a file."""
    try:
        return look()
    except FileVanished:
        store.refresh()
        return look()


def get(
    store: RunningStore, tail: TailCache, wanted: Get, asker: PortAsker | None = None
) -> Answer:
    """One record, if `asker` may read its topic. Raises NotFound, StoreDamaged, MessageDamaged,
    NotAllowed."""
    match wanted:
        case requests.GetByOffset(offset):
            raw = store.look_up(offset).raw
        case requests.GetById(message_id):
            record = store.look_up(parse_offset_message_id(message_id)[1])
            if record.message_id != message_id.upper():
                raise errors.NotFound(
                    f"no record has the id {message_id}: at its place is {record.message_id}",
                    "ask the node that stored it",
                )
            raw = record.raw
        case requests.GetByKey():
            raw = _by_key(store, wanted).raw
        case requests.GetByQueue(topic, queue_id, offset, generation):
            store.removed.check_place(topic, generation)
            raw = tail.record(Queue(topic, queue_id), offset) or _by_queue(store, wanted).raw
    if asker is not None:
        _check_found(asker, raw)
    return Answer({"size": len(raw)}, raw)


def _check_found(asker: PortAsker, raw: bytes) -> None:
    """Asks for the topic of a stored record. Raises NotAllowed."""
    record = decode(raw, 0)
    if not isinstance(record, Record):
        raise asker.refused("", "nobody knows the topic of a damaged record.", "")
    asker.check_topic(topic_that_counts(record.topic, record.properties_raw))


def _by_key(store: RunningStore, wanted: requests.GetByKey) -> Record:
    """Raises StoreDamaged where a damaged record may be it, and no other is."""
    cursor: str | None = None
    damage: errors.StoreDamaged | None = None
    while True:
        request = look_up.FindRequest(
            wanted.topic, wanted.unique_key, limit=1, cursor=cursor, unique=True, skip_damaged=True
        )
        try:
            page = look_up.find(store, request)
        except errors.UnknownTopic:
            break
        if page.records:
            return page.records[0]
        damage, cursor = next(iter(page.damaged), damage), page.cursor
        if cursor is None:
            break
    if damage is not None:
        raise damage
    raise errors.NotFound(f"topic {wanted.topic} has no message with this unique key", _TRY_KEYS)


def _by_queue(store: RunningStore, wanted: requests.GetByQueue) -> Record:
    topic, queue_id, offset, _ = wanted
    queue = store.queue(topic, queue_id)
    unit = queue.unit(offset) if queue is not None else None
    if queue is None or unit is None or offset < queue.min_offset:
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        raise errors.NotFound(
            f"queue {queue_id} of {topic} has no message {offset}: it holds [{low}, {high})",
            f"keelog topic describe {topic}",
        )
    return record_of(store.log, queue, offset, unit)


def find_messages(
    store: RunningStore,
    topics: TopicsFile,
    wanted: requests.FindFields,
    asker: PortAsker | None = None,
) -> Answer:
    """A page of records with a key, if `asker` may read the topic of each. Raises UnknownTopic,
    BadRequest for a cursor, StoreDamaged, NotAllowed."""
    request = look_up.FindRequest(
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
        page = look_up.find(store, request)
    except errors.UnknownTopic:
        need_topic(store, topics, wanted.topic)
        page = look_up.FindPage([], None)  # the topic exists, but never had a message
    records = [record.raw for record in page.records]
    if asker is not None:
        for raw in records:
            _check_found(asker, raw)
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
    return Answer(
        {"offset": look_up.offset_by_time(store.log, queue, timestamp, look_up.Boundary(boundary))}
    )


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
    except errors.CorruptError as damage:
        met_damage.note(damage)
        return NO_TIME


def bounds_of(store: RunningStore, tail: TailCache, queue: Queue) -> tuple[int, int]:
    """The minimum offset of a queue, and the offset of its next message."""
    reader = store.queue(*queue)
    low, high = (0, 0) if reader is None else (reader.min_offset, reader.max_offset)
    return low, max(high, tail.ends.get(queue, 0))


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


def list_all_topics(
    store: RunningStore, topics: TopicsFile, asker: PortAsker | None = None
) -> Answer:
    """The topics of config/topics.json, and those that only have a folder in consumequeue/; of them
    those that `asker` may see."""
    topics.reload()
    stored = filter(store.shows, filter(is_folder_name, list_topics(store.root)))
    names = sorted({*topics.topics, *stored})
    if asker is not None and not asker.sees_all:
        names = [name for name in names if asker.sees(Kind.TOPIC, name)]
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
        raise errors.UnknownTopic(f"there is no topic {name}", _TRY_TOPICS)
    return known


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
    log, token, removed = store.log, store.token, store.removed
    fields: dict[str, Any] = {
        "token": token,
        "same": wanted.known == token and wanted.after is None,
        "epoch": store.epoch,
        "min_offset": log.min_offset,
        "readable": log.end,
        "followed": store.followed,
        "segment_bytes": log.segment_bytes,
        "segments": b"",
        "queue_file_bytes": store.queue_file_bytes,
        "queues": [],
        "cursor": None,
        "index": [],
        "removed": [],
    }
    if fields["same"]:
        return Answer(fields)
    # One more than an answer takes shows that more follow.
    page = list(islice(_queues_after(store, wanted), LAYOUT_QUEUES_MAX + 1))
    if len(page) > LAYOUT_QUEUES_MAX:
        page.pop()
        fields["cursor"] = f"{page[-1].topic}/{page[-1].queue_id}"
    starts = [segment.start for segment in log.segments.segments]
    fields["segments"] = np.array(starts, "<i8").tobytes()
    for queue in page:
        reader = store.queue(*queue)
        if reader is not None:
            bounds = reader.first, reader.min_offset, reader.max_offset
            fields["queues"].append([*queue, *bounds, store.is_resuming(queue)])
    # The length shows with the first queue that is opened.
    fields["queue_file_bytes"] = store.queue_file_bytes
    for file in store.index.files() if wanted.with_index else ():
        sizes = file.geometry.slot_count, file.geometry.index_num
        end = readable_end(file, log.end)
        fields["index"].append([file.name, *sizes, file.header.begin_timestamp, end])
    # Topic, queue or nil for all of them, and the log offset below which messages are removed.
    fields["removed"] = [[name, None, topic.horizon] for name, topic in removed.topics.items()]
    fields["removed"] += [[*queue, begin] for queue, begin in removed.queues.items()]
    return Answer(fields)


def _queues_after(store: RunningStore, wanted: requests.LayoutFields) -> Iterator[Queue]:
    asked = list_topics(store.root) if wanted.topics is None else sorted(set(wanted.topics))
    for topic in filter(is_folder_name, asked):
        if wanted.after is None or topic >= wanted.after.topic:
            queues = (Queue(topic, number) for number in store.queue_ids(topic))
            yield from (one for one in queues if wanted.after is None or one > wanted.after)
