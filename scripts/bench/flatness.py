"""Costs that should stay flat: what a node does while its store, queues, consumers or age grow.

    python -m scripts.bench.flatness --gib 8 --json flatness.json --picture docs/flatness.svg

Four parts. `log`: the size of the log, 1 GiB to `--gib`, doubled each time. `queues`: topics x
queues, 1 to `--queues`, each with messages. `consumers`: idle consumers that hold a long poll.
`age`: a node's memory after some million messages. At each point the same loads run for
`--seconds` each; memory is PSS without the pages of the store. A point that takes longer than
`--limit` is left out with those after it, and named below the table. `--from FILE` shows a saved
result again, `--markdown FILE` fills the marked part of a page. A store is removed when its part
is over. With --gib 4 the whole takes about five minutes.
"""

import argparse
import json
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keelog
from keelog.bench.machine import describe
from keelog.bench.node_process import Node
from protocol.kernel import loader
from scripts.bench.flatness_points import (
    IdleConsumers,
    Point,
    TookTooLong,
    holdings,
    idle_cores,
    log_of,
    measure,
    running,
    store,
    within,
)
from scripts.bench.flatness_show import table, write_picture
from scripts.bench.recovery import batches, under_load
from scripts.docs.generated_page import fill_part
from scripts.option_types import made_folder, new_file, old_file, real_number, whole_number

GIB = 1 << 30
BODY_BYTES = 1024
RECORD_BYTES = 1200
"""About what a message of that body takes in the log."""
MILLIONS = (1, 2, 5, 10)
CONSUMERS = (0, 100, 1_000)
QUEUE_COUNTS = (1, 1_000, 10_000, 100_000)
QUEUES_OF_TOPIC = 1_000
"""So that few topics do: each new one is a durable save of all of them, before the load."""
SPREAD_S_MAX = 60.0
MARK = "bench_flatness"
Tell = Callable[[str], None]


def sizes_of_log(gib: float) -> list[float]:
    """1, 2, 4, … and `gib` itself."""
    sizes, size = [], 1.0
    while size < gib:
        sizes.append(size)
        size *= 2
    return [*sizes, gib]


