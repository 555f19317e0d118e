"""The small files of a node in a store: its id, epochs, floor, progress, tails, rebuilds, a clean
stop.

The id of a store is 128 random bits in hex, in the file `lock`: `lock keelog <id> <crc>`. RocketMQ
writes the four bytes "lock" at the beginning and leaves the rest as it is, so the id outlives a
broker that owns the store for a while.

All others are in `keelog/`. All but the floor are text, replaced by a rename after a sync. Each
ends in the id of its store and a CRC over all before it. A file with a wrong CRC, or of another
store, counts as missing. A file with a good CRC that makes no sense comes from another version:
StoreDamaged. No file ever names an offset above the flushed end, so no owner can have cut the log
below it.
"""

import json
import logging
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from node.runtime import disk, store_paths
from node.runtime.disk import sync_dir, write_atomically
from node.runtime.event_log import fields
from node.runtime.state_page import run_dir
from node.runtime.store_paths import held_open
from protocol.derived.removed import NOTHING_REMOVED, Removed, RemovedTopic
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import ABORT_FILE, KEELOG_DIR, LOCK_FILE

log = logging.getLogger("keelog.own_files")

ID_PATTERN = "[0-9a-f]{32}"
EPOCHS_FILE = "epochs"
FLOOR_FILE = "floor"
TAILS_FILE = "tails"
REMOVED_FILE = "removed"
CLEAN_FILE = "clean"
PROGRESS_DIR = "progress"
QUARANTINE_DIR = "quarantine"
UNFINISHED_DIR = "rebuild.building"
"""The folder in which a job builds derived files; a job that succeeds leaves none."""

_NOTE = "repair.rebuilding"
_ID_BYTES = 16
_LOCK_LINE = re.compile(rf"lock keelog ({ID_PATTERN}) ([0-9a-f]{{8}})\n".encode())
_T = TypeVar("_T")
_FLOOR_SLOT_BYTES = 512
_CRC_FLAG = "crc"
_AFTER_CLEAN_FLAG = "after-clean"
_OWNER_NAME = "keelog"
_OFFSET_MAX = 2**63 - 1
_ID_LINE = re.compile(rf"store ({ID_PATTERN})\n\Z")
_REMOVED_HINT = (
    "put it back from a backup; without it every message that was removed and is still in the log"
    " would come back"
)
_HINT = (
    "written by another version or by hand? Keep a copy and remove it: this costs a longer start"
)


class WorkerCheckpoint(NamedTuple):
    """A worker's files are synced below `offset` of the log, as the log was in `epoch`."""

    epoch: int
    offset: int


class EpochLine(NamedTuple):
    """One start of the writer; `start` is the log's end at that time.

    `crc`: each record of the epoch carries the whole-record checksum. `after_clean`: the owner
    before it stopped cleanly.
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
    """The folder `keelog/` of a store."""
    return root / KEELOG_DIR


class StoreId(NamedTuple):
    """The id of a store: a small file with another one does not count.

    `value`: None while the store has no id. `is_settled`: `lock` holds the id, and so does each
    small file; until then a file without an id belongs to the store too.
    """

    value: str | None
    is_settled: bool

    def owns(self, other: str | None) -> bool:
        """True if a file that carries the id `other`, or none, belongs to the store."""
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


def new_store_id() -> str:
    return secrets.token_hex(_ID_BYTES)


def load_lock_id(root: Path) -> str | None:
    """The id in `lock`; None without the file, or without an id with a good CRC. Raises OSError."""
    try:
        found = _LOCK_LINE.match(
            store_paths.read_bounded(root / LOCK_FILE, store_paths.SMALL_FILE_BYTES_MAX)
        )
    except FileNotFoundError:
        return None
    if found is None or found[2] != _lock_crc(found[1]):
        return None
    return found[1].decode()


def save_lock_id(root: Path, store_id: str) -> None:
    """Writes the id, durably. The line is in one sector: a power loss leaves all of it or none.

    The caller may hold the store's lock: that belongs to another file description.
    """
    word = store_id.encode()
    with held_open(disk.open_file(root / LOCK_FILE, create=True, own=True)) as descriptor:
        disk.write_all(descriptor, b"lock keelog %s %s\n" % (word, _lock_crc(word)), 0)
        disk.sync_with_length(descriptor)
    disk.sync_dir(root)


def _lock_crc(word: bytes) -> bytes:
    return b"%08x" % zlib.crc32(word)


def seal(text: str, store_id: str | None) -> bytes:
    """The text, with the store's id and a CRC of both as its last lines."""
    body = (text if store_id is None else f"{text}store {store_id}\n").encode()
    return body + f"crc {zlib.crc32(body):08x}\n".encode()


