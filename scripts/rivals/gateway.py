"""RocketMQ's own Java client at a node's gateway and at a Java broker, in turns.

`python -m scripts.rivals.gateway` prints a row for each load: the figure of both, their ratio as
median of the rounds, and in the end the memory of all processes of either server. The client is one
warm process for each server, with the same program. While one side has its turn, the processes of
the other are stopped. With `--old TREE` the other side is a node of another tree of this project.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from keelog.bench.node_process import ANY_DISK, Node
from node.supervisor.bind import free_ports
from scripts.command_line import old_folder, print_rows
from scripts.rivals import proc, rocketmq

BODY = 128
QUEUES = 8
STORED = 1_000_000
"""Messages that a push consumer reads."""
SETTLE_S = 1.0
"""Between two turns nobody is stopped: clients do what came due, and have its replies. One that is
stopped in the middle of a request takes it for lost, closes its connection, and pulls again after a
second or more."""
WARM_S = 6
"""A Java client and broker are steady after 5 to 6 s."""
OURS, THEIRS, OLD = "keelog", "rocketmq", "old"
SYNC = "flush_disk_type=SYNC_FLUSH"


class GatewayLoad(NamedTuple):
    """What the Java program is asked, and which of its figures counts."""

    ask: str
    arguments: Mapping[str, object]
    figures: tuple[str, ...] = ("per_s",)
    is_sync: bool = False
    stored: int = 0


LOADS: Mapping[str, GatewayLoad] = {
    "64 callers": GatewayLoad("send", {"threads": 64}),
    "1,024 in flight": GatewayLoad("send", {"threads": 2, "in_flight": 1024}),
    "batches of 100, 64 callers": GatewayLoad("send", {"threads": 64, "batch": 100}),
    "batches of 100, 4 callers": GatewayLoad("send", {"threads": 4, "batch": 100}),
    "push consumer, pulls of 32": GatewayLoad("push", {"pull": 32}, stored=STORED),
    "push consumer, pulls of 1,024": GatewayLoad("push", {"pull": 1024}, stored=STORED),
    "one caller": GatewayLoad("send", {"threads": 1}),
    "SYNC_FLUSH, 64 callers": GatewayLoad("send", {"threads": 64}, is_sync=True),
    "end to end at 1,000/s": GatewayLoad(
        "end_to_end", {"rate": 1000}, ("p50_us", "p90_us", "p99_us")
    ),
}


class NodeWay(NamedTuple):
    """How a node is served and its clients connect: settings, and options of their JVM."""

    name: str
    settings: Sequence[str] = ()
    client: Sequence[str] = ()
    heap: Sequence[str] = rocketmq.CLIENT_HEAP


Row = tuple[str, ...]
"""One figure of a load: of both sides the median, and the median of the rounds' ratios. Above 1 the
gateway is faster, in rows of time too."""


def _row(
    load: str, figure: str, ours: Sequence[float], theirs: Sequence[float], is_time: bool = False
) -> Row:
    faster, slower = (theirs, ours) if is_time else (ours, theirs)
    ratio = median(a / b for a, b in zip(faster, slower, strict=True))
    return load, figure, f"{median(ours):,.0f}", f"{median(theirs):,.0f}", f"{ratio:.2f}"


@dataclass(slots=True)
class GatewaySide:
    """A server and the client that drives it."""

    name: str
    broker: str
    """Its address."""
    store: Path
    server_pids: Sequence[int]
    program: rocketmq.Program
    memory_mib: list[float] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        """Clients before servers, as they are stopped."""
        return [self.program.pid, *(one for pid in self.server_pids for one in proc.family(pid))]

    def note_memory(self) -> None:
        """Reads what all of the server's processes hold, beside the store's own pages."""
        servers = [one for pid in self.server_pids for one in proc.family(pid)]
        self.memory_mib.append(proc.private_mib(servers, self.store))


def start_node(
    ends: ExitStack,
    classes: str,
    folder: Path,
    *,
    is_sync: bool,
    tree: Path | None = None,
    way: NodeWay | None = None,
) -> GatewaySide:
    """A node with a gateway, which is its own name server; of another tree if one is given. Its
    store is `folder/node`, which may be there."""
    way = way or NodeWay(OURS if tree is None else OLD)
    folder.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_ports(4) + 3}"
    settings = [*ANY_DISK, *way.settings, f"serve.remoting={address}", *([SYNC] * is_sync)]
    env = {} if tree is None else {"PYTHONPATH": str(tree)}
    node = ends.enter_context(Node(folder / "node", settings, readers=1, env=env))
    program = ends.enter_context(
        rocketmq.Program(classes, folder / "client", address, way.heap, way.client)
    )
    return GatewaySide(way.name, address, folder / "node", [node.pid], program)


def start_theirs(ends: ExitStack, classes: str, folder: Path, *, is_sync: bool) -> GatewaySide:
    """A name server and a broker."""
    addresses = rocketmq.Addresses.free()
    names = rocketmq.start_name_server(classes, folder / "names", addresses.name_server)
    ends.enter_context(names)
    settings = {"flushDiskType": "SYNC_FLUSH"} if is_sync else {}
    broker = ends.enter_context(rocketmq.RocketMQ(classes, folder / "broker", addresses, settings))
    program = ends.enter_context(
        rocketmq.Program(classes, folder / "client", addresses.name_server)
    )
    pids = [broker.pid, names.pid]
    return GatewaySide(THEIRS, addresses.broker, broker.store, pids, program)


def measure(
    folder: Path, names: Sequence[str], rounds: int, seconds: int, old: Path | None
) -> Iterator[Row]:
    """Runs each load against both, in turns, after a turn of each that does not count."""
    classes = rocketmq.class_path()
    for is_sync in (False, True):
        chosen = [name for name in names if LOADS[name].is_sync is is_sync]
        if not chosen:
            continue
        home = folder / ("sync" if is_sync else "async")
        with ExitStack() as ends:
            if old is None:
                other = start_theirs(ends, classes, home / THEIRS, is_sync=is_sync)
            else:
                other = start_node(ends, classes, home / OLD, is_sync=is_sync, tree=old)
            sides = other, start_node(ends, classes, home / OURS, is_sync=is_sync)
            for side, rest in (sides, reversed(sides)):
                with _alone(rest):
                    make_topic(side, "warm")
                    side.program.ask("send", topic="warm", body=BODY, seconds=WARM_S, threads=64)
            for name in chosen:
                yield from _measure_load(sides, name, rounds, seconds)
            # The most that each server's processes held after a turn.
            theirs, ours = ([max(side.memory_mib)] for side in sides)
            name = "memory of all server processes" + (", SYNC_FLUSH" if is_sync else "")
            yield _row(name, "MiB", ours, theirs)


@contextmanager
def _alone(other: GatewaySide) -> Iterator[None]:
    """A time in which the other side is stopped."""
    time.sleep(SETTLE_S)
    with proc.stopped(other.pids):
        yield


def make_topic(side: GatewaySide, topic: str) -> None:
    side.program.ask("topic", topic=topic, queues=QUEUES, broker=side.broker)


def _measure_load(
    sides: Sequence[GatewaySide], name: str, rounds: int, seconds: int
) -> Iterator[Row]:
    load, topic = LOADS[name], "".join(one if one.isalnum() else "-" for one in name)
    turns: dict[str, dict[str, list[float]]] = {
        figure: {side.name: [] for side in sides} for figure in load.figures
    }
    for side, other in (sides, reversed(sides)):
        with _alone(other):
            make_topic(side, topic)
            if load.stored:
                side.program.ask(
                    "send", topic=topic, body=BODY, messages=load.stored, threads=8, batch=100
                )
    for number in range(rounds + 1):
        for side, other in (sides, reversed(sides)) if number % 2 else (reversed(sides), sides):
            with _alone(other):
                found = turn(side, load, topic, number, seconds)
            if number:
                side.note_memory()
                for figure in load.figures:
                    turns[figure][side.name].append(found[figure])
    for figure, of_sides in turns.items():
        theirs, ours = of_sides.values()
        yield _row(name, figure, ours, theirs, is_time=figure.endswith("_us"))


def turn(
    side: GatewaySide, load: GatewayLoad, topic: str, number: int, seconds: int
) -> dict[str, Any]:
    """Asks the program, and checks what it says."""
    more: dict[str, object] = {"seconds": seconds}
    if load.ask == "push":
        more = {"messages": load.stored, "group": f"{topic}-{number}"}
    # It was stopped during the other side's turn: its name server may have forgotten the broker.
    side.program.ask("route", topic=topic)
    found = side.program.ask(load.ask, topic=topic, body=BODY, **load.arguments, **more)
    if found["failed"] or not found["messages"]:
        raise SystemExit(f"error: {side.name}, {topic}: {found}")
    return {**found, "per_s": found["messages"] / found["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser("python -m scripts.rivals.gateway", description=__doc__)
    everything = ",".join(map(str, range(len(LOADS))))
    parser.add_argument("--loads", default=everything, help="numbers from 0, by ,")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="of a turn")
    parser.add_argument("--old", type=old_folder, metavar="TREE", help="instead of a broker")
    options = parser.parse_args()
    try:
        names = [dict(enumerate(LOADS))[int(number)] for number in options.loads.split(",")]
    except (ValueError, KeyError) as error:
        parser.error(f"--loads takes numbers from 0 to {len(LOADS) - 1}: {error}")
    old = options.old and options.old.resolve()
    head = ("load", "figure", "Keelog", "RocketMQ" if old is None else "old", "ratio")
    with tempfile.TemporaryDirectory(prefix="keelog-gateway-") as folder:
        print_rows(head, measure(Path(folder), names, options.rounds, options.seconds, old))


if __name__ == "__main__":
    main()
