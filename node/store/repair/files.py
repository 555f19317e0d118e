"""Plans the files of a damaged log: which stay, which go, which get another length."""

from dataclasses import dataclass, field
from pathlib import Path

from node.store.file_cache import OpenFile, OpenFiles
from node.store.log.damage import next_record
from node.store.log.reader import Bounds, LogReader
from node.store.log.segment_list import Listing, SegmentList, list_folder
from node.store.repair.steps import DeleteFile, MoveFile, SetLength, Step
from protocol.names import COMMIT_LOG_DIR


class _PaddedFile(OpenFile):
    """A file that reads as if it had its full length: missing bytes are zeros."""

    def check(self) -> None:
        """Accepts a shorter file."""

    def read(self, position: int, count: int) -> bytes:
        """As `OpenFile.read`, never short."""
        there = min(max(self.path.stat().st_size - position, 0), count)
        return (super().read(position, there) if there else b"").ljust(count, b"\0")


class PaddedFiles(OpenFiles):
    """As `OpenFiles`, for files that may be too short."""

    def _open(self, path: Path, size: int) -> OpenFile:
        return _PaddedFile(path, size)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The segments as they will be after `steps`, and the runs of segments that go."""

    segments: SegmentList
    steps: list[Step]
    moved_runs: list[SegmentList] = field(default_factory=list)


def plan_log_files(root: Path, files: OpenFiles) -> LogFiles:
    """Plans by the names and lengths in `commitlog/`. Raises StorePermission, StoreDamaged."""
    folder = root / COMMIT_LOG_DIR
    listing = list_folder(folder)
    steps: list[Step] = [
        MoveFile(problem.path, 0, problem.path.stat().st_size, "is no file of a store")
        for problem in listing.problems
        if problem.kind == "foreign_file"
    ]
    steps += _unfinished(listing)
    odd = [(p.offset, p.path) for p in listing.problems if p.kind == "wrong_length"]
    kept: list[tuple[int, Path]] = list(listing.files)
    for start, path in odd:
        size = path.stat().st_size
        if size == 0:
            steps.append(DeleteFile(path, start, "is empty"))
        else:
            kept.append((start, path))
    listing = listing._replace(files=sorted(kept), problems=[], unfinished=None)
    newest, moved = _newest_run(folder, listing, files)
    for run in moved:
        for start, path in run.files:
            why = "does not join the newest run of segments"
            steps.append(MoveFile(path, start, path.stat().st_size, why))
    for start, path in newest.files:
        size = path.stat().st_size
        if size != listing.file_bytes:
            steps.append(SetLength(path, start, size, listing.file_bytes))
    segments = SegmentList(folder, newest, files)
    return LogFiles(segments, steps, [SegmentList(folder, run, files) for run in moved])


def _unfinished(listing: Listing) -> list[Step]:
    """The step for a last file that is too short and begins with zeros."""
    path = listing.unfinished
    if path is None:
        return []
    start, size = int(path.name), path.stat().st_size
    if size == 0:
        return [DeleteFile(path, start, "is empty")]
    return [MoveFile(path, start, size, "is too short and begins with nothing")]


def _newest_run(folder: Path, listing: Listing, files: OpenFiles) -> tuple[Listing, list[Listing]]:
    """The newest stretch without a gap that holds a record, and all others, oldest first."""
    runs = [
        listing._replace(files=[file for file in listing.files if start <= file[0] < end])
        for start, end in listing.runs()
    ]
    if len(runs) < 2:
        return listing, []
    newest = next((run for run in reversed(runs) if _holds_a_record(folder, run, files)), runs[-1])
    return newest, [run for run in runs if run is not newest]


def _holds_a_record(folder: Path, run: Listing, files: OpenFiles) -> bool:
    segments = SegmentList(folder, run, files)
    reader = LogReader(segments, Bounds(segments.start, segments.end))
    return next_record(reader, segments.start) is not None