def save_sealed(root: Path, path: Path, text: str) -> None:
    """Replaces a small file atomically, with the id of the store."""
    write_atomically(path, seal(text, load_store_id(root).value))


def load_sealed(
    path: Path, bytes_max: int = store_paths.QUEUES_FILE_BYTES_MAX
) -> SealedText | None:
    """The text of a small file, of any store; None if it is missing or has a wrong CRC.

    Raises IrregularFile.
    """
    try:
        data = store_paths.read_bounded(path, bytes_max)
    except FileNotFoundError:
        return None
    return _sealed(data)


def load_slots(path: Path) -> Iterator[SealedText]:
    """Yields the text of each slot of the floor that has a good CRC."""
    try:
        data = store_paths.read_bounded(path, store_paths.FLOOR_FILE_BYTES_MAX)
    except FileNotFoundError:
        return
    for start in (0, _FLOOR_SLOT_BYTES):
        found = _sealed(data[start : start + _FLOOR_SLOT_BYTES].rstrip(b"\0"))
        if found is not None:
            yield found


def unseal(root: Path, path: Path, bytes_max: int = store_paths.SMALL_FILE_BYTES_MAX) -> str | None:
    """The text of a small file; None if it is missing, has a wrong CRC, or is another store's.

    Raises IrregularFile.
    """
    return _own_text(root, path, load_sealed(path, bytes_max))


def _own_text(root: Path, path: Path, found: SealedText | None) -> str | None:
    if found is None:
        return None
    ours = load_store_id(root)
    if ours.owns(found.store_id):
        return found.text
    details = fields(file=path, its_store=found.store_id, this_store=ours.value)
    log.warning("a file of another store is ignored", extra=details)
    return None


def _sealed(data: bytes) -> SealedText | None:
    body, separator, crc = data.rpartition(b"crc ")
    if not separator or crc != f"{zlib.crc32(body):08x}\n".encode():
        return None
    text = body.decode(errors="replace")
    found = _ID_LINE.search(text)
    return SealedText(text, None) if found is None else SealedText(text[: found.start()], found[1])


def _load(
    root: Path,
    path: Path,
    parse: Callable[[str], _T],
    bytes_max: int = store_paths.SMALL_FILE_BYTES_MAX,
) -> _T | None:
    text = unseal(root, path, bytes_max)
    return None if text is None else _parsed(path, parse, text)


def _parsed(path: Path, parse: Callable[[str], _T], text: str) -> _T:
    """Parses a text with a good CRC. Raises StoreDamaged if it makes no sense."""
    try:
        return parse(text)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        found = f"its checksum agrees, but it makes no sense ({str(error)[:80]!a})"
        raise StoreDamaged(str(path), 0, found, _HINT) from None


def _number(text: object) -> int:
    """Checks and returns an offset or epoch. Raises ValueError."""
    value = int(text) if isinstance(text, str) and text.isdecimal() else text
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _OFFSET_MAX:
        raise ValueError(f"{str(text)[:40]} is no offset")
    return value


def _two_numbers(text: str) -> tuple[int, int]:
    first, second = text.split()
    return _number(first), _number(second)


