"""The gain of the compiled kernel: the same work with it and without, in one process, in turn.

    python -m scripts.bench.kernel DIR

DIR is a store at rest (`scripts.bench.big_store` makes one); it is only read. Figures are CPU
nanoseconds for each record, the least of all rounds: another load on the machine makes rounds
longer, never shorter.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from keelog.pipeline.options import parse_options
from keelog.pipeline.read.part import read_part
from keelog.pipeline.resolve import plan_parts
from node.store.opening import open_store
from node.store.query.pull import PullRequest, get_message
from node.store.verify.verify import verify
from protocol.derived.dispatch_request import DispatchRequests, index_keys
from protocol.kernel import loader
from scripts.bench.spark import TWO, TYPICAL

WINDOW_BYTES = 2 << 20
PULLS = (32, 256)
Work = Callable[[Path], int]
"""Does it, and returns for how many records."""


def walk(root: Path) -> int:
    """Recovery's and verify's way through the log: every record verified, as columns."""
    with open_store(root) as store:
        log = store.log
        return sum(len(columns) for columns in log.columns(log.min_offset, None, WINDOW_BYTES))


def dispatch(root: Path) -> int:
    """The same, and what the workers hand to their builders: requests and hashes of keys."""
    count = 0
    with open_store(root) as store:
        log = store.log
        for columns in log.columns(log.min_offset, None, WINDOW_BYTES):
            requests = DispatchRequests(columns)
            index_keys(requests)
            count += len(requests)
    return count


def pull(size: int) -> Work:
    """Pulls of `size` messages, through one queue after the other, as a reader serves them."""

    def work(root: Path) -> int:
        count = 0
        with open_store(root) as store:
            for queue in store.queues()[:8]:
                reader = store.queue(*queue)
                request = PullRequest(max_messages=size)
                offset, end = 0, reader.max_offset if reader else 0
                while offset < end:
                    found = get_message(store.log, reader, offset, request)
                    count += found.count
                    offset = found.next_begin_offset
        return count

    return work


def rows(**options: str) -> Work:
    """Arrow batches for Spark, without Spark."""

    def work(root: Path) -> int:
        parts = plan_parts(parse_options({"path": str(root), **options}))
        return sum(batch.num_rows for part in parts for batch in read_part(part))

    return work


def check(root: Path) -> int:
    """`keelog store verify --deep`."""
    return verify(root, deep=True).records


def works(topic: str) -> dict[str, Work]:
    """All, by name."""
    typical = ",".join(TYPICAL)
    return {
        "log as verified columns": walk,
        "dispatch requests and key hashes": dispatch,
        **{f"pulls of {size}": pull(size) for size in PULLS},
        "verify --deep": check,
        "rows for Spark, 14 columns": rows(columns=typical),
        "rows for Spark, 2 columns": rows(columns=",".join(TWO)),
        "rows for Spark, all columns": rows(),
        "rows for Spark, one topic, 14 columns": rows(columns=typical, topics=topic),
    }


def measure(work: Work, root: Path, rounds: int) -> tuple[dict[str, float], int]:
    """CPU ns a record plainly and compiled, the least of `rounds`, and how many records."""
    least: dict[str, float] = {}
    count = 0
    for _ in range(rounds):
        for name, found in (("plain", None), ("compiled", loader.active())):
            with loader.using(found):
                began = time.process_time()
                count = work(root)
                spent = (time.process_time() - began) / max(count, 1) * 1e9
            least[name] = min(least.get(name, spent), spent)
    return least, count


def main() -> int:
    """0 when measured; 1 without a kernel."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("root", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if loader.active() is None:
        print("this installation has no compiled kernel")
        return 1
    with open_store(args.root) as store:
        topic = store.queues()[0].topic
    found = {}
    for name, work in works(topic).items():
        least, count = measure(work, args.root, args.rounds)
        found[name] = {"records": count, **{way: round(ns) for way, ns in least.items()}}
        if not args.json:
            ratio = least["plain"] / least["compiled"]
            print(
                f"{name:40} {count:>10,} records, plain {least['plain']:>7,.0f} ns,"
                f" compiled {least['compiled']:>6,.0f} ns, {ratio:.1f} times",
                flush=True,
            )
    if args.json:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
