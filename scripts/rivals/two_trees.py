"""Compares the speed of two trees of this project, in short turns of the same minute.

`python -m scripts.rivals.two_trees OLD NEW [--loads send_1,find] [--turns 40]`.
Each is a folder with a tree of its own. A node of each runs, and a client of each tree at its node;
they work in turns of half a second, so that a slow minute of the machine is slow for both. A third
node and client are the old tree's once more: what they differ from the first is the error of the
measurement. Figures are medians over the turns, and ratios to the old tree; latencies are the
median and the 99th percentile of each turn, of loads whose callers wait for something. RocketMQ's
Java client at nodes of two trees: `python -m scripts.rivals.gateway --old OLD`.

This file is also the client's program (`--child`), so it imports nothing but the public package
before it measures.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keelog.bench.node_process import Node

BODY = bytes(128)
BATCH = 100
BATCHES_IN_FLIGHT = 16
IN_FLIGHT = 1_024
TASKS = 64
PER_S = 1_000
FILL = 200_000
SECONDS = 0.5
ROWS = {
    "send_1": "one by one",
    "send_64": "64 tasks that wait",
    "sync_64": "64 tasks that wait, SYNC_FLUSH",
    "in_flight": "1,024 in flight",
    "send_batches": "batches of 100, 16 in flight",
    "end_to_end": "from send to consumer, one at a time",
    "paced": "from send to consumer, 1,000 a second",
    "find": "find by key",
    "consume": "consume, raw",
    "consume_objects": "consume, as objects",
}
Turn = Callable[[float], int]
"""Works for so many seconds; returns how many messages."""
FIGURES = ("/s", "p50 µs", "p99 µs")
LATENCIES: list[float] = []
"""Of this turn, in seconds; none where nobody waits."""


# -- the client of one tree -----------------------------------------------------------------------


def child(load: str, url: str) -> None:
    """Works one turn for each line of stdin, which has its seconds; prints the figures of each."""
    import keelog

    client = keelog.connect(url, timeout=60.0)
    client.create_topic("t", 4, exist_ok=True)
    turn = _turn(load, client, url)
    turn(0.3)
    print("ready", flush=True)
    for line in sys.stdin:
        LATENCIES.clear()
        began = time.perf_counter()
        done = turn(float(line))
        rate = done / (time.perf_counter() - began)
        sorted_us = sorted(1e6 * one for one in LATENCIES)
        shares = [sorted_us[int(len(sorted_us) * part)] for part in (0.5, 0.99) if sorted_us]
        print(rate, *shares, flush=True)


def _turn(load: str, client: Any, url: str) -> Turn:
    match load:
        case "send_1":
            return _until(lambda: client.send("t", BODY))
        case "send_64" | "sync_64":
            return _tasks(url)
        case "in_flight":
            return _in_flight(client)
        case "send_batches":
            return _batches(client)
        case "end_to_end":
            return _until(_end_to_end(client))
        case "paced":
            return _paced(_end_to_end(client))
        case "find":
            for number in range(100):
                client.send("t", BODY, keys=[f"k{number}"])
            time.sleep(2.0)  # the index follows
            numbers = iter(range(10**9))
            return _until(lambda: list(client.find("t", f"k{next(numbers) % 100}")))
    with client.producer(timeout=60.0) as producer:
        for _ in range(FILL // 10_000):
            producer.send_many("t", [BODY] * 10_000)
    return _consumed(client, as_objects=load == "consume_objects")


def _until(work: Callable[[], Any]) -> Turn:
    def turn(seconds: float) -> int:
        done, now = 0, time.perf_counter()
        end = now + seconds
        while now < end:
            work()
            done += 1
            began, now = now, time.perf_counter()
            LATENCIES.append(now - began)
        return done

    return turn


def _tasks(url: str) -> Turn:
    import asyncio

    from keelog import aio

    loop = asyncio.new_event_loop()

    async def opened() -> Any:
        return await aio.connect(url)

    client = loop.run_until_complete(opened())

    async def one(end: float) -> int:
        done, now = 0, time.perf_counter()
        while now < end:
            await client.send("t", BODY)
            done += 1
            began, now = now, time.perf_counter()
            LATENCIES.append(now - began)
        return done

    async def all_of_them(seconds: float) -> int:
        end = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(one(end) for _ in range(TASKS))))

    return lambda seconds: loop.run_until_complete(all_of_them(seconds))


def _in_flight(client: Any) -> Turn:
    producer = client.producer(timeout=60.0, max_in_flight=IN_FLIGHT)

    def turn(seconds: float) -> int:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(IN_FLIGHT):
                producer.send_nowait("t", BODY)
            done += IN_FLIGHT
        producer.flush()
        return done

    return turn


def _batches(client: Any) -> Turn:
    producer = client.producer(timeout=60.0, max_batches=BATCHES_IN_FLIGHT)
    bodies = [BODY] * BATCH

    def turn(seconds: float) -> int:
        done, now = 0, time.perf_counter()
        end = now + seconds
        while now < end:
            future = producer.send_batch("t", bodies)
            future.add_done_callback(
                lambda _, began=now: LATENCIES.append(time.perf_counter() - began)
            )
            done += BATCH
            now = time.perf_counter()
        producer.flush()
        return done

    return turn


def _paced(work: Callable[[], Any]) -> Turn:
    def turn(seconds: float) -> int:
        begin, count = time.perf_counter(), int(seconds * PER_S)
        for number in range(count):
            time.sleep(max(0.0, begin + number / PER_S - time.perf_counter()))
            began = time.perf_counter()
            work()
            LATENCIES.append(time.perf_counter() - began)
        return count

    return turn


def _end_to_end(client: Any) -> Callable[[], None]:
    follower = iter(client.tail("t", "earliest", queues=[0]))

    def once() -> None:
        client.send("t", BODY, queue_id=0)
        next(follower)

    return once


def _consumed(client: Any, as_objects: bool) -> Turn:
    def turn(seconds: float) -> int:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for result in client.consume(
                "t", "earliest", until_end=True, max_messages=10_000, max_bytes=1 << 20
            ):
                if as_objects:
                    sum(len(message.body) for message in result.messages)
                done += result.count
                if time.perf_counter() >= end:
                    break
        return done

    return turn


# -- the comparison -------------------------------------------------------------------------------


def _node(tree: Path, folder: Path, load: str) -> "Node":
    from keelog.bench.node_process import ANY_DISK, Node

    settings = [*ANY_DISK, "flush_disk_type=SYNC_FLUSH"] if load == "sync_64" else ANY_DISK
    folder.mkdir()
    return Node(folder / "store", settings, readers=1, env=_environment(tree))


@contextmanager
def _client(tree: Path, load: str, url: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-P", __file__, "--child", load, url]
    with subprocess.Popen(
        command, env=_environment(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            assert one.stdout is not None
            if one.stdout.readline() != "ready\n":
                raise SystemExit(f"no client of {tree} could be started for {load}")
            yield one
        finally:
            one.terminate()


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


def compare(load: str, trees: list[Path], turns: int) -> list[list[list[float]]]:
    """The figures of each tree, turn by turn."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        nodes = [
            stack.enter_context(_node(tree, work / str(n), load)) for n, tree in enumerate(trees)
        ]
        clients = [
            stack.enter_context(_client(tree, load, node.endpoint))
            for tree, node in zip(trees, nodes, strict=True)
        ]
        found: list[list[list[float]]] = [[] for _ in trees]
        for turn in range(turns):
            first = turn % len(trees)
            for n in [*range(first, len(trees)), *range(first)]:
                one = clients[n]
                assert one.stdin is not None
                assert one.stdout is not None
                one.stdin.write(f"{SECONDS}\n")
                one.stdin.flush()
                figures = [float(cell) for cell in one.stdout.readline().split()]
                if not figures:
                    raise SystemExit(f"the client of {trees[n]} ended in {load}")
                found[n].append(figures)
        return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--loads", default=",".join(ROWS))
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    old, new = options.old.resolve(), options.new.resolve()
    loads = options.loads.split(",")
    for tree in (old, new):
        if not (tree / "keelog" / "__init__.py").is_file():
            parser.error(f"{tree} holds no tree of this project")
    if unknown := [load for load in loads if load not in ROWS]:
        parser.error(f"there is no load {unknown[0]!r}: choose from {', '.join(ROWS)}")
    print("| load | figure | old | new | new / old | old / old |")
    print("|---|---|---:|---:|---:|---:|", flush=True)
    for load in loads:
        found = compare(load, [old, new, old], options.turns)
        for number, figure in enumerate(FIGURES[: len(found[0][0])]):
            turns = [[one[number] for one in tree] for tree in found]
            cells = [ROWS[load], figure, *(f"{median(one):,.0f}" for one in turns[:2])]
            for other in turns[1:]:
                ratio = median(b / a for a, b in zip(turns[0], other, strict=True))
                cells.append(f"{ratio:.2f}")
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
