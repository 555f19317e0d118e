"""Plans the repair of a damaged store: `keelog store repair` without `--apply`. Only reads.

The log comes first: its files, its holes, its end. Queues, index and checkpoint derive from it, so
`verify` judges them now, and once more after the log is repaired.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime.settings import Settings
from node.store.checkpoints import QUARANTINE_DIR, Tails, own_dir
from node.store.identity.own_places import strangers
from node.store.identity.store_id import PUT_BACK
from node.store.log.damage import next_record
from node.store.log.end import find_tail
from node.store.log.reader import Bounds, LogReader
from node.store.log.segment_list import SegmentList
from node.store.queues.files import QueueFiles
from node.store.repair.files import LogFiles, PaddedFiles, plan_log_files
from node.store.repair.markers import Filling, fill_holes
from node.store.repair.steps import (
    CutLog,
    FillHole,
    MoveFile,
    Rebuild,
    RewriteCheckpoint,
    Row,
    Step,
)
from node.store.repair.units import UnitsRead, queue_files, read_units
from node.store.repair.walk import LogWalk, add_gaps_at_ends, walk_log
from node.store.replay.rebuilding import load_rebuilding
from node.store.shutdown_state import Condition, check_is_store, read_condition
from node.store.verify.log import Progress
from node.store.verify.verify import VerifyReport, verify
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import CONFIG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, LOCK_FILE
from protocol.record.codec import Record, Torn

_NO_LIMIT = 2**63 - 1


class LostRange(NamedTuple):
    """Messages of one queue that cannot be brought back: queue offsets [`first`, `stop`)."""

    queue: Queue
    first: int
    stop: int


@dataclass(slots=True)
class Lost:
    """What cannot be brought back: messages by queue, and bytes of records of unknown queues."""

    ranges: list[LostRange] = field(default_factory=list)
    unknown_bytes: int = 0

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "messages": sum(one.stop - one.first for one in self.ranges),
            "unknown_bytes": self.unknown_bytes,
            "queues": [
                {"topic": queue.topic, "queue_id": queue.queue_id, "from": first, "to": stop - 1}
                for queue, first, stop in self.ranges
            ],
        }


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The steps for the log, and the store time and the end of its last record after them."""

    steps: list[Step]
    lost: Lost
    last_time: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps, in order. `ok`: nothing is damaged."""

    ok: bool
    log: LogPlan
    derived: list[Step]

    def shape(self, applied: bool) -> dict[str, Any]:
        """As JSON (docs/operations.md)."""
        return {
            "ok": self.ok,
            "applied": applied,
            "steps": self.rows(),
            "lost": self.log.lost.shape(),
        }

    def rows(self) -> list[Row]:
        """The steps, one line each."""
        return [row for step in (*self.log.steps, *self.derived) for row in step.rows()]


def plan_repair(root: Path, settings: Settings, progress: Progress | None = None) -> Plan:
    """Plans the repair of a whole store. Raises NotAStore, StorePermission, and StoreDamaged for
    what cannot be repaired."""
    report = verify(root, deep=True, progress=progress, settings=settings)
    irregular = {stranger.where for stranger in strangers(root)}
    for finding in report.findings:
        is_own = Path(finding.file).parent == own_dir(root) and finding.file not in irregular
        if finding.severity == "error" and is_own:
            # The file is of another store: nothing in it is about this log.
            raise StoreDamaged(finding.file, finding.offset, finding.detail, PUT_BACK)
    log = plan_log(root, settings)
    fills = any(isinstance(step, FillHole) and step.markers for step in log.steps)
    return Plan(report.ok, log, derived_steps(root, report, fills))


def plan_log(root: Path, settings: Settings) -> LogPlan:
    """Plans the repair of the log. Raises as `plan_repair`."""
    check_is_store(root, strict=False)
    strange = _strangers(root)
    condition = read_condition(root, strict=False)
    with closing(PaddedFiles()) as files:
        log_files = plan_log_files(root, files)
        removed = condition.removed
        queues = list(queue_files(root, settings.queue_file_bytes, files, removed))
        walk, steps, lost = _look_through(log_files, condition, queues)
        if log_files.moved_runs:
            lost.ranges += _moved_away(log_files.moved_runs, walk, condition.tails)
    lost.ranges = _joined(lost.ranges)
    return LogPlan([*strange, *log_files.steps, *steps], lost, walk.store_timestamp, walk.end)


def _strangers(root: Path) -> list[Step]:
    """Moves irregular files away, before other steps need their places.

    Raises IrregularFile for the lock: without it nobody knows who holds the store.
    """
    found = list(strangers(root))
    for stranger in found:
        if stranger.where == str(root / LOCK_FILE):
            raise stranger
    in_the_way = {str(own_dir(root)), str(own_dir(root) / QUARANTINE_DIR)}
    found.sort(key=lambda stranger: stranger.where not in in_the_way)
    return [MoveFile(p, 0, p.lstat().st_size, s.found) for s in found for p in [Path(s.where)]]


def _look_through(
    log_files: LogFiles, condition: Condition, queues: list[tuple[Queue, QueueFiles]]
) -> tuple[LogWalk, list[Step], Lost]:
    segments = log_files.segments
    reader = LogReader(segments, Bounds(segments.start, segments.end))
    # What recovery does not cut is as good as durable.
    durable = max(condition.floor, find_tail(segments, condition).end)
    if condition.is_clean:
        durable = max(durable, _proved_end(reader, queues))
    # A clean stop tears nothing; but without queues nothing shows where the end was.
    endless = condition.is_clean and not queues
    walk = walk_log(reader, durable, condition.is_ours, endless, condition.removed)
    add_gaps_at_ends(walk, segments.start, condition.tails)
    units = read_units(queues, walk)
    filling = fill_holes(walk.holes, units.claims, walk.gaps)
    lost = _lost_in(filling)
    steps: list[Step] = list(filling.steps)
    stop = walk.stop or Torn(walk.end, "end", "the files of the log end here")
    if walk.is_cut_short or walk.has_bytes_after:
        segment = segments.find(stop.position)
        cut = CutLog(
            path=segment.path if segment is not None else segments.folder,
            offset=walk.end,
            torn=stop,
            durable=durable,
            next_offset=_next_offsets(walk, units, filling, condition.tails),
            last_record=walk.last_record,
            store_timestamp=walk.store_timestamp,
        )
        if cut.is_damage:
            lost.ranges += _cut_off(cut, units, condition.tails)
        elif not condition.floor:
            found = list(_unvouched(cut, units, reader))
            lost.ranges += found
            cut = replace(cut, unvouched=sum(one.stop - one.first for one in found))
        steps.append(cut)
    return walk, steps, lost


def _moved_away(runs: list[SegmentList], walk: LogWalk, tails: Tails | None) -> Iterator[LostRange]:
    """The messages in segments that go, and in the missing ones after them: of each queue all
    below its first message that stays."""
    first: dict[Queue, int] = {}
    stop: dict[Queue, int] = dict(tails.next_offset) if tails is not None else {}
    for run in runs:
        reader = LogReader(run, Bounds(run.start, run.end))
        gone = walk_log(reader, _NO_LIMIT, sealed=False, removed=walk.removed)
        for queue, at in gone.queues.items():
            first.setdefault(queue, at.first)
            stop[queue] = max(stop.get(queue, 0), at.last + 1)
    stop.update({queue: at.first for queue, at in walk.queues.items()})
    if runs[0].start == 0:
        first = {**dict.fromkeys(stop, 0), **first}
    for queue, low in first.items():
        if low < stop[queue]:
            yield LostRange(queue, low, stop[queue])


def _proved_end(reader: LogReader, queues: list[tuple[Queue, QueueFiles]]) -> int:
    """The end of the last record that a queue's last unit names and that is there: after a clean
    stop the log has every message of the queues."""
    ends = [0]
    for _, files in queues:
        end = files.end_below(_NO_LIMIT, thorough=True)
        if end > files.first:
            offset, size, _ = files.read(end - 1, 1)[0].tolist()
            is_there = reader.holds(offset, size) and isinstance(reader.peek(offset), Record)
            ends.append(offset + size if is_there else 0)
    return max(ends)


def _lost_in(filling: Filling) -> Lost:
    lost = Lost([LostRange(queue, number, number + 1) for queue, number in filling.homeless])
    for step in filling.steps:
        for marker in step.markers:
            if marker.queue is None:
                lost.unknown_bytes += marker.size
            else:
                number = marker.queue_offset
                lost.ranges.append(LostRange(marker.queue, number, number + 1))
    return lost


def _next_offsets(
    walk: LogWalk, units: UnitsRead, filling: Filling, tails: Tails | None
) -> dict[Queue, int]:
    """The next offset of every queue if the log ends where the walk did."""
    following = dict(tails.next_offset) if tails is not None else {}
    following.update({queue: first for queue, (first, _) in units.beyond.items()})
    following.update({queue: at.last + 1 for queue, at in walk.queues.items()})
    for step in filling.steps:
        for marker in step.markers:
            if marker.queue is not None:
                number = max(following.get(marker.queue, 0), marker.queue_offset + 1)
                following[marker.queue] = number
    return following


def _cut_off(cut: CutLog, units: UnitsRead, tails: Tails | None) -> Iterator[LostRange]:
    known = dict(tails.next_offset) if tails is not None else {}
    for queue in sorted({*known, *units.beyond}):
        first = cut.next_offset[queue]
        stop = max(known.get(queue, 0), units.beyond.get(queue, (0, 0))[1])
        if stop > first:
            yield LostRange(queue, first, stop)


def _unvouched(cut: CutLog, units: UnitsRead, reader: LogReader) -> Iterator[LostRange]:
    """The messages after the cut if nothing shows what was durable: of each queue those that units
    name there, and whole records that are at least as new as those before."""
    ends = {queue: (cut.next_offset[queue], stop) for queue, (_, stop) in units.beyond.items()}
    resumed = next_record(reader, cut.offset + 1, cut.store_timestamp)
    if resumed is not None:
        rest = LogReader(reader.segments, Bounds(resumed, reader.end))
        for queue, at in walk_log(rest, _NO_LIMIT, sealed=False).queues.items():
            first, stop = ends.get(queue, (cut.next_offset.get(queue, at.first), 0))
            ends[queue] = first, max(stop, at.last + 1)
    for queue, (first, stop) in ends.items():
        if first < stop:
            yield LostRange(queue, first, stop)


def _joined(ranges: Iterable[LostRange]) -> list[LostRange]:
    """The same queue offsets, sorted, in as few ranges as possible."""
    joined: list[LostRange] = []
    for one in sorted(ranges):
        if joined and joined[-1].queue == one.queue and one.first <= joined[-1].stop:
            joined[-1] = joined[-1]._replace(stop=max(one.stop, joined[-1].stop))
        else:
            joined.append(one)
    return joined


def derived_steps(root: Path, report: VerifyReport, log_changes: bool = False) -> list[Step]:
    """The steps for queues, index and checkpoint. `log_changes`: the log gets markers, which units
    and entries do not know yet."""
    steps: list[Step] = []
    reasons: dict[str, str] = dict.fromkeys(load_rebuilding(root), "a repair was interrupted here")
    if log_changes:
        reasons |= dict.fromkeys((CONSUME_QUEUE_DIR, INDEX_DIR), "lost records are marked")
    checkpoint: RewriteCheckpoint | None = None
    strange = {stranger.where for stranger in strangers(root)}
    for finding in report.findings:
        if finding.file in strange:
            continue  # `plan_log` moves it
        path, folder = Path(finding.file), _folder(root, finding.file)
        if finding.kind == "checkpoint_ahead":
            checkpoint = RewriteCheckpoint(path, finding.detail)
        elif folder == CONFIG_DIR:
            steps.append(MoveFile(path, 0, path.stat().st_size, finding.detail))
        elif folder not in (CONSUME_QUEUE_DIR, INDEX_DIR):
            continue
        elif finding.kind == "foreign_file":
            steps.append(MoveFile(path, 0, path.lstat().st_size, "is no file of a store"))
            if finding.queue_id is not None:
                # The queue was not looked at after it, and may lack a file in its place.
                reasons.setdefault(folder, f"{finding.kind}: {finding.detail}")
        elif finding.severity == "error":
            reasons.setdefault(folder, f"{finding.kind}: {finding.detail}")
    there = [folder for folder in reasons if (root / folder).is_dir() or not log_changes]
    steps += [Rebuild(root / folder, reasons[folder]) for folder in sorted(there)]
    return [*steps, *([checkpoint] if checkpoint else [])]


def _folder(root: Path, file: str) -> str:
    path = Path(file)
    return path.relative_to(root).parts[0] if path.is_relative_to(root) and path != root else ""
