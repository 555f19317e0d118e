"""The requests `delete_topic` and `purge_topic`: messages that go while the log keeps their bytes.

A thread first counts what the log has of the topic: the bytes, the last record, and where a purge
would begin. It reads the queues' units up to where the workers are, and from there on the log
itself, and changes nothing. Then, in one turn of the loop, the log is flushed, the note
`keelog/removed` saved, and the topic's entry taken out. From the note on the messages are gone,
whatever is killed after it; the queue workers delete the queues' files.

Messages that are past the retention of their own topic are purged, too. RocketMQ has a retention
for the whole log alone. A topic with `retention_hours` loses its older messages as by
`purge_topic`: nobody reads them any more, and their bytes leave with their segments. The same look
finds from where the topic still keeps messages: a segment that holds one of a topic with a longer
retention does not go by age.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

import numpy as np

from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import MORE_TASKS, SHORT, as_refusal, next_delete_s
from node.runtime.state_page import RUNNING
from node.store.checkpoints import list_progress
from node.store.condition import QUEUE_WORKER_PREFIX
from node.store.file_cache import OpenFiles
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import SegmentList, list_folder
from node.store.query.look_up import offset_by_time
from node.store.queues import QueueReader, is_filler, list_queue_ids, open_queue_files, queue_folder
from node.writer.broker_checkpoint import live_workers
from node.writer.log.retention import SegmentFile
from node.writer.store import WriterStore
from protocol import errors
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, check_topic_for_send
from protocol.record.columns import Bools, RecordColumns
from protocol.requests import DELETE_TOPIC, PURGE_BEFORE_OFFSET, PURGE_BEFORE_TIME, PURGE_TOPIC
from protocol.wire.frames import Header, answer, request_id

log = logging.getLogger("keelog.removal")

_STEP_UNITS = 1 << 18
_SURVEY_HINT = "see all damage with: keelog store verify"

REMOVAL_OPERATIONS = ("delete_topic", "purge_topic")
WAITING_MAX = 64
"""Requests that wait for their turn: one is served at a time."""
_HOUR_S = 3600

Reply = Callable[[bytes, Header], None]
Refuse = Callable[[bytes, int, errors.MqError], None]

EXPIRY_EVERY_S = 60.0
"""How long a message may outlive its topic's retention."""


@dataclass(frozen=True, slots=True)
class PurgePoint:
    """Messages before a queue offset, or a store time, go; with neither all of them.

    With a store time go those below the log offset `below` as well: their store times may lie
    ahead.
    """

    offset: int | None = None
    time_ms: int | None = None
    below: int = 0

    def keeps(self, columns: RecordColumns) -> Bools:
        """Marks the records that stay."""
        if self.offset is not None:
            kept: Bools = columns.queue_offset >= self.offset
            return kept
        if self.time_ms is not None:
            is_young = columns.store_timestamp >= self.time_ms
            kept = is_young & (columns.physical_offset >= self.below)
            return kept
        return np.zeros(len(columns), np.bool_)


@dataclass(slots=True)
class QueueSurvey:
    """One queue. `begin` is the log offset of the first record that stays, `first` its number; None
    while no record stays, and then `first` is the queue's end."""

    gone_bytes: int = 0
    last_offset: int = -1
    begin: int | None = None
    first: int = 0


