"""Keelog beside the real RocketMQ broker on this machine: a table of ratios.

    python -m scripts.rivals.compare_rocketmq --json result.jsonl --markdown docs/performance.md

Starts a name server and a broker 5.5.0 (Maven, Java 17) and nodes of ours, and drives both with the
same sizes, batches and concurrency, each with its own client, in turns: A B A B. Before the first
round each side has turns that are not counted; after each turn it dispatches what it got, and the
disk is synced. Only one side runs at a time: the others are stopped (SIGSTOP) while it has its
turn, and warmed by a few messages before their own; what they took all the same is reported.

Ratios are ours / RocketMQ of each round by itself; the median counts. `--resume FILE` writes each
turn down as it ends and goes on where a run was interrupted. `--from FILE` prints a result again,
or fills a page, without measuring anything. Ends with 0, or with 2 when there is no Java or Maven.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from keelog.bench.machine import describe
from keelog.text import print_line
from protocol.kernel import loader
from scripts.command_line import made_folder, new_file, old_file, real_number, whole_number
from scripts.docs.pages import fill_part
from scripts.rivals import plan
from scripts.rivals.ours import OurRestarts, Ours, OurStore
from scripts.rivals.proc import stopped
from scripts.rivals.results import Turn, TurnResults, report
from scripts.rivals.rocketmq import RivalFailed, RivalMissing, class_path
from scripts.rivals.theirs import BrokerBench, Theirs, TheirStore

EXIT_MISSING = 2
MARK = "compare_rocketmq"


class Comparison:
    """A run: its sides, its turns, its results."""

    def __init__(self, options: argparse.Namespace, results: TurnResults, folder: Path) -> None:
        self._options = options
        self._results = results
        self._folder = folder
        self._bench: BrokerBench | None = None
        self._began = time.monotonic()

    def run(self, loads: Sequence[plan.Load]) -> None:
        with ExitStack() as stack:
            if self._options.only != plan.OURS:
                self._bench = stack.enter_context(BrokerBench.open(class_path(), self._folder))
            for group in plan.groups(loads).values():
                if any(self._missing(load) for load in group):
                    self._run_group(group)

    def _missing(self, load: plan.Load) -> list[tuple[int, str]]:
        """Turns that the results lack, round by round."""
        rounds = self._options.rounds
        return [
            (number, side)
            for number in range(1, plan.rounds_of(load, rounds) + 1)
            for side in plan.sides_of(load, self._options.only)
            if number <= plan.rounds_of(load, rounds, side)
            and not self._results.has(load.name, side, number)
        ]

    def _run_group(self, group: Sequence[plan.Load]) -> None:
        with ExitStack() as stack:
            theirs: plan.Side | None = None
            for load in group:
                if not self._missing(load):
                    continue
                sides: dict[str, plan.Side] = {}
                with ExitStack() as of_load:
                    for side in plan.sides_of(load, self._options.only):
                        if side == plan.OBJECTS and plan.OURS in sides:
                            sides[side] = sides[plan.OURS]
                        elif side.startswith(plan.OURS):
                            sides[side] = self._ours(load, side)
                            of_load.callback(sides[side].close)
                        else:
                            theirs = theirs or self._theirs(load, stack)
                            sides[side] = theirs
                    self._run_load(load, sides)

    def _ours(self, load: plan.Load, side: str) -> plan.Side:
        if load.kind == "restart":
            return OurRestarts(self._folder)
        if load.kind in ("dispatch", "alone"):
            return OurStore(self._folder)
        return Ours(self._folder, side, sync=load.sync)

    def _theirs(self, load: plan.Load, stack: ExitStack) -> plan.Side:
        """RocketMQ's side of a group, started; `stack` closes it."""
        assert self._bench is not None, "RocketMQ takes no part"
        if load.kind in ("dispatch", "alone"):
            found: plan.Side = TheirStore(self._bench)
        else:
            settings = {"flushDiskType": "SYNC_FLUSH"} if load.sync else {}
            found = Theirs(self._bench, f"broker-{load.name}", settings)
        stack.callback(found.close)
        found.start()
        return found

    def _run_load(self, load: plan.Load, sides: dict[str, plan.Side]) -> None:
        self._say(f"{load.name}: preparing")
        first_names = {one: side for side, one in reversed(sides.items())}
        for one in dict.fromkeys(sides.values()):
            one.prepare(load)
            self._say(f"{load.name}: {first_names[one]} is prepared")
        for side in sides:
            for seconds in plan.warm_ups(load, side, self._options.seconds):
                self._turn(load, side, sides, seconds)
        for number, side in self._missing(load):
            figures = self._turn(load, side, sides, self._options.seconds)
            self._results.add(Turn(load.name, side, number, rounded(figures)))
            self._say(f"{load.name} round {number} {side}: {short(figures)}")

    def _turn(
        self, load: plan.Load, side: str, sides: dict[str, plan.Side], seconds: float
    ) -> plan.Figures:
        """One turn, in which nobody else runs."""
        one = sides[side]
        others = [other for other in dict.fromkeys(sides.values()) if other is not one]
        pids = [pid for other in others for pid in other.pids()]
        with stopped(pids) as rest:
            one.wake()
            figures = one.turn(load, side, seconds)
            # What one side wrote is not left for the other's turn.
            os.sync()
        if pids:
            figures["others_cpu_share"] = rest.cpu_share
        return figures

    def _say(self, text: str) -> None:
        print_line(f"[{time.monotonic() - self._began:6.0f} s] {text}")


