"""The queues' part of `verify`: every unit against its record, every record against its unit."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store import queues
from node.store.log.segments import list_folder
from node.store.verify import findings
from protocol.derived.dispatch_request import DispatchRequests, is_lmq, lmq_batches, lmq_offsets
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import CONSUME_QUEUE_DIR, offset_file_name
from protocol.record.codec import Record, Torn, unit_tags_code

Ints = NDArray[np.int64]
_QUEUE_BITS = 32


class _UnitPlace(NamedTuple):
    """A unit: its queue and number, and the log offset that it names or should name."""

    queue: Queue
    number: int
    offset: int


class CheckedQueue:
    """The units [`start`, `end`) of one queue, and which of them have a record."""

    def __init__(self, files: queues.QueueFiles, start: int, end: int) -> None:
        self.files = files
        self.start = start
        self.end = end
        self.called: list[tuple[int, int]] = []
        """Runs of numbers with records, in the order of the calls."""
        self.vouched = start
        """Below it are the units that the workers' checkpoints cover."""

    def call(self, numbers: Ints) -> None:
        """Notes that the units of these numbers have records."""
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        starts = numbers[np.concatenate([[0], breaks])].tolist()
        ends = (numbers[np.concatenate([breaks, [len(numbers)]]) - 1] + 1).tolist()
        for start, end in zip(starts, ends, strict=True):
            if self.called and self.called[-1][1] == start:
                self.called[-1] = self.called[-1][0], end
            else:
                self.called.append((start, end))

    def uncalled(self) -> Iterator[int]:
        """Yields the numbers of units without a record, rising."""
        at = self.start
        for start, end in sorted(self.called):
            yield from range(at, start)
            at = max(at, end)
        yield from range(at, self.end)


def _names(record: Record, queue: Queue, number: int) -> bool:
    """Whether a record belongs into a queue: its own, or a light one at that number."""
    if is_lmq(queue.topic):
        return lmq_offsets(record.topic, record.properties).get(queue.topic) == number
    return (record.topic, record.head.queue_id) == queue


