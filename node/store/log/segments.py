"""The files of one folder as one run of bytes (RocketMQ: MappedFileQueue, of MappedFiles).

A file's name is its first offset. All files have one length, which is found from the files. A
file that a broker would refuse to load is reported, not skipped.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from node.runtime.store_paths import no_file, scan
from node.store.file_cache import FileVanished, OpenFile, OpenFiles, refuse, see_all_damage
from protocol.errors import StoreDamaged
from protocol.names import offset_file_name, parse_offset_file_name
from protocol.record.codec import FILLER_BYTES


@dataclass(frozen=True, slots=True)
class Segment:
    """`size` bytes from offset `start` on. Positions count from the segment's start."""

    path: Path
    start: int
    size: int
    files: OpenFiles
    end: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", self.start + self.size)

    @property
    def file(self) -> OpenFile:
        """The open file. Raises StoreDamaged, FileVanished, StorePermission."""
        return self.files.get(self.path, self.size)

    def read(self, position: int, count: int) -> bytes:
        """Reads by `pread`: an unreadable page is an error, not the end of the process.

        Raises StoreDamaged, with the offset, FileVanished, StorePermission.
        """
        try:
            return self.file.read(position, count)
        except FileVanished:
            raise
        except StoreDamaged as damage:
            raise StoreDamaged(
                damage.where, self.start + damage.offset, damage.found, damage.hint
            ) from None

    def view(self) -> memoryview:
        """The whole segment as a read-only map, after a check of the file's length."""
        return self.files.get(self.path, self.size).view()


class ListingProblem(NamedTuple):
    """Why a folder is not one run of bytes. `kind` is one of the findings of `store verify`."""

    kind: str
    path: Path
    offset: int
    detail: str


class Listing(NamedTuple):
    """The files of a folder as (first offset, path), their length, and the problems found.

    `unfinished`: a last file that is too short and holds nothing: its owner was still making it.
    """

    files: list[tuple[int, Path]]
    file_bytes: int
    problems: list[ListingProblem]
    unfinished: Path | None = None

    def check(self) -> None:
        """Raises StoreDamaged for the first problem."""
        for problem in self.problems:
            hint = see_all_damage(problem.path)
            raise StoreDamaged(str(problem.path), problem.offset, problem.detail, hint)

    def runs(self) -> list[tuple[int, int]]:
        """The stretches [start, end) that the files cover without a gap."""
        runs: list[tuple[int, int]] = []
        for start, _ in self.files:
            if runs and runs[-1][1] == start:
                runs[-1] = runs[-1][0], start + self.file_bytes
            else:
                runs.append((start, start + self.file_bytes))
        return runs

    def last_run(self) -> "Listing":
        """Only the files of the last stretch."""
        start = self.runs()[-1][0] if self.files else 0
        return self._replace(files=[file for file in self.files if file[0] >= start])


class SegmentList:
    """The segments of one folder, in order."""

    def __init__(self, folder: Path, listing: Listing, files: OpenFiles) -> None:
        self.folder = folder
        self.segment_bytes = listing.file_bytes
        self._files = files
        self._adopt(listing)

    def _adopt(self, listing: Listing) -> None:
        self.segments = [
            Segment(path, start, listing.file_bytes, self._files) for start, path in listing.files
        ]
        self._starts = [segment.start for segment in self.segments]

    @property
    def start(self) -> int:
        """The first offset; 0 without a file."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """The offset after the last file, used or not."""
        return self._starts[-1] + self.segment_bytes if self._starts else 0

    def find(self, offset: int) -> Segment | None:
        """The segment that holds `offset`."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        segment = self.segments[index]
        return segment if offset < segment.end else None

    def forget_above(self, offset: int) -> None:
        """Closes the files that reach above an offset: their names may lead to others by now."""
        for segment in self.segments:
            if segment.end > offset:
                self._files.forget(segment.path)

    def refresh(self, start: int = 0) -> None:
        """Lists the folder again. Raises StoreDamaged, StorePermission.

        Skips files that end at `start` or below: retention may be removing them.
        """
        # One file alone may have been listed before it had its length.
        known = self.segment_bytes if len(self.segments) > 1 else None
        listing = list_folder(self.folder, known, start)
        listing.check()
        gone = set(self._starts) - {start for start, _ in listing.files}
        for segment in self.segments:
            if segment.start in gone:
                self._files.forget(segment.path)
        self.segment_bytes = listing.file_bytes
        self._adopt(listing)


def open_segments(folder: Path, files: OpenFiles, begin: int = 0) -> SegmentList:
    """The files of a folder, which must join; see `list_folder`. Raises StoreDamaged."""
    listing = list_folder(folder, begin=begin)
    listing.check()
    return SegmentList(folder, listing, files)


def list_folder(folder: Path, file_bytes: int | None = None, begin: int = 0) -> Listing:
    """Lists a folder of files that are named by offset; a missing folder has none.

    `file_bytes`: the length that each file must have; None: the length of most. A last file that is
    too short and holds nothing is not listed: its owner is making it, or was killed meanwhile (a
    broker removes an empty one). Skips folders whose names are not offsets, and files that end at
    `begin` or below: retention is deleting them. Raises StorePermission.
    """
    found: list[tuple[int, Path, int]] = []
    problems: list[ListingProblem] = []
    try:
        for entry in scan(folder):
            start = parse_offset_file_name(entry.name)
            if entry.is_folder and start is None:
                continue
            if entry.is_file and start is not None:
                found.append((start, entry.path, entry.size))
                continue
            detail = "is no file of a store: a broker would not load this folder"
            if entry.is_folder:
                detail = "is a folder and has the name of a file"
            elif not entry.is_file:
                detail = no_file(entry.path)
            problems.append(ListingProblem("foreign_file", entry.path, 0, detail))
    except FileNotFoundError:
        return Listing([], file_bytes or 0, [])
    except OSError as error:
        refuse(folder, error)
    expected = file_bytes or _common_length(found)
    unfinished = None
    if found and found[-1][2] < max(expected, 1) and _holds_nothing(found[-1][1]):
        unfinished = found.pop()[1]
    found = [file for file in found if file[0] + expected > begin]
    files, wrong = _joined_files(found, expected)
    return Listing(files, expected, problems + wrong, unfinished)


def _holds_nothing(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return not file.read(FILLER_BYTES).strip(b"\0")
    except FileNotFoundError:
        return True
    except OSError as error:
        refuse(path, error)


def _common_length(found: list[tuple[int, Path, int]]) -> int:
    """The length of most files; of two equally frequent ones that between two names."""
    if not found:
        return 0
    steps = {b[0] - a[0] for a, b in pairwise(found)}
    counts = Counter(size for _, _, size in found if size)
    return max(counts, key=lambda size: (counts[size], size in steps), default=0)


def _joined_files(
    found: list[tuple[int, Path, int]], file_bytes: int
) -> tuple[list[tuple[int, Path]], list[ListingProblem]]:
    files: list[tuple[int, Path]] = []
    problems: list[ListingProblem] = []
    expected: int | None = None
    for start, path, size in found:
        if size != file_bytes:
            detail = f"has {size} bytes, the others have {file_bytes}"
            problems.append(ListingProblem("wrong_length", path, start, detail))
        if expected is not None and start != expected:
            kind = "missing_segment" if start > expected else "gap"
            detail = (
                f"follows a file that ends at {expected}: {offset_file_name(expected)} is missing"
            )
            problems.append(ListingProblem(kind, path, start, detail))
        if size == file_bytes:
            files.append((start, path))
        expected = start + file_bytes
    return files, problems
