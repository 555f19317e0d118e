"""The small files under `keelog/`: epochs, floor, progress, tails and the mark of a clean stop.

All but the floor are text, written to a temporary file, synced and renamed, and end in a CRC of
what stands before it: a file whose CRC does not agree counts as missing. None of them ever names
an offset above the flushed one, so no owner can have cut the log below it.
"""

import json
import os
import zlib
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from node.store import disk
from node.store.disk import sync_dir, write_atomically
from protocol.ids import Queue
from protocol.names import KEELOG_DIR

EPOCHS_FILE = "epochs"
FLOOR_FILE = "floor"
TAILS_FILE = "tails"
CLEAN_FILE = "clean"
PROGRESS_DIR = "progress"
QUARANTINE_DIR = "quarantine"

_FLOOR_SLOT_BYTES = 512


class Progress(NamedTuple):
    """How far a worker's files are synced: an offset of the log as it was in an epoch."""

    epoch: int
    offset: int


class EpochLine(NamedTuple):
    """One start of the writer: where the log ended then."""

    epoch: int
    start: int


class Tails(NamedTuple):
    """The next offset of every queue, as it was when the log ended at `at`.

    `last_record` is where the last record below `at` starts, `store_timestamp` its store time in
    ms; 0 when not known.
    """

    at: int
    next_offset: dict[Queue, int]
    last_record: int = 0
    store_timestamp: int = 0


def own_dir(root: Path) -> Path:
    """Our folder in a store."""
    return root / KEELOG_DIR


def _seal(text: str) -> bytes:
    body = text.encode()
    return body + f"crc {zlib.crc32(body):08x}\n".encode()


def _unseal(path: Path) -> str | None:
    """The text above the CRC line; None when the file is missing or does not agree with it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    body, separator, crc = data.rpartition(b"crc ")
    if not separator or crc != f"{zlib.crc32(body):08x}\n".encode():
        return None
    return body.decode()


def save_progress(root: Path, worker: str, progress: Progress) -> None:
    """Call it after the sync that it describes."""
    folder = own_dir(root) / PROGRESS_DIR
    disk.make_dir(folder)
    write_atomically(folder / worker, _seal(f"{progress.epoch} {progress.offset}\n"))


def load_progress(root: Path, worker: str) -> Progress | None:
    """None when there is none to trust."""
    text = _unseal(own_dir(root) / PROGRESS_DIR / worker)
    if text is None:
        return None
    epoch, offset = text.split()
    return Progress(int(epoch), int(offset))


def list_progress(root: Path) -> dict[str, Progress]:
    """Every worker's progress that can be trusted."""
    folder = own_dir(root) / PROGRESS_DIR
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    found = {name: load_progress(root, name) for name in names}
    return {name: progress for name, progress in found.items() if progress is not None}


def remove_progress(root: Path, worker: str) -> None:
    """Forgets a worker's progress; missing is fine."""
    folder = own_dir(root) / PROGRESS_DIR
    if folder.is_dir():
        disk.unlink(folder / worker, missing_ok=True)
        sync_dir(folder)


def load_epochs(root: Path) -> list[EpochLine]:
    """Oldest first; empty when Keelog never wrote here."""
    text = _unseal(own_dir(root) / EPOCHS_FILE)
    lines = [line.split() for line in (text or "").splitlines()]
    return [EpochLine(int(epoch), int(start)) for epoch, start in lines]


def save_epochs(root: Path, epochs: list[EpochLine]) -> None:
    """Rewrites the file."""
    text = "".join(f"{line.epoch} {line.start}\n" for line in epochs)
    write_atomically(own_dir(root) / EPOCHS_FILE, _seal(text))


def epoch_end(epochs: list[EpochLine], epoch: int) -> int | None:
    """Where an epoch's part of the log ended: the next one's start; None for the newest.

    0 for an epoch that the file does not know: nothing of it can be vouched for.
    """
    for line, following in pairwise(epochs):
        if line.epoch == epoch:
            return following.start
    return None if epochs and epochs[-1].epoch == epoch else 0


def save_tails(root: Path, tails: Tails) -> None:
    """Rewrites the snapshot of the queues' ends."""
    queues = [[queue.topic, queue.queue_id, n] for queue, n in sorted(tails.next_offset.items())]
    document = {
        "at": tails.at,
        "last_record": tails.last_record,
        "store_timestamp": tails.store_timestamp,
        "queues": queues,
    }
    text = json.dumps(document, separators=(",", ":")) + "\n"
    write_atomically(own_dir(root) / TAILS_FILE, _seal(text))


def load_tails(root: Path) -> Tails | None:
    """None when there is none to trust."""
    text = _unseal(own_dir(root) / TAILS_FILE)
    if text is None:
        return None
    data = json.loads(text)
    next_offset = {Queue(topic, queue): n for topic, queue, n in data["queues"]}
    return Tails(data["at"], next_offset, data["last_record"], data["store_timestamp"])


def is_clean(root: Path) -> bool:
    """Whether the last owner was a Keelog node that stopped in order."""
    return (own_dir(root) / CLEAN_FILE).exists()


def mark_clean(root: Path, epoch: int, end: int) -> None:
    """The last thing that a clean stop of ours writes before `abort` goes."""
    write_atomically(own_dir(root) / CLEAN_FILE, _seal(f"{epoch} {end}\n"))


def clear_clean(root: Path) -> None:
    """Before anything else is written."""
    path = own_dir(root) / CLEAN_FILE
    if path.exists():
        disk.unlink(path)
        sync_dir(path.parent)


class Floor:
    """The durable end of the log: two slots written in turn, so that one is always whole."""

    def __init__(self, root: Path) -> None:
        self._path = own_dir(root) / FLOOR_FILE
        self._descriptor = disk.open_file(self._path, create=True, mode=0o600)
        self._sequence, self.offset = _read_floor(self._path)

    def save(self, offset: int) -> None:
        """Call it after the flush that it describes. It is a lower bound: not synced itself."""
        self._sequence += 1
        text = _seal(f"{self._sequence} {offset}\n").ljust(_FLOOR_SLOT_BYTES, b"\0")
        disk.write_all(self._descriptor, text, self._sequence % 2 * _FLOOR_SLOT_BYTES)
        self.offset = offset

    def close(self) -> None:
        """Syncs and closes."""
        disk.sync(self._descriptor)
        os.close(self._descriptor)


def load_floor(root: Path) -> int:
    """The durable end of the log as last saved; 0 when nothing can be trusted."""
    return _read_floor(own_dir(root) / FLOOR_FILE)[1]


def _read_floor(path: Path) -> tuple[int, int]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, 0
    best = (0, 0)
    for start in (0, _FLOOR_SLOT_BYTES):
        slot = data[start : start + _FLOOR_SLOT_BYTES].rstrip(b"\0")
        body, separator, crc = slot.rpartition(b"crc ")
        if separator and crc == f"{zlib.crc32(body):08x}\n".encode():
            sequence, offset = body.split()
            best = max(best, (int(sequence), int(offset)))
    return best
