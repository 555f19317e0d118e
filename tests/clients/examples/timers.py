"""RocketMQ's benchmark of timer messages at one side; prints what came, and how late.

`TimerProducer` sends messages that are due in ten seconds of a row, two minutes later, and
`TimerConsumer` takes them. The store says afterwards what was delivered when.
"""

import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from node.runtime.settings import load_settings
from node.store.opening import open_store
from protocol.record.codec import Record
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import parse_java_json
from tests.clients.examples.running import Example, run_one, running_side, tell
from tests.clients.sides import Side, place_of
from tests.soak.clients.transaction_kills import messages
from tests.support.node import wait_until
from tests.support.remoting import RemotingPeer

TOPIC, GROUP = "BenchmarkTest", "benchmark_consumer"
THREADS, SECONDS, EACH = 2, 10, 25
COUNT = THREADS * SECONDS * EACH
PATIENCE_S = 200.0
DUE = "MY_RECORD_TIMER_DELIVER_MS"
"""The property in which the producer says when a message is due."""
SEGMENT = 64 << 20
FOLDERS = {"broker": "rocketmq/broker/store", "node": "store"}


def facts(side: str, folder: Path) -> None:
    """Runs producer and consumer until all is consumed."""
    with running_side(side, folder, {"mappedFileSizeCommitLog": SEGMENT}) as place:
        consumer = Example("benchmark.timer.TimerConsumer", folder / "consumer")
        # Not beside the producer's start: its first send would be late, and is not tried again.
        consumer.await_line("Consume TPS")
        arguments = ["-tc", THREADS, "-st", SECONDS, "-mt", EACH, "-ms", 128]
        producer = Example("benchmark.timer.TimerProducer", folder / "producer", arguments)
        try:
            wait_until(lambda: consumed(place)[1] >= COUNT, "not all consumed", PATIENCE_S)
            tell(f"delivered {consumed(place)[0]} of {COUNT}, consumed {consumed(place)[1]}")
        finally:
            producer.kill()
            consumer.kill()
    settings = load_settings([f"mapped_file_size_commit_log={SEGMENT}"])
    with open_store(folder / FOLDERS[side], settings) as store:
        delivered = list(messages(store, TOPIC))
    times = Counter(one.unique_key for one in delivered)
    tell(f"more than once: {sum(count > 1 for count in times.values())}")
    late_ms = [one.head.store_timestamp - int(one.properties[DUE]) for one in delivered]
    tell(f"before its time: {sum(one < 0 for one in late_ms)}")
    tell(f"properties: {' '.join(sorted({name for one in delivered for name in names(one)}))}")
    tell(f"late by {min(late_ms)} to {max(late_ms)} ms, {sum(late_ms) / len(late_ms):.0f} in mean")


def names(record: Record) -> set[str]:
    """Of a message's properties, without the checksum that a broker does not write."""
    return set(record.properties) - {"__CRC32#"}


def consumed(side: Side) -> tuple[int, int]:
    """How many messages the topic has, and how many the group has consumed."""
    with closing(RemotingPeer(place_of(side.broker))) as peer:
        found = peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC})
    if found.code != ResponseCode.SUCCESS:
        return 0, 0
    table = parse_java_json(found.body.decode())["offsetTable"].values()
    return tuple(
        sum(max(queue[name], 0) for queue in table) for name in ("brokerOffset", "consumerOffset")
    )


if __name__ == "__main__":
    sys.exit(run_one(facts))