def save_progress(root: Path, worker: str, progress: WorkerCheckpoint) -> None:
    """Saves a worker's checkpoint; call it after the sync that it describes."""
    folder = own_dir(root) / PROGRESS_DIR
    disk.make_durable_dir(folder)
    save_sealed(root, folder / worker, f"{progress.epoch} {progress.offset}\n")


def load_progress(root: Path, worker: str) -> WorkerCheckpoint | None:
    """A worker's checkpoint; None if there is none to trust. Raises StoreDamaged."""
    found = _load(root, own_dir(root) / PROGRESS_DIR / worker, _two_numbers)
    return None if found is None else WorkerCheckpoint(*found)


def list_progress(root: Path) -> dict[str, WorkerCheckpoint]:
    """The checkpoints of all workers, as far as they can be trusted."""
    folder = own_dir(root) / PROGRESS_DIR
    names = (
        sorted(path.name for path in folder.iterdir()) if store_paths.is_own_folder(folder) else []
    )
    found = {name: load_progress(root, name) for name in names}
    return {name: progress for name, progress in found.items() if progress is not None}


def remove_progress(root: Path, worker: str) -> None:
    """Removes a worker's checkpoint; a missing one is fine."""
    folder = own_dir(root) / PROGRESS_DIR
    if folder.is_dir():
        disk.unlink(folder / worker, missing_ok=True)
        sync_dir(folder)


def load_epochs(root: Path) -> list[EpochLine]:
    """The epochs, oldest first; empty if Keelog never wrote here. Raises StoreDamaged."""
    path, bytes_max = own_dir(root) / EPOCHS_FILE, store_paths.EPOCHS_FILE_BYTES_MAX
    return _load(root, path, _epoch_lines, bytes_max) or []


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
    text = ""
    for line in epochs:
        crc = f" {_CRC_FLAG}" if line.crc else ""
        after_clean = f" {_AFTER_CLEAN_FLAG}" if line.after_clean else ""
        text += f"{line.epoch} {line.start}{crc}{after_clean}\n"
    save_sealed(root, own_dir(root) / EPOCHS_FILE, text)


def save_owner(root: Path, epoch: int | None) -> None:
    """Writes our name into `abort`, durably, with the epoch in which we append (None: not yet).

    A broker never reads the content. It writes its own process id there before it appends, and
    deletes the file when it stops cleanly. So our name stays until another owner writes.
    """
    words = [str(os.getpid()), _OWNER_NAME]
    if epoch is not None:
        store_id = load_store_id(root).value
        words += [str(epoch), *([] if store_id is None else [store_id])]
    write_atomically(root / ABORT_FILE, " ".join(words).encode())


def load_owner(root: Path) -> int | None:
    """The epoch of this store's Keelog writer, if it wrote last; None if another owner did."""
    try:
        words = store_paths.read_bounded(root / ABORT_FILE, store_paths.SMALL_FILE_BYTES_MAX)[
            :100
        ].split()
    except FileNotFoundError:
        return None
    if len(words) not in (3, 4) or words[1] != _OWNER_NAME.encode() or not words[2].isdigit():
        return None
    store_id = words[3].decode(errors="replace") if len(words) == 4 else None
    return int(words[2]) if load_store_id(root).owns(store_id) else None


def epoch_end(epochs: list[EpochLine], epoch: int) -> int | None:
    """The end of an epoch's part of the log: the start of the next one; None for the newest.

    0 for an epoch that is not in `epochs`: nothing vouches for it.
    """
    for line, following in pairwise(epochs):
        if line.epoch == epoch:
            return following.start
    return None if epochs and epochs[-1].epoch == epoch else 0


def save_tails(root: Path, tails: Tails) -> None:
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
    """The snapshot of the queues' ends; None if there is none to trust. Raises StoreDamaged."""
    return _load(root, own_dir(root) / TAILS_FILE, _tails, store_paths.QUEUES_FILE_BYTES_MAX)


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