def grow_log(folder: Path, options: argparse.Namespace, tell: Tell) -> Generator[Point, None, None]:
    """A log of bodies of 1 KiB."""
    with running(folder / "store") as node:
        for gib in sizes_of_log(options.gib):
            lacking = int(gib * GIB) - log_of(node).appended
            if lacking > 0:
                store(node, lacking // RECORD_BYTES + 1, BODY_BYTES, tell)
            yield Point("log", gib, "GiB", measure(node, options.seconds))


def grow_queues(
    folder: Path, options: argparse.Namespace, tell: Tell
) -> Generator[Point, None, None]:
    """Each point has a new store, with messages in each queue."""
    for count in [one for one in QUEUE_COUNTS if one <= options.queues]:
        with running(folder / f"store-{count}") as node:
            began = time.monotonic()
            with keelog.connect(node.endpoint, timeout=60) as client:
                for number in range(-(-count // QUEUES_OF_TOPIC)):
                    client.create_topic(f"topic-{number}", min(count, QUEUES_OF_TOPIC))
            tell(f"{count:,} queues made in {time.monotonic() - began:.1f} s; filling them")
            figures = spread(node, count)
            yield Point("queues", count, "queues", figures | measure(node, options.seconds))
        shutil.rmtree(folder / f"store-{count}", ignore_errors=True)


def spread(node: Node, queues: int) -> dict[str, Any]:
    """Sends to all queues in turn for a bounded time; messages a second until all is dispatched."""
    prepared = batches(queues, 128, QUEUES_OF_TOPIC)
    began, before = time.monotonic(), log_of(node).records
    with under_load(node, prepared):
        time.sleep(min(SPREAD_S_MAX, 2.0 + queues / 20_000))
    node.await_dispatched()
    stored = log_of(node).records - before
    return {"spread_per_s": round(stored / (time.monotonic() - began))}


def grow_consumers(
    folder: Path, options: argparse.Namespace, tell: Tell
) -> Generator[Point, None, None]:
    """Consumers that are connected and wait at one reader."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with running(folder / "store") as node:
        idle = IdleConsumers(node.endpoint)
        try:
            for count in CONSUMERS:
                tell(f"{count} idle consumers")
                idle.grow_to(count)
                figures = {"idle_cores": idle_cores(node, time.sleep, options.seconds)}
                with kept(idle):
                    figures |= measure(node, options.seconds)
                yield Point("consumers", count, "consumers", figures)
        finally:
            idle.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def kept(idle: IdleConsumers) -> Iterator[None]:
    """Polls go on while something else is measured."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.5):
            idle.keep()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def grow_age(folder: Path, options: argparse.Namespace, tell: Tell) -> Generator[Point, None, None]:
    """The same node after more and more messages."""
    stored = 0
    with running(folder / "store") as node:
        yield Point("age", 0, "M messages", holdings(node))
        for millions in [one for one in MILLIONS if one <= options.millions]:
            store(node, millions * 1_000_000 - stored, 128, tell)
            stored = millions * 1_000_000
            yield Point("age", millions, "M messages", holdings(node))


PARTS: dict[str, Callable[[Path, argparse.Namespace, Tell], Generator[Point, None, None]]] = {
    "log": grow_log,
    "queues": grow_queues,
    "consumers": grow_consumers,
    "age": grow_age,
}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    text = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser("python -m scripts.bench.flatness", description=text)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of log,queues,consumers,age")
    parser.add_argument("--gib", type=real_number, default=8.0, help="the largest log")
    parser.add_argument(
        "--queues", type=whole_number, default=10_000, help="the most queues, 100000 at most"
    )
    parser.add_argument(
        "--millions", type=whole_number, default=10, help="the most messages of `age`"
    )
    parser.add_argument(
        "--seconds", type=real_number, default=4.0, help="of each load at each point"
    )
    parser.add_argument("--limit", type=real_number, default=150.0, help="seconds of a point")
    parser.add_argument("--dir", type=made_folder, help="where the stores are made")
    parser.add_argument("--json", type=new_file, metavar="FILE")
    parser.add_argument("--picture", type=new_file, metavar="FILE", help="an SVG")
    parser.add_argument(
        "--markdown", type=old_file, metavar="FILE", help="a page with the marked part"
    )
    parser.add_argument(
        "--from", dest="source", type=old_file, metavar="FILE", help="measure nothing"
    )
    return parser.parse_args(arguments)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All points of the parts asked for."""
    # A polite kill ends the node and removes its store, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    points: list[dict[str, Any]] = []
    left_out: list[str] = []
    result: dict[str, Any] = {
        "machine": {}, "seconds": options.seconds, "points": points, "left_out": left_out,
    }  # fmt: skip
    for part in options.parts.split(","):
        folder = Path(tempfile.mkdtemp(prefix=f"flatness-{part}-", dir=options.dir))
        try:
            result["machine"] = describe(folder, (), loader.describe())
            with closing(PARTS[part](folder, options, tell)) as growing:
                for point in bounded(growing, options.limit):
                    points.append(asdict(point))
                    tell(f"{part} {point.size:,g} {point.unit}: {point.figures}")
                    if options.json:
                        options.json.write_text(json.dumps(result, indent=1) + "\n")
        except TookTooLong as error:
            shown = [f"{one['size']:,g}" for one in points if one["part"] == part]
            left_out.append(f"{part}: measured up to {shown[-1] if shown else 0}, the next {error}")
            tell(left_out[-1])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return result


def bounded(points: Iterator[Point], seconds: float) -> Iterator[Point]:
    """Points, each within a time. Raises TookTooLong."""
    while True:
        with within(seconds):
            point = next(points, None)
        if point is None:
            return
        yield point


def tell(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, or shows what was measured."""
    options = parsed(arguments)
    unknown = set(options.parts.split(",")) - set(PARTS)
    if unknown:
        print(f"error: no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}",
              file=sys.stderr)  # fmt: skip
        return 2
    result = measured(options) if options.source is None else None
    try:
        result = result or json.loads(options.source.read_text())
        points = [Point(**one) for one in result["points"]]
    except (ValueError, KeyError, TypeError):
        print(f"error: {options.source} is no result of bench_flatness", file=sys.stderr)
        return 2
    print("\n\n".join([table(points), *result.get("left_out", ())]))
    if options.picture:
        write_picture(points, options.picture)
    if options.markdown:
        parts = [table(points, markdown=True), *result.get("left_out", ())]
        fill_part(options.markdown, MARK, "\n\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
