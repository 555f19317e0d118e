"""The ways to make a batch of requests ready for the log; all of them write the same bytes.

`Runs` does the common request in one pass of the compiled kernel. A `CheckedBatch` does any request
in two steps: its records are checked, then sealed with the places that they got. There are three of
these: compiled, as numpy columns, and record by record, which is the tests' oracle.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from node.writer.append_request import AppendRequest, check_crc, check_sizes
from node.writer.placement import Placement, Places, QueueRows
from node.writer.topic_table import TopicTable
from protocol.errors import MqError
from protocol.ids import Queue, queue_of
from protocol.kernel.loader import Kernel
from protocol.names import QUEUE_ID_MAX, check_topic_for_send
from protocol.record.codec import SHORT_HEAD
from protocol.record.columns import Ints, RecordColumns
from protocol.record.encode import ANY_QUEUE
from protocol.record.kernel_append import ANY_QUEUE_FLAG, CHECKED_FLAG, AppendGroup
from protocol.record.kernel_append_run import SealedRuns
from protocol.record.patch import (
    AppendRules,
    PlainRow,
    StoreStamp,
    check_columns,
    check_plain,
    patch_columns,
    patch_plain,
)

_QUEUE_ID_AT, _BODY_LENGTH_AT = (SHORT_HEAD.offsets[name] for name in ("queue_id", "body_length"))
_BODY_AT = SHORT_HEAD.size


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


# -- the compiled ways ----------------------------------------------------------------------------


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


@lru_cache(maxsize=4096)
def _topic_of(raw: bytes) -> str | None:
    """A stored topic's name; None for bytes that no topic has."""
    try:
        name = raw.decode()
        check_topic_for_send(name)
    except (UnicodeDecodeError, MqError):
        return None
    return name


# -- as columns -----------------------------------------------------------------------------------


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


# -- record by record -----------------------------------------------------------------------------


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
