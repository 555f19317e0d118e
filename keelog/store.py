"""Store directories without a node: Keelog's own and those of a RocketMQ broker, read-only."""

from node.store.store import Store, open_store

__all__ = ["Store", "open_store"]
