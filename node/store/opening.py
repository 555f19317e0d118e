"""Opens a store for reading, live or dead."""

from pathlib import Path

from node.runtime.settings import Settings
from node.store.base import Store
from node.store.running_store import RunningStore
from node.store.stopped_store import StoppedStore

__all__ = ["RunningStore", "StoppedStore", "Store", "open_live", "open_store"]


def open_store(path: Path | str, settings: Settings | None = None) -> StoppedStore:
    """A store as it is after recovery, RocketMQ's or ours; needs no lock and never writes.

    File sizes are found from the files; `settings` says them where there is none.
    Raises NotAStore, StoreDamaged, StorePermission.
    """
    return StoppedStore(Path(path), settings or Settings())


def open_live(root: Path, shards: int, settings: Settings) -> RunningStore:
    """A store that a node runs: bounds come from the pages of the writer and of `shards` queue
    workers, and follow them at each `refresh`."""
    return RunningStore(root, shards, settings)
