"""Runs a load: the node, the processes, the figures. `run` is what the command line calls too."""

import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import keelog
from keelog.bench import machine
from keelog.bench.fleet import Fleet, Member
from keelog.bench.job import SECOND_NS, Job
from keelog.bench.node_process import ANY_DISK, Node, await_workers
from keelog.bench.results import Result, Second
from keelog.bench.stamps import END, Stamp
from keelog.bench.tally import Tally
from keelog.bench.watch import Watch
from keelog.bench.workload import Workload
from pipeline.jobs.stats_text import count_text

MAIN = {"send": "send", "consume": "consume", "e2e": "end_to_end"}
LINE_DELAY_NS = 300_000_000
"""How long after a second its line is printed: rows of busy processes come late."""


@dataclass(slots=True)
class Telling:
    """Who is told what goes on; nobody by default."""

    phase: Callable[[str], None] = lambda _: None
    second: Callable[[float, dict[str, Second], dict[str, int]], None] = lambda *_: None
    """Seconds since the start, figures of each stream, lag of each worker in bytes."""


@dataclass(slots=True)
class Scene:
    """A node under load."""

    load: Workload
    client: keelog.Client
    tell: Telling
    topics: tuple[str, ...]
    store: str | None
    fleet: Fleet = field(default_factory=Fleet)

    def jobs(self, role: str, count: int) -> list[Job]:
        """Jobs of one role."""
        place = self.client.endpoint
        return [Job(role, n, count, place, self.topics, self.load) for n in range(count)]


def run(load: Workload, tell: Telling | None = None) -> Result:
    """Runs one load and answers what it found; starts a node for it unless one is named.

    Raises BadRequest for a workload that makes no sense, LoadFailed when a process of the load
    ends before its time, and what `keelog.connect` raises.
    """
    load.check()
    with (
        node_for(load) as (endpoint, store),
        keelog.connect(endpoint, timeout=load.timeout) as client,
    ):
        name = uuid4().hex[:8]
        topics = tuple(f"bench-{name}-{number}" for number in range(load.topics))
        for topic in topics:
            client.create_topic(topic, load.queues)
        return _run_on(Scene(load, client, tell or Telling(), topics, store))


@contextlib.contextmanager
def node_for(load: Workload) -> Iterator[tuple[str, str | None]]:
    """Where the node is, and its store if that is on this machine and the load's own."""
    if load.node is not None:
        yield load.node, None
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
            yield node.endpoint, str(folder)
            node.stop()
        except BaseException:
            node.kill()
            raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _run_on(scene: Scene) -> Result:
    load = scene.load
    if load.kind == "consume":
        fill(scene)
    with scene.fleet as fleet:
        scene.tell.phase("starting the load")
        members = _start(scene)
        result, tally, watch = _measure(scene, members)
    result.streams = tally.streams()
    messages = result.streams[result.main].summary.messages
    result.processes = watch.uses(messages)
    result.looks = watch.looks
    if messages:
        cpu_s = sum(one.cpu_s for one in result.processes)
        result.cpu_s_per_million = round(cpu_s / messages * 1e6, 3)
    shares = [member.generator for member in fleet.members if member.generator is not None]
    if shares:
        result.generator_cpu_s_per_million = round(sum(shares) / len(shares), 3)
    if "end_to_end" in result.streams:
        failures = result.streams["end_to_end"].summary.failures
        result.faults += [f"{count} messages {kind}" for kind, count in failures.items()]
    return result


def _start(scene: Scene) -> list[Member]:
    load, fleet = scene.load, scene.fleet
    if load.kind == "consume":
        return fleet.start(scene.jobs("consume", load.consumers))
    members = fleet.start(scene.jobs("send", load.processes))
    if load.kind == "e2e":
        members += fleet.start(scene.jobs("follow", load.consumers))
    return members


def fill(scene: Scene) -> None:
    """Stores the messages that are read afterwards."""
    stored = scene.load.count or scene.load.stored
    scene.tell.phase(f"storing {count_text(stored)} messages")
    load = replace(
        scene.load, kind="send", callers="batches", batch=500, in_flight=8, rate=None, count=stored
    )
    with Fleet() as fleet:
        job = Job("send", 0, 1, scene.client.endpoint, scene.topics, load)
        fleet.go(fleet.start([job]))
        for _ in fleet.rows(time.monotonic_ns() + 3600 * SECOND_NS):
            pass
    await_workers(scene.client)


def _measure(scene: Scene, members: Sequence[Member]) -> tuple[Result, Tally, Watch]:
    load, fleet = scene.load, scene.fleet
    watch = Watch(scene.client)
    watch.also((member.name, member.pid) for member in members)
    watch.look(is_first=True)
    start_ns = fleet.go(members)
    watch.begin(start_ns)
    tally = Tally(start_ns, load.warm_up)
    scene.tell.phase("warming up" if load.warm_up else "running")
    _listen(scene, tally, watch, start_ns)
    scene.tell.phase("waiting for the workers")
    result = Result(
        load.kind,
        MAIN[load.kind],
        load.as_dict(),
        machine.describe(scene.store, load.settings, scene.client.status().raw.get("kernel")),
        lag_at_end_bytes=dict(watch.lag),
    )
    result.dispatched_after_s = round(await_workers(scene.client), 3)
    watch.look()
    return result, tally, watch


def _listen(scene: Scene, tally: Tally, watch: Watch, start_ns: int) -> None:
    """Until all processes are done; a line a second."""
    is_ended = False
    for second in itertools.count():
        full_ns = start_ns + (second + 1) * SECOND_NS
        for row in scene.fleet.rows(full_ns + LINE_DELAY_NS):
            tally.add(row)
        if time.monotonic_ns() >= full_ns + LINE_DELAY_NS:
            watch.look()
            if second == int(scene.load.warm_up) and second:
                scene.tell.phase("running")
            scene.tell.second(second + 1.0, tally.close(second), watch.lag)
        if scene.load.kind == "e2e" and not is_ended:
            senders = [one for one in scene.fleet.members if one.name.startswith("send")]
            if all(one.is_done for one in senders):
                is_ended = True
                send_last(scene)
        if all(one.is_done for one in scene.fleet.members):
            return


def send_last(scene: Scene) -> None:
    """A message behind all others of each queue, which ends those who follow."""
    body = Stamp(0, 0, 0, END).body(b"")
    for topic in scene.topics:
        for queue_id in range(scene.load.queues):
            scene.client.send(topic, body, queue_id=queue_id)
