"""What a worker counts: turns that found something, the records in them, and syncs; times in ns."""

from pathlib import Path

from node.store.stats_page import StatsPage
from node.store.stats_series import DISPATCH, DISPATCH_FLUSH, DISPATCHED, INDEX

_TARGETS = {INDEX: "index"}


class WorkerStats:
    """Counts of one worker, in its slot's page."""

    def __init__(self, root: Path, role: str, index: int) -> None:
        self._page = StatsPage(root, role, index)
        self._counts = self._page.counts
        target = _TARGETS.get(role, "cq")
        self._turn = self._counts.place(DISPATCH, target=target)
        self._flush = self._counts.place(DISPATCH_FLUSH, target=target)
        self._dispatched = self._counts.place(DISPATCHED, target=target)
        self._records = 0

    def turn(self, took: int, records: int) -> None:
        """A turn that found something; `records` are all that this process has dispatched."""
        self._counts.observe(self._turn, took)
        self._counts.numbers[self._dispatched] += records - self._records
        self._records = records

    def flushed(self, took: int) -> None:
        """Queues or index were synced. For the thread that syncs: nobody else adds to this."""
        self._counts.observe(self._flush, took)

    def publish(self) -> None:
        """Shows the counts."""
        self._page.publish()

    def close(self) -> None:
        """Shows the last counts."""
        self._page.close()
