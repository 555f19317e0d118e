"""The small files under `keelog/`: epochs, floor, progress, tails and the mark of a clean stop.

All but the floor are text, written to a temporary file, synced and renamed, and end in the id of
their store and a CRC of what stands before it: a file whose CRC does not agree counts as missing,
and so does one of another store. One whose CRC agrees and that makes no sense all the same was not
written by this version: StoreDamaged. None of them ever names an offset above the flushed one, so
no owner can have cut the log below it.
"""

import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from node.runtime import disk
from node.runtime.disk import sync_dir, write_atomically
from node.runtime.event_log import fields
from node.runtime.regular_file import (
    EPOCHS_FILE_BYTES_MAX,
    FLOOR_FILE_BYTES_MAX,
    QUEUES_FILE_BYTES_MAX,
    SMALL_FILE_BYTES_MAX,
    is_own_folder,
    read_bounded,
)
from node.store.identity.lock_id import ID_PATTERN, load_lock_id
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import ABORT_FILE, KEELOG_DIR

log = logging.getLogger("keelog.own_files")

EPOCHS_FILE = "epochs"
FLOOR_FILE = "floor"
TAILS_FILE = "tails"
CLEAN_FILE = "clean"
PROGRESS_DIR = "progress"
QUARANTINE_DIR = "quarantine"

_T = TypeVar("_T")
_FLOOR_SLOT_BYTES = 512
_CRC_FLAG = "crc"
_AFTER_CLEAN_FLAG = "after-clean"
_OWNER_NAME = "keelog"
_OFFSET_MAX = 2**63 - 1
_ID_LINE = re.compile(rf"store ({ID_PATTERN})\n\Z")
_HINT = (
    "written by another version or by hand? Keep a copy and remove it: this costs a longer start"
)


class WorkerCheckpoint(NamedTuple):
    """How far a worker's files are synced: an offset of the log as it was in an epoch."""

    epoch: int
    offset: int


class EpochLine(NamedTuple):
    """One start of the writer: where the log ended then.

    `crc`: all that it appends carries the whole-record checksum. `after_clean`: the owner before
    had stopped in order.
    """

    epoch: int
    start: int
    crc: bool = False
    after_clean: bool = False


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


class StoreId(NamedTuple):
    """Whose files are believed.

    `value`: None while the store has no id. `is_settled`: `lock` holds it, and so does each of our
    files; before, files without an id are the store's own too.
    """

    value: str | None
    is_settled: bool

    def owns(self, other: str | None) -> bool:
        """Whether a file that carries this id, or none, is the store's own."""
        return other == self.value or (other is None and not self.is_settled)


class SealedText(NamedTuple):
    """The text of a file whose CRC agrees, and the id of the store that wrote it."""

    text: str
    store_id: str | None


def load_store_id(root: Path) -> StoreId:
    """The id in `lock`; `epochs` has a copy, for a store that was copied without its lock."""
    home = load_lock_id(root)
    if home is not None:
        return StoreId(home, True)
    epochs = load_sealed(own_dir(root) / EPOCHS_FILE)
    return StoreId(epochs.store_id if epochs is not None else None, False)


def seal(text: str, store_id: str | None) -> bytes:
    """The text, with the store's id and a CRC of both as its last lines."""
    body = (text if store_id is None else f"{text}store {store_id}\n").encode()
    return body + f"crc {zlib.crc32(body):08x}\n".encode()


def save_sealed(root: Path, path: Path, text: str) -> None:
    """Rewrites one of our files: old or new, with the id of the store."""
    write_atomically(path, seal(text, load_store_id(root).value))


def load_sealed(path: Path, bytes_max: int = QUEUES_FILE_BYTES_MAX) -> SealedText | None:
    """What a file says, whosever it is; None when it is missing or its CRC does not agree.

    Raises IrregularFile.
    """
    try:
        data = read_bounded(path, bytes_max)
    except FileNotFoundError:
        return None
    return _sealed(data)


def load_slots(path: Path) -> Iterator[SealedText]:
    """As `load_sealed`, of each slot of the floor."""
    try:
        data = read_bounded(path, FLOOR_FILE_BYTES_MAX)
    except FileNotFoundError:
        return
    for start in (0, _FLOOR_SLOT_BYTES):
        found = _sealed(data[start : start + _FLOOR_SLOT_BYTES].rstrip(b"\0"))
        if found is not None:
            yield found


