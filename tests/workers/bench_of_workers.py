"""Both handlers on a living log, in this process: started, moved, stopped and killed at will."""

import shutil
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

from node.runtime.service_loop import LoopPace
from node.runtime.settings import Settings
from node.runtime.state_page import WorkerPage, queue_slot, run_dir
from tests.workers.living_log import SETTINGS, LivingLog, derived
from workers.consume_queue import ConsumeQueues, Shard
from workers.dispatch import Dispatcher, Handler, WorkerSite
from workers.feed import Feed, LiveFeed
from workers.index_file import IndexFiles, IndexWriter
from workers.queue_files import QueueWriter
from workers.rebuild import rebuild


class Running:
    """One worker without its process."""

    def __init__(
        self, log: LivingLog, slot: str, flush_interval_s: float = 3600, open_max: int = 100
    ) -> None:
        self.root = log.root
        self.feed: Feed = LiveFeed(log.root)
        temp = run_dir(log.root) / f"{slot}.new"
        self.files: QueueWriter | IndexWriter
        self.handler: Handler
        if slot == "index":
            self.files = IndexWriter(log.root, SETTINGS.index_geometry, temp)
            self.handler = IndexFiles(log.root, self.files, self.feed)
        else:
            number, _, total = slot.removeprefix("queue-").partition("-of-")
            self.files = QueueWriter(log.root, SETTINGS.queue_file_bytes, temp, open_max)
            shard = Shard(int(number), int(total))
            self.handler = ConsumeQueues(log.root, self.files, self.feed, shard)
        self.page = WorkerPage.create(log.root, slot)
        self.waits: list[float] = []
        self.dispatcher = Dispatcher(
            WorkerSite(log.root, slot, self.page),
            self.feed,
            self.handler,
            LoopPace(flush_interval_s, 0, 0),
            pause=self.waits.append,
        )

    def start(self) -> None:
        self.dispatcher.start()

    def catch_up(self) -> None:
        while self.dispatcher.turn():
            pass

    def save(self) -> None:
        """Syncs and saves, and goes on."""
        self.dispatcher._begin_flush()
        self.dispatcher.await_flush()

    def stop(self) -> None:
        """In order."""
        self.dispatcher.finish()
        self.kill()

    def kill(self) -> None:
        """Leaves everything as it is."""
        if self.dispatcher._flush is not None:
            wait([self.dispatcher._flush])
        self.files.close()
        self.feed.close()
        self.page.close()


SLOTS = ("index", queue_slot(0, 1))


@contextmanager
def running(log: LivingLog, slot: str, **options: float) -> Iterator[Running]:
    """A started worker that has caught up, killed at the end."""
    worker = Running(log, slot, **options)  # type: ignore[arg-type]
    try:
        worker.start()
        worker.catch_up()
        yield worker
    finally:
        worker.kill()


def expected(log: LivingLog, settings: Settings = SETTINGS) -> dict[str, str]:
    """What a rebuild of a copy of the log gives."""
    copy = log.root.with_name("expected")
    shutil.rmtree(copy, ignore_errors=True)
    (copy / "keelog").mkdir(parents=True)
    shutil.copytree(log.root / "commitlog", copy / "commitlog")
    rebuild(copy, settings=settings)
    return derived(copy)


def of_kind(files: dict[str, str], slot: str) -> dict[str, str]:
    """The files that a slot's worker makes."""
    folder = "index/" if slot == "index" else "consumequeue/"
    return {name: mark for name, mark in files.items() if name.startswith(folder)}


def new_log(folder: Path, seed: int = 1) -> LivingLog:
    """A log in a folder of its own below `folder`."""
    return LivingLog(folder / "store", seed=seed)
