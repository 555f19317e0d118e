"""How the last owner left a store: who it was, whether it stopped in order, what it vouched for."""

from pathlib import Path
from typing import NamedTuple

from node.store.open_files import refuse
from node.store.own_files import (
    EPOCHS_FILE,
    Tails,
    epoch_end,
    list_progress,
    load_epochs,
    load_floor,
    load_tails,
    own_dir,
)
from protocol.checkpoint import CHECKPOINT_FILE_BYTES, Checkpoint, decode_checkpoint
from protocol.errors import NotAStore, StorePermission
from protocol.names import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    COMMIT_LOG_DIR,
    CONSUME_QUEUE_DIR,
    KEELOG_DIR,
)

INDEX_WORKER = "index"
QUEUE_WORKER_PREFIX = "queue-"


class Condition(NamedTuple):
    """What stands beside the log. Offsets are record boundaries, durable when they were saved.

    `queues_done` and `index_done`: below it Keelog's workers vouch for all queues, for the index;
    None when nobody does.
    """

    is_ours: bool
    is_clean: bool
    checkpoint: Checkpoint
    floor: int
    queues_done: int | None
    index_done: int | None
    tails: Tails | None


def check_is_store(root: Path) -> None:
    """Raises NotAStore or StorePermission unless `root` is a folder that looks like a store."""
    try:
        if not root.exists():
            raise NotAStore(f"{root} does not exist", "check the path")
        if not root.is_dir():
            raise NotAStore(f"{root} is a file", "name the folder that holds commitlog/")
        known = (COMMIT_LOG_DIR, CHECKPOINT_FILE, CONSUME_QUEUE_DIR)
        names = {path.name for path in root.iterdir()}
        # Not any folder of our name: a checkout of this project has one too.
        is_ours = (root / KEELOG_DIR / EPOCHS_FILE).exists()
    except PermissionError as error:
        raise StorePermission(
            f"{root}: {error.strerror}", "run as the owner of the store"
        ) from None
    if not is_ours and not names.intersection(known):
        raise NotAStore(f"{root} holds no commitlog/", "name the folder that holds commitlog/")
    log = root / COMMIT_LOG_DIR
    if log.exists() and not log.is_dir():
        raise NotAStore(f"{log} is a file", "name the folder that holds commitlog/")


def read_checkpoint(root: Path) -> Checkpoint:
    """RocketMQ's checkpoint; zeros when there is none. Raises StorePermission, StoreDamaged."""
    try:
        with (root / CHECKPOINT_FILE).open("rb") as file:
            return decode_checkpoint(file.read(CHECKPOINT_FILE_BYTES))
    except FileNotFoundError:
        return decode_checkpoint(b"")
    except OSError as error:
        refuse(root / CHECKPOINT_FILE, error)


def read_condition(root: Path) -> Condition:
    """Reads the small files of a store that nobody runs. Raises StorePermission, StoreDamaged."""
    try:
        is_ours = own_dir(root).is_dir()
        return Condition(
            is_ours=is_ours,
            is_clean=not (root / ABORT_FILE).exists(),
            checkpoint=read_checkpoint(root),
            floor=load_floor(root) if is_ours else 0,
            queues_done=_done(root, QUEUE_WORKER_PREFIX) if is_ours else None,
            index_done=_done(root, INDEX_WORKER) if is_ours else None,
            tails=load_tails(root) if is_ours else None,
        )
    except OSError as error:
        refuse(own_dir(root), error)


def _done(root: Path, prefix: str) -> int | None:
    """The least of what these workers saved, cut at the end of the epoch that they saved it in."""
    epochs = load_epochs(root)
    ends = []
    for worker, progress in list_progress(root).items():
        if worker.startswith(prefix):
            end = epoch_end(epochs, progress.epoch)
            ends.append(progress.offset if end is None else min(progress.offset, end))
    return min(ends, default=None)
