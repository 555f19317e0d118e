"""What signatures, TLS and CURVE cost: the same loads with and without them, in turns.

`python -m scripts.security.costs` prints two tables. By remoting, RocketMQ's own Java client sends
to four nodes and reads from them: plain, with a signature on each request, by TLS, and by TLS with
a login. A plain connection's signatures are all verified; on a TLS connection one counts for a
minute. By Keelog's own protocol the loads of `keelog bench` run over a local socket, over TCP, and
over TCP with keys.

Each round has a turn of every way, while the processes of the others stand still. The columns are
ratios to the first way of the same round, as median and as least to most; above 1 is faster, in
rows of time too. `--smoke` shows in a minute that it works; its figures mean nothing.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import trustme

from keelog.bench.node_process import ANY_DISK, Node
from keelog.bench.running import run
from keelog.bench.workload import Workload
from node.access.curve import make_server_keys, write_pair
from node.store.identity.places import create_store
from protocol.access.key_files import SECRET_SUFFIX
from scripts.command_line import print_rows
from scripts.rivals import gateway, proc, rocketmq
from scripts.rivals.gateway import LOADS, GatewaySide, NodeWay
from scripts.security.guarded import keelog

USER, PASSWORD = "load", "a password of the load"
EVERYTHING = "*"
HEAP = ("-Xms512m", "-Xmx1g")
"""Of each of four Java clients."""
REMOTING_LOADS = (
    "64 callers",
    "batches of 100, 64 callers",
    "end to end at 1,000/s",
    "push consumer, pulls of 1,024",
)
STORED = 1_000_000
"""Messages that are read again and again by our own protocol."""
LOCAL, TCP, CURVE = "local socket", "TCP", "CURVE"
TCP_HOST = "[::1]"
"""A node there offers no local socket: every client comes over TCP."""
Figures = Mapping[str, float]
Turns = dict[str, list[Figures]]
"""By way: the figures of each round."""


class CostExtent(NamedTuple):
    """How long it takes."""

    rounds: int
    seconds: int
    stored: int


def ratios(turns: Turns, figure: str) -> list[str]:
    """Of each way but the first: its ratio to that, round by round. A time is better if less."""
    base, *others = turns.values()
    found = []
    for rows in others:
        pairs = [(row[figure], first[figure]) for row, first in zip(rows, base, strict=True)]
        is_time = figure.endswith(("_us", "_ms"))
        of_rounds = [first / now if is_time else now / first for now, first in pairs]
        found.append(f"{median(of_rounds):.2f} ({min(of_rounds):.2f} to {max(of_rounds):.2f})")
    return found


def rows_of(load: str, turns: Turns) -> Iterator[list[str]]:
    """A row for each figure: that of the first way as it is, then ratios."""
    first = next(iter(turns.values()))
    for figure in first[0]:
        value = median(row[figure] for row in first)
        yield [load, figure, f"{value:,.0f}", *ratios(turns, figure)]


def in_turns(
    names: Sequence[str], rounds: int, turn: Callable[[str, int], Figures | None]
) -> Turns:
    """Rounds with a turn of each, in another order each time. The first round does not count."""
    turns: Turns = {name: [] for name in names}
    for number in range(rounds + 1):
        start = number % len(names)
        for name in (*names[start:], *names[:start]):
            found = turn(name, number)
            if number and found is not None:
                turns[name].append(found)
    return turns


# By remoting


def ways_by_remoting(folder: Path) -> Iterator[tuple[Path, NodeWay]]:
    """Each with the folder of its store, which has the user where there is a login."""
    cert, login = folder / "node.pem", folder / "login"
    for path in (cert, login):
        path.touch(0o600)
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(cert), append=True)
    login.write_text(f"{USER}\n{PASSWORD}\n")
    tls = f"tls_server_cert_path={cert}", f"tls_server_key_path={cert}"
    for name, signs, encrypts in (
        ("plain", False, False),
        ("signature", True, False),
        ("TLS", False, True),
        ("TLS, login", True, True),
    ):
        home = folder / name.replace(", ", "-")
        home.mkdir()
        if signs:
            create_store(home / "node")
            make_load_user(home)
        client = [f"-Drival.login={login}"] * signs + ["-Dtls.enable=true"] * encrypts
        yield home, NodeWay(name, tls * encrypts, client, HEAP)


def make_load_user(home: Path, public_key: str = "") -> None:
    """Not a Super user: each request's rights are looked up."""
    store, password = str(home / "node"), home / "password"
    password.touch(0o600)
    password.write_text(f"{PASSWORD}\n")
    key = ["--public-key", public_key] if public_key else []
    keelog("user", "create", USER, "--password-file", str(password), *key, "--store", store)
    keelog("acl", "allow", USER, EVERYTHING, "all", "--store", store)


def by_remoting(folder: Path, extent: CostExtent) -> Iterator[list[str]]:
    """The rows of RocketMQ's client."""
    classes = rocketmq.class_path()
    with ExitStack() as ends:
        sides = {
            way.name: gateway.start_node(ends, classes, home, is_sync=False, way=way)
            for home, way in ways_by_remoting(folder)
        }
        for name in sides:
            with proc.stopped(_others(sides, name)):
                gateway.make_topic(sides[name], "warm")
                warm = {"seconds": extent.seconds, "threads": 64, "body": gateway.BODY}
                sides[name].program.ask("send", topic="warm", **warm)
        for load in REMOTING_LOADS:
            yield from rows_of(load, _remoting_turns(sides, load, extent))