def unseal(root: Path, path: Path, bytes_max: int = SMALL_FILE_BYTES_MAX) -> str | None:
    """The text above id and CRC; None when the file is missing, bad, or of another store.

    Raises IrregularFile.
    """
    return _own_text(root, path, load_sealed(path, bytes_max))


def _own_text(root: Path, path: Path, found: SealedText | None) -> str | None:
    if found is None:
        return None
    ours = load_store_id(root)
    if ours.owns(found.store_id):
        return found.text
    told = fields(file=path, its_store=found.store_id, this_store=ours.value)
    log.warning("a file of another store is ignored", extra=told)
    return None


def _sealed(data: bytes) -> SealedText | None:
    body, separator, crc = data.rpartition(b"crc ")
    if not separator or crc != f"{zlib.crc32(body):08x}\n".encode():
        return None
    text = body.decode(errors="replace")
    found = _ID_LINE.search(text)
    return SealedText(text, None) if found is None else SealedText(text[: found.start()], found[1])


def _parsed(path: Path, parse: Callable[[str], _T], text: str) -> _T:
    """What a text with a good CRC says. Raises StoreDamaged when it makes no sense."""
    try:
        return parse(text)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        found = f"its checksum agrees, but it makes no sense ({str(error)[:80]!a})"
        raise StoreDamaged(str(path), 0, found, _HINT) from None


def _number(text: object) -> int:
    """A number that an offset or epoch may be. Raises ValueError."""
    value = int(text) if isinstance(text, str) and text.isdecimal() else text
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _OFFSET_MAX:
        raise ValueError(f"{str(text)[:40]} is no offset")
    return value


def _two_numbers(text: str) -> tuple[int, int]:
    first, second = text.split()
    return _number(first), _number(second)


def save_progress(root: Path, worker: str, progress: WorkerCheckpoint) -> None:
    """Call it after the sync that it describes."""
    folder = own_dir(root) / PROGRESS_DIR
    disk.make_durable_dir(folder)
    save_sealed(root, folder / worker, f"{progress.epoch} {progress.offset}\n")


def load_progress(root: Path, worker: str) -> WorkerCheckpoint | None:
    """None when there is none to trust. Raises StoreDamaged."""
    path = own_dir(root) / PROGRESS_DIR / worker
    text = unseal(root, path)
    return None if text is None else WorkerCheckpoint(*_parsed(path, _two_numbers, text))


def list_progress(root: Path) -> dict[str, WorkerCheckpoint]:
    """Every worker's progress that can be trusted."""
    folder = own_dir(root) / PROGRESS_DIR
    names = sorted(path.name for path in folder.iterdir()) if is_own_folder(folder) else []
    found = {name: load_progress(root, name) for name in names}
    return {name: progress for name, progress in found.items() if progress is not None}


def remove_progress(root: Path, worker: str) -> None:
    """Forgets a worker's progress; missing is fine."""
    folder = own_dir(root) / PROGRESS_DIR
    if folder.is_dir():
        disk.unlink(folder / worker, missing_ok=True)
        sync_dir(folder)


def load_epochs(root: Path) -> list[EpochLine]:
    """Oldest first; empty when Keelog never wrote here. Raises StoreDamaged."""
    path = own_dir(root) / EPOCHS_FILE
    text = unseal(root, path, EPOCHS_FILE_BYTES_MAX)
    return [] if text is None else _parsed(path, _epoch_lines, text)


def _epoch_lines(text: str) -> list[EpochLine]:
    lines = []
    for line in text.splitlines():
        epoch, start, *flags = line.split()
        lines.append(
            EpochLine(
                _number(epoch), _number(start), _CRC_FLAG in flags, _AFTER_CLEAN_FLAG in flags
            )
        )
    if any(before.epoch >= after.epoch for before, after in pairwise(lines)):
        raise ValueError("epochs do not rise")
    return lines


def save_epochs(root: Path, epochs: list[EpochLine]) -> None:
    """Rewrites the file."""
    rows = (
        " ".join(
            [
                *(str(line.epoch), str(line.start)),
                *([_CRC_FLAG] if line.crc else []),
                *([_AFTER_CLEAN_FLAG] if line.after_clean else []),
            ]
        )
        for line in epochs
    )
    text = "".join(f"{row}\n" for row in rows)
    save_sealed(root, own_dir(root) / EPOCHS_FILE, text)


