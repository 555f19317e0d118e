"""The condition of a store: how its last owner left it, and who runs it now.

The first comes from the store's small files. The second is found out without taking a lock: a
process that tries a lock holds it for a moment, and a node that starts just then would end with
"locked". So this asks the kernel about record locks (F_OFD_GETLK), and finds a `flock` in
/proc/locks.
"""

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeVar

from node.runtime.locks import flock_of, record_lock_of
from node.runtime.store_paths import IrregularFile, held_open, open_regular, read_bounded
from node.store import checkpoints
from node.store.file_cache import refuse
from node.store.identity.places import check_links, check_own_files
from protocol import names
from protocol.derived.file_layouts import StoreCheckpoint, decode_checkpoint
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import NotAStore

INDEX_WORKER = "index"
QUEUE_WORKER_PREFIX = "queue-"

_T = TypeVar("_T")
_OF_A_DESCRIPTION = -1
"""The pid that the kernel reports for a lock of an open file description."""


class Condition(NamedTuple):
    """What the small files say. Offsets are record boundaries, durable when they were saved.

    `queues_done`, `index_done`: below them Keelog's workers vouch for all queues, for the index;
    None without a checkpoint. `was_ours`: the last owner was a Keelog writer that did not stop
    cleanly. `is_sealed`: each of its records above the floor carries the whole-record checksum.
    `tails` leaves out the topics that were removed after it was saved.
    """

    is_ours: bool
    is_clean: bool
    checkpoint: StoreCheckpoint
    floor: int
    queues_done: int | None
    index_done: int | None
    tails: checkpoints.Tails | None
    epochs: list[checkpoints.EpochLine] = []  # noqa: RUF012  (never changed)
    was_ours: bool = False
    is_sealed: bool = False
    removed: Removed = NOTHING_REMOVED


def check_is_store(root: Path, strict: bool = True) -> None:
    """Raises NotAStore or StorePermission unless `root` is a folder that looks like a store.

    `strict`: raises IrregularFile too, for a link, a FIFO or the like in the place of an own file.
    """
    try:
        check_links(root)
        if not root.exists():
            raise NotAStore(f"{root} does not exist", "name the folder that holds commitlog/")
        if not root.is_dir():
            raise NotAStore(f"{root} is a file", "name the folder that holds commitlog/")
        known = (names.COMMIT_LOG_DIR, names.CHECKPOINT_FILE, names.CONSUME_QUEUE_DIR)
        there = {path.name for path in root.iterdir()}
        # Not any folder of our name: a checkout of this project has one too.
        is_ours = (root / names.KEELOG_DIR / checkpoints.EPOCHS_FILE).exists()
    except PermissionError as error:
        refuse(root, error)
    if not is_ours and not there.intersection(known):
        raise NotAStore(f"{root} holds no commitlog/", "name the folder that holds commitlog/")
    log = root / names.COMMIT_LOG_DIR
    if log.exists() and not log.is_dir():
        raise NotAStore(f"{log} is a file", "name the folder that holds commitlog/")
    if strict:
        check_own_files(root)


def read_checkpoint(root: Path) -> StoreCheckpoint:
    """RocketMQ's checkpoint; zeros when there is none. Raises StorePermission, StoreDamaged."""
    try:
        return decode_checkpoint(
            read_bounded(root / names.CHECKPOINT_FILE, names.CHECKPOINT_FILE_BYTES)
        )
    except FileNotFoundError:
        return decode_checkpoint(b"")
    except OSError as error:
        refuse(root / names.CHECKPOINT_FILE, error)


def read_condition(root: Path, strict: bool = True) -> Condition:
    """Reads the small files of a stopped store. Raises StorePermission, StoreDamaged.

    Without `strict` an irregular file counts as missing.
    """

    def read(load: Callable[[], _T], missing: _T) -> _T:
        try:
            return load()
        except IrregularFile:
            if strict:
                raise
            return missing

    def read_own(load: Callable[[Path], _T], missing: _T) -> _T:
        return read(lambda: load(root), missing) if is_ours else missing

    try:
        is_ours = checkpoints.own_dir(root).is_dir()
        no_epochs: list[checkpoints.EpochLine] = []
        none_saved: dict[str, checkpoints.WorkerCheckpoint] = {}
        epochs = read_own(checkpoints.load_epochs, no_epochs)
        tails = read_own(checkpoints.load_tails, None)
        removed = read_own(checkpoints.load_removed, NOTHING_REMOVED)
        if tails is not None:
            next_offset = removed.next_offsets(tails.at, tails.next_offset)
            tails = tails._replace(next_offset=next_offset)
        progress = read_own(checkpoints.list_progress, none_saved)
        # Later lines are of starts that were killed before their first append.
        last_epoch = read(lambda: checkpoints.load_owner(root), None)
        owner = next((line for line in epochs if line.epoch == last_epoch), None)
        vouched = max(epochs[-1].start if epochs else 0, tails.at if tails is not None else 0)
        return Condition(
            is_ours=is_ours,
            is_clean=not (root / names.ABORT_FILE).exists(),
            checkpoint=read(lambda: read_checkpoint(root), decode_checkpoint(b"")),
            floor=read_own(lambda root: checkpoints.durable_end(root, epochs, tails), vouched),
            queues_done=_done(progress, QUEUE_WORKER_PREFIX, epochs),
            index_done=_done(progress, INDEX_WORKER, epochs),
            tails=tails,
            epochs=epochs,
            was_ours=owner is not None,
            is_sealed=owner is not None and owner.crc,
            removed=removed,
        )
    except OSError as error:
        refuse(checkpoints.own_dir(root), error)


def _done(
    saved: dict[str, checkpoints.WorkerCheckpoint], prefix: str, epochs: list[checkpoints.EpochLine]
) -> int | None:
    """The lowest checkpoint of these workers, each cut at the end of its epoch."""
    ends = []
    for worker, progress in saved.items():
        if worker.startswith(prefix):
            end = checkpoints.epoch_end(epochs, progress.epoch)
            ends.append(progress.offset if end is None else min(progress.offset, end))
    return min(ends, default=None)


class Owner(Enum):
    """The holder of `<root>/lock`."""

    NOBODY = "nobody"
    WRITER = "writer"
    """A Keelog writer, or a command that changes the store: it holds the record lock."""
    SUPERVISOR = "supervisor"
    """A node whose writer does not run at this moment."""
    BROKER = "broker"
    """A RocketMQ broker: its lock belongs to a process."""


def find_owner(root: Path) -> Owner:
    """The owner of the store in `root`, as this machine sees it. Raises StorePermission.

    Of a node in another container only the writer's lock can be seen.
    """
    path = root / names.LOCK_FILE
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return Owner.NOBODY
    except OSError as error:
        refuse(path, error)
    with held_open(descriptor):
        pid = record_lock_of(descriptor)
        if pid is not None:
            return Owner.WRITER if pid == _OF_A_DESCRIPTION else Owner.BROKER
        return Owner.NOBODY if flock_of(os.fstat(descriptor)) is None else Owner.SUPERVISOR
