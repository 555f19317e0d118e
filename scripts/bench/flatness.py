"""Costs that should stay flat: what a node does while its store, queues, consumers or age grow.

    python -m scripts.bench.flatness --gib 8 --json flatness.json --picture docs/flatness.svg

Four parts. `log`: the size of the log, 1 GiB to `--gib`, doubled each time. `queues`: topics x
queues, 1 to `--queues`, each with messages. `consumers`: idle consumers that hold a long poll.
`age`: a node's memory after some million messages. At each point the same three loads of
`keelog.bench` run for `--seconds` each, so that points can be compared: batches at full speed, one
caller that waits, and 1,000 messages a second to a consumer. Memory is PSS without the pages of
the store. A point that took longer than `--limit` is the last of its part, as a line below the
table says. `--from FILE` shows a saved result again, as tables and as one picture,
`--markdown FILE` fills the marked part of a page. A store is removed when its part is over. With
--gib 4 the whole takes about five minutes.
"""

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

import zmq

import keelog
from keelog.bench import machine, running, workload
from keelog.bench.node_process import ANY_DISK, Node
from keelog.text import print_line
from protocol.kernel import loader
from protocol.status import LogStatus
from protocol.wire.frames import VERSION, pack
from scripts import command_line
from scripts.bench.recovery import GIB, batches, under_load
from scripts.command_line import made_folder, new_file, old_file, real_number, whole_number
from scripts.docs.pages import fill_part
from scripts.rivals.proc import cpu_seconds, open_handles, private_mib, repeated

QUEUES = 8
HOLD_MS = 30_000
SOCKETS_EACH = 500
"""Sockets of one ZeroMQ context, which takes 1,023 by default."""
DRAWN = (
    ("batches_per_s", "batches of 100 x 128 B, messages / s"),
    ("send_p99_ms", "one caller that waits, p99 ms"),
    ("end_to_end_p50_ms", "end to end at 1,000/s, p50 ms"),
    ("pss_mib", "memory of all processes, MiB"),
)
BODY_BYTES = 1024
RECORD_BYTES = 1200
"""About what a message of that body takes in the log."""
MILLIONS = (1, 2, 5, 10)
CONSUMERS = (0, 100, 1_000)
QUEUE_COUNTS = (1, 1_000, 10_000, 100_000)
QUEUES_OF_TOPIC = 1_000
"""So that few topics do: each new one is a durable save of all of them, before the load."""
SPREAD_S_MAX = 60.0
MARK = "bench_flatness"
Figures = dict[str, Any]
"""Numbers by name, with the unit in the name."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: `part` is what grows, `size` how far it has grown, in `unit`."""

    part: str
    size: float
    unit: str
    figures: Figures


def holdings(node: Node) -> Figures:
    """Memory without the store's pages, in MiB, and file handles, of each process."""
    pids = node.pids()
    memory = {name: round(private_mib([pid], node.root), 1) for name, pid in pids.items()}
    handles = {name: open_handles(pid) for name, pid in pids.items()}
    return {
        "pss_mib": round(sum(memory.values()), 1),
        "handles": sum(handles.values()),
        "pss_mib_of": memory,
        "handles_of": handles,
    }


def measure(node: Node, seconds: float) -> Figures:
    """Throughput, latencies, CPU and holdings of a node as it is.

    What was written before is on the disk when a load begins: a journal that still has a GiB to
    write holds up every new file, and would be what is measured.
    """
    common: dict[str, Any] = {"node": node.endpoint, "duration": seconds, "warm_up": 1.0}
    os.sync()
    batches = running.run(workload.Workload(callers="batches", batch=100, in_flight=16, **common))
    os.sync()
    one = running.run(workload.Workload(callers="threads", producers=1, **common)).steady
    followed = running.run(workload.Workload(kind="e2e", producers=2, rate=1000.0, **common)).steady
    figures: Figures = {
        "batches_per_s": round(batches.steady.messages_per_s),
        "cpu_s_per_million": batches.cpu_s_per_million,
        "dispatched_after_s": batches.dispatched_after_s,
        "send_p50_ms": one.p50_ms,
        "send_p99_ms": one.p99_ms,
        "end_to_end_p50_ms": followed.p50_ms,
        "end_to_end_p99_ms": followed.p99_ms,
    }
    return figures | holdings(node)


