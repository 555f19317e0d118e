"""The files of staged batches, below `keelog/staging/`.

    staging/<query>/published            the last batch of a query that was published
    staging/<query>/owner                the user who began the query; none: the operator
    staging/<query>/<batch>/<stage>.stage  frames of records, not in the log yet
    staging/<query>/<batch>/journal      a publication that has begun and is not recorded yet
    staging/.problems/<query>.<batch>    why a publication that has begun cannot end
    staging/.trash/…                     files that are being removed

RocketMQ knows none of them, and readers of messages do not read them.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime import disk, store_paths
from node.store.checkpoints import load_sealed, load_store_id, own_dir, save_sealed
from protocol.errors import StoreDamaged
from protocol.names import is_staging_id

STAGING_DIR = "staging"
PROBLEMS_DIR = ".problems"
TRASH_DIR = ".trash"
BATCH_MAX = 2**63 - 1
_PUBLISHED_FILE = "published"
_JOURNAL_FILE = "journal"
_OWNER_FILE = "owner"
_STAGE_SUFFIX = ".stage"
_MAGIC = 0x4B535447
_HEAD = struct.Struct(">IIIII")
_CRC = struct.Struct(">I")
_HEAD_BYTES = _HEAD.size + _CRC.size


class StagedBatch(NamedTuple):
    """A batch of a query; it is published exactly once."""

    query: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


class StageSummary(NamedTuple):
    """A stage as the publishing client describes it; `bytes` is the size of its records."""

    stage: str
    frames: int
    records: int
    bytes: int


class BatchPosition(NamedTuple):
    """A position in a batch: after all parts before `part` and `record` records of that one."""

    part: int
    record: int


class Journal(NamedTuple):
    """A publication that has begun.

    The records before `position` are in the log below `offset`, durably. The records after it are
    in the log at or after `offset`, or not yet. `final`: no batch of the query follows.
    """

    offset: int
    position: BatchPosition
    final: bool
    parts: tuple[StageSummary, ...]


class Published(NamedTuple):
    """The last batch of a query that was published; `time_ms` is when."""

    number: int
    time_ms: int
    final: bool


class Frame(NamedTuple):
    """The place of a frame's records in its stage."""

    start: int
    records: int
    bytes: int
    crc: int

    @property
    def end(self) -> int:
        """The position of the next frame."""
        return self.start + self.bytes


def staging_dir(root: Path) -> Path:
    """The folder of all queries."""
    return own_dir(root) / STAGING_DIR


def query_dir(root: Path, query: str) -> Path:
    return staging_dir(root) / query


def batch_dir(root: Path, batch: StagedBatch) -> Path:
    return query_dir(root, batch.query) / str(batch.number)


def stage_path(root: Path, batch: StagedBatch, stage: str) -> Path:
    return batch_dir(root, batch) / f"{stage}{_STAGE_SUFFIX}"


def journal_path(root: Path, batch: StagedBatch) -> Path:
    return batch_dir(root, batch) / _JOURNAL_FILE


def published_path(root: Path, query: str) -> Path:
    """The file that names the last published batch of a query."""
    return query_dir(root, query) / _PUBLISHED_FILE


def list_queries(root: Path) -> list[str]:
    """Every query that has a folder."""
    folder = staging_dir(root)
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if is_staging_id(entry.name))


def list_batches(root: Path, query: str) -> list[StagedBatch]:
    """The batches of a query that have a folder, by number."""
    with os.scandir(query_dir(root, query)) as entries:
        names = [entry.name for entry in entries if entry.name.isdecimal()]
    return [StagedBatch(query, number) for number in sorted(map(int, names))]


def list_stages(root: Path, batch: StagedBatch) -> list[str]:
    """The stages of a batch, by name."""
    folder = batch_dir(root, batch)
    if not folder.is_dir():
        return []
    return sorted(path.stem for path in folder.glob(f"*{_STAGE_SUFFIX}"))


def staged_bytes(folder: Path) -> int:
    """The sizes of all stages in a folder and those below it, trash included."""
    return sum(path.stat().st_size for path in folder.rglob(f"*{_STAGE_SUFFIX}"))


def touched_ms(folder: Path) -> int:
    """The time of the last write to a batch."""
    with os.scandir(folder) as entries:
        times = [entry.stat().st_mtime for entry in entries]
    return int(max([folder.stat().st_mtime, *times]) * 1000)


def make_trash(root: Path) -> Path:
    """Makes and returns the trash folder. Call it before anything is staged: a full disk has no
    room for it."""
    trash = staging_dir(root) / TRASH_DIR
    disk.make_dir(trash)
    return trash


def move_to_trash(root: Path, folder: Path) -> None:
    """Moves a folder to the trash, at once; `sweep` removes its files."""
    trash = make_trash(root)
    number = 0
    while (target := trash / f"{folder.name}.{number}").exists():
        number += 1
    disk.rename(folder, target)


def sweep(root: Path) -> None:
    trash = staging_dir(root) / TRASH_DIR
    for folder in sorted(trash.iterdir()) if trash.is_dir() else []:
        disk.remove_tree(folder)


# -- stages -----------------------------------------------------------------------------------


def frame_bytes(number: int, count: int, records: bytes | memoryview) -> bytes:
    """The bytes of a frame: its checksummed head, then the records."""
    head = _HEAD.pack(_MAGIC, number, count, len(records), zlib.crc32(records))
    return b"".join((head, _CRC.pack(zlib.crc32(head)), records))


