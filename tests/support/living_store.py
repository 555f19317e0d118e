"""A store at rest that looks as if a node ran it: its state pages say how far it may be read."""

import threading
from pathlib import Path
from typing import Self

from node.runtime.settings import Settings
from node.runtime.state_page import RUNNING, LogPage, WorkerPage, queue_slot, run_dir
from tests.support.golden import Facts

BEAT_S = 0.02


class LivingStore:
    """Pages of a writer and `shards` queue workers, without the processes."""

    def __init__(self, root: Path, found: Facts, shards: int = 2) -> None:
        self.root = root
        self.shards = shards
        self.start: int = found.state["minPhyOffset"]
        self.end: int = found.state["maxPhyOffset"]
        config = found.state["config"]
        self.settings = Settings(
            mapped_file_size_commit_log=config["mappedFileSizeCommitLog"],
            mapped_file_size_consume_queue=config["mappedFileSizeConsumeQueue"],
            max_hash_slot_num=config["maxHashSlotNum"],
            max_index_num=config["maxIndexNum"],
        )
        run_dir(root).mkdir(parents=True, exist_ok=True)
        self.log = LogPage.create(root)
        self.workers = [WorkerPage.create(root, queue_slot(i, shards)) for i in range(shards)]
        self.begin_epoch(self.end)
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat)
        self._beats.start()

    def _beat(self) -> None:
        number = 1
        while not self._ended.wait(BEAT_S):
            number += 1
            self.log.publish(heartbeat_ms=number)

    def end_beats(self) -> None:
        """The writer is gone, and has left its page."""
        self._ended.set()
        self._beats.join()

    def begin_epoch(self, end: int) -> None:
        """The writer starts, finds the log's end at `end`, and the workers have followed."""
        epoch = self.log.read().epoch + 1
        ends = {"appended": end, "committed": end, "flushed": end, "readable": end}
        self.log.begin_epoch(epoch, epoch_start=end, min_offset=self.start, **ends)
        self.log.publish(state=RUNNING)
        for worker in self.workers:
            worker.begin_epoch(epoch, dispatched=end, saved=end)
            worker.publish(state=RUNNING)

    def publish(self, end: int) -> None:
        """The log grows, or is seen, up to `end`, and the workers follow."""
        self.log.publish(appended=end, committed=end, flushed=end, readable=end)
        for worker in self.workers:
            worker.publish(dispatched=end)

    def close(self) -> None:
        """Closes the pages."""
        self.end_beats()
        for page in (self.log, *self.workers):
            page.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