@dataclass(slots=True)
class TopicSurvey:
    """A topic's queues in the log [`start`, `end`), and what a purge at `point` would take.

    `queue_id`: only this queue; None: all.
    """

    root: Path
    topic: str
    point: PurgePoint
    queue_id: int | None
    start: int = 0
    removed: Removed = NOTHING_REMOVED
    end: int = 0
    queues: dict[int, QueueSurvey] = field(default_factory=dict)

    @property
    def gone_bytes(self) -> int:
        return sum(queue.gone_bytes for queue in self.queues.values())

    @property
    def last_offset(self) -> int:
        """The log offset of the topic's last record; -1 without one."""
        return max((queue.last_offset for queue in self.queues.values()), default=-1)

    def read_queues(self, dispatched: int) -> None:
        """Reads the units of records that end at or below `dispatched`. Raises StoreDamaged."""
        self.end = max(self.start, dispatched)
        with closing(OpenFiles()) as files:
            log = self._log(files, self.end)
            for number in list_queue_ids(self.root, self.topic):
                if self.queue_id in (None, number):
                    self._read_queue(number, files, log)

    def read_log(self, end: int) -> None:
        """Reads the rest of the log, which ends at `end`. Raises StoreDamaged."""
        if end <= self.end:
            return
        with closing(OpenFiles()) as files:
            log = self._log(files, end)
            for columns in log.columns(self.end, end):
                self._note(columns)
            if log.stopped is not None:
                where = str(log.segment_at(log.stopped.position).path)
                raise errors.StoreDamaged(
                    where, log.stopped.position, log.stopped.why, _SURVEY_HINT
                )
        self.end = end

    def _log(self, files: OpenFiles, end: int) -> LogReader:
        folder = self.root / COMMIT_LOG_DIR
        listing = list_folder(folder, begin=self.start)
        return LogReader(SegmentList(folder, listing, files), Bounds(self.start, end))

    def _read_queue(self, number: int, files: OpenFiles, log: LogReader) -> None:
        queue = Queue(self.topic, number)
        begin = max(self.start, self.removed.begin_of(queue))
        found = open_queue_files(queue_folder(self.root, queue), None, files)
        reader = QueueReader(found, found.end_below(self.end), lambda: begin)
        low, high = reader.min_offset, reader.max_offset
        cut = high
        if self.point.offset is not None:
            cut = min(max(self.point.offset, low), high)
        elif self.point.time_ms is not None and low < high:
            old = min(found.end_below(self.point.below), high) if self.point.below else low
            cut = max(offset_by_time(log, reader, self.point.time_ms), old)
        seen = QueueSurvey(first=cut)
        for start in range(low, cut, _STEP_UNITS):
            units = reader.units(start, min(_STEP_UNITS, cut - start))
            seen.gone_bytes += int(units["size"][~is_filler(units)].sum())
        if low < high:
            unit = reader.unit(high - 1)
            seen.last_offset = -1 if unit is None else unit.physical_offset
        if cut < high and (kept := reader.unit(cut)) is not None:
            seen.begin = kept.physical_offset
        if high:
            self.queues[number] = seen

    def _note(self, columns: RecordColumns) -> None:
        requests = DispatchRequests(self.removed.visible(columns))
        columns = requests.columns
        if not len(columns) or self.topic not in requests.topics:
            return
        rows = requests.is_queued & (requests.topic_id == requests.topics.index(self.topic))
        kept = self.point.keeps(columns)
        for number in np.unique(columns.queue_id[rows]).tolist():
            if self.queue_id in (None, number):
                of = rows & (columns.queue_id == number)
                seen = self.queues.setdefault(number, QueueSurvey())
                _add(seen, columns.take(of), kept[of])


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
    error: errors.MqError | OSError | None = None

    def begin(self, dispatched: int, end: int) -> None:
        """Starts to count. The queues have the log up to `dispatched`; it ends at `end`."""

        def count() -> None:
            try:
                self.survey.read_queues(min(dispatched, end))
                self.survey.read_log(end)
            except (errors.MqError, OSError) as error:
                self.error = error

        self.thread = Thread(target=count, name="removal")
        try:
            self.thread.start()
        except RuntimeError as error:  # the request is refused in the next step
            self.error = errors.ServiceNotAvailable(f"{SHORT}: {error}", MORE_TASKS)


