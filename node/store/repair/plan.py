"""The plan of a repair, `keelog store repair` without `--apply`: its steps, and how they are found.

Only reads.
The log comes first. Of its files some stay, some go, some get another length. Its holes are filled
with markers of lost records and a closing blank. A unit gives the exact place of a lost record. A
number that a queue lacks around a hole shows that a record was there, but not where: its marker
goes into the room that the units leave. The rest was something else, a part of a transaction for
instance, and gets markers without a queue. Last comes the log's end.

Queues, index and checkpoint derive from the log, so `verify` judges them now, and once more after
the log is repaired.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime.settings import Settings
from node.store.checkpoints import QUARANTINE_DIR, Tails, load_rebuilding, own_dir
from node.store.condition import Condition, check_is_store, read_condition
from node.store.file_cache import OpenFile, OpenFiles
from node.store.identity.places import strangers
from node.store.identity.store_id import PUT_BACK
from node.store.log.end import find_tail
from node.store.log.reader import Bounds, LogReader, next_record
from node.store.log.segments import Listing, SegmentList, list_folder
from node.store.queues import QueueFiles
from node.store.repair.walk import (
    Claim,
    Gap,
    Hole,
    LogWalk,
    UnitsRead,
    add_gaps_at_ends,
    queue_files,
    read_units,
    walk_log,
)
from node.store.verify.verify import Progress, VerifyReport, verify
from protocol import names
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.record import lost_marker
from protocol.record.codec import FILLER_BYTES, Record, Torn

_FIRST_BYTES = 160
"""The size of a marker that begins a segment: room for its topic, property and checksum."""
_NO_LIMIT = 2**63 - 1


Row = dict[str, Any]
"""One line of the plan: action, file, offset, bytes, topic, queue_id, queue_offset, detail."""


def _row(action: str, file: Path, offset: int, size: int, detail: str, **more: Any) -> Row:
    blank: Row = {"topic": None, "queue_id": None, "queue_offset": None}
    head: Row = {"action": action, "file": str(file), "offset": offset, "bytes": size}
    return {**head, **blank, **more, "detail": detail}


MOVE_FILE, DELETE_FILE, REWRITE_CHECKPOINT = "move_file", "delete_file", "rewrite_checkpoint"
REBUILD_QUEUES, REBUILD_INDEX = "rebuild_queues", "rebuild_index"
_REBUILDS = {names.CONSUME_QUEUE_DIR: REBUILD_QUEUES, names.INDEX_DIR: REBUILD_INDEX}


@dataclass(frozen=True, slots=True)
class FileStep:
    """A step for a whole file or folder. `offset`: the log offset of a segment, 0 for others.

    MOVE_FILE moves it to quarantine. DELETE_FILE deletes an empty one, as RocketMQ does.
    REWRITE_CHECKPOINT lowers RocketMQ's checkpoint to what there is. REBUILD_QUEUES and
    REBUILD_INDEX make a folder anew from the log.
    """

    action: str
    path: Path
    why: str
    offset: int = 0
    size: int = 0

    def rows(self) -> list[Row]:
        return [_row(self.action, self.path, self.offset, self.size, self.why)]


@dataclass(frozen=True, slots=True)
class SetLength:
    """Gives a segment the length of the others: adds zeros, or moves surplus to quarantine."""

    path: Path
    offset: int
    size: int
    wanted: int

    def rows(self) -> list[Row]:
        detail = f"has {self.size} bytes, gets {self.wanted}, as the others have"
        changed = abs(self.wanted - self.size)
        at = self.offset + min(self.size, self.wanted)
        return [_row("set_length", self.path, at, changed, detail)]


class Marker(NamedTuple):
    """A record of `size` bytes in the place of a lost one; `queue` is None if unknown."""

    offset: int
    size: int
    queue: Queue | None = None
    queue_offset: int = 0


@dataclass(frozen=True, slots=True)
class FillHole:
    """Replaces damaged bytes [start, end) of one segment with markers, and from `blank_at` on with
    the blank that closes the segment."""

    path: Path
    segment_start: int
    start: int
    end: int
    torn: Torn
    store_timestamp: int
    sealed: bool
    markers: tuple[Marker, ...]
    blank_at: int | None

    def rows(self) -> list[Row]:
        """As lines of the plan: one for each marker, one for the blank."""
        rows = [self._marker_row(marker) for marker in self.markers]
        if self.blank_at is not None:
            detail = f"{self.torn.why}: the blank that closes the segment is written anew"
            size = self.end - self.blank_at
            rows.append(_row("write_blank", self.path, self.blank_at, size, detail))
        return rows

    def _marker_row(self, marker: Marker) -> Row:
        if marker.queue is None:
            detail = f"{self.torn.why}; what it was is not known"
            return _row("mark_lost", self.path, marker.offset, marker.size, detail)
        return _row(
            "mark_lost",
            self.path,
            marker.offset,
            marker.size,
            self.torn.why,
            topic=marker.queue.topic,
            queue_id=marker.queue.queue_id,
            queue_offset=marker.queue_offset,
        )


@dataclass(frozen=True, slots=True)
class CutLog:
    """Cuts the log at `offset`. `durable`: what was safely on the disk. At or above it the next
    start cuts by itself; for a cut below it the repair first lowers floor, tails and epochs.

    `unvouched`: the messages known above the cut, if nothing shows what was durable.
    """

    path: Path
    offset: int
    torn: Torn
    durable: int
    next_offset: dict[Queue, int] = field(default_factory=dict)
    last_record: int = 0
    store_timestamp: int = 0
    unvouched: int = 0

    @property
    def is_damage(self) -> bool:
        """True if the cut takes more than a crash may."""
        return self.offset < self.durable

    def rows(self) -> list[Row]:
        if not self.is_damage:
            detail = f"{self.torn.why}; the next start does this by itself"
            if self.unvouched:
                detail += f"; {self.unvouched} messages behind it may have been acknowledged:"
                detail += " no keelog/floor tells what was durable"
            return [_row("cut_tail", self.path, self.offset, 0, detail)]
        detail = (
            f"{self.torn.why}; no record can be proved behind it,"
            f" though the log was durable up to {self.durable}"
        )
        return [_row("cut_log", self.path, self.offset, self.durable - self.offset, detail)]


Step = FileStep | SetLength | FillHole | CutLog


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
    strange = _stranger_steps(root)
    condition = read_condition(root, strict=False)
    with closing(_PaddedFiles()) as files:
        segments, files_steps, moved_runs = _plan_log_files(root, files)
        removed = condition.removed
        queues = list(queue_files(root, settings.queue_file_bytes, files, removed))
        walk, steps, lost = _look_through(segments, condition, queues)
        if moved_runs:
            lost.ranges += _moved_away(moved_runs, walk, condition.tails)
    lost.ranges = _joined(lost.ranges)
    return LogPlan([*strange, *files_steps, *steps], lost, walk.store_timestamp, walk.end)


def derived_steps(root: Path, report: VerifyReport, log_changes: bool = False) -> list[Step]:
    """The steps for queues, index and checkpoint. `log_changes`: the log gets markers, which units
    and entries do not know yet."""
    steps: list[Step] = []
    reasons: dict[str, str] = dict.fromkeys(load_rebuilding(root), "a repair was interrupted here")
    if log_changes:
        reasons |= dict.fromkeys(
            (names.CONSUME_QUEUE_DIR, names.INDEX_DIR), "lost records are marked"
        )
    checkpoint: list[Step] = []
    strange = {stranger.where for stranger in strangers(root)}
    for finding in report.findings:
        if finding.file in strange:
            continue  # `plan_log` moves it
        path, folder = Path(finding.file), _folder(root, finding.file)
        if finding.kind == "checkpoint_ahead":
            checkpoint = [FileStep(REWRITE_CHECKPOINT, path, finding.detail)]
        elif folder == names.CONFIG_DIR:
            steps.append(_move(path, finding.detail))
        elif folder not in (names.CONSUME_QUEUE_DIR, names.INDEX_DIR):
            continue
        elif finding.kind == "foreign_file":
            steps.append(_move(path, "is no file of a store", is_link=True))
            if finding.queue_id is not None:
                # The queue was not looked at after it, and may lack a file in its place.
                reasons.setdefault(folder, f"{finding.kind}: {finding.detail}")
        elif finding.severity == "error":
            reasons.setdefault(folder, f"{finding.kind}: {finding.detail}")
    there = [folder for folder in reasons if (root / folder).is_dir() or not log_changes]
    steps += [FileStep(_REBUILDS[one], root / one, reasons[one]) for one in sorted(there)]
    return [*steps, *checkpoint]


def _move(path: Path, why: str, offset: int = 0, is_link: bool = False) -> Step:
    """`is_link`: it may be one, which goes itself."""
    size = path.stat(follow_symlinks=not is_link).st_size
    return FileStep(MOVE_FILE, path, why, offset, size)


def _folder(root: Path, file: str) -> str:
    path = Path(file)
    return path.relative_to(root).parts[0] if path.is_relative_to(root) and path != root else ""


def _stranger_steps(root: Path) -> list[Step]:
    """Moves irregular files away, before other steps need their places.

    Raises IrregularFile for the lock: without it nobody knows who holds the store.
    """
    found = list(strangers(root))
    for stranger in found:
        if stranger.where == str(root / names.LOCK_FILE):
            raise stranger
    in_the_way = {str(own_dir(root)), str(own_dir(root) / QUARANTINE_DIR)}
    found.sort(key=lambda stranger: stranger.where not in in_the_way)
    return [_move(Path(stranger.where), stranger.found, is_link=True) for stranger in found]


class _PaddedFile(OpenFile):
    """A file that reads as if it had its full length: missing bytes are zeros."""

    def check(self) -> None:
        """Accepts a shorter file."""

    def read(self, position: int, count: int) -> bytes:
        """As `OpenFile.read`, never short."""
        there = min(max(self.path.stat().st_size - position, 0), count)
        return (super().read(position, there) if there else b"").ljust(count, b"\0")


class _PaddedFiles(OpenFiles):
    """As `OpenFiles`, for files that may be too short."""

    def _open(self, path: Path, size: int) -> OpenFile:
        return _PaddedFile(path, size)


def _plan_log_files(
    root: Path, files: OpenFiles
) -> tuple[SegmentList, list[Step], list[SegmentList]]:
    """Plans by the names and lengths in `commitlog/`: the segments as they will be after the steps,
    these, and the runs of segments that go. Raises StorePermission, StoreDamaged."""
    folder = root / names.COMMIT_LOG_DIR
    listing = list_folder(folder)
    steps: list[Step] = [
        _move(problem.path, "is no file of a store")
        for problem in listing.problems
        if problem.kind == "foreign_file"
    ]
    if (last := listing.unfinished) is not None:  # it begins with zeros
        if last.stat().st_size:
            steps.append(_move(last, "is too short and begins with nothing", int(last.name)))
        else:
            steps.append(FileStep(DELETE_FILE, last, "is empty", int(last.name)))
    odd = [(p.offset, p.path) for p in listing.problems if p.kind == "wrong_length"]
    kept: list[tuple[int, Path]] = list(listing.files)
    for start, path in odd:
        size = path.stat().st_size
        if size == 0:
            steps.append(FileStep(DELETE_FILE, path, "is empty", start))
        else:
            kept.append((start, path))
    listing = listing._replace(files=sorted(kept), problems=[], unfinished=None)
    newest, moved = _newest_run(folder, listing, files)
    for run in moved:
        for start, path in run.files:
            steps.append(_move(path, "does not join the newest run of segments", start))
    for start, path in newest.files:
        size = path.stat().st_size
        if size != listing.file_bytes:
            steps.append(SetLength(path, start, size, listing.file_bytes))
    segments = SegmentList(folder, newest, files)
    return segments, steps, [SegmentList(folder, run, files) for run in moved]


def _newest_run(folder: Path, listing: Listing, files: OpenFiles) -> tuple[Listing, list[Listing]]:
    """The newest stretch without a gap that holds a record, and all others, oldest first."""
    runs = [
        listing._replace(files=[file for file in listing.files if start <= file[0] < end])
        for start, end in listing.runs()
    ]
    if len(runs) < 2:
        return listing, []
    newest = runs[-1]
    for run in reversed(runs):
        reader = LogReader(SegmentList(folder, run, files))
        if next_record(reader, reader.min_offset) is not None:
            newest = run
            break
    return newest, [run for run in runs if run is not newest]


@dataclass(slots=True)
class _Room:
    """Bytes [start, end) of a hole that no unit names; `placed` are its markers, front first."""

    hole: Hole
    start: int
    end: int
    placed: list[Marker] = field(default_factory=list)

    @property
    def free_from(self) -> int:
        return self.placed[-1].offset + self.placed[-1].size if self.placed else self.start

    @property
    def free_to(self) -> int:
        """The end for records: the blank that closes a segment needs room after them."""
        return self.end - FILLER_BYTES if self.end == self.hole.segment_end else self.end


def fill_holes(
    holes: Sequence[Hole], claims: Sequence[Claim], gaps: Sequence[Gap]
) -> tuple[list[FillHole], list[tuple[Queue, int]]]:
    """Plans every hole: the steps, and the queue offsets without room for a marker. A broker's
    rebuild would renumber the units after those.

    Raises StoreDamaged for a hole that is too small for a record.
    """
    by_hole: dict[int, list[Claim]] = defaultdict(list)
    starts = [hole.start for hole in holes]
    for claim in claims:
        by_hole[starts[bisect_right(starts, claim.offset) - 1]].append(claim)
    rooms = {hole.start: list(_rooms(hole, by_hole[hole.start])) for hole in holes}
    every_room = [room for start in starts for room in rooms[start]]
    homeless: list[tuple[Queue, int]] = []
    # The gap with the least choice comes first: a gap may span several holes.
    for gap in sorted(gaps, key=lambda gap: (gap.high, gap.low)):
        homeless += _place_gap(gap, claims, every_room)
    steps = [_fill_step(hole, by_hole[hole.start], rooms[hole.start]) for hole in holes]
    return steps, homeless


def _rooms(hole: Hole, claims: Sequence[Claim]) -> Iterable[_Room]:
    position = hole.start
    for claim in claims:
        if claim.offset > position:
            yield _Room(hole, position, claim.offset)
        position = claim.end
    if position < hole.end:
        yield _Room(hole, position, hole.end)


def _place_gap(gap: Gap, claims: Sequence[Claim], rooms: list[_Room]) -> list[tuple[Queue, int]]:
    """Places the numbers of a gap that no unit names; returns those without room."""
    if not names.is_folder_name(gap.queue.topic):
        return []
    known = {claim.number: claim for claim in claims if claim.queue == gap.queue}
    least = lost_marker.queue_marker_bytes_min(gap.queue.topic, sealed=False)
    room = sum(max(one.free_to - one.free_from, 0) for one in rooms)
    if gap.stop - gap.first - len(known) > room // least:
        # More records than there was room for: this queue skips numbers for another reason.
        return []
    homeless: list[tuple[Queue, int]] = []
    low = gap.low
    for number in range(gap.first, gap.stop):
        if number in known:
            low = known[number].end
            continue
        above = [claim.offset for other, claim in known.items() if other > number]
        placed = _place_marker(gap.queue, number, low, min([gap.high, *above]), rooms)
        if placed is None:
            homeless.append((gap.queue, number))
        else:
            low = placed.offset + placed.size
    return homeless


def _place_marker(
    queue: Queue, number: int, low: int, high: int, rooms: list[_Room]
) -> Marker | None:
    for with_checksum in (True, False):
        for room in rooms:
            sealed = with_checksum and room.hole.sealed
            at, size = room.free_from, lost_marker.queue_marker_bytes_min(queue.topic, sealed)
            if low <= at and room.end <= high and at + size <= room.free_to:
                marker = Marker(at, size, queue, number)
                room.placed.append(marker)
                return marker
    return None


def _fill_step(hole: Hole, claims: Sequence[Claim], rooms: Sequence[_Room]) -> FillHole:
    markers = [Marker(claim.offset, claim.size, claim.queue, claim.number) for claim in claims]
    blank_at: int | None = None
    for room in rooms:
        if room.end < hole.segment_end:
            markers += _spread(room)
            continue
        placed = _widened(room)
        markers += placed
        blank_at = placed[-1].offset + placed[-1].size if placed else room.start
        if blank_at == hole.segment_start:
            # A segment begins with a record: brokers take its store time from there.
            markers.append(Marker(blank_at, min(_FIRST_BYTES, room.free_to - blank_at)))
            blank_at += markers[-1].size
    return FillHole(
        path=hole.path,
        segment_start=hole.segment_start,
        start=hole.start,
        end=hole.end,
        torn=hole.torn,
        store_timestamp=hole.store_timestamp,
        sealed=hole.sealed,
        markers=tuple(_without_slivers(hole, markers, blank_at)),
        blank_at=blank_at,
    )


def _spread(room: _Room) -> list[Marker]:
    """Markers for all of a room. The last placed one takes the rest; an empty room is unknown."""
    if room.placed:
        *others, last = _widened(room)
        return [*others, last._replace(size=room.end - last.offset)]
    sizes = lost_marker.gap_sizes(room.end - room.start)
    markers, position = [], room.start
    for size in sizes:
        markers.append(Marker(position, size))
        position += size
    return markers


def _widened(room: _Room) -> list[Marker]:
    """The markers of a room, each longer by the property that marks it, where there is room."""
    slack, position = room.free_to - room.free_from, room.start
    markers: list[Marker] = []
    for marker in room.placed:
        more = min(lost_marker.LOST_PROPERTY_BYTES, slack)
        slack -= more
        markers.append(marker._replace(offset=position, size=marker.size + more))
        position += marker.size + more
    return markers


def _without_slivers(hole: Hole, markers: list[Marker], blank_at: int | None) -> list[Marker]:
    """Adds bytes too few for a record to the marker before them, else to the one after them."""
    kept: list[Marker] = []
    start = hole.start
    for marker in sorted(markers, key=lambda marker: marker.offset):
        if marker.queue is None and marker.size < lost_marker.GAP_MARKER_BYTES_MIN:
            if kept:
                kept[-1] = kept[-1]._replace(size=kept[-1].size + marker.size)
            continue
        end = marker.offset + marker.size
        begin = kept[-1].offset + kept[-1].size if kept else start
        kept.append(marker._replace(offset=begin, size=end - begin))
    if not kept and blank_at is None:
        raise StoreDamaged(
            str(hole.path),
            hole.start,
            f"{hole.end - hole.start} damaged bytes are too few for any record",
            "restore a backup, or move what is left: keelog store dump",
        )
    return kept


def _look_through(
    segments: SegmentList, condition: Condition, queues: list[tuple[Queue, QueueFiles]]
) -> tuple[LogWalk, list[Step], Lost]:
    reader = LogReader(segments)
    # What recovery does not cut is as good as durable.
    durable = max(condition.floor, find_tail(segments, condition).end)
    if condition.is_clean:
        durable = max(durable, _proved_end(reader, queues))
    # A clean stop tears nothing; but without queues nothing shows where the end was.
    endless = condition.is_clean and not queues
    walk = walk_log(reader, durable, condition.is_ours, endless, condition.removed)
    add_gaps_at_ends(walk, segments.start, condition.tails)
    units = read_units(queues, walk)
    fills, homeless = fill_holes(walk.holes, units.claims, walk.gaps)
    lost = _lost_in(fills, homeless)
    steps: list[Step] = list(fills)
    stop = walk.stop or Torn(walk.end, "end", "the files of the log end here")
    if walk.is_cut_short or walk.has_bytes_after:
        segment = segments.find(stop.position)
        cut = CutLog(
            path=segment.path if segment is not None else segments.folder,
            offset=walk.end,
            torn=stop,
            durable=durable,
            next_offset=_next_offsets(walk, units, fills, condition.tails),
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
        gone = walk_log(LogReader(run), _NO_LIMIT, sealed=False, removed=walk.removed)
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


def _lost_in(fills: Sequence[FillHole], homeless: Sequence[tuple[Queue, int]]) -> Lost:
    lost = Lost([LostRange(queue, number, number + 1) for queue, number in homeless])
    for step in fills:
        for marker in step.markers:
            if marker.queue is None:
                lost.unknown_bytes += marker.size
            else:
                number = marker.queue_offset
                lost.ranges.append(LostRange(marker.queue, number, number + 1))
    return lost


def _next_offsets(
    walk: LogWalk, units: UnitsRead, fills: Sequence[FillHole], tails: Tails | None
) -> dict[Queue, int]:
    """The next offset of every queue if the log ends where the walk did."""
    following = dict(tails.next_offset) if tails is not None else {}
    following.update({queue: first for queue, (first, _) in units.beyond.items()})
    following.update({queue: at.last + 1 for queue, at in walk.queues.items()})
    for step in fills:
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
