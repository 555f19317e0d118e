"""Kills anything of a node with SIGKILL at random moments under load; nothing may be lost.

Writer, workers, readers, the supervisor, the whole node, and a node that is just starting. After
each end of the whole node the store is checked, as it lies there, against what its senders were
told: nothing acknowledged is lost or changed, nothing is there that nobody sent, each queue is in
order, `store verify --deep` finds no error. At the end of a store everything is also pulled from
the node, and looked up by key. With --power the disk loses its power instead of the node its
life (root, ext4 in a file). With --turns each worker and reader is killed in turn, so often, while
producers are at full speed and a follower of each topic sees every message once and in order.

    python -m tests.soak.kill.anything --kills 2000 --seed 1
    python -m tests.soak.kill.anything --power --kills 300 --flush SYNC_FLUSH
    python -m tests.soak.kill.anything --turns 10 --producers 8

Exit codes: 0 nothing was lost, 1 something was, 2 usage.
"""

import argparse
import json
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from node.runtime.settings import ASYNC_FLUSH, SYNC_FLUSH
from tests.soak.command import folder_of, leave, phases, shape, soak_parser
from tests.soak.kill.history import Figures, History, Plan
from tests.soak.power_disk import power_disk, why_not

KILLS_OF_A_STORE = 50
"""Then a new one begins: each check reads all of it."""
CUTS_OF_A_STORE = 15


def run_plan(plan: Plan, folder: Path, power: bool, options: argparse.Namespace) -> Figures:
    """One history in a folder of its own, which stays when something was lost."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        disk = stack.enter_context(power_disk(folder)) if power else None
        figures = History(plan, folder, disk, options.tell).run()
        if disk is not None and figures.faults:
            shutil.copytree(disk.place / "store", folder / "store-found", ignore=_sockets)
    if not figures.faults and options.store is None:
        shutil.rmtree(folder)
    return figures


def _sockets(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".bell")]


def run(options: argparse.Namespace, folder: Path) -> dict[str, Figures]:
    """All histories, the flush modes in turn; the figures of each mode."""
    flushes = [options.flush] if options.flush else [ASYNC_FLUSH, SYNC_FLUSH]
    if options.turns:
        flushes = flushes[:1]
    found = {flush: Figures() for flush in flushes}
    per_store = CUTS_OF_A_STORE if options.power else KILLS_OF_A_STORE
    began, number, done = time.monotonic(), 0, 0
    while done < options.kills and not any(one.faults for one in found.values()):
        if options.seconds and time.monotonic() - began > options.seconds:
            break
        flush = flushes[number % len(flushes)]
        share = -(-(options.kills - done) // max(1, len(flushes) - number))
        singles = {"singles_max": 2} if options.power else {}
        seed = options.seed * 10_000 + number
        plan = Plan(
            min(share, per_store), seed, flush, options.producers, turns=options.turns, **singles
        )
        figures = run_plan(plan, folder / f"history-{number}", options.power, options)
        found[flush].add(figures)
        done += figures.kills["power"] if options.power else figures.kills.total()
        if options.turns:
            break
        number += 1
    return found


def show(found: dict[str, Figures]) -> None:
    """For people."""
    for flush, one in found.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(one.kills.items()))
        print(f"{flush}: {one.kills.total()} kills in {one.seconds:.0f} s ({kinds})")
        print(
            f"  {one.histories} stores, {one.checks} checks; {one.acknowledged:,} acknowledged,"
            f" {one.stored:,} stored, {one.read + one.followed:,} read along,"
            f" {one.unknown_stored} stored with an unknown outcome, {one.twice} twice"
        )
        print(
            f"  lost {one.lost}, invented {one.invented}, changed {one.changed};"
            f" torn tails cut {one.quarantined}; worst gap {one.gap_s_max:.2f} s,"
            f" start {one.back_s_max:.2f} s, orphans {one.orphan_s_max:.2f} s"
        )
        if one.gone or one.raced:
            print(
                f"  not flushed and gone with the power: {one.gone},"
                f" {one.gone_age_ms:.0f} ms old at most; acknowledged while it went: {one.raced}"
            )
        for fault in one.faults:
            print(f"  LOST: {fault}")
    print("something was lost" if any(one.faults for one in found.values()) else "nothing was lost")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = soak_parser(__doc__)
    add = parser.add_argument
    add("--kills", type=int, default=200, help="or power losses, all stores together (default 200)")
    add("--flush", choices=(ASYNC_FLUSH, SYNC_FLUSH), help="default: both in turn")
    add("--producers", type=int, default=3, help="processes that send (default 3)")
    add("--turns", type=int, default=0, help="kill only workers and readers, each so often")
    add("--power", action="store_true", help="cut the power of the disk instead (root)")
    add("--seconds", type=float, default=0, help="start no new store after so long")
    options = parser.parse_args()
    if options.kills < 1 or options.producers < 1:
        parser.error("there must be at least one kill and one producer")
    if options.power and (reason := why_not()):
        parser.error(f"the power cannot be cut here: {reason}")
    return options


def main() -> int:
    """Runs, prints, answers the exit code."""
    options = arguments()
    folder = folder_of(options.store, "kills")
    with phases(options.json) as options.tell:
        found = run(options, folder)
    if options.json:
        print(json.dumps(found, default=shape))
    else:
        show(found)
    return leave(folder, options.store, any(one.faults for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
