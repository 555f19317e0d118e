"""How the last owner left a store: who it was, whether it stopped in order, what it vouched for."""

from pathlib import Path
from typing import NamedTuple

from node.store.open_files import refuse
from node.store.own_files import (
    EPOCHS_FILE,
    EpochLine,
    Tails,
    durable_end,
    epoch_end,
    list_progress,
    load_epochs,
    load_owner,
    load_tails,
    own_dir,
)
from node.store.store_links import check_links
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
    None when nobody does. `was_ours`: a Keelog writer that did not stop in order was the last to
    write; `is_sealed`: and each record above the floor must carry the whole-record checksum.
    """

    is_ours: bool
    is_clean: bool
    checkpoint: Checkpoint
    floor: int
    queues_done: int | None
    index_done: int | None
    tails: Tails | None
    epochs: list[EpochLine] = []  # noqa: RUF012  (never changed)
    was_ours: bool = False
    is_sealed: bool = False


def check_is_store(root: Path) -> None:
    """Raises NotAStore or StorePermission unless `root` is a folder that looks like a store."""
    try:
        check_links(root)
        if not root.exists():
            raise NotAStore(f"{root} does not exist", "name the folder that holds commitlog/")
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
        epochs = load_epochs(root) if is_ours else []
        tails = load_tails(root) if is_ours else None
        owner = _last_line(root, epochs)
        return Condition(
            is_ours=is_ours,
            is_clean=not (root / ABORT_FILE).exists(),
            checkpoint=read_checkpoint(root),
            floor=durable_end(root, epochs, tails) if is_ours else 0,
            queues_done=_done(root, QUEUE_WORKER_PREFIX, epochs) if is_ours else None,
            index_done=_done(root, INDEX_WORKER, epochs) if is_ours else None,
            tails=tails,
            epochs=epochs,
            was_ours=owner is not None,
            is_sealed=owner is not None and owner.crc,
        )
    except OSError as error:
        refuse(own_dir(root), error)


def _last_line(root: Path, epochs: list[EpochLine]) -> EpochLine | None:
    """The epoch whose writer was the last to append, when it was ours.

    Later lines may follow, of starts that were killed before they took an append.
    """
    owner = load_owner(root)
    return next((line for line in epochs if line.epoch == owner), None)


def _done(root: Path, prefix: str, epochs: list[EpochLine]) -> int | None:
    """The least of what these workers saved, cut at the end of the epoch that they saved it in."""
    ends = []
    for worker, progress in list_progress(root).items():
        if worker.startswith(prefix):
            end = epoch_end(epochs, progress.epoch)
            ends.append(progress.offset if end is None else min(progress.offset, end))
    return min(ends, default=None)