def frames_of(path: Path) -> list[Frame]:
    """The frames of a stage up to the first torn one; empty for a missing file.

    Verifies only the heads; `read_frame` verifies the records.
    """
    try:
        descriptor = store_paths.open_regular(path)
    except FileNotFoundError:
        return []
    found: list[Frame] = []
    with store_paths.held_open(descriptor):
        size, at = os.fstat(descriptor).st_size, 0
        while True:
            head = os.pread(descriptor, _HEAD_BYTES, at)
            frame = _frame(head, len(found), at + _HEAD_BYTES)
            if frame is None or frame.end > size:
                return found
            found.append(frame)
            at = frame.end


def _frame(head: bytes, number: int, start: int) -> Frame | None:
    if len(head) < _HEAD_BYTES:
        return None
    if zlib.crc32(head[: _HEAD.size]) != _CRC.unpack_from(head, _HEAD.size)[0]:
        return None
    magic, stated, count, size, crc = _HEAD.unpack_from(head)
    if (magic, stated) != (_MAGIC, number):
        return None
    return Frame(start, count, size, crc)


def read_frame(descriptor: int, path: Path, frame: Frame) -> bytes:
    """The records of a frame, verified. Raises StoreDamaged."""
    data = os.pread(descriptor, frame.bytes, frame.start)
    if len(data) != frame.bytes or zlib.crc32(data) != frame.crc:
        raise StoreDamaged(
            str(path), frame.start, "a frame's checksum does not agree", "stage the batch again"
        )
    return data


# -- journal and ledger -----------------------------------------------------------------------


def save_journal(root: Path, batch: StagedBatch, journal: Journal) -> None:
    """Replaces the journal of a batch, durably."""
    text = json.dumps(journal._asdict(), separators=(",", ":")) + "\n"
    save_sealed(root, journal_path(root, batch), text)


def load_journal(root: Path, batch: StagedBatch) -> Journal:
    """The journal of a batch. Raises StoreDamaged for one that makes no sense."""
    path = journal_path(root, batch)
    try:
        data = json.loads(_text(root, path))
        parts = tuple(
            StageSummary(str(stage), _count(frames), _count(records), _count(size))
            for stage, frames, records, size in data["parts"]
        )
        position = BatchPosition(*map(_count, data["position"]))
        return Journal(_count(data["offset"]), position, bool(data["final"]), parts)
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, str(error)) from None


def save_published(root: Path, query: str, published: Published) -> None:
    """Records the last published batch of a query, durably."""
    numbers = f"{published.number} {published.time_ms} {int(published.final)}\n"
    save_sealed(root, published_path(root, query), numbers)


def load_published(root: Path, query: str) -> Published | None:
    """The last published batch of a query; None before the first.

    Raises StoreDamaged for an unreadable record: a guess could publish a batch twice.
    """
    path = published_path(root, query)
    if not path.exists():
        return None
    try:
        number, time_ms, final = map(int, _text(root, path).split())
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    return Published(number, time_ms, bool(final))


def save_owner(root: Path, query: str, user: str) -> None:
    """Records whose a query is, durably. Its folder is made where there is none."""
    disk.make_durable_dir(query_dir(root, query))
    save_sealed(root, query_dir(root, query) / _OWNER_FILE, f"{user}\n")


def load_owner(root: Path, query: str) -> str:
    """The user who began a query; empty for the operator. Raises StoreDamaged."""
    path = query_dir(root, query) / _OWNER_FILE
    if not path.exists():
        return ""
    try:
        return _text(root, path).removesuffix("\n")
    except ValueError as error:
        raise _damaged(path, str(error)) from None


def _text(root: Path, path: Path) -> str:
    found, ours = load_sealed(path, store_paths.JOURNAL_FILE_BYTES_MAX), load_store_id(root)
    if found is None:
        raise ValueError("its checksum does not agree")
    if not ours.owns(found.store_id):
        raise ValueError(f"it is of store {found.store_id}, this is store {ours.value}")
    return found.text


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= BATCH_MAX:
        raise ValueError(f"{str(value)[:40]} is no count")
    return value


def _damaged(path: Path, found: str) -> StoreDamaged:
    return StoreDamaged(
        str(path),
        0,
        found,
        f"see in the topic what of the batch is there, then remove {path.parent}",
    )


# -- problems ---------------------------------------------------------------------------------


def save_problem(root: Path, batch: StagedBatch, why: str) -> None:
    """Notes, for `status`, why a publication that has begun cannot end."""
    folder = staging_dir(root) / PROBLEMS_DIR
    disk.make_dir(folder)
    disk.write_atomically(folder / f"{batch.query}.{batch.number}", f"{why}\n".encode())


def clear_problem(root: Path, batch: StagedBatch) -> None:
    """Removes the note: the publication goes on."""
    path = staging_dir(root) / PROBLEMS_DIR / f"{batch.query}.{batch.number}"
    disk.unlink(path, missing_ok=True)


def problems(root: Path) -> Iterator[str]:
    """Yields a line for each publication that has begun and cannot end."""
    folder = staging_dir(root) / PROBLEMS_DIR
    if not store_paths.is_own_folder(folder):
        return
    for path in sorted(folder.iterdir()):
        query, _, number = path.name.rpartition(".")
        if number.isdecimal():
            text = store_paths.read_bounded(path, store_paths.SMALL_FILE_BYTES_MAX).decode(
                errors="replace"
            )
            yield f"batch {number} of query {query}: {text.strip()}"
