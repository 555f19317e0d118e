"""RocketMQ's benchmarks `Producer`, `BatchProducer` and `Consumer` at one side; prints the outcome.

`Producer` sends a number of messages, then `BatchProducer` until it has printed its first figures.
All of it has to be consumed.
"""

import re
import sys
from pathlib import Path

from tests.clients.examples.running import Example, run_one, running_side, tell
from tests.clients.examples.timers import GROUP, SEGMENT, consumed
from tests.support.node import wait_until

COUNT, THREADS = 5_000, 8
"""Messages of `Producer`, and threads of either. More threads, or `Producer -y`, which does not
wait for answers, find a broker busy on two processors that both sides share."""
PATIENCE_S = 120.0
FAILED = re.compile(r"((?:Send|Response)(?: Message)? Failed): (\d+)")


def facts(side: str, folder: Path) -> None:
    """Runs the producers beside one consumer, until all is consumed."""
    with running_side(side, folder, {"mappedFileSizeCommitLog": SEGMENT}) as place:
        consumer = Example("benchmark.Consumer", folder / "consumer", ["-g", GROUP, "-p", "false"])
        consumer.await_line("Consumer Started")
        producer = Example("benchmark.Producer", folder / "lone", ["-w", THREADS, "-q", COUNT])
        figures = [producer.await_line(r"\[Complete\].*", PATIENCE_S)]
        producer = Example("benchmark.BatchProducer", folder / "batches", ["-w", THREADS])
        figures.append(producer.await_line(r"Current Time.*", PATIENCE_S))
        producer.kill()
        wait_until(lambda: len(set(consumed(place))) == 1, "not all consumed", PATIENCE_S)
        stored, taken = consumed(place)
        for said in figures:
            tell(f"producer: {FAILED.findall(said)}")
        tell(f"consumer: {consumer.await_line('Consume Fail: [0-9]+')}, all: {taken > COUNT}")
        consumer.kill()
    for said in [*figures, f"{stored} messages stored and consumed"]:
        tell(f"figure: {said}")


if __name__ == "__main__":
    sys.exit(run_one(facts))
