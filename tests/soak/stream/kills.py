"""Kills a streaming query in all its parts, at random moments, while producers send.

A node, 8 producers that send numbered messages to several queues of one topic, and a Spark query
that copies them, exactly once, into another topic. Spark's driver, its Python workers, the node's
writer and readers and the whole node are killed with SIGKILL, and come back. In the end the sink
must hold every message of the source, each once and unchanged, and in the order of its queue.

    python -m tests.soak.stream.kills --kills 50 --seed 1 --minutes 25
    python -m tests.soak.stream.kills --kills 10 --source folder --sink parquet

Exit codes: 0 each message once, 1 not, 2 usage.
"""

import argparse
import json
import sys
from pathlib import Path

from tests.soak.command import folder_of, leave, phases, shape
from tests.soak.stream.history import Figures, History, Plan


def show(figures: Figures) -> None:
    """For people."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(figures.kills.items()))
    checked = figures.checked
    print(f"{figures.kills.total()} kills in {figures.seconds:.0f} s ({kinds})")
    print(
        f"  source: {checked.acknowledged:,} acknowledged, {checked.stored:,} stored,"
        f" {checked.unknown_stored} of these with an unknown outcome"
    )
    print(
        f"  sink: {checked.copied:,} rows; missing {checked.missing}, twice {checked.duplicates},"
        f" foreign {checked.foreign}, out of order {checked.disordered}"
    )
    print(
        f"  {figures.batches} batches, {figures.replayed} of them planned when a driver died;"
        f" {figures.driver_starts} drivers, {figures.query_failures} failures of the query"
    )
    for fault in figures.faults:
        print(f"  WRONG: {fault}")
    print("something is wrong" if figures.faults else "each message once")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--kills", type=int, default=50, help="of all kinds together (default 50)")
    add("--seed", type=int, default=1, help="what is killed when follows from it (default 1)")
    add("--minutes", type=float, default=25.0, help="no kill begins later (default 25)")
    add("--producers", type=int, default=8, help="processes that send (default 8)")
    add("--pace", type=float, default=0.05, help="seconds between two messages of one (0.05)")
    add("--source", choices=("tcp", "folder"), default="tcp", help="how the query reads (tcp)")
    add("--sink", choices=("keelog", "parquet"), default="keelog", help="where it writes (keelog)")
    add("--folder", type=Path, help="an empty folder to work in, kept (default: temporary)")
    add("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    if options.kills < 1 or options.producers < 1:
        parser.error("there must be at least one kill and one producer")
    return options


def main() -> int:
    """Runs, prints, answers the exit code."""
    options = arguments()
    folder = folder_of(options.folder, "streams")
    plan = Plan(
        options.kills,
        options.seed,
        options.minutes * 60,
        options.producers,
        options.pace,
        options.source == "tcp",
        options.sink,
    )
    with phases(options.json) as tell:
        figures = History(plan, folder, tell).run()
    if options.json:
        print(json.dumps(figures, default=shape))
    else:
        show(figures)
    return leave(folder, options.folder, bool(figures.faults))


if __name__ == "__main__":
    sys.exit(main())
