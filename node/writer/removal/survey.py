"""What the log has of one topic: the bytes, the last record, and where a purge would begin.

It reads the queues' units up to where the workers are, and from there on the log itself. Nothing is
changed, so it runs in a thread beside the writer's loop.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from node.store.file_cache import OpenFiles
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import SegmentList, list_folder
from node.store.query.look_up import offset_by_time
from node.store.queues import QueueReader, is_filler, list_queue_ids, open_queue_files, queue_folder
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR
from protocol.record.columns import Bools, RecordColumns

_STEP_UNITS = 1 << 18
_HINT = "see all damage with: keelog store verify"


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
        """The bytes of the records that go."""
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
                raise StoreDamaged(where, log.stopped.position, log.stopped.why, _HINT)
        self.end = end

    def _log(self, files: OpenFiles, end: int) -> LogReader:
        folder = self.root / COMMIT_LOG_DIR
        listing = list_folder(folder, begin=self.start)
        return LogReader(SegmentList(folder, listing, files), Bounds(self.start, end))

    def _read_queue(self, number: int, files: OpenFiles, log: LogReader) -> None:
        queue = Queue(self.topic, number)
        begin = max(self.start, self.removed.begin_of(queue))
        found = open_queue_files(queue_folder(self.root, queue), None, files)
        reader = QueueReader(found, found.end_below(self.end), _constant(begin))
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


def _constant(value: int) -> Callable[[], int]:
    return lambda: value
