"""asyncio sends over the loop's own connection, and by the I/O thread: what the former is worth.

`python -m scripts.bench.asyncio_lane --node tcp://127.0.0.1:7850`. Each row: tasks that each send
one message after the other, messages/s, and the time of a send (p50 and p99, microseconds).
"""

import argparse
import asyncio
import time
from unittest.mock import patch

import keelog.aio
from keelog.client.event_loop import AsyncioChannel

BODY = bytes(128)
WARM_UP = 20
SENDS = {1: 3_000, 16: 1_000, 256: 200}
"""Messages of each task, by the number of tasks."""


async def measure(client: keelog.aio.Client, tasks: int, count: int) -> list[float]:
    """The seconds of each send."""
    took: list[float] = []

    async def send() -> None:
        for _ in range(count):
            start = time.perf_counter()
            await client.send("AsyncioLane", BODY)
            took.append(time.perf_counter() - start)

    await asyncio.gather(*(send() for _ in range(tasks)))
    return took


async def rows(node: str, name: str) -> None:
    """Measures each number of tasks, and prints a row for it."""
    async with keelog.aio.connect(node) as client:
        for tasks, count in SENDS.items():
            await measure(client, tasks, WARM_UP)
            start = time.perf_counter()
            took = sorted(await measure(client, tasks, count))
            rate = len(took) / (time.perf_counter() - start)
            p50, p99 = (took[int(len(took) * share)] * 1e6 for share in (0.5, 0.99))
            print(f"{name:10} {tasks:>5} {rate:>9,.0f} {p50:>7,.0f} {p99:>7,.0f}", flush=True)


def main() -> None:
    """Both ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", default="tcp://127.0.0.1:7850")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'way':10} {'tasks':>5} {'sends/s':>9} {'p50':>7} {'p99':>7}")
    for _ in range(options.rounds):
        asyncio.run(rows(options.node, "own"))
        with patch.object(AsyncioChannel, "carry", lambda _self, _call: False):
            asyncio.run(rows(options.node, "io thread"))


if __name__ == "__main__":
    main()