def save_removed(root: Path, removed: Removed) -> None:
    """Replaces the note of removed topics and purged queues. The log must be flushed up to the
    highest offset in it."""
    document = {
        "number": removed.number,
        "topics": {name: list(topic) for name, topic in sorted(removed.topics.items())},
        "queues": [[queue.topic, queue.queue_id, at] for queue, at in removed.queues.items()],
    }
    save_sealed(
        root, own_dir(root) / REMOVED_FILE, json.dumps(document, separators=(",", ":")) + "\n"
    )


def load_removed(root: Path) -> Removed:
    """The note of removed topics and purged queues; one that another store wrote does not count.

    Raises StoreDamaged for one that cannot be read: without it removed messages come back.
    """
    path = own_dir(root) / REMOVED_FILE
    try:
        found = _sealed(store_paths.read_bounded(path, store_paths.QUEUES_FILE_BYTES_MAX))
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING_REMOVED
    if found is None:
        raise StoreDamaged(str(path), 0, "its checksum does not agree", _REMOVED_HINT)
    text = _own_text(root, path, found)
    return NOTHING_REMOVED if text is None else _parsed(path, _removed, text)


def _removed(text: str) -> Removed:
    data = json.loads(text)
    return Removed(
        _number(data["number"]),
        {name: RemovedTopic(*map(_number, numbers)) for name, numbers in data["topics"].items()},
        {Queue(topic, _number(queue)): _number(at) for topic, queue, at in data["queues"]},
    )


def is_clean(root: Path) -> bool:
    """True if the last owner was a Keelog node that stopped cleanly."""
    return unseal(root, own_dir(root) / CLEAN_FILE) is not None


def mark_clean(root: Path, epoch: int, end: int) -> None:
    """Marks a clean stop; written last, just before `abort` is removed."""
    save_sealed(root, own_dir(root) / CLEAN_FILE, f"{epoch} {end}\n")


def clear_clean(root: Path) -> None:
    """Removes the mark of a clean stop; call it before anything else is written."""
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
        """Saves the durable end after a flush. It is a lower bound: this write is not synced."""
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
    """The highest offset below which the log is known to be durable.

    The floor may be older than the last flush, because it is not synced. The other two are synced,
    and are saved only when the log is durable below them: a new epoch, and a snapshot of the
    queues' ends.
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


def forget_progress(root: Path, workers: str) -> list[str]:
    """Removes the checkpoints of the slots whose names begin with `workers`; returns the slots."""
    slots = [slot for slot in list_progress(root) if slot.startswith(workers)]
    for slot in slots:
        remove_progress(root, slot)
    return slots


def vouch_again(root: Path, slots: list[str], progress: WorkerCheckpoint) -> None:
    """Saves `progress` for the slots that `forget_progress` returned; nothing in a store that
    Keelog never wrote."""
    for slot in slots if load_epochs(root) else ():
        save_progress(root, slot, progress)


def remove_unfinished(root: Path) -> None:
    """Removes what a killed job left. The caller holds the store's lock."""
    folder = root / UNFINISHED_DIR
    if folder.is_dir() and not folder.is_symlink():
        disk.remove_tree(folder)


def clear_unfinished(root: Path) -> None:
    """Removes the notes of queues that workers were rebuilding: every queue is made anew."""
    for path in run_dir(root).glob("queue-*.rebuilding"):
        disk.unlink(path)


def save_rebuilding(root: Path, folders: list[str]) -> None:
    """Notes, durably, the folders that a repair is about to rebuild; none removes the note.

    A repair that is killed then goes on there.
    """
    path = run_dir(root) / _NOTE
    disk.make_dir(path.parent)
    if folders:
        disk.write_atomically(path, json.dumps(folders).encode())
    else:
        disk.unlink(path, missing_ok=True)
        disk.sync_dir(path.parent)


def load_rebuilding(root: Path) -> list[str]:
    """The folders that `save_rebuilding` noted; empty when the last repair came to its end."""
    try:
        found = json.loads(
            store_paths.read_bounded(run_dir(root) / _NOTE, store_paths.SMALL_FILE_BYTES_MAX)
        )
    except (FileNotFoundError, NotADirectoryError, store_paths.IrregularFile, ValueError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []
