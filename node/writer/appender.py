"""A group of requests becomes bytes in the log: check, give out offsets, patch, one write.

The compiled kernel does it for whole groups. Where there is none, or it finds anything odd, small
groups go record by record and large ones as numpy columns. All three answer the same (the tests
hold them against each other). One bad record refuses its request, before any offset is given.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from node.store.checkpoints import Tails
from node.writer.append_request import AppendRequest, check_crc, check_sizes
from node.writer.append_run import Runs
from node.writer.log.commit_log import CommitLog
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, MessageTooLarge, MqError
from protocol.ids import Queue, queue_of
from protocol.kernel import loader
from protocol.names import QUEUE_ID_MAX, check_topic_for_send
from protocol.record.columns import Ints
from protocol.record.kernel_append import ANY_QUEUE_FLAG, CHECKED_FLAG, AppendGroup, AppendPart
from protocol.record.kernel_put import Put, PutKernel
from protocol.record.patch import (
    PLAIN_RECORDS_MAX,
    AppendRules,
    CheckedColumns,
    PlainRow,
    StoreStamp,
    check_columns,
    check_plain,
    patch_columns,
    patch_plain,
)


class Appender:
    """Owns the next offset of every queue. Not thread-safe: the writer's one thread calls it."""

    def __init__(
        self,
        commit_log: CommitLog,
        topics: TopicTable,
        tails: dict[Queue, int],
        rules: AppendRules,
        store_host: bytes,
    ) -> None:
        self.commit_log = commit_log
        self.topics = topics
        self.tails = tails
        self.rules = rules
        self.store_host = store_host
        self.last_store_timestamp = 0
        self.last_record_offset = 0
        self.records = 0
        self._group: AppendGroup | None = None
        self._runs: Runs | None = None
        self._put: PutKernel | None = None

    def snapshot(self) -> Tails:
        """The queues' ends as they are now, for our file of them."""
        return Tails(
            self.commit_log.end,
            dict(self.tails),
            self.last_record_offset,
            self.last_store_timestamp,
        )

    def append(self, requests: list[AppendRequest], now_ms: int) -> None:
        """Appends all that is good, in order, and fills in each request's outcome.

        Raises OSError when the log cannot be written: the process must end.
        """
        if len(requests) == 1 and self._append_draft(requests[0], now_ms):
            return
        for request in requests:
            if request.draft is not None:
                request.encode(self.rules.crc)
        stamp = StoreStamp(max(self.last_store_timestamp, now_ms), self.store_host)
        while requests:
            done = self._append_runs(requests, stamp) or self._append_fitting(requests, stamp)
            if done == len(requests):
                return
            requests = requests[done:]

    def put(self, put: Put, now_ms: int) -> tuple[int, int, int] | None:
        """Appends one message; returns its log offset, queue and queue offset.

        None where `append` has to do it: without the loader, for a topic or head out of the common,
        or at the end of a segment. Raises OSError as `append`.
        """
        log, topic = self.commit_log, put.topic
        puts, queue_id = self._kernel_put(), self.topics.queue_for(topic, put.queue_id)
        if puts is None or queue_id is None:
            return None
        start, queue = log.end, queue_of(topic, queue_id)
        offset = self.tails.get(queue, 0)
        time = max(self.last_store_timestamp, now_ms)
        record = puts.record(put, _raw(topic), queue_id, offset, start, time)
        if record is None or len(record) > log.fitting_bytes:
            return None
        log.append(record)
        self.last_store_timestamp, self.last_record_offset = time, start
        self.tails[queue] = offset + 1
        self.records += 1
        return start, queue_id, offset

    def _append_draft(self, request: AppendRequest, now_ms: int) -> bool:
        put = request.draft
        placed = None if put is None else self.put(put, now_ms)
        if put is None or placed is None:
            return False
        request.physical_offset, queue_id, offset = placed
        request.store_timestamp = self.last_store_timestamp
        request.queues = ((put.topic, queue_id, offset, 1),)
        return True

    def _kernel_put(self) -> PutKernel | None:
        compiled = loader.active()
        if compiled is None:
            return None
        if self._put is None or self._put.kernel is not compiled:
            self._put = PutKernel(compiled, self.rules, self.store_host)
        return self._put

    def _append_runs(self, requests: list[AppendRequest], stamp: StoreStamp) -> int:
        """The first requests, where each goes to one queue; returns how many that were."""
        runs, log = self._kernel_runs(), self.commit_log
        if runs is None:
            return 0
        base, sealed = log.end, runs.sealed
        taken = runs.take(requests, base, log.fitting_bytes, stamp)
        if taken:
            log.append(sealed.records)
            self.last_store_timestamp = stamp.store_timestamp
            self.last_record_offset = base + sealed.last_at
            self.records += runs.rows
        return taken

    def _append_fitting(self, requests: list[AppendRequest], stamp: StoreStamp) -> int:
        """As many as fit into the segment; returns how many are done with, 0 after a new one."""
        last, size = 0, 0
        while last < len(requests) and self.commit_log.fits(size + len(requests[last].records)):
            size += len(requests[last].records)
            last += 1
        if not last:
            return 0 if self._makes_room(requests[0]) else 1
        self._append_chunk(requests[:last], stamp)
        return last

    def _makes_room(self, request: AppendRequest) -> bool:
        """Rolls to a new segment for a request that is good; sets its error otherwise."""
        try:
            if len(request.records) > self.commit_log.request_bytes_max:
                raise MessageTooLarge(
                    f"{len(request.records)} bytes fit into no segment of "
                    f"{self.commit_log.segment_bytes}",
                    "send smaller messages or batches",
                )
            self._plain_queues(request, self._plain_rows(request), choose=False)
            self.commit_log.make_room(len(request.records))
        except MqError as error:
            request.error = error
        return request.error is None

    def _append_chunk(self, requests: list[AppendRequest], stamp: StoreStamp) -> None:
        """Requests that fit into the current segment together: one buffer, one write."""
        buffer = self._chunk_compiled(requests, stamp)
        if buffer is None:
            is_small = sum(request.count for request in requests) <= PLAIN_RECORDS_MAX
            chunk = self._chunk_plain if is_small else self._chunk_columns
            buffer = chunk(requests, stamp)
        if buffer:
            self.commit_log.append(buffer)
            # Not before: of a refused request there is no record with this time.
            self.last_store_timestamp = stamp.store_timestamp

    # -- compiled -----------------------------------------------------------------------------

    def _chunk_compiled(
        self, requests: list[AppendRequest], stamp: StoreStamp
    ) -> memoryview | bytearray | None:
        """None without the loader, and where one of the other ways has to say what is wrong."""
        group = self._kernel_group()
        if group is None:
            return None
        group.clear(len(requests), sum(len(one.records) + len(one.sizes) for one in requests))
        starts = [_add(group, request) for request in requests]
        parts = group.check()
        if parts is None:
            return None
        try:
            self.topics.make({_topic_of(part.topic) for own in parts for part in own})
            queues = list(map(self._queues, requests, parts))
        except MqError:
            return None
        base, places = self.commit_log.end, []
        for request, start, found, own in zip(requests, starts, queues, parts, strict=True):
            request.physical_offset = base + start
            request.store_timestamp = stamp.store_timestamp
            queued = []
            for queue, part in zip(found, own, strict=True):
                first = self.tails.get(queue, 0)
                self.tails[queue] = first + part.rows
                places.append((queue.queue_id, first))
                queued.append((*queue, first, part.rows))
            request.queues = queued
        group.seal(places, base, stamp)
        self.last_record_offset = base + group.last_at
        self.records += group.rows
        return group.records

    def _kernel_group(self) -> AppendGroup | None:
        compiled = loader.active()
        if compiled is None:
            return None
        if self._group is None or self._group.kernel is not compiled:
            self._group = AppendGroup(compiled, self.rules)
        return self._group

    def _kernel_runs(self) -> Runs | None:
        compiled = loader.active()
        if compiled is None:
            return None
        if self._runs is None or self._runs.sealed.kernel is not compiled:
            self._runs = Runs(compiled, self.rules, self.topics, self.tails)
        return self._runs

    def _queues(self, request: AppendRequest, parts: list[AppendPart]) -> list[Queue]:
        """The queue of each part. Raises what the other ways raise."""
        if request.any_queue:
            names = {_topic_of(part.topic) for part in parts}
            return [Queue(_topic_of(parts[0].topic), self._any_queue(names))]
        queues = [Queue(_topic_of(part.topic), part.queue_id) for part in parts]
        for queue in queues:
            self.topics.check_queue(self.topics.for_send(queue.topic), queue.queue_id)
        return queues

    # -- record by record ---------------------------------------------------------------------

    def _chunk_plain(self, requests: list[AppendRequest], stamp: StoreStamp) -> bytearray:
        buffer = bytearray()
        for request in requests:
            try:
                rows = self._plain_rows(request)
                queue_ids = self._plain_queues(request, rows)
            except MqError as error:
                request.error = error
                continue
            request.physical_offset = self.commit_log.end + len(buffer)
            request.store_timestamp = stamp.store_timestamp
            start = len(buffer)
            buffer += request.records
            counts: dict[Queue, list[int]] = {}
            for row, queue_id in zip(rows, queue_ids, strict=True):
                queue = Queue(row.topic, queue_id)
                offset = self.tails.get(queue, 0)
                self.tails[queue] = offset + 1
                counts.setdefault(queue, [offset, 0])[1] += 1
                placed = PlainRow(start + row.start, row.size, row.topic, queue_id, row.sys_flag)
                physical_offset = request.physical_offset + row.start
                patch_plain(buffer, placed, offset, physical_offset, stamp, self.rules.crc)
            request.queues = [(*queue, first, n) for queue, (first, n) in counts.items()]
            self.last_record_offset = request.physical_offset + rows[-1].start
            self.records += len(rows)
        return buffer

    def _plain_rows(self, request: AppendRequest) -> list[PlainRow]:
        if request.checked_rows is not None:
            return request.checked_rows
        check_crc(request)
        rows = check_plain(request.records, self.rules)
        check_sizes(request, [row.size for row in rows])
        return rows

    def _plain_queues(
        self, request: AppendRequest, rows: list[PlainRow], choose: bool = True
    ) -> list[int]:
        names = {row.topic for row in rows}
        if request.any_queue:
            return [self._any_queue(names) if choose else 0] * len(rows)
        self.topics.make(names)
        for queue in {Queue(row.topic, row.queue_id) for row in rows}:
            self.topics.check_queue(self.topics.for_send(queue.topic), queue.queue_id)
        return [row.queue_id for row in rows]

    def _any_queue(self, names: set[str]) -> int:
        return self.topics.choose_queue(self.topics.for_send(_only(names)))

    # -- as columns ---------------------------------------------------------------------------

    def _chunk_columns(self, requests: list[AppendRequest], stamp: StoreStamp) -> bytearray:
        try:
            group = self._checked_group(requests)
        except MqError:
            # Somebody's records are bad: each request is checked alone, the good ones go together.
            for request in requests:
                try:
                    self._checked_group([request])
                except MqError as error:
                    request.error = error
            requests = [request for request in requests if request.error is None]
            if not requests:
                return bytearray()
            group = self._checked_group(requests)
        columns, base = group.checked.columns, self.commit_log.end
        queue_offset = self._give_offsets(requests, group)
        patch_columns(
            columns, group.queue_id, queue_offset, columns.start + base, stamp, self.rules.crc
        )
        for request, start in zip(requests, group.starts.tolist(), strict=True):
            request.physical_offset = base + start
            request.store_timestamp = stamp.store_timestamp
        self.last_record_offset = base + int(columns.start[-1])
        self.records += len(columns)
        return group.buffer

    def _checked_group(self, requests: list[AppendRequest]) -> "_RequestGroup":
        """Raises the MqError of one of the requests; only a topic's turn has changed then."""
        for request in requests:
            check_crc(request)
        buffer = bytearray().join([request.records for request in requests])
        checked = check_columns(np.frombuffer(buffer, np.uint8), self.rules)
        lengths = np.array([len(request.records) for request in requests])
        starts = np.cumsum(lengths) - lengths
        bounds = np.append(np.searchsorted(checked.columns.start, starts), len(checked.columns))
        for request, first, last in zip(requests, bounds[:-1], bounds[1:], strict=True):
            check_sizes(request, checked.columns.size[first:last].tolist())
        queue_id = checked.columns.queue_id.copy()
        unplaced: list[tuple[slice, str]] = []
        for request, first, last in zip(requests, bounds[:-1], bounds[1:], strict=True):
            if request.any_queue:
                ids = set(checked.topic_id[first:last].tolist())
                unplaced.append((slice(first, last), _only({checked.topics[i] for i in ids})))
        self.topics.make(checked.topics)
        for rows, name in unplaced:
            queue_id[rows] = self.topics.choose_queue(self.topics.for_send(name))
        for number, name in enumerate(checked.topics):
            topic = self.topics.for_send(name)
            ids = queue_id[checked.topic_id == number]
            self.topics.check_queue(topic, int(ids.min()))
            self.topics.check_queue(topic, int(ids.max()))
        return _RequestGroup(buffer, checked, starts, bounds, queue_id)

    def _give_offsets(self, requests: list[AppendRequest], group: "_RequestGroup") -> Ints:
        """The next offset of each record's queue, in order; fills in the requests' queues."""
        checked = group.checked
        key = checked.topic_id * (QUEUE_ID_MAX + 1) + group.queue_id
        order = np.argsort(key, kind="stable")
        sorted_key = key[order]
        first = np.flatnonzero(np.append(True, sorted_key[1:] != sorted_key[:-1]))
        count = np.diff(np.append(first, len(key)))
        base = np.empty(len(first), np.int64)
        for i, row in enumerate(order[first].tolist()):
            queue = Queue(checked.topics[checked.topic_id[row]], int(group.queue_id[row]))
            base[i] = self.tails.get(queue, 0)
            self.tails[queue] = int(base[i] + count[i])
        offsets = np.empty(len(key), np.int64)
        offsets[order] = np.arange(len(key)) - np.repeat(first - base, count)
        for request, begin, end in zip(requests, group.bounds[:-1], group.bounds[1:], strict=True):
            _, rows, counts = np.unique(key[begin:end], return_index=True, return_counts=True)
            queued = []
            for row, n in sorted(zip((rows + begin).tolist(), counts.tolist(), strict=True)):
                topic = checked.topics[checked.topic_id[row]]
                queued.append((topic, int(group.queue_id[row]), int(offsets[row]), n))
            request.queues = queued
        return offsets


@dataclass(frozen=True, slots=True)
class _RequestGroup:
    """Checked requests joined; `bounds` are the row numbers where each begins, and the end."""

    buffer: bytearray
    checked: CheckedColumns
    starts: Ints
    bounds: Ints
    queue_id: Ints


def _add(group: AppendGroup, request: AppendRequest) -> int:
    crc = -1 if request.crc is None else request.crc
    flags = ANY_QUEUE_FLAG * request.any_queue + CHECKED_FLAG * (request.checked_rows is not None)
    return group.add(request.records, request.count, crc, request.sizes, flags)


def _only(names: set[str]) -> str:
    """The one topic of a request that names no queue. Raises BadRequest."""
    if len(names) != 1:
        raise BadRequest(
            f"queue -1 with {len(names)} topics", "send one topic a batch, or name the queues"
        )
    (name,) = names
    return name


@lru_cache(maxsize=4096)
def _raw(topic: str) -> bytes:
    return topic.encode()


@lru_cache(maxsize=4096)
def _topic_of(raw: bytes) -> str:
    """A stored topic's name. Raises IllegalMessage and its kinds."""
    name = raw.decode()
    check_topic_for_send(name)
    return name
