"""The derived files' part of a repair: queues or index made anew from a log that is in order."""

from collections.abc import Iterable
from pathlib import Path

from node.runtime.settings import Settings
from node.store.repair.note import save_rebuilding
from node.store.repair.steps import Rebuild, Step
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from workers.rebuild import Tell, rebuild_locked


def rebuild_damaged(
    root: Path, steps: Iterable[Step], settings: Settings, progress: Tell | None = None
) -> None:
    """Takes the plan's rebuilding steps; the caller holds the store's lock.

    Killed in the middle it leaves a note, and the next plan has the same steps.
    Raises StoreDamaged (the log itself), OSError.
    """
    folders = [step.folder.name for step in steps if isinstance(step, Rebuild)]
    if folders:
        save_rebuilding(root, folders)
        queues, index = CONSUME_QUEUE_DIR in folders, INDEX_DIR in folders
        rebuild_locked(root, queues, index, settings, progress)
        save_rebuilding(root, [])
