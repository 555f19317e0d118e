"""Opens a store for reading, with or without a running node."""

from pathlib import Path

from node.runtime.settings import Settings
from node.store.base import Store
from node.store.running_store import RunningStore
from node.store.stopped_store import StoppedStore

__all__ = ["RunningStore", "StoppedStore", "Store", "open_live", "open_store"]


def open_store(path: Path | str, settings: Settings | None = None) -> StoppedStore:
    """Opens a store, RocketMQ's or ours, as it is after recovery; takes no lock, never writes.

    Sizes come from the files; `settings` gives the sizes of files that do not exist.
    Raises NotAStore, StoreDamaged, StorePermission.
    """
    return StoppedStore(Path(path), settings or Settings())


def open_live(root: Path, shards: int, settings: Settings) -> RunningStore:
    """Opens a store that a node runs: each `refresh` takes its bounds from the state pages of the
    writer and of `shards` queue workers."""
    return RunningStore(root, shards, settings)
