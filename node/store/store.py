"""Opens a store for reading, live or dead."""

from pathlib import Path

from node.store.dead_store import DeadStore
from node.store.live_store import LiveStore
from node.store.settings import Settings
from node.store.store_view import Store

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
