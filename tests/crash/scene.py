"""One store on a simulated disk for tests that say step by step what happens to it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from node.serving.request_server import Received
from node.store.config.topics_file import TopicsFile
from protocol.wire.frames import VERSION, pack
from tests.crash.histories import STORE, Checker, Totals
from tests.crash.images import Chooser, Image, tree_of
from tests.crash.sim_disk import SimDisk, Tree, in_place_of_os
from tests.crash.truth import Truth, Violation
from tests.crash.writer_life import Producer, WriterLife, single_threaded, tiny_settings


class Scene:
    """A SYNC_FLUSH store with small segments, its truth, and a checker for its images."""

    def __init__(self, folder: Path, segment_bytes: int = 1024, seed: int = 1) -> None:
        rnd = random.Random(seed)
        self.settings = replace(
            tiny_settings(rnd, "sync"), mapped_file_size_commit_log=segment_bytes
        )
        self.truth = Truth(segment_bytes)
        self.sim = SimDisk(folder / "disk", seed)
        self.root = self.sim.root / STORE
        self.producer = Producer(rnd, self.settings)
        self.checker = Checker(folder / "slate", self.settings, self.truth)
        self.slate_root = folder / "slate" / STORE
        self.totals = Totals()
        self.topics: set[str] = set()
        """Created, and answered for."""

    @contextmanager
    def on_disk(self) -> Iterator[None]:
        """The product works on the simulated disk."""
        with single_threaded(), in_place_of_os(self.sim):
            yield

    def start(self) -> WriterLife:
        """A writer that has recovered the store."""
        life = WriterLife(self.sim, self.root, self.settings, self.truth)
        life.check_start()
        return life

    def append(self, life: WriterLife, requests: int, flush: bool = True) -> None:
        """Requests one by one, each flushed and answered, or only written."""
        for _ in range(requests):
            life.turn(self.producer, 1, 0.1)
            if flush:
                life.run_jobs()
                life.turn(self.producer, 0, 0.1)

    def create_topic(self, life: WriterLife, name: str) -> None:
        """Remembers it once it is answered."""
        header = {"v": VERSION, "op": "create_topic", "id": 1 << 40, "topic": name, "queues": 3}
        life.server.requests.append(Received(b"peer", pack(header), None))
        life.writer.step(life.now)
        answer = life.server.answers.pop()
        assert answer["created"]
        self.topics.add(name)

    def crash(self, life: WriterLife | None) -> None:
        """The process is gone; files and cache are as it left them."""
        if life is not None:
            life.end()
        self.sim.on_write = None
        self.sim.abandon()

    def image(self, chooser: Chooser) -> Tree:
        """What is on disk when the power fails now."""
        return tree_of(self.sim, chooser)

    def check(self, image: Image) -> None:
        """Recovered twice, it is as it was promised, topics included. Raises Violation."""
        self.totals.images += 1
        self.checker.check(image, thorough=True)
        if self.topics:
            missing = self.topics - TopicsFile(self.slate_root).topics.keys()
            if missing:
                raise Violation(
                    f"topics that were created are gone: {missing}\nimage: {image.name}"
                )
