"""RocketMQ's own Java client at a node's gateway and at a Java broker, in turns.

`python -m scripts.rivals.gateway` prints messages a second of both, and their ratio, for each load.
Both flush asynchronously. The client is one process with one connection to each server.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from keelog.bench.node_process import Node, free_ports
from scripts.rivals.rocketmq import (
    Addresses,
    Program,
    RocketMQ,
    class_path,
    start_name_server,
)

BODY = 128
LOADS: Mapping[str, Mapping[str, object]] = {
    "64 callers": {"threads": 64},
    "1,024 in flight": {"threads": 2, "in_flight": 1024},
    "batches of 100": {"threads": 4, "batch": 100},
    "one caller": {"threads": 1},
}
OURS, THEIRS = "keelog", "rocketmq"


class LoadRow(NamedTuple):
    """Messages a second, and the median wait of a caller in µs; the turns of each side."""

    load: str
    keelog: float
    rocketmq: float
    keelog_p50_us: float | None
    rocketmq_p50_us: float | None
    turns: dict[str, list[float]]

    @property
    def ratio(self) -> float:
        """Above 1: the gateway is faster."""
        return self.keelog / self.rocketmq


def start_keelog(ends: ExitStack, folder: Path) -> str:
    """A node with a gateway; the address of its gateway."""
    folder.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_ports(4) + 3}"
    settings = ["disk_space_warning_level_ratio=100", f"serve.remoting={address}"]
    node = Node(folder / "node", settings, readers=1).start()
    ends.callback(node.stop)
    return address


def start_rocketmq(ends: ExitStack, classes: str, folder: Path) -> str:
    """A name server and a broker; the address of the name server."""
    addresses = Addresses.free()
    names = start_name_server(classes, folder / "names", addresses.name_server)
    ends.callback(names.kill)
    broker = RocketMQ(classes, folder / "broker", addresses, {})
    ends.callback(broker.remove)
    broker.start()
    return addresses.name_server


def measure(folder: Path, loads: Sequence[str], rounds: int, seconds: int) -> list[LoadRow]:
    """Runs each load against both, in turns, after a turn of each that does not count."""
    classes = class_path()
    with ExitStack() as ends:
        programs = {}
        for side in (OURS, THEIRS):
            home = folder / side
            address = (
                start_keelog(ends, home) if side == OURS else start_rocketmq(ends, classes, home)
            )
            programs[side] = Program(classes, home / "client", address)
            ends.callback(programs[side].kill)
            programs[side].ask("send", topic="warm", body=BODY, seconds=seconds, threads=16)
        return [measure_load(programs, load, rounds, seconds) for load in loads]


def measure_load(programs: Mapping[str, Program], load: str, rounds: int, seconds: int) -> LoadRow:
    """One row."""
    topic = load.replace(" ", "-").replace(",", "")
    answers: dict[str, list[dict[str, Any]]] = {OURS: [], THEIRS: []}
    for number in range(rounds + 1):
        for side in (OURS, THEIRS) if number % 2 else (THEIRS, OURS):
            found = programs[side].ask(
                "send", topic=topic, body=BODY, seconds=seconds, **LOADS[load]
            )
            if found["failed"] or not found["messages"]:
                raise SystemExit(f"error: {side}, {load}: {found}")
            if number:
                answers[side].append(found)
    turns = {
        side: [one["messages"] / one["seconds"] for one in rows] for side, rows in answers.items()
    }
    waits = {
        side: median(row["p50_us"] for row in rows) if "p50_us" in rows[0] else None
        for side, rows in answers.items()
    }
    return LoadRow(
        load, median(turns[OURS]), median(turns[THEIRS]), waits[OURS], waits[THEIRS], turns
    )


def main() -> None:
    """Measures and prints a row as soon as it is there."""
    parser = argparse.ArgumentParser("python -m scripts.rivals.gateway", description=__doc__)
    parser.add_argument("--loads", default=",".join(range_of(LOADS)), help="numbers from 0, by ,")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="of a turn")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    names = [list(LOADS)[int(number)] for number in options.loads.split(",")]
    with tempfile.TemporaryDirectory(prefix="keelog-gateway-") as folder:
        for row in measure(Path(folder), names, options.rounds, options.seconds):
            if options.json:
                print(json.dumps({**row._asdict(), "ratio": row.ratio}))
            else:
                waits = f"{row.keelog_p50_us or 0:,.0f} and {row.rocketmq_p50_us or 0:,.0f} us"
                print(
                    f"{row.load:16} {row.keelog:9,.0f}/s {row.rocketmq:9,.0f}/s"
                    f"  x{row.ratio:.2f}  p50 {waits}"
                )


def range_of(loads: Mapping[str, object]) -> list[str]:
    """The numbers of all loads."""
    return [str(number) for number in range(len(loads))]


if __name__ == "__main__":
    main()