def _others(sides: Mapping[str, GatewaySide], name: str) -> list[int]:
    return list(chain.from_iterable(one.pids for key, one in sides.items() if key != name))


def _remoting_turns(sides: Mapping[str, GatewaySide], name: str, extent: CostExtent) -> Turns:
    load = LOADS[name]
    load = load._replace(stored=min(load.stored, extent.stored))
    topic = "".join(one if one.isalnum() else "-" for one in name)
    for way, side in sides.items():
        with proc.stopped(_others(sides, way)):
            gateway.make_topic(side, topic)
            if load.stored:
                fill = {"messages": load.stored, "threads": 8, "batch": 100, "body": gateway.BODY}
                side.program.ask("send", topic=topic, **fill)

    def turn(way: str, number: int) -> Figures:
        with proc.stopped(_others(sides, way)):
            found = gateway.turn(sides[way], load, topic, number, extent.seconds)
        return {figure: found[figure] for figure in load.figures}

    return in_turns(list(sides), extent.rounds, turn)


# By Keelog's own protocol


class OwnSide(NamedTuple):
    """A node, and what clients need for it."""

    node: Node
    keys: Mapping[str, str]
    """Of a workload."""


def own_sides(ends: ExitStack, folder: Path) -> dict[str, OwnSide]:
    """A node for each way."""
    sides = {}
    for name, host in ((TCP, TCP_HOST), (CURVE, TCP_HOST), (LOCAL, "")):
        home = folder / name.replace(" ", "-")
        home.mkdir()
        keys = {}
        if name == CURVE:
            create_store(home / "node")
            server = make_server_keys(home / "node").public
            make_load_user(home, write_pair(home, USER).public)
            keys = {"client_key": str(home / f"{USER}{SECRET_SUFFIX}"), "server_key": server}
        node = Node(home / "node", ANY_DISK, readers=1, host=host)
        sides[name] = OwnSide(ends.enter_context(node), keys)
    return sides


def own_loads(extent: CostExtent) -> dict[str, tuple[dict[str, Any], Callable[[Any], Figures]]]:
    """Fields of a workload, and which figures of its steady part count."""

    def per_s(steady: Any) -> Figures:
        return {"per_s": steady.messages_per_s}

    def latency(steady: Any) -> Figures:
        return {"p50_us": steady.p50_ms * 1000, "p99_us": steady.p99_ms * 1000}

    return {
        "64 callers": ({"callers": "tasks", "producers": 64}, per_s),
        "batches of 100": ({"callers": "batches", "batch": 100}, per_s),
        "end to end at 1,000/s": ({"kind": "e2e", "producers": 2, "rate": 1000.0}, latency),
        "consume": ({"kind": "consume", "read_as": "raw", "stored": extent.stored}, per_s),
    }


def by_own_protocol(folder: Path, extent: CostExtent) -> Iterator[list[str]]:
    """The rows of `keelog.bench`."""
    with ExitStack() as ends:
        sides = own_sides(ends, folder)
        for name, (fields, figures) in own_loads(extent).items():

            def turn(way: str, _: int, fields: Any = fields, figures: Any = figures) -> Figures:
                side = sides[way]
                load: dict[str, Any] = {"node": side.node.endpoint, **side.keys, **fields}
                load |= {"duration": float(extent.seconds), "warm_up": 1.0}
                rest = [one.node.pid for key, one in sides.items() if key != way]
                with proc.stopped(list(chain.from_iterable(map(proc.family, rest)))):
                    result = run(Workload(**load))
                if failures := sum(result.summary.failures.values()):
                    raise SystemExit(f"error: {way}, {fields}: {failures} failed")
                found: Figures = figures(result.steady)
                return found

            yield from rows_of(name, in_turns(list(sides), extent.rounds, turn))


def main() -> None:
    parser = argparse.ArgumentParser("python -m scripts.security.costs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=4, help="of a turn")
    parser.add_argument("--protocol", choices=("remoting", "own"), help="one table alone")
    parser.add_argument("--smoke", action="store_true", help="one short round")
    options = parser.parse_args()
    extent = CostExtent(options.rounds, options.seconds, STORED)
    if options.smoke:
        extent = CostExtent(1, 1, 10_000)
    with tempfile.TemporaryDirectory(prefix="keelog-costs-") as name:
        folder = Path(name)
        if options.protocol != "own":
            print("RocketMQ's Java client:\n")
            head = ("load", "figure", "plain", "signature", "TLS", "TLS, login")
            (folder / "remoting").mkdir()
            print_rows(head, by_remoting(folder / "remoting", extent))
        if options.protocol != "remoting":
            print("\nKeelog's own clients:\n")
            (folder / "own").mkdir()
            print_rows(
                ("load", "figure", TCP, CURVE, LOCAL), by_own_protocol(folder / "own", extent)
            )


if __name__ == "__main__":
    main()