def store(node: Node, messages: int, body_bytes: int) -> None:
    """Stores messages as fast as it goes, and waits until they are dispatched."""
    print_line(f"storing {messages:,} messages of {body_bytes} bytes")
    running.run(
        workload.Workload(
            node=node.endpoint, callers="batches", batch=500, in_flight=8, body=str(body_bytes),
            count=messages, warm_up=0.0,
        )
    )  # fmt: skip


def log_of(node: Node) -> LogStatus:
    with keelog.connect(node.endpoint, timeout=60) as client:
        return client.status().log


class IdleConsumers:
    """Connections that each hold a long poll at a queue where nothing comes."""

    def __init__(self, endpoint: str) -> None:
        self._contexts: list[zmq.Context[zmq.Socket[bytes]]] = []
        self._sockets: list[zmq.Socket[bytes]] = []
        with keelog.connect(endpoint, timeout=60) as client:
            client.create_topic("idle", QUEUES, exist_ok=True)
            self._reader = client.routes().readers[0]

    def grow_to(self, count: int) -> None:
        """Connects until there are `count`, and sends each one's poll."""
        while len(self._sockets) < count:
            if len(self._sockets) % SOCKETS_EACH == 0:
                self._contexts.append(zmq.Context())
            socket = self._contexts[-1].socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self._reader)
            self._sockets.append(socket)
            self._poll(len(self._sockets) - 1)

    def _poll(self, asker: int) -> None:
        fields = {"topic": "idle", "queue": asker % QUEUES, "offset": 0, "wait_ms": HOLD_MS}
        self._sockets[asker].send(pack({"v": VERSION, "op": "pull", "id": asker, **fields}))

    def poll_again(self) -> None:
        """Polls anew where a poll's time is up, as a consumer does."""
        for asker, socket in enumerate(self._sockets):
            if socket.poll(0):
                socket.recv_multipart()
                self._poll(asker)

    def close(self) -> None:
        for context in self._contexts:
            context.destroy(linger=0)


def idle_cores(node: Node, seconds: float) -> float:
    """Cores that a node takes while nothing is sent."""
    pids = list(node.pids().values())
    before = cpu_seconds(pids)
    time.sleep(seconds)
    return round((cpu_seconds(pids) - before) / seconds, 3)


COLUMNS = (
    ("batches_per_s", "batches, /s"),
    ("spread_per_s", "to all queues, /s"),
    ("cpu_s_per_million", "CPU s per million"),
    ("send_p50_ms", "send p50, ms"),
    ("send_p99_ms", "p99"),
    ("end_to_end_p50_ms", "end to end p50, ms"),
    ("end_to_end_p99_ms", "p99"),
    ("idle_cores", "idle, cores"),
    ("pss_mib", "memory, MiB"),
    ("handles", "file handles"),
)


def table(points: Sequence[Point], *, markdown: bool = False) -> str:
    """A table for each part; of the last point of each, what every process holds."""
    parts = []
    for part in dict.fromkeys(point.part for point in points):
        mine = [point for point in points if point.part == part]
        shown = [one for one in COLUMNS if any(one[0] in point.figures for point in mine)]
        head = [f"{part}: {mine[0].unit}", *(title for _, title in shown)]
        rows = [
            [
                f"{point.size:,g}",
                *(command_line.number(point.figures.get(name)) for name, _ in shown),
            ]
            for point in mine
        ]
        parts += [command_line.grid(head, rows, markdown=markdown), held_by_each(mine[-1])]
    return "\n\n".join(parts)


