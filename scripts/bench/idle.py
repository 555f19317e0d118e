"""What an idle node costs: processor time of each of its processes while nobody asks for anything.

`python -m scripts.bench.idle` starts a node on an empty store, on one with messages, and on one
where a consumer waits at the end of each queue, and prints the share of one processor for each.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from keelog.bench.node_process import Node
from keelog.client.client import Client, connect
from protocol.errors import ClientClosed

MESSAGES = 1_000
SETTLE_S = 20.0
"""Starts, flushes and short sleeps are over then."""
KINDS = ("empty", "messages", "consumer")


class IdleRow(NamedTuple):
    """Percent of one processor, all processes together and each; `client`: this process."""

    store: str
    total: float
    processes: dict[str, float]
    client: float


def cpu_s(process: psutil.Process) -> float:
    """Processor time of one process since its start."""
    times = process.cpu_times()
    return float(times.user + times.system)


def follow(client: Client) -> None:
    """Consumes until the client is closed."""
    with suppress(ClientClosed):
        for _ in client.tail("idle", "latest"):
            pass


def measure(folder: Path, kind: str, seconds: float) -> IdleRow:
    """Starts a node, waits until it is quiet, and watches it for `seconds`."""
    node = Node(folder / kind, ["disk_space_warning_level_ratio=100"], readers=1).start()
    with ExitStack() as ends:
        ends.callback(node.stop)
        if kind != "empty":
            client = ends.enter_context(connect(node.endpoint, timeout=60))
            for number in range(MESSAGES):
                client.send("idle", b"x" * 100, keys=f"k{number}")
            if kind == "consumer":
                threading.Thread(target=follow, args=(client,), daemon=True).start()
            else:
                client.close()
        time.sleep(SETTLE_S)
        children = node.children()
        supervisor = children[0][1].parent()
        assert supervisor is not None
        named = [*children, ("supervisor", supervisor)]
        before, own = [cpu_s(one) for _, one in named], cpu_s(psutil.Process())
        time.sleep(seconds)
        after, own = [cpu_s(one) for _, one in named], cpu_s(psutil.Process()) - own
        shares = {
            name: 100 * (later - earlier) / seconds
            for (name, _), earlier, later in zip(named, before, after, strict=True)
        }
        return IdleRow(kind, sum(shares.values()), shares, 100 * own / seconds)


def main() -> int:
    """Prints a line for each store, as text or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each line")
    parser.add_argument("--kinds", default=",".join(KINDS), help="stores, with commas between them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keelog-idle-") as folder:
        for kind in options.kinds.split(","):
            row = measure(Path(folder), kind, options.seconds)
            if options.json:
                print(json.dumps(row._asdict()), flush=True)
                continue
            parts = ", ".join(f"{name} {share:.2f}" for name, share in row.processes.items())
            print(
                f"{row.store:10} {row.total:.2f} % of a processor ({parts}), "
                f"the client {row.client:.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
