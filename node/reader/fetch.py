"""Serves raw bytes of a store's files to clients that decode them, and lists what they can fetch.

A client names a file by its content, never by a path. It gets nothing at or above the readable end
of the log or the visible end of a queue. What it got earlier may be of an epoch that recovery took
back: a record proves itself by its place and checksum, a unit by its record.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from node.reader.answers import Answer
from node.reader.requests import Fetch
from node.store.file_cache import FileVanished
from node.store.indexes import IndexFile, readable_end
from node.store.opening import RunningStore
from node.store.queues import list_topics
from protocol.derived.queue_unit import UNIT_BYTES
from protocol.derived.removed import Removed
from protocol.errors import NotFound, ServiceNotAvailable
from protocol.ids import Queue
from protocol.names import is_folder_name
from protocol.requests import FETCH_LOG, FETCH_QUEUE, LayoutFields

LAYOUT_QUEUES_MAX = 200
"""The most queues in one answer to `layout`: the first look at a queue takes 0.1 ms."""
_AGAIN = "it was deleted; ask for the layout again"


def fetch(store: RunningStore, wanted: Fetch) -> Answer:
    """The bytes that the client asked for, fewer where the file or its readable part ends.

    Raises NotFound for bytes that retention has removed, ServiceNotAvailable while a queue worker
    resumes, StoreDamaged.
    """
    try:
        if wanted.kind == FETCH_LOG:
            payload = _of_log(store, wanted)
        elif wanted.kind == FETCH_QUEUE:
            payload = _of_queue(store, wanted)
        else:
            payload = _of_index(store, wanted)
    except FileVanished as gone:
        raise NotFound(gone.reason, _AGAIN) from None
    fields = {"bytes": len(payload), "epoch": store.epoch}
    return Answer(fields, payload if len(payload) else None)


def _of_log(store: RunningStore, wanted: Fetch) -> memoryview | bytes:
    log = store.log
    if wanted.offset < log.min_offset:
        raise NotFound(f"the log begins at {log.min_offset}, not at {wanted.offset}", _AGAIN)
    if wanted.offset >= log.end:
        return b""
    segment = log.segment_at(wanted.offset)
    position = wanted.offset - segment.start
    end = min(position + wanted.bytes_max, min(segment.end, log.end) - segment.start)
    return segment.view()[position:end]


def _of_queue(store: RunningStore, wanted: Fetch) -> bytes:
    assert wanted.queue is not None
    topic, queue_id = wanted.queue
    count = max(wanted.bytes_max // UNIT_BYTES, 1)
    reader = store.queue(topic, queue_id)
    end = 0 if reader is None else reader.max_offset
    if wanted.offset + count > end and store.is_resuming(wanted.queue):
        raise ServiceNotAvailable(f"the queue worker of {topic} is behind the log", "again later")
    if reader is None or wanted.offset < reader.first:
        first = 0 if reader is None else reader.first
        raise NotFound(f"queue {queue_id} of {topic} begins at {first}", _AGAIN)
    return reader.units(wanted.offset, count).tobytes()


def _of_index(store: RunningStore, wanted: Fetch) -> bytes:
    (file,) = store.index_folder.open([wanted.file], trusts_slots=True)
    end = file.geometry.entry_position(readable_end(file, store.log.end))
    # Copied: a worker goes on writing to the file while ZeroMQ sends.
    return bytes(file.read(wanted.offset, max(min(wanted.bytes_max, end - wanted.offset), 0)))


def layout(store: RunningStore, wanted: LayoutFields) -> Answer:
    """Bounds, segments, and a page of queues; no queues if nothing has changed since `known`.

    Raises StoreDamaged.
    """
    log = store.log
    token = store.token
    is_same = wanted.known == token and wanted.after is None
    page = [] if is_same else _page(store, wanted)
    queues = [_row(store, queue) for queue in page[:LAYOUT_QUEUES_MAX]]
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


def _page(store: RunningStore, wanted: LayoutFields) -> list[Queue]:
    """The queues after `after`; one more than an answer takes shows that more follow."""
    found: list[Queue] = []
    for queue in _queues(store, wanted):
        if wanted.after is None or queue > wanted.after:
            found.append(queue)
        if len(found) > LAYOUT_QUEUES_MAX:
            break
    return found


def _queues(store: RunningStore, wanted: LayoutFields) -> Iterator[Queue]:
    asked = list_topics(store.root) if wanted.topics is None else sorted(set(wanted.topics))
    names = filter(is_folder_name, asked)
    for topic in names:
        if wanted.after is None or topic >= wanted.after.topic:
            yield from (Queue(topic, number) for number in store.queue_ids(topic))


def _row(store: RunningStore, queue: Queue) -> list[Any] | None:
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
