"""The one place that opens what `load(…)` and `nodes` name, on the driver and in tasks.

On the driver `open_planned` gives a `PlannedStore`: bounds, queues, and parts' plain data. In a
task `task_files` gives the open files that the plan's paths are read through.
"""

from collections.abc import Iterable
from pathlib import Path

from node.store.condition import check_is_store
from node.store.open_files import OpenFiles
from node.store.settings import Settings
from pipeline.errors import naming_conditions
from pipeline.folder_store import FolderStore
from pipeline.options import StoreAt
from pipeline.planned_store import PlannedStore


def check_stores(stores: Iterable[StoreAt]) -> None:
    """Raises NotAStoreError, StoreUnreadable; no more than a look at the folders."""
    with naming_conditions():
        for at in stores:
            check_is_store(Path(at.root))


def open_planned(at: StoreAt, settings: Settings) -> PlannedStore:
    """A store as it is now: a folder that nobody runs, or one that a node runs.

    A context manager. Raises NotAStore, StoreDamaged, StorePermission, StoreUnreadable.
    """
    return FolderStore(at, settings)


def task_files(_at: StoreAt) -> OpenFiles:
    """What a task reads the files of a plan through; its owner closes it."""
    return OpenFiles()
