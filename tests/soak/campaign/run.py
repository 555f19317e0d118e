"""Random faults of every kind, thousands of them, at nodes under load; nothing may be lost.

Several nodes side by side, each under a light load. In each round one thing happens to a node: an
exception in any loop, a process that hangs or is stopped, a file of ours that becomes another, a
disk full of stages, a directory that moves, too few descriptors or too little memory, a kill. Then
the node is well again, or out of service for a named cause, and all that it has acknowledged is at
its place. It never says that it is ready while every send fails.

    python -m tests.soak.campaign.run --rounds 10000 --seed 1
    python -m tests.soak.campaign.run --kinds exception,hang --duration 600 --resume campaign.json

Exit codes: 0 no fault was found, 1 some were, 2 usage.
"""

import argparse
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from tests.soak.campaign.drive import FOLDERS, Work, drive, make_work
from tests.soak.campaign.life import KINDS, NEEDS_A_SMALL_DISK
from tests.soak.campaign.results import Results, Round, table
from tests.soak.command import folder_of, leave, phases

NODES = 10
END_S_MAX = 300.0
"""How long nodes may take to end their last round and their checks."""
_SAVE_S = 30.0
_LOOK_S = 0.5


def run(options: argparse.Namespace, folder: Path) -> Results:
    """All rounds; what a file has from earlier runs is counted too."""
    results = Results.load(options.resume) if options.resume else Results()
    before = results.rounds
    work = make_work(folder, options.seed, options.kinds, options.may_mount, options.rounds)
    context = multiprocessing.get_context("spawn")
    rounds: Queue[Round] = context.Queue()
    began = time.monotonic()
    drivers = [
        context.Process(target=drive, args=(number, work, rounds), daemon=True)
        for number in range(min(options.nodes, options.rounds))
    ]
    try:
        with _all_end(drivers, work, folder):
            for driver in drivers:
                driver.start()
            for one in _arriving(drivers, work, rounds, options.duration):
                _take(one, results, options)
                options.tell(f"{results.rounds} rounds, {len(results.failed)} with faults")
        for number, driver in enumerate(drivers):
            if driver.exitcode:
                why = [f"the process of node {number} ended with {driver.exitcode}"]
                _take(Round(number, 0, "campaign", faults=why), results, options)
    finally:
        results.runs.append(_run_figures(options, results.rounds - before, began))
        if options.resume:
            results.save(options.resume)
    return results


def _take(one: Round, results: Results, options: argparse.Namespace) -> None:
    results.add(one)
    _tell(one, options)
    if options.resume and time.monotonic() % _SAVE_S < _LOOK_S:
        results.save(options.resume)


def _run_figures(options: argparse.Namespace, rounds: int, began: float) -> dict[str, Any]:
    times = os.times()
    return {
        "seed": options.seed,
        "kinds": options.kinds,
        "nodes": options.nodes,
        "rounds": rounds,
        "seconds": round(time.monotonic() - began),
        "cpu_s": round(times.children_user + times.children_system),
    }


def _arriving(
    drivers: list[SpawnProcess], work: Work, rounds: "Queue[Round]", duration: float
) -> Iterator[Round]:
    """Rounds as they end, until all processes have ended."""
    stop_at = time.monotonic() + duration if duration else float("inf")
    end_at = float("inf")
    while True:
        try:
            yield rounds.get(timeout=_LOOK_S)
        except queue.Empty:
            if not any(driver.is_alive() for driver in drivers):
                return
        now = time.monotonic()
        if now > stop_at or work.left.value <= 0:
            end_at = min(end_at, now + END_S_MAX)
        if now > stop_at:
            work.stop.set()
        if now > end_at:
            print("not all nodes end in time", file=sys.stderr)
            return


@contextmanager
def _all_end(drivers: list[SpawnProcess], work: Work, folder: Path) -> Iterator[None]:
    """Processes and mounts are gone after it, whatever happens inside."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        work.stop.set()
        for driver in drivers:
            if driver.pid is not None:
                driver.join(END_S_MAX if sys.exc_info()[0] is None else 60.0)
                driver.kill()
                driver.join()
        _kill_nodes_of(folder)
        _unmount_below(folder)


def _kill_nodes_of(folder: Path) -> None:
    """Those whose driver could not end them any more."""
    ours = tuple(f"{folder}{os.sep}{name}-" for name in FOLDERS)
    for process in psutil.process_iter(["cmdline"]):
        if any(word.startswith(ours) for word in process.info["cmdline"] or ()):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _unmount_below(folder: Path) -> None:
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        place = line.split()[1]
        if place.startswith(f"{folder}{os.sep}"):
            subprocess.run(["umount", "-l", place], check=False)


def _tell(one: Round, options: argparse.Namespace) -> None:
    if options.log:
        with options.log.open("a") as file:
            file.write(f"{asdict(one)}\n")
    if not one.faults:
        return
    print(
        f"FAULT: seed {options.seed}, node {one.node}, round {one.number}, {one.kind}: {one.what}",
        *(f"  {fault}" for fault in one.faults),
        f"  named: {one.refused}",
        f"  kept in {one.kept or 'nothing, there are enough'}",
        *(f"  | {line[:300]}" for line in one.talk.splitlines()[-12:]),
        sep="\n",
        file=sys.stderr,
        flush=True,
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=1000, help="faults, all nodes together (default 1000)")
    add("--seed", type=int, default=1, help="what is done follows from it (default 1)")
    add("--nodes", type=int, default=NODES, help=f"side by side (default {NODES})")
    add("--kinds", default=",".join(KINDS), help=f"default: {','.join(KINDS)}")
    add("--duration", type=float, default=0, metavar="S", help="begin no round after so long")
    add("--resume", type=Path, metavar="FILE", help="results are added to those in this JSON file")
    add("--log", type=Path, metavar="FILE", help="a line for each round")
    add("--store", type=Path, help="an empty folder to work in, kept (default: temporary)")
    options = parser.parse_args()
    options.kinds = options.kinds.split(",")
    options.may_mount = os.geteuid() == 0
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}")
    if not options.may_mount and set(options.kinds) <= NEEDS_A_SMALL_DISK:
        parser.error("only root mounts a small disk")
    if options.rounds < 1 or options.nodes < 1:
        parser.error("there must be at least one round and one node")
    return options


def main() -> int:
    """Runs, prints, answers the exit code."""
    options = arguments()
    folder = folder_of(options.store, "campaign")
    with phases(quiet=False) as options.tell:
        results = run(options, folder)
    print(table(results))
    seconds = sum(one["seconds"] for one in results.runs)
    cpu_s = sum(one["cpu_s"] for one in results.runs) / max(1, results.rounds)
    pace = results.rounds * 60 / max(1, seconds)
    print(f"{results.rounds:,} rounds, {pace:.0f} a minute, {cpu_s:.2f} s of processor time each")
    if results.failed:
        print(f"{len(results.failed)} rounds with faults")
    return leave(folder, options.store, bool(results.failed))


if __name__ == "__main__":
    sys.exit(main())
