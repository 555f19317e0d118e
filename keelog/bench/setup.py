"""The parts of a load: the node, the topics, the listener, the processes."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import keelog
from keelog.bench.load.job import LoadJob
from keelog.bench.load.processes import Fleet
from keelog.bench.node_process import ANY_DISK, Node
from keelog.bench.results import Second
from keelog.bench.workload import Workload


@dataclass(slots=True)
class LoadListener:
    """Gets the phases and seconds of a load; ignores them by default."""

    phase: Callable[[str], None] = lambda _: None
    second: Callable[[float, dict[str, Second], dict[str, int]], None] = lambda *_: None
    """Seconds since the start, figures of each stream, lag of each worker in bytes."""


class BenchNode(NamedTuple):
    """The address of a node. `folder` and `node` are None for one that was given."""

    endpoint: str
    folder: Path | None = None
    node: Node | None = None


@contextlib.contextmanager
def node_for(load: Workload) -> Iterator[BenchNode]:
    """The node that was given, or a new one, which is stopped afterwards."""
    if load.node is not None:
        yield BenchNode(load.node)
        return
    kept = load.directory is not None
    folder = Path(load.directory or tempfile.mkdtemp(prefix="keelog-bench-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    settings = (*ANY_DISK, *load.settings)
    node = Node(folder / "store", settings, queue_workers=load.queue_workers, readers=load.readers)
    try:
        node.begin()
        try:
            node.await_ready()
            yield BenchNode(node.endpoint, folder, node)
            if node.is_running:
                node.stop()
        except BaseException:
            # A store that stays is one to work on; nobody waits for the flush of one that goes.
            if not (kept and node.is_running and node.stop() == 0):
                node.kill()
            raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class Scene:
    """A node under load."""

    load: Workload
    client: keelog.Client
    listener: LoadListener
    topics: tuple[str, ...]
    place: BenchNode
    fleet: Fleet = field(default_factory=Fleet)
    folder: str | None = None
    """A folder for files of load processes."""
    on_start: Callable[[int], None] = lambda _: None
    """Called with the moment at which the load begins."""
    is_marked: Callable[[float], bool] | None = None
    """Which seconds are summed up by themselves, by their end since the start."""

    def jobs(self, role: str, count: int) -> list[LoadJob]:
        """Jobs of one role."""
        place = self.client.endpoint
        return [
            LoadJob(role, n, count, place, self.topics, self.load, self.folder)
            for n in range(count)
        ]


def make_topics(load: Workload, client: keelog.Client) -> tuple[str, ...]:
    """New topics, of this load alone."""
    name = uuid4().hex[:8]
    topics = tuple(f"bench-{name}-{number}" for number in range(load.topics))
    for topic in topics:
        client.create_topic(topic, load.queues)
    return topics