class Removals:
    """Serves the two requests, one at a time. `flush` makes the whole log durable."""

    def __init__(
        self, store: WriterStore, flush: Callable[[], None], reply: Reply, refuse: Refuse
    ) -> None:
        self._store = store
        self._flush = flush
        self._reply = reply
        self._refuse = refuse
        self.waiting: deque[_Removal] = deque()
        self._look_at = 0.0
        self._table_version = -1
        self._past: deque[str] = deque()
        """Topics with a retention of their own that this round has not looked at yet."""

    def ask(self, peer: bytes, header: Header, operation: str) -> None:
        """Takes a request; the answer comes later. Raises BadRequest, IllegalMessage, NotAllowed,
        UnknownTopic, NodeBusy."""
        if len(self.waiting) >= WAITING_MAX:
            raise errors.NodeBusy(f"{len(self.waiting)} removals wait", "send it again later")
        point, queue_id, is_purge = PurgePoint(), None, operation == "purge_topic"
        if is_purge:
            topic, queue_id = PURGE_TOPIC.parse(header)
            point = _point_of(header)
        else:
            (topic,) = DELETE_TOPIC.parse(header)
        check_topic_for_send(topic)
        number = request_id(header)
        if self._store.has_topic(topic):
            survey = TopicSurvey(self._store.root, topic, point, queue_id)
            self.waiting.append(_Removal(peer, number, survey, is_purge))
            self.step()
        elif is_purge:
            raise errors.UnknownTopic(f"topic {topic} does not exist", "keelog topic ls")
        else:
            self._reply(peer, _deleted(number, topic, False, 0, None))

    def step(self) -> None:
        """Goes on with the first request: begins to count, or carries it out."""
        if not self.waiting:
            return
        removal = self.waiting[0]
        if removal.thread is None:
            removal.survey.start = self._store.min_offset
            removed = self._store.removed
            # What was purged before leaves the log with the topic: it counts, too.
            removal.survey.removed = removed if removal.is_purge else replace(removed, queues={})
            removal.begin(_dispatched(self._store), self._store.log.committed)
        elif not removal.thread.is_alive():
            self.waiting.popleft()
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
            except (errors.MqError, OSError) as error:
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
            raise errors.BadRequest(
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

    def expire(self, now: float) -> None:
        """Goes on with a round over the topics that have a retention of their own, one at a time
        and between what clients ask for, or begins one when it is due. `now`: of a monotonic clock.
        """
        table = self._store.topics
        if self.waiting:
            return
        if not self._past and (now >= self._look_at or table.version != self._table_version):
            self._look_at, self._table_version = now + EXPIRY_EVERY_S, table.version
            self._past += [topic.name for topic in table.all() if topic.retention_hours]
        while self._past:
            topic = table.find(self._past.popleft())
            if topic is not None and topic.retention_hours:
                now_ms = int(self._store.retention.clock.now_s() * 1000)
                self._purge_old(topic.name, now_ms - topic.retention_hours * _HOUR_S * 1000)
                return

    def _purge_old(self, topic: str, before_ms: int) -> None:
        """Purges what a topic stored before a time, in its turn, and notes from where it is kept.

        Segments that were last written before it go with it, whatever their store times. A queue
        that cannot be read stays, and with it all segments that are kept for the topic.
        """
        below = self._store.retention.written_before(before_ms / 1000)
        survey = TopicSurvey(
            self._store.root, topic, PurgePoint(time_ms=before_ms, below=below), None
        )
        self.waiting.append(_Removal(b"", 0, survey, is_purge=True, is_expiry=True))

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
        except (errors.MqError, OSError) as error:
            details = fields(topic=survey.topic, why=error)
            log.warning("messages past their topic's retention stay", extra=details)
            return
        store.kept_from[survey.topic] = min(ends.values(), default=survey.end)

    def close(self) -> None:
        """Refuses what waits: the writer ends."""
        stopping = errors.ServiceNotAvailable(
            "the node is stopping", "send it again when it is back"
        )
        while self.waiting:
            removal = self.waiting.popleft()
            if removal.thread is not None and removal.thread.is_alive():
                removal.thread.join()
            if not removal.is_expiry:
                self._refuse(removal.peer, removal.number, stopping)


def _add(seen: QueueSurvey, columns: RecordColumns, kept: Bools) -> None:
    seen.last_offset = int(columns.physical_offset[-1])
    if seen.begin is not None:
        return
    stays = np.flatnonzero(kept)
    gone = int(stays[0]) if len(stays) else len(columns)
    seen.gone_bytes += int(columns.size[:gone].sum())
    if gone < len(columns):
        seen.begin = int(columns.physical_offset[gone])
        seen.first = int(columns.queue_offset[gone])
    else:
        seen.first = int(columns.queue_offset[-1]) + 1


def _point_of(header: Header) -> PurgePoint:
    """The offset or the time of a purge. Raises BadRequest unless there is one of the two."""
    if ("offset" in header) == ("timestamp" in header):
        raise errors.BadRequest("purge_topic needs offset or timestamp", "name one of them")
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
