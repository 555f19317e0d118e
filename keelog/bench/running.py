"""Runs a load: a node, topics and processes are set up, rows come in, everything is dispatched.

`run` is what the command line calls too.
"""

import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import keelog
from keelog.bench import machine
from keelog.bench.job import SECOND_NS, LoadJob
from keelog.bench.machine import ProcessWatch
from keelog.bench.node_process import ANY_DISK, Node, await_workers
from keelog.bench.processes import Fleet, Member, Tally
from keelog.bench.results import Result, Second
from keelog.bench.sending import END, PayloadHeader
from keelog.bench.workload import Workload
from protocol.human_text import count_text

MAIN = {"send": "send", "consume": "consume", "e2e": "end_to_end", "mixed": "send"}
LINE_DELAY_NS = 300_000_000
"""How long after a second its line is printed: rows of busy processes come late."""


@dataclass(slots=True)
class LoadListener:
    """Gets the phases and seconds of a load; ignores them by default."""

    phase: Callable[[str], None] = lambda _: None
    second: Callable[[float, dict[str, Second], dict[str, int]], None] = lambda *_: None
    """Seconds since the start, figures of each stream, lag of each worker in bytes."""


def run(load: Workload, listener: LoadListener | None = None) -> Result:
    """Runs one load and returns what it found; starts a node for it unless one is named.

    Raises BadRequest for a workload that makes no sense, LoadFailed when a process of the load
    ends before its time, and what `keelog.connect` raises.
    """
    load.check()
    listener = listener or LoadListener()
    if load.kind == "store":
        # Imported here: no other load needs the writer.
        from keelog.bench.in_store import run_in_store

        return run_in_store(load, listener)
    if load.kind == "mixed":
        # Imported here: only this one needs to check stores.
        from keelog.bench.mixed import run_mixed

        return run_mixed(load, listener)
    with node_for(load) as (place, node), keelog.connect(place, **load.connection) as client:
        return run_on(Scene(load, client, listener, make_topics(load, client), node))


@contextlib.contextmanager
def node_for(load: Workload) -> Iterator[tuple[str, Node | None]]:
    """The address of the node that was given, or of a new one, which is stopped afterwards."""
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
            yield node.endpoint, node
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
    node: Node | None
    """The one that was started for the load."""
    fleet: Fleet = field(default_factory=Fleet)
    folder: str | None = None
    """A folder for files of load processes."""
    on_start: Callable[[int], None] = lambda _: None
    """Called with the moment at which the load begins."""
    is_marked: Callable[[float], bool] | None = None
    """Which seconds are summed up by themselves, by their end since the start."""

    def jobs(self, role: str, count: int) -> list[LoadJob]:
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


def run_on(scene: Scene) -> Result:
    """Runs the load on its node, up to the last message dispatched."""
    load, client, listener = scene.load, scene.client, scene.listener
    if load.kind == "consume":
        fill(scene)
    with scene.fleet as fleet:
        listener.phase("starting the load")
        members = _start(scene)
        watch = ProcessWatch(client, {member.name: member.process.pid for member in members})
        start_ns = watch.start_ns = fleet.go(members)
        scene.on_start(start_ns)
        tally = Tally(start_ns, load.warm_up, scene.is_marked)
        listener.phase("warming up" if load.warm_up else "running")
        _listen(scene, tally, watch, start_ns)
        listener.phase("waiting for the workers")
        kernel, lag = client.status().raw.get("kernel"), dict(watch.lag)
        folder = None if scene.node is None else scene.node.root.parent
        found = machine.describe(folder, load.settings, kernel)
        main = MAIN[load.kind]
        result = Result(load.kind, main, load.as_dict(), found, lag_at_end_bytes=lag)
        result.dispatched_after_s = round(await_workers(client), 3)
        watch.look()
    streams = tally.streams()
    order = sorted(streams, key=lambda name: (name != main, name))
    result.streams = {name: streams[name] for name in order}
    result.checks |= tally.marked_figures(main)
    messages = result.streams[main].summary.messages
    result.processes, result.looks = watch.uses(messages), watch.looks
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
    if load.kind != "send":
        members += fleet.start(scene.jobs("follow", load.consumers))
    if load.kind == "mixed":
        members += fleet.start(scene.jobs("find", 1))
    return members


def fill(scene: Scene) -> None:
    """Stores the messages that are read afterwards."""
    stored = scene.load.count or scene.load.stored
    scene.listener.phase(f"storing {count_text(stored)} messages")
    load = replace(
        scene.load, kind="send", callers="batches", batch=500, in_flight=8, rate=None, count=stored
    )
    with Fleet() as fleet:
        job = LoadJob("send", 0, 1, scene.client.endpoint, scene.topics, load)
        fleet.go(fleet.start([job]))
        for _ in fleet.rows(time.monotonic_ns() + 3600 * SECOND_NS):
            pass
    await_workers(scene.client)


def _listen(scene: Scene, tally: Tally, watch: ProcessWatch, start_ns: int) -> None:
    """Listens until all processes are done; a line a second."""
    is_ended = False
    for second in itertools.count():
        full_ns = start_ns + (second + 1) * SECOND_NS
        for row in scene.fleet.rows(full_ns + LINE_DELAY_NS):
            tally.add(row)
        if time.monotonic_ns() >= full_ns + LINE_DELAY_NS:
            watch.look()
            if second == int(scene.load.warm_up) and second:
                scene.listener.phase("running")
            scene.listener.second(second + 1.0, tally.close(second), watch.lag)
        if scene.load.kind in ("e2e", "mixed") and not is_ended:
            senders = [one for one in scene.fleet.members if one.name.startswith("send")]
            if all(one.is_done for one in senders):
                is_ended = True
                # After all others of each queue: it ends the follower.
                body = PayloadHeader(0, 0, END, END).body(b"")
                for topic in scene.topics:
                    for queue_id in range(scene.load.queues):
                        scene.client.send(topic, body, queue_id=queue_id)
        if all(one.is_done for one in scene.fleet.members):
            return
