"""RocketMQ's benchmarks `Producer`, `BatchProducer` and `Consumer` at one side; prints the outcome.

`Producer` sends by threads that wait, then without waiting; `BatchProducer` until the topic has
enough. The figures of the programs come last: these differ.
"""

import re
import sys
from pathlib import Path

from tests.clients.examples.running import Example, run_one, running_side, tell
from tests.clients.examples.timers import GROUP, SEGMENT, consumed
from tests.support.node import wait_until

COUNT = 20_000
"""Messages of `Producer`, by either way."""
BATCHED = 100_000
"""At least so many come from `BatchProducer`, which ends only when it is killed."""
PATIENCE_S = 120.0
WAYS = {"waiting": ("-w", 8), "asynchronous": ("-y", "true")}


def facts(side: str, folder: Path) -> None:
    """Runs the producers one after the other beside one consumer, until all is consumed."""
    figures: list[str] = []
    with running_side(side, folder, {"mappedFileSizeCommitLog": SEGMENT}) as place:
        consumer = Example("benchmark.Consumer", folder / "consumer", ["-g", GROUP, "-p", "false"])
        consumer.await_line("Consumer Started")
        for way, arguments in WAYS.items():
            producer = Example("benchmark.Producer", folder / way, ["-q", COUNT, *arguments])
            said = producer.await_line(r"\[Complete\].*", PATIENCE_S)
            counts = re.findall(r"(Send Total|Send Failed|Response Failed): (\d+)", said)
            tell(f"{way}: {counts}")
            figures.append(f"{way}: {said}")
        wait_until(lambda: consumed(place) == (2 * COUNT, 2 * COUNT), "consumed", PATIENCE_S)
        producer = Example("benchmark.BatchProducer", folder / "batches", ["-b", 100])
        wait_until(lambda: consumed(place)[0] >= 2 * COUNT + BATCHED, "batches", PATIENCE_S)
        producer.kill()
        wait_until(lambda: len(set(consumed(place))) == 1, "batches consumed", PATIENCE_S)
        tell(f"consumer: {consumer.await_line('FAIL: [0-9]+')}")
        figures += [line for line in consumer.output().splitlines() if "TPS" in line]
        consumer.kill()
    for figure in figures:
        tell(f"figure: {figure}")


if __name__ == "__main__":
    sys.exit(run_one(facts))
