"""What workers vouched for, taken back while derived files are made anew, and given again."""

from pathlib import Path

from node.runtime import disk
from node.runtime.state_page import run_dir
from node.store.checkpoints import (
    WorkerCheckpoint,
    list_progress,
    load_epochs,
    remove_progress,
    save_progress,
)

UNFINISHED_DIR = "rebuild.building"
"""Below it a job makes a store's derived files anew; it is gone when the job has ended well."""


def forget(root: Path, workers: str) -> list[str]:
    """Takes back what workers vouched for whose slots begin so; returns who they were."""
    slots = [slot for slot in list_progress(root) if slot.startswith(workers)]
    for slot in slots:
        remove_progress(root, slot)
    return slots


def vouch(root: Path, slots: list[str], progress: WorkerCheckpoint) -> None:
    """What was forgotten is there again, as far as the log is durable."""
    for slot in slots if load_epochs(root) else ():
        save_progress(root, slot, progress)


def remove_unfinished(root: Path) -> None:
    """Removes what a job left that was killed. The caller holds the store's lock."""
    folder = root / UNFINISHED_DIR
    if folder.is_dir() and not folder.is_symlink():
        disk.remove_tree(folder)


def clear_unfinished(root: Path) -> None:
    """Forgets the notes of queues that a worker was rebuilding: every queue is made anew."""
    for path in run_dir(root).glob("queue-*.rebuilding"):
        disk.unlink(path)
