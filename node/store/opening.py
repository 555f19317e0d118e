"""Opens a store for reading, live or dead."""

from pathlib import Path

from node.runtime.settings import Settings
from node.store.base import Store
from node.store.running_store import LiveStore
from node.store.stopped_store import DeadStore

__all__ = ["DeadStore", "LiveStore", "Store", "open_live", "open_store"]


def open_store(path: Path | str, settings: Settings | None = None) -> DeadStore:
    """A store as it is after recovery, RocketMQ's or ours; needs no lock and never writes.

    File sizes are found from the files; `settings` says them where there is none.
    Raises NotAStore, StoreDamaged, StorePermission.
    """
    return DeadStore(Path(path), settings or Settings())


def open_live(root: Path, shards: int, settings: Settings) -> LiveStore:
    """A store that a node runs: bounds come from the pages of the writer and of `shards` queue
    workers, and follow them at each `refresh`."""
    return LiveStore(root, shards, settings)
