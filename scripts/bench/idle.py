"""What an idle node costs: processor time of each of its processes while nobody asks for anything.

`python -m scripts.bench.idle` starts a node on an empty store, on one with messages, and on one
where a consumer waits at the end of each queue, and prints percents of one processor for each.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from keelog.bench.node_process import ANY_DISK, Node
from keelog.client.client import Client, connect
from protocol.errors import ClientClosed
from scripts.command_line import print_rows
from scripts.rivals.proc import cpu_seconds

MESSAGES = 1_000
SETTLE_S = 20.0
"""Starts, flushes and short sleeps are over then."""
KINDS = ("empty", "messages", "consumer")


def follow(client: Client) -> None:
    """Consumes until the client is closed."""
    with suppress(ClientClosed):
        for _ in client.tail("idle", "latest"):
            pass


def measure(folder: Path, kind: str, seconds: float) -> dict[str, float]:
    """Percents of each process of a quiet node, and of this one, the `client`, over `seconds`."""
    with Node(folder / kind, ANY_DISK, readers=1) as node:
        if kind != "empty":
            with connect(node.endpoint, timeout=60) as client:
                for number in range(MESSAGES):
                    client.send("idle", b"x" * 100, keys=f"k{number}")
        client = connect(node.endpoint, timeout=60)
        if kind == "consumer":
            threading.Thread(target=follow, args=(client,), daemon=True).start()
        else:
            client.close()
        time.sleep(SETTLE_S)
        pids = {**node.pids(), "client": os.getpid()}
        before = {name: cpu_seconds([pid]) for name, pid in pids.items()}
        time.sleep(seconds)
        shares = {
            name: 100 * (cpu_seconds([pid]) - before[name]) / seconds for name, pid in pids.items()
        }
        client.close()
        return shares


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each line")
    parser.add_argument("--kinds", default=",".join(KINDS), help="stores, with commas between them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keelog-idle-") as folder:

        def rows() -> Iterator[tuple[str, ...]]:
            for kind in options.kinds.split(","):
                shares = measure(Path(folder), kind, options.seconds)
                total = sum(share for name, share in shares.items() if name != "client")
                each = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
                yield kind, f"{total:.2f}", each

        print_rows(("store", "all of the node", "each, and the client"), rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())
