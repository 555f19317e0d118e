"""The requests `delete_topic` and `purge_topic`: messages that go while the log keeps their bytes.

A thread first counts what the log has of the topic. Then, in one turn of the loop, the log is
flushed, the note `keelog/removed` saved, and the topic's entry taken out. From the note on the
messages are gone, whatever is killed after it; the queue workers delete the queues' files.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Thread

from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import MORE_TASKS, SHORT, as_refusal, next_delete_s
from node.runtime.state_page import RUNNING
from node.store.checkpoints import list_progress
from node.store.condition import QUEUE_WORKER_PREFIX
from node.writer.broker_checkpoint import live_workers
from node.writer.removal.survey import PurgePoint, TopicSurvey
from node.writer.retention import SegmentFile
from node.writer.store import WriterStore
from protocol.errors import BadRequest, MqError, NodeBusy, ServiceNotAvailable, UnknownTopic
from protocol.ids import Queue
from protocol.names import check_topic_for_send
from protocol.requests import DELETE_TOPIC, PURGE_BEFORE_OFFSET, PURGE_BEFORE_TIME, PURGE_TOPIC
from protocol.wire.frames import Header, answer, request_id

log = logging.getLogger("keelog.removal")

REMOVAL_OPERATIONS = ("delete_topic", "purge_topic")
WAITING_MAX = 64
"""Requests that wait for their turn: one is served at a time."""
_HOUR_S = 3600

Reply = Callable[[bytes, Header], None]
Refuse = Callable[[bytes, int, MqError], None]


@dataclass(slots=True)
class _Removal:
    """One request; `survey` counts in a thread, and `error` is what ended that.

    `is_expiry`: a purge that nobody asked for and nobody gets an answer to.
    """

    peer: bytes
    number: int
    survey: TopicSurvey
    is_purge: bool
    is_expiry: bool = False
    thread: Thread | None = None
    error: MqError | OSError | None = None

    def begin(self, dispatched: int, end: int) -> None:
        """Starts to count. The queues have the log up to `dispatched`; it ends at `end`."""

        def count() -> None:
            try:
                self.survey.read_queues(min(dispatched, end))
                self.survey.read_log(end)
            except (MqError, OSError) as error:
                self.error = error

        self.thread = Thread(target=count, name="removal")
        try:
            self.thread.start()
        except RuntimeError as error:  # the request is refused in the next step
            self.error = ServiceNotAvailable(f"{SHORT}: {error}", MORE_TASKS)


class Removals:
    """Serves the two requests, one at a time. `flush` makes the whole log durable."""

    def __init__(
        self, store: WriterStore, flush: Callable[[], None], reply: Reply, refuse: Refuse
    ) -> None:
        self._store = store
        self._flush = flush
        self._reply = reply
        self._refuse = refuse
        self._waiting: deque[_Removal] = deque()

    @property
    def is_active(self) -> bool:
        """Whether a request waits."""
        return bool(self._waiting)

    def ask(self, peer: bytes, header: Header, operation: str) -> None:
        """Takes a request; the answer comes later. Raises BadRequest, IllegalMessage, NotAllowed,
        UnknownTopic, NodeBusy."""
        if len(self._waiting) >= WAITING_MAX:
            raise NodeBusy(f"{len(self._waiting)} removals wait", "send it again later")
        removal = self._parsed(peer, header, operation)
        if removal is None:
            (name,) = DELETE_TOPIC.parse(header)
            number = request_id(header)
            self._reply(peer, _deleted(number, name, False, 0, None))
            return
        self._waiting.append(removal)
        self.step()

    def _parsed(self, peer: bytes, header: Header, operation: str) -> _Removal | None:
        """None for the removal of a topic that is not there."""
        point, queue_id, is_purge = PurgePoint(), None, operation == "purge_topic"
        if is_purge:
            topic, queue_id = PURGE_TOPIC.parse(header)
            point = _point_of(header)
        else:
            (topic,) = DELETE_TOPIC.parse(header)
        check_topic_for_send(topic)
        if not self._store.has_topic(topic):
            if is_purge:
                raise UnknownTopic(f"topic {topic} does not exist", "keelog topic ls")
            return None
        store = self._store
        survey = TopicSurvey(store.root, topic, point, queue_id)
        return _Removal(peer, request_id(header), survey, is_purge)

    def step(self) -> None:
        """Goes on with the first request: begins to count, or carries it out."""
        if not self._waiting:
            return
        removal = self._waiting[0]
        if removal.thread is None:
            removal.survey.start = self._store.min_offset
            removed = self._store.removed
            # What was purged before leaves the log with the topic: it counts, too.
            removal.survey.removed = removed if removal.is_purge else replace(removed, queues={})
            removal.begin(_dispatched(self._store), self._store.log.committed)
        elif not removal.thread.is_alive():
            self._waiting.popleft()
            if removal.is_expiry:
                self._expire(removal)
                return
            if removal.error is None:
                self._flush()  # its errors end the process
            try:
                if removal.error is not None:
                    raise removal.error
                removal.survey.read_log(self._store.log.end)
                self._reply(removal.peer, self._carry_out(removal))
            except (MqError, OSError) as error:
                place = str(self._store.root)
                self._refuse(removal.peer, removal.number, as_refusal(error, place))

    def _carry_out(self, removal: _Removal) -> Header:
        store, survey, number = self._store, removal.survey, removal.number
        left = survey.gone_bytes
        if not removal.is_purge:
            if not store.has_topic(survey.topic):
                return _deleted(number, survey.topic, False, 0, None)
            full = [one for one in store.retention.segments() if one.end <= store.log.end]
            hours = store.longest_hours
            until = left and deleted_at_ms(full, survey.last_offset, hours, store.settings)
            store.remove_topic(survey.topic)
            return _deleted(number, survey.topic, True, left, until or None)
        if survey.queue_id is not None and survey.queue_id not in survey.queues:
            raise BadRequest(
                f"queue {survey.queue_id} of topic {survey.topic} has no messages",
                f"see keelog topic describe {survey.topic}",
            )
        store.purge(
            {
                Queue(survey.topic, queue_id): store.log.end if seen.begin is None else seen.begin
                for queue_id, seen in survey.queues.items()
            }
        )
        queues = [
            {"queue_id": queue_id, "min_offset": seen.first}
            for queue_id, seen in sorted(survey.queues.items())
        ]
        return answer(number, topic=survey.topic, queues=queues, left_in_log_bytes=left)

    def expire(self, topic: str, before_ms: int) -> None:
        """Purges what a topic stored before a time, in its turn, and notes from where it is kept.

        Segments that were last written before it go with it, whatever their store times.

        A queue that cannot be read stays, and with it all segments that are kept for the topic.
        """
        below = self._store.retention.written_before(before_ms / 1000)
        survey = TopicSurvey(
            self._store.root, topic, PurgePoint(time_ms=before_ms, below=below), None
        )
        self._waiting.append(_Removal(b"", 0, survey, is_purge=True, is_expiry=True))

    def _expire(self, removal: _Removal) -> None:
        survey, store = removal.survey, self._store
        ends = {
            queue_id: survey.end if seen.begin is None else seen.begin
            for queue_id, seen in survey.queues.items()
        }
        gone = [number for number, seen in survey.queues.items() if seen.gone_bytes]
        try:
            if removal.error is not None:
                raise removal.error
            if gone:
                self._flush()
                store.purge({Queue(survey.topic, number): ends[number] for number in gone})
                extra = fields(topic=survey.topic, bytes=survey.gone_bytes, queues=len(gone))
                log.info("messages are past their topic's retention", extra=extra)
        except (MqError, OSError) as error:
            details = fields(topic=survey.topic, why=error)
            log.warning("messages past their topic's retention stay", extra=details)
            return
        store.kept_from[survey.topic] = min(ends.values(), default=survey.end)

    def close(self) -> None:
        """Refuses what waits: the writer ends."""
        stopping = ServiceNotAvailable("the node is stopping", "send it again when it is back")
        while self._waiting:
            removal = self._waiting.popleft()
            if removal.thread is not None and removal.thread.is_alive():
                removal.thread.join()
            if removal.is_expiry:
                continue
            self._refuse(removal.peer, removal.number, stopping)


def _point_of(header: Header) -> PurgePoint:
    """The offset or the time of a purge. Raises BadRequest unless there is one of the two."""
    if ("offset" in header) == ("timestamp" in header):
        raise BadRequest("purge_topic needs offset or timestamp", "name one of them")
    if "offset" in header:
        return PurgePoint(offset=PURGE_BEFORE_OFFSET.parse(header).offset)
    return PurgePoint(time_ms=PURGE_BEFORE_TIME.parse(header).timestamp)


def _deleted(number: int, topic: str, deleted: bool, left: int, until: int | None) -> Header:
    return answer(number, topic=topic, deleted=deleted, left_in_log_bytes=left, until=until)


def _dispatched(store: WriterStore) -> int:
    """The log offset up to which every queue's units are there."""
    ends = {slot: saved.offset for slot, saved in list_progress(store.root).items()}
    for slot, worker in live_workers(store.root).items():
        is_settled = worker.state == RUNNING and worker.epoch == store.epoch
        ends[slot] = worker.dispatched if is_settled else 0
    queues = [end for slot, end in ends.items() if slot.startswith(QUEUE_WORKER_PREFIX)]
    return min(queues, default=0)


def deleted_at_ms(
    segments: list[SegmentFile], offset: int, hours: int, settings: Settings
) -> int | None:
    """When retention at the latest deletes the segment of a log offset, in ms since 1970.

    `segments`: those that are full. `hours`: how long they are kept. None for the one after
    them: nobody knows when it will be full.
    """
    older = [segment for segment in segments if segment.start <= offset]
    if not older or offset >= older[-1].end:
        return None
    written_s = max(segment.modified_s for segment in older)
    return 1000 * next_delete_s(written_s + hours * _HOUR_S, settings)
