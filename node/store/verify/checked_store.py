"""The interface of a store that `verify` checks: a whole one, or what one task of an audit has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from node.runtime.settings import Settings
from node.store.log.reader import LogReader
from node.store.queues.files import QueueFiles
from node.store.shutdown_state import Condition
from protocol.ids import Queue


class CheckedStore(Protocol):
    """`StoppedStore` is one."""

    root: Path
    settings: Settings
    condition: Condition
    log: LogReader

    @property
    def folders(self) -> Mapping[Queue, Path]:
        """The folders of all queues that have one."""

    @property
    def queue_file_bytes(self) -> int:
        """Length of a queue file. Raises StoreDamaged."""

    def files_of(self, queue: Queue) -> QueueFiles:
        """The files of a queue. Raises StoreDamaged, StorePermission."""
