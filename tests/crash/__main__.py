"""Plays through power losses of a simulated disk until so many images were tried.

    python -m tests.crash --images 1000000 --seed 1 --jobs 2

Prints what was tried and every violation; ends with 1 when there was one. A violation names its
seed: the same seed gives the same history, and the same images of it.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.conftest import MEMORY
from tests.crash.histories import Totals, run_history
from tests.crash.truth import Violation

SEEDS_PER_JOB = 20
REPORT_EVERY_S = 60.0


def play(first_seed: int) -> tuple[Totals, list[str]]:
    """A few histories; the violations found."""
    totals, violations = Totals(), []
    where = MEMORY if MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="keelog-images-", dir=where))
    for seed in range(first_seed, first_seed + SEEDS_PER_JOB):
        try:
            run_history(seed, folder, totals)
        except Violation as violation:
            violations.append(str(violation))
    shutil.rmtree(folder)
    return totals, violations


def say(line: str) -> None:
    """At once, also into a file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Runs until enough images were tried, and answers the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    totals, violations = Totals(), []
    began = reported = time.monotonic()
    seed = options.seed
    with multiprocessing.Pool(options.jobs) as pool:
        while totals.images < options.images:
            step = SEEDS_PER_JOB * options.jobs
            for tried, found in pool.imap_unordered(play, range(seed, seed + step, SEEDS_PER_JOB)):
                totals.add(tried)
                violations += found
                for violation in found:
                    say(f"VIOLATION {violation}")
            seed += step
            now = time.monotonic()
            if now - reported >= REPORT_EVERY_S or totals.images >= options.images:
                reported = now
                say(
                    f"{now - began:,.0f} s: {totals.images:,} images, "
                    f"{totals.histories:,} histories, {totals.lives:,} lives, "
                    f"seeds {options.seed} to {seed - 1}, {len(violations)} violations"
                )
    for crash, count in sorted(totals.crashes.items()):
        say(f"  {crash}: {count:,}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
