"""Checks that a store's small files carry its id, and gives an id to a store without one.

A start moves a file of another store to quarantine if a missing one only costs time. If epochs or
floor, which keep a start from cutting the log, are of another store, somebody has mixed two stores:
the start is refused.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from node.runtime import disk
from node.runtime.event_log import fields
from node.store import checkpoints
from node.store.quarantine import move_file
from node.store.staging_files import journal_path, list_batches, list_queries, published_path
from protocol.errors import StoreDamaged

log = logging.getLogger("keelog.store_id")

PUT_BACK = (
    "put the store's own file back, or move keelog/ aside: this costs a longer start, and what was "
    "staged and not published"
)


Stranger = tuple[Path, str]
"""A small file of another store, and whose it is."""


def check_guards(root: Path) -> None:
    """Raises StoreDamaged when epochs or floor are another store's. Changes nothing."""
    for path, why in _strangers(root, _guards(root)):
        raise StoreDamaged(str(path), 0, why, PUT_BACK)


def strangers(root: Path) -> tuple[list[Stranger], list[Stranger]]:
    """The files of another store that keep a node from starting, or from publishing a batch; and
    those that it moves to quarantine at its next start."""
    needed = [*_guards(root), *_staged(root)]
    return list(_strangers(root, needed)), list(_strangers(root, _spared(root)))


def ensure_id(root: Path) -> str:
    """Returns the store's id; gives it a new one if it has none. The caller holds the store's lock.

    After a kill at any point the next call does the rest: `epochs` gets the id first and `lock`
    last, and in between files without an id belong to the store.
    """
    disk.make_durable_dir(checkpoints.own_dir(root))
    for path, why in _strangers(root, _spared(root)):
        kept_in = move_file(root, 0, path, {"kind": "foreign_file", "why": why})
        details = fields(file=path, why=why, kept_in=kept_in)
        log.warning("a file of another store was moved aside", extra=details)
    ours = checkpoints.load_store_id(root)
    if ours.value is not None and ours.is_settled:
        return ours.value
    owner, store_id = checkpoints.load_owner(root), ours.value or checkpoints.new_store_id()
    epochs, _ = _guards(root)
    level = logging.INFO if epochs.exists() else logging.DEBUG  # a new store needs no line
    if ours.value is None:
        found = checkpoints.load_sealed(epochs)
        disk.write_atomically(
            epochs, checkpoints.seal("" if found is None else found.text, store_id)
        )
    _seal_again(root, owner)
    checkpoints.save_lock_id(root, store_id)
    log.log(level, "the store has got an id", extra=fields(store_id=store_id))
    return store_id


def _seal_again(root: Path, owner: int | None) -> None:
    """Rewrites all other small files with the id that `epochs` has."""
    _, floor = _guards(root)
    for _ in range(2 if floor.exists() else 0):  # each slot, and one of them is always durable
        slots = checkpoints.Floor(root)
        slots.save(slots.offset)
        slots.close()
    for path in [*_spared(root), *_staged(root)]:
        found = checkpoints.load_sealed(path)
        if found is not None and found.store_id is None:
            checkpoints.save_sealed(root, path, found.text)
    if owner is not None:
        checkpoints.save_owner(root, owner)


def _guards(root: Path) -> tuple[Path, Path]:
    """Epochs and floor: without them a start may take damage for a torn tail, and cut it."""
    folder = checkpoints.own_dir(root)
    return folder / checkpoints.EPOCHS_FILE, folder / checkpoints.FLOOR_FILE


def _spared(root: Path) -> list[Path]:
    """The files that a start can do without, if they are another store's."""
    folder = checkpoints.own_dir(root)
    saved = folder / checkpoints.PROGRESS_DIR
    progress = sorted(saved.iterdir()) if saved.is_dir() else []
    names = checkpoints.TAILS_FILE, checkpoints.CLEAN_FILE, checkpoints.REMOVED_FILE
    return [*(folder / name for name in names), *progress]


def _staged(root: Path) -> Iterator[Path]:
    """The files that record which batches were published, and how far."""
    for query in list_queries(root):
        yield published_path(root, query)
        yield from (journal_path(root, batch) for batch in list_batches(root, query))


def _strangers(root: Path, paths: Iterable[Path]) -> Iterator[Stranger]:
    """Yields the files that carry another id than the store, or none although it has one."""
    ours = checkpoints.load_store_id(root)
    for path in paths:
        if path.name == checkpoints.FLOOR_FILE:
            ids = {slot.store_id for slot in checkpoints.load_slots(path)}
        else:
            found = checkpoints.load_sealed(path)
            ids = set() if found is None else {found.store_id}
        for theirs in ids:
            if not ours.owns(theirs):
                yield path, f"is of {_named(theirs)}, this is {_named(ours.value)}"
                break


def _named(store_id: str | None) -> str:
    return "a store without an id" if store_id is None else f"store {store_id}"