def held_by_each(point: Point) -> str:
    """One sentence: memory and handles of each process at a point."""
    handles = point.figures["handles_of"]
    each = [
        f"{name} {command_line.number(mib)} MiB, {handles[name]} handles"
        for name, mib in point.figures["pss_mib_of"].items()
    ]
    return f"At {point.size:,g} {point.unit}: {'; '.join(each)}."


def write_picture(points: Sequence[Point], path: Path) -> None:
    """A row of axes for each figure, a column for each part; all begin at zero."""
    # Here, so that the figures can be made where there is no matplotlib.
    from matplotlib.figure import Figure

    parts = list(dict.fromkeys(point.part for point in points))
    figure = Figure(figsize=(3.4 * len(parts), 2.4 * len(DRAWN)))
    axes = figure.subplots(len(DRAWN), len(parts), squeeze=False, sharey="row")
    for row, (name, title) in enumerate(DRAWN):
        most = max([point.figures[name] for point in points if name in point.figures] or [1.0])
        for one, part in zip(axes[row], parts, strict=True):
            mine = [p for p in points if p.part == part and name in p.figures]
            if not mine:
                one.set_axis_off()
                continue
            labels = [f"{point.size:,g}" for point in mine]
            one.plot(labels, [point.figures[name] for point in mine], marker="o")
            one.set_ylim(0, most * 1.08)
            one.set_xlabel(mine[0].unit, fontsize=8)
            one.tick_params(labelsize=8)
        axes[row][0].set_title(title, fontsize=9, loc="left")
    figure.subplots_adjust(0.08, 0.06, 0.98, 0.96, wspace=0.1, hspace=0.5)
    figure.savefig(path)


def sizes_of_log(gib: float) -> list[float]:
    """1, 2, 4, … and `gib` itself."""
    return [*(2.0**number for number in range(ceil(log2(gib)))), gib]


Points = Generator[Point, None, None]


