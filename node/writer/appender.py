"""A group of requests becomes bytes in the log: check, place, seal, one write.

Which way makes the bytes (`node.writer.append_ways`) depends on the requests and on the kernel,
which not every installation has. Where they go is decided in one place (`node.writer.placement`).
One bad record refuses its request, before any offset is given.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from node.store.config.topics_file import Topic
from node.writer.append_request import AppendRequest
from node.writer.append_ways import (
    CheckedBatch,
    Runs,
    columns_batch,
    compiled_batch,
    plain_batch,
)
from node.writer.placement import Placement, Places, QueueRows
from node.writer.topic_table import TopicTable
from protocol.errors import BadRequest, MessageTooLarge, MqError
from protocol.ids import queue_of
from protocol.kernel import loader
from protocol.record.kernel_append import AppendGroup
from protocol.record.kernel_put import Put, PutKernel
from protocol.record.patch import PLAIN_RECORDS_MAX, AppendRules, StoreStamp

Check = Callable[[list[AppendRequest], AppendRules], CheckedBatch]


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


@lru_cache(maxsize=4096)
def _raw(topic: str) -> bytes:
    return topic.encode()