def save_owner(root: Path, epoch: int | None) -> None:
    """Our name in `abort`: who wrote last, and since which epoch (None: nothing yet). Durable.

    A broker never reads the content, but writes its own process id there before it appends, and
    deletes the file when it stops in order. So the mark stands as long as nobody came after us.
    """
    words = [str(os.getpid()), _OWNER_NAME]
    if epoch is not None:
        store_id = load_store_id(root).value
        words += [str(epoch), *([] if store_id is None else [store_id])]
    write_atomically(root / ABORT_FILE, " ".join(words).encode())


def load_owner(root: Path) -> int | None:
    """The epoch of the Keelog writer that was the last to write; None: another one, or nobody."""
    try:
        words = read_bounded(root / ABORT_FILE, SMALL_FILE_BYTES_MAX)[:100].split()
    except FileNotFoundError:
        return None
    if len(words) not in (3, 4) or words[1] != _OWNER_NAME.encode() or not words[2].isdigit():
        return None
    store_id = words[3].decode(errors="replace") if len(words) == 4 else None
    return int(words[2]) if load_store_id(root).owns(store_id) else None


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
    save_sealed(root, own_dir(root) / TAILS_FILE, text)


def load_tails(root: Path) -> Tails | None:
    """None when there is none to trust. Raises StoreDamaged."""
    path = own_dir(root) / TAILS_FILE
    text = unseal(root, path, QUEUES_FILE_BYTES_MAX)
    return None if text is None else _parsed(path, _tails, text)


def _tails(text: str) -> Tails:
    data = json.loads(text)
    next_offset = {
        Queue(topic, _number(queue)): _number(following)
        for topic, queue, following in data["queues"]
        if isinstance(topic, str)
    }
    if len(next_offset) != len(data["queues"]):
        raise ValueError("a queue stands there twice, or without a name")
    numbers = (data["last_record"], data["store_timestamp"])
    return Tails(_number(data["at"]), next_offset, *map(_number, numbers))


def is_clean(root: Path) -> bool:
    """Whether the last owner was a Keelog node that stopped in order."""
    return unseal(root, own_dir(root) / CLEAN_FILE) is not None


def mark_clean(root: Path, epoch: int, end: int) -> None:
    """The last thing that a clean stop of ours writes before `abort` goes."""
    save_sealed(root, own_dir(root) / CLEAN_FILE, f"{epoch} {end}\n")


def clear_clean(root: Path) -> None:
    """Before anything else is written."""
    path = own_dir(root) / CLEAN_FILE
    if path.exists():
        disk.unlink(path)
        sync_dir(path.parent)


class Floor:
    """The durable end of the log: two slots written in turn, so that one is always whole."""

    def __init__(self, root: Path) -> None:
        self._store_id = load_store_id(root).value
        self._sequence, self.offset = _read_floor(root)
        self._descriptor = disk.open_file(own_dir(root) / FLOOR_FILE, create=True, own=True)

    def save(self, offset: int) -> None:
        """Call it after the flush that it describes. It is a lower bound: not synced itself."""
        self._sequence += 1
        slot = seal(f"{self._sequence} {offset}\n", self._store_id)
        place = self._sequence % 2 * _FLOOR_SLOT_BYTES
        disk.write_all(self._descriptor, slot.ljust(_FLOOR_SLOT_BYTES, b"\0"), place)
        self.offset = offset

    def close(self) -> None:
        """Syncs and closes."""
        disk.sync(self._descriptor)
        os.close(self._descriptor)


def load_floor(root: Path) -> int:
    """The durable end of the log as last saved; 0 when nothing can be trusted.

    Raises StoreDamaged.
    """
    return _read_floor(root)[1]


def durable_end(root: Path, epochs: list[EpochLine], tails: Tails | None) -> int:
    """The best that is known: the floor is not synced itself, but the others are.

    A new epoch begins where recovery has made all durable, a snapshot of the queues' ends is
    saved when all below it is.
    """
    return max(
        load_floor(root),
        epochs[-1].start if epochs else 0,
        tails.at if tails is not None else 0,
    )


def _read_floor(root: Path) -> tuple[int, int]:
    path = own_dir(root) / FLOOR_FILE
    best = (0, 0)
    for slot in load_slots(path):
        text = _own_text(root, path, slot)
        if text is not None:
            best = max(best, _parsed(path, _two_numbers, text))
    return best