def grow_log(folder: Path, options: argparse.Namespace) -> Points:
    """A log of bodies of 1 KiB."""
    with Node(folder / "store", ANY_DISK, readers=1) as node:
        for gib in sizes_of_log(options.gib):
            lacking = int(gib * GIB) - log_of(node).appended
            if lacking > 0:
                store(node, lacking // RECORD_BYTES + 1, BODY_BYTES)
            yield Point("log", gib, "GiB", measure(node, options.seconds))


def grow_queues(folder: Path, options: argparse.Namespace) -> Points:
    """Each point has a new store, with messages in each queue."""
    for count in [one for one in QUEUE_COUNTS if one <= options.queues]:
        with (
            tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own,
            Node(Path(own) / "store", ANY_DISK, readers=1) as node,
        ):
            began = time.monotonic()
            with keelog.connect(node.endpoint, timeout=60) as client:
                for topic in range(-(-count // QUEUES_OF_TOPIC)):
                    client.create_topic(f"topic-{topic}", min(count, QUEUES_OF_TOPIC))
            print_line(f"{count:,} queues made in {time.monotonic() - began:.1f} s; filling them")
            figures = spread(node, count)
            yield Point("queues", count, "queues", figures | measure(node, options.seconds))


def spread(node: Node, queues: int) -> Figures:
    """Sends to all queues in turn for a bounded time; messages a second until all is dispatched."""
    prepared = batches(queues, 128, QUEUES_OF_TOPIC)
    began, before = time.monotonic(), log_of(node).records
    with under_load(node, prepared):
        time.sleep(min(SPREAD_S_MAX, 2.0 + queues / 20_000))
    node.await_dispatched()
    stored = log_of(node).records - before
    return {"spread_per_s": round(stored / (time.monotonic() - began))}


def grow_consumers(folder: Path, options: argparse.Namespace) -> Points:
    """Consumers that are connected and wait at one reader."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Node(folder / "store", ANY_DISK, readers=1) as node:
        try:
            with closing(IdleConsumers(node.endpoint)) as idle:
                for count in CONSUMERS:
                    print_line(f"{count} idle consumers")
                    idle.grow_to(count)
                    figures: Figures = {"idle_cores": idle_cores(node, options.seconds)}
                    with repeated(0.5, idle.poll_again):
                        figures |= measure(node, options.seconds)
                    yield Point("consumers", count, "consumers", figures)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def grow_age(folder: Path, options: argparse.Namespace) -> Points:
    """The same node after more and more messages."""
    stored = 0
    with Node(folder / "store", ANY_DISK, readers=1) as node:
        yield Point("age", 0, "M messages", holdings(node))
        for millions in [one for one in MILLIONS if one <= options.millions]:
            store(node, millions * 1_000_000 - stored, 128)
            stored = millions * 1_000_000
            yield Point("age", millions, "M messages", holdings(node))


PARTS: dict[str, Callable[[Path, argparse.Namespace], Points]] = {
    "log": grow_log,
    "queues": grow_queues,
    "consumers": grow_consumers,
    "age": grow_age,
}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    text = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser("python -m scripts.bench.flatness", description=text)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of log,queues,consumers,age")
    parser.add_argument("--gib", type=real_number, default=8.0, help="the largest log")
    parser.add_argument(
        "--queues", type=whole_number, default=10_000, help="the most queues, 100000 at most"
    )
    parser.add_argument(
        "--millions", type=whole_number, default=10, help="the most messages of `age`"
    )
    parser.add_argument(
        "--seconds", type=real_number, default=4.0, help="of each load at each point"
    )
    parser.add_argument(
        "--limit", type=real_number, default=150.0, help="seconds: a slower point ends its part"
    )
    parser.add_argument("--dir", type=made_folder, help="where the stores are made")
    parser.add_argument("--json", type=new_file, metavar="FILE")
    parser.add_argument("--picture", type=new_file, metavar="FILE", help="an SVG")
    parser.add_argument(
        "--markdown", type=old_file, metavar="FILE", help="a page with the marked part"
    )
    parser.add_argument(
        "--from", dest="source", type=old_file, metavar="FILE", help="measure nothing"
    )
    return parser.parse_args(arguments)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All points of the parts asked for."""
    # A polite kill ends the node and removes its store, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    points: list[dict[str, Any]] = []
    left_out: list[str] = []
    result: dict[str, Any] = {
        "machine": {}, "seconds": options.seconds, "points": points, "left_out": left_out,
    }  # fmt: skip
    for part in options.parts.split(","):
        with tempfile.TemporaryDirectory(
            prefix=f"flatness-{part}-", dir=options.dir, ignore_cleanup_errors=True
        ) as folder:
            result["machine"] = machine.describe(folder, (), loader.describe())
            began = time.monotonic()
            with closing(PARTS[part](Path(folder), options)) as growing:
                for point in growing:
                    points.append(asdict(point))
                    print_line(f"{part} {point.size:,g} {point.unit}: {point.figures}")
                    if options.json:
                        options.json.write_text(json.dumps(result, indent=1) + "\n")
                    took, began = time.monotonic() - began, time.monotonic()
                    if took > options.limit:
                        size = f"{point.size:,g} {point.unit}"
                        left_out.append(f"{size} took {took:.0f} s: nothing larger was measured.")
                        break
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    unknown = set(options.parts.split(",")) - set(PARTS)
    if unknown:
        print(f"error: no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}",
              file=sys.stderr)  # fmt: skip
        return 2
    result = measured(options) if options.source is None else None
    try:
        result = result or json.loads(options.source.read_text())
        points = [Point(**one) for one in result["points"]]
    except (ValueError, KeyError, TypeError):
        print(f"error: {options.source} is no result of bench_flatness", file=sys.stderr)
        return 2
    print("\n\n".join([table(points), *result.get("left_out", ())]))
    if options.picture:
        write_picture(points, options.picture)
    if options.markdown:
        parts = [table(points, markdown=True), *result.get("left_out", ())]
        fill_part(options.markdown, MARK, "\n\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
