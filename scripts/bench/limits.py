"""The limits of the machine: memory, file and sockets alone, and how near the node comes to them.

    python -m scripts.bench.limits --results docs/figures/compare.jsonl

Five limits, a second each: copying memory, `pwrite` into a preallocated file, `fdatasync` of a
page, ZeroMQ requests that wait for their answer, and ZeroMQ frames one way. With `--results`, a
saved result of compare_rocketmq, it says which part of each limit the node reached there.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import zmq

from scripts.docs.pages import fill_part
from scripts.option_types import made_folder, new_file, old_file
from scripts.rivals.plan import OURS
from scripts.rivals.results import TurnResults
from scripts.rivals.table import Spread, grid, number

SECONDS = 1.0
ROUNDS = 3
MIB = 1 << 20
FILE_BYTES = 512 * MIB
COPY_BYTES = 64 * MIB
GROUP_BYTES = 32_000
"""About what a batch of 100 messages of 128 bytes is."""
SMALL_BYTES = 320
MARK = "bench_limits"
HEAD = ("limit", "here", "node's figure", "reached")
RECORD_BYTES = {"send_batches": 320, "send_batches_1k": 1216}
"""Bytes in the log of a message of each load: body, topic, UNIQ_KEY, checksum, head."""


def per_second(work: Callable[[], float]) -> float:
    """How much of something is done in a second; `work` returns how much it did."""
    done, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        done += work()
    return done / (time.perf_counter() - began)


def memory_copy(_folder: Path) -> float:
    """GB/s from one buffer to another."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.empty_like(source)

    def copy() -> float:
        target[:] = source
        return COPY_BYTES / 1e9

    copy()
    return per_second(copy)


def file_write(folder: Path) -> float:
    """GB/s of `pwrite` in groups of a batch, into blocks that were allocated before."""
    data = bytes(GROUP_BYTES)
    with (folder / "limits").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        began, at = time.perf_counter(), 0
        while at + GROUP_BYTES <= FILE_BYTES:
            at += os.pwrite(file.fileno(), data, at)
        took = time.perf_counter() - began
    (folder / "limits").unlink()
    return at / 1e9 / took


def file_sync(folder: Path) -> float:
    """`pwrite` of a page with `fdatasync`, a second."""
    page = bytes(4096)
    with (folder / "limits").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * MIB)
        number = iter(range(1 << 30))

        def sync() -> float:
            os.pwrite(file.fileno(), page, next(number) % 16_000 * 4096)
            os.fdatasync(file.fileno())
            return 1.0

        found = per_second(sync)
    (folder / "limits").unlink()
    return found


def _echo(ready: Connection) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        ready.send(port)
        while True:
            who, body = socket.recv_multipart()
            if not body:
                return
            socket.send_multipart([who, body])


def _sink(ready: Connection) -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        ready.send(socket.bind_to_random_port("tcp://127.0.0.1"))
        while socket.recv():
            pass


def _with_peer(
    peer: Callable[[Connection], None], kind: int, work: Callable[["zmq.Socket[bytes]"], float]
) -> float:
    """Calls `work` with a socket whose other end is a process of its own."""
    # A fresh interpreter: a context does not survive a fork.
    spawned = multiprocessing.get_context("spawn")
    here, there = spawned.Pipe()
    process = spawned.Process(target=peer, args=(there,))
    process.start()
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.connect(f"tcp://127.0.0.1:{here.recv()}")
        found = work(socket)
        socket.send(b"")
        process.join(10)
    return found


def round_trips(_folder: Path) -> float:
    """ZeroMQ requests a second by one caller that waits."""

    def work(socket: "zmq.Socket[bytes]") -> float:
        body = bytes(SMALL_BYTES)

        def ask() -> float:
            socket.send(body)
            socket.recv()
            return 1.0

        return per_second(ask)

    return _with_peer(_echo, zmq.DEALER, work)


def frames(_folder: Path) -> float:
    """GB/s of ZeroMQ frames of a batch, one way."""

    def work(socket: "zmq.Socket[bytes]") -> float:
        body = bytes(GROUP_BYTES)

        def push() -> float:
            socket.send(body)
            return GROUP_BYTES / 1e9

        return per_second(push)

    return _with_peer(_sink, zmq.PUSH, work)


LIMITS: dict[str, tuple[str, Callable[[Path], float], str]] = {
    "memory": ("copying memory, GB/s", memory_copy, "send_batches_1k"),
    "write": ("pwrite of 32 kB, allocated file, GB/s", file_write, "send_batches_1k"),
    "frames": ("ZeroMQ frames of 32 kB, one way, GB/s", frames, "send_batches"),
    "round_trips": ("ZeroMQ request and answer, one caller, /s", round_trips, "send_1"),
    "sync": ("pwrite and fdatasync of 4 KiB, /s", file_sync, "sync_64"),
}


def node_figure(results: TurnResults, load: str) -> float | None:
    """The node's median at a load: GB/s of log for batches, messages a second for others."""
    spread = Spread.of(results.by_round(load, OURS, "per_s").values())
    if spread is None:
        return None
    return spread.middle * RECORD_BYTES[load] / 1e9 if load in RECORD_BYTES else spread.middle


def rows(limits: dict[str, float], results: TurnResults | None) -> list[tuple[str, ...]]:
    """The table's lines."""
    made: list[tuple[str, ...]] = []
    for name, (title, _, load) in LIMITS.items():
        figure = node_figure(results, load) if results else None
        shown = "" if figure is None else f"{number(figure, '')} ({load})"
        part = "" if figure is None else f"{figure / limits[name]:.0%}"
        made.append((title, number(limits[name], ""), shown, part))
    return made


def measured(parent: Path | None) -> dict[str, float]:
    """Each limit here: the median of some rounds."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="limits-") as folder:
        return {
            name: sorted(measure(Path(folder)) for _ in range(ROUNDS))[ROUNDS // 2]
            for name, (_, measure, _) in LIMITS.items()
        }


def saved(file: Path) -> dict[str, float]:
    """The limits that `--json` wrote. Raises ValueError for another file."""
    try:
        found = json.loads(file.read_text())
        return {name: float(found[name]) for name in LIMITS}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} is no result of bench_limits: make one with --json") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; medians of some rounds."""
    text = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser("python -m scripts.bench.limits", description=text)
    parser.add_argument("--dir", type=made_folder, help="on which file system")
    parser.add_argument("--results", type=old_file, metavar="FILE", help="of compare_rocketmq")
    parser.add_argument("--json", type=new_file, metavar="FILE")
    parser.add_argument(
        "--from", dest="source", type=old_file, metavar="FILE", help="measure nothing"
    )
    parser.add_argument(
        "--markdown", type=old_file, metavar="FILE", help="a page with the marked part"
    )
    options = parser.parse_args(arguments)
    try:
        results = TurnResults.load(options.results) if options.results else None
        limits = saved(options.source) if options.source else measured(options.dir)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    made = rows(limits, results)
    print(grid(HEAD, made, markdown=False))
    if options.json:
        options.json.write_text(json.dumps(limits) + "\n")
    if options.markdown:
        fill_part(options.markdown, MARK, grid(HEAD, made, markdown=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