class QueueCheck:
    """Compares units with records; `units` counts those on disk."""

    def __init__(self, store: findings.CheckedStore, into: findings.Findings) -> None:
        self._store = store
        self._findings = into
        self._lenient = findings.mended_by_recovery(store.condition)
        self.seen: dict[Queue, CheckedQueue] = {}
        self._all_missing = not store.folders
        self._has_light_queues = any(is_lmq(queue.topic) for queue in store.folders)
        self._reported_missing = False
        self.units = 0

    @property
    def _vouched_end(self) -> int:
        """From this log offset on the next start makes units anew: a page may be missing."""
        condition = self._store.condition
        done = condition.queues_done if condition.is_ours and not condition.is_clean else None
        return queues.ANY_OFFSET if done is None else done

    def structure(self) -> None:
        """Checks the names and lengths of all files."""
        store = self._store
        for path in queues.list_strangers(store.root):
            detail = "is no part of a queue: a broker would not load this folder"
            self._findings.add(findings.Finding("error", "foreign_file", str(path), 0, detail))
        try:
            file_bytes = store.queue_file_bytes
        except StoreDamaged as damage:
            self._findings.add(
                findings.Finding("error", "wrong_length", damage.where, 0, damage.found)
            )
            return
        for queue, folder in store.folders.items():
            problems = list_folder(folder, file_bytes).problems
            for problem in problems:
                place = _UnitPlace(queue, problem.offset // UNIT_BYTES, 0)
                self._add("error", problem.kind, place, problem.detail, problem.path)
            if problems:
                continue
            files = store.files_of(queue)
            end = files.end_below(queues.ANY_OFFSET, thorough=True)
            begin = max(store.log.min_offset, store.condition.removed.horizon(queue.topic))
            reader = queues.QueueReader(files, end, partial(int, begin))
            self.seen[queue] = seen = CheckedQueue(files, min(reader.min_offset, end), end)
            self.units += seen.end - seen.start

    def _add(
        self,
        severity: findings.Severity,
        kind: str,
        place: _UnitPlace,
        detail: str,
        path: Path | None = None,
        count: int = 1,
    ) -> None:
        queue, number, offset = place
        folder = queues.queue_folder(self._store.root, queue)
        if path is None and kind != "unit_missing":
            position = number * UNIT_BYTES
            path = folder / offset_file_name(position - position % self._store.queue_file_bytes)
        where = str(path or folder)
        finding = findings.Finding(severity, kind, where, offset, detail, *queue, number, count)
        self._findings.add(finding)

    def ends(self, damaged: findings.Stretches) -> None:
        """Checks the first and the last unit of each queue against their records."""
        for queue, seen in self.seen.items():
            for number in sorted({seen.start, seen.end - 1}):
                if seen.start <= number < seen.end:
                    self._check_one(queue, seen, number, damaged)

    def _check_one(
        self, queue: Queue, seen: CheckedQueue, number: int, damaged: findings.Stretches
    ) -> None:
        log = self._store.log
        offset, size, code = seen.files.read(number, 1)[0].tolist()
        place = _UnitPlace(queue, number, offset)
        if findings.is_within(damaged, offset):
            return
        if not log.holds(offset, size):
            if offset >= log.min_offset:
                detail = f"names {size} bytes beyond the log's end, {log.end}"
                self._add(self._lenient, "unit_dangling", place, detail)
            return
        try:
            found = log.peek(offset)
        except StoreDamaged as damage:
            self._add("error", "unit_dangling", place, damage.found)
            return
        levels = self._store.settings.delay_levels_ms
        if isinstance(found, Torn) and found.kind == "bad_crc":
            where = str(log.segment_at(offset).path)
            self._findings.add(findings.Finding("error", "bad_crc", where, offset, found.why))
        elif not isinstance(found, Record):
            self._add("error", "unit_dangling", place, "no record stands there")
        elif not _names(found, queue, number) or (found.size, unit_tags_code(found, levels)) != (
            size,
            code,
        ):
            self._add("error", "unit_mismatch", place, "its record says otherwise")

    def seen_of(self, queue: Queue) -> CheckedQueue | None:
        """The queue, if its files can be read; a task of an audit opens it here."""
        return self.seen.get(queue)

    def records(self, requests: DispatchRequests) -> None:
        """Compares a window's records with their units."""
        requests = self._not_removed(requests)
        columns = requests.columns
        if not len(columns):
            return
        for queue, rows in requests.by_queue():
            self.check(queue, columns.queue_offset[rows], requests.units(rows))
        if self._has_light_queues:
            for queue, batch in lmq_batches(requests):
                self.check(queue, batch.queue_offset, batch.units)

    def _not_removed(self, requests: DispatchRequests) -> DispatchRequests:
        columns = self._store.condition.removed.dispatched(requests.columns)
        if columns is requests.columns:
            return requests
        return DispatchRequests(columns, requests.delay_levels_ms)

    def check(self, queue: Queue, numbers: Ints, expected: NDArray[Any]) -> None:
        """Compares the units of these numbers with those that the records call for."""
        offsets = expected["physical_offset"].astype(np.int64)
        seen = self.seen_of(queue)
        if seen is None:
            if queue not in self._store.folders:
                self._missing(queue, numbers, offsets)
            return
        inside = (numbers >= seen.start) & (numbers < seen.end)
        if not inside.all():
            self._missing(queue, numbers[~inside], offsets[~inside])
            numbers, expected, offsets = numbers[inside], expected[inside], offsets[inside]
        if not len(numbers):
            return
        first = int(numbers.min())
        found = seen.files.read(first, int(numbers.max()) - first + 1)
        is_run = len(found) == len(numbers) and bool((np.diff(numbers) == 1).all())
        seen.call(numbers)
        vouched_end = self._vouched_end
        vouched = numbers[offsets < vouched_end]
        seen.vouched = max(seen.vouched, int(vouched.max(initial=-1)) + 1)
        if is_run and np.array_equal(found.view(np.uint8), expected.view(np.uint8)):
            return
        found = found[numbers - first]
        for row in np.flatnonzero(found != expected).tolist():
            detail = f"is {tuple(found[row].tolist())}, should be {tuple(expected[row].tolist())}"
            place = _UnitPlace(queue, int(numbers[row]), int(offsets[row]))
            severity: findings.Severity = "error" if place.offset < vouched_end else "warning"
            self._add(severity, "unit_mismatch", place, detail)

    def _missing(
        self, queue: Queue, numbers: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> None:
        if not len(numbers):
            return
        if self._all_missing:
            if not self._reported_missing:
                where = str(self._store.root / CONSUME_QUEUE_DIR)
                detail = "there are no queue files at all; a node makes them anew from the log"
                self._findings.add(findings.Finding("warning", "unit_missing", where, 0, detail))
            self._reported_missing = True
            return
        if queue not in self._store.folders:
            self._missing_folder(queue, numbers, offsets)
            return
        starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers) != 1) + 1])
        counts = np.diff(np.append(starts, len(numbers)))
        for row, count in zip(starts[: findings.ALIKE_MAX].tolist(), counts.tolist(), strict=False):
            place = _UnitPlace(queue, int(numbers[row]), int(offsets[row]))
            seen = self.seen_of(queue)
            has_file = seen is None or seen.files.first <= place.number < seen.files.capacity_end
            severity = self._severity(has_file)
            detail = "no unit for a record"
            self._add(severity, "unit_missing", place, detail, count=count)
        more = len(starts) - findings.ALIKE_MAX
        if more > 0:
            where = str(queues.queue_folder(self._store.root, queue))
            self._findings.count_more("unit_missing", where, more)

    def _missing_folder(self, queue: Queue, numbers: Ints, offsets: Ints) -> None:
        """One finding for each queue without files, or for its topic if that has none at all."""
        topic, severity = queue.topic, self._severity(has_file=False)
        first, count = int(offsets[0]), len(numbers)
        folder = queues.queue_folder(self._store.root, queue)
        if not any(one.topic == topic for one in self._store.folders):
            where = str(folder.parent)
            finding = findings.Finding(
                severity, "unit_missing", where, first, findings.NO_TOPIC_FILES, topic, count=count
            )
            self._findings.add(finding)
            return
        place = _UnitPlace(queue, int(numbers[0]), first)
        self._add(severity, "unit_missing", place, findings.NO_QUEUE_FILES, count=count)

    def _severity(self, has_file: bool) -> findings.Severity:
        """Of missing units: a node's next start makes deleted files anew, and so do those after a
        crash; what a broker left is another matter."""
        return "warning" if self._store.condition.is_ours and not has_file else self._lenient

    def folders(self, requests: DispatchRequests) -> None:
        """Reports queues that have records and no files. The records may be damaged: the first one
        of each such queue is verified."""
        log = self._store.log
        try:
            requests = self._not_removed(requests)
            columns = requests.columns
            codes = requests.topic_id.astype(np.int64) << _QUEUE_BITS | columns.queue_id
            found, rows = np.unique(codes, return_index=True)
            for code, row in zip(found.tolist(), rows.tolist(), strict=True):
                topic = requests.topics[code >> _QUEUE_BITS]
                queue = Queue(topic, int(columns.queue_id[row]))
                if queue in self._store.folders:
                    continue
                record = log.peek(int(columns.physical_offset[row]))
                if (
                    isinstance(record, Record)
                    and Queue(record.topic, record.head.queue_id) == queue
                ):
                    rows_of = np.flatnonzero((codes == code) & requests.is_queued)
                    offsets = columns.physical_offset[rows_of]
                    self._missing(queue, columns.queue_offset[rows_of], offsets)
        except UnicodeDecodeError:
            return  # damaged names, which only a deep check reads

    def leftovers(self, damaged: findings.Stretches) -> None:
        """Reports units without a record, except those of damaged records."""
        log, all_vouched = self._store.log, self._vouched_end == queues.ANY_OFFSET
        for queue, seen in self.seen.items():
            for number in seen.uncalled():
                unit = seen.files.read(number, 1)
                if queues.is_filler(unit)[0]:
                    continue
                offset, size, _ = unit[0].tolist()
                if findings.is_within(damaged, offset):
                    continue
                is_beyond = offset + size > log.end
                is_mended = is_beyond or (not all_vouched and number >= seen.vouched)
                severity = self._lenient if is_mended else "error"
                detail = f"names {size} bytes " + (
                    f"beyond the log's end, {log.end}" if is_beyond else "where no such record is"
                )
                self._add(severity, "unit_dangling", _UnitPlace(queue, number, offset), detail)