def rounded(figures: plan.Figures) -> plan.Figures:
    """Five digits are more than a round can tell."""
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) else value
        for name, value in figures.items()
    }


def short(figures: plan.Figures) -> str:
    shown = (
        *("per_s", "single_per_s", "batch_per_s", "p50_us", "p99_us", "seconds"),
        *("cpu_s_per_million", "pss_mib", "failed"),
    )
    return ", ".join(f"{name} {figures[name]:,.5g}" for name in shown if figures.get(name))


def without_java(why: str, skip: bool) -> int:
    """Three lines that say what is missing."""
    said = "skipped" if skip else "error"
    print(f"{said}: RocketMQ cannot run here: {why}", file=sys.stderr)
    print("this comparison starts the real broker: Java 17 or newer, and Maven", file=sys.stderr)
    print("try: apt-get install openjdk-17-jdk-headless maven, or --only ours", file=sys.stderr)
    return 0 if skip else EXIT_MISSING


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    text = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser("python -m scripts.rivals.compare_rocketmq", description=text)
    parser.add_argument("--rows", default="", help="names of loads or their beginnings: send,find")
    parser.add_argument("--rounds", type=whole_number, default=5)
    parser.add_argument("--seconds", type=real_number, default=5.0, help="of a turn at full speed")
    parser.add_argument(
        "--scale", type=real_number, default=1.0, help="part of 5 M messages, 8 GiB, …"
    )
    parser.add_argument(
        "--only", choices=(plan.OURS, plan.THEIRS), default="", help="one side, for a look"
    )
    parser.add_argument("--resume", type=new_file, metavar="FILE", help="turns, and where to go on")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="all turns, at the end")
    parser.add_argument(
        "--markdown", type=old_file, metavar="FILE", help="a page with the marked part"
    )
    parser.add_argument(
        "--from", dest="source", type=old_file, metavar="FILE", help="measure nothing"
    )
    parser.add_argument("--dir", type=made_folder, help="where the stores are made: 20 GiB at most")
    parser.add_argument("--plan", action="store_true", help="print the plan and stop")
    parser.add_argument("--skip-without-java", action="store_true", help="0 where there is none")
    return parser.parse_args(arguments)


def measured(options: argparse.Namespace, loads: Sequence[plan.Load]) -> TurnResults:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(
        prefix="compare-", dir=options.dir, ignore_cleanup_errors=True
    ) as folder:
        asked = {
            "seconds": options.seconds,
            "scale": options.scale,
            "machine": describe(folder, (), loader.describe()),
        }
        results = TurnResults.open(options.resume, asked) if options.resume else TurnResults(asked)
        Comparison(options, results, Path(folder)).run(loads)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        loads = [plan.scaled(load, options.scale) for load in plan.chosen(options.rows)]
        if options.source:
            results = TurnResults.load(options.source)
        else:
            print(plan.plan_text(loads, options.rounds, options.only), flush=True)
            if options.plan:
                return 0
            if options.only != plan.OURS:
                class_path()
            results = measured(options, loads)
    except RivalMissing as error:
        return without_java(str(error), options.skip_without_java)
    except (RivalFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_MISSING
    except KeyboardInterrupt:
        print("interrupted; --resume FILE keeps turns and goes on", file=sys.stderr)
        return 128 + signal.SIGINT
    print(report(results))
    if options.json:
        options.json.write_text(results.lines())
    if options.markdown:
        fill_part(options.markdown, MARK, report(results, markdown=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
