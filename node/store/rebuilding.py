"""Notes of a rebuild: the checkpoints that it takes back from workers, and what it has begun."""

import json
from pathlib import Path

from node.runtime import disk
from node.runtime.state_page import run_dir
from node.runtime.store_paths import SMALL_FILE_BYTES_MAX, IrregularFile, read_bounded
from node.store import checkpoints

UNFINISHED_DIR = "rebuild.building"
"""The folder in which a job builds derived files; a job that succeeds leaves none."""
_NOTE = "repair.rebuilding"


def forget(root: Path, workers: str) -> list[str]:
    """Removes the checkpoints of the slots whose names begin with `workers`; returns the slots."""
    slots = [slot for slot in checkpoints.list_progress(root) if slot.startswith(workers)]
    for slot in slots:
        checkpoints.remove_progress(root, slot)
    return slots


def vouch(root: Path, slots: list[str], progress: checkpoints.WorkerCheckpoint) -> None:
    """Saves `progress` for the slots that `forget` returned; nothing in a store that Keelog never
    wrote."""
    for slot in slots if checkpoints.load_epochs(root) else ():
        checkpoints.save_progress(root, slot, progress)


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
        found = json.loads(read_bounded(run_dir(root) / _NOTE, SMALL_FILE_BYTES_MAX))
    except (FileNotFoundError, NotADirectoryError, IrregularFile, ValueError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []
