"""Kills a node in part under transactions of RocketMQ's Java client, and a real broker beside it.

Two programs run: `Transactions`, which writes down what was acknowledged and what it was asked, and
RocketMQ's own benchmark `TransactionProducer`. Gateway, tasks and writer are killed with SIGKILL in
turn. A message that was acknowledged and committed must be delivered, one that was rolled back must
not be seen; deliveries beside the first and questions in vain are counted.

    python -m tests.soak.clients.transaction_kills --seconds 180 --every 10 --broker

Exit codes: 0 nothing was lost or shown, 1 something was, 2 usage. It needs Java and Maven.
"""

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from node.store.opening import StoppedStore, open_store
from protocol.names import HALF_TOPIC
from protocol.record.codec import Record
from scripts.rivals.rocketmq import Jvm, missing
from tests.interop import probe
from tests.soak.clients.programs import QUIET_HEAP, java_classes
from tests.soak.clients.servers import KilledBroker, KilledKeelog, KilledServer
from tests.soak.clients.transaction_load import JavaTransactions, Outcome, judged, told
from tests.soak.command import folder_of, leave, phases

SETTINGS: Mapping[str, object] = {"transactionCheckInterval": 5_000}
KILLED = ("gateway", "tasks", "writer")
OWN_TOPIC, BENCHMARK_TOPIC = "decided", "benchmark"
BENCHMARK = "org.apache.rocketmq.example.benchmark.TransactionProducer"
RATES = ("-sr", "0.1", "-su", "0.1", "-cr", "0.2", "-cu", "0.2")
"""Of messages: rolled back at once, and open; of questions: rolled back, and open still."""
CALM_S = 60.0
"""After the last kill: all that is open is asked for."""
COMMIT, UNKNOWN = 0, 2
_RESULT_AT, _RESULTS = 16, 21
_UNEXPECTED = re.compile("unexpected check")
_DUPLICATED = re.compile(r"DuplicatedCheck: (\d+)")


class BenchmarkOutcome(NamedTuple):
    """The counts of TransactionProducer, by the half messages in the log."""

    halves: int
    delivered: int
    lost: int
    """Committed by its rule, stored as half messages, and not delivered."""
    seen_rolled_back: int
    doubles: int
    unexpected_checks: int
    duplicated_checks: int


class KillRun(NamedTuple):
    """What a server came to."""

    kills: Mapping[str, int]
    faults: list[str]
    own: Outcome
    benchmark: BenchmarkOutcome

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, and nothing shown that was rolled back."""
        own, benchmark = self.own, self.benchmark
        wrong = own.lost + own.seen_rolled_back + benchmark.lost + benchmark.seen_rolled_back
        return not wrong and not self.faults


def run(
    server: KilledServer, folder: Path, options: argparse.Namespace, kinds: tuple[str, ...]
) -> KillRun:
    """Kills one server under load, waits until all is decided, and counts."""
    clients = folder / "clients"
    running: list[Jvm] = []
    try:
        server.start()
        own = JavaTransactions("own", clients, server.name_server, OWN_TOPIC)
        running.append(own)
        benchmark = _benchmark(clients, server.name_server)
        running.append(benchmark)
        until = time.monotonic() + options.seconds
        number = 0
        while time.monotonic() < until:
            time.sleep(options.every)
            server.kill(kinds[number % len(kinds)])
            number += 1
            options.tell(f"{server.name}: {number} kills")
        time.sleep(CALM_S / 2)
        own.send_no_more()
        judged_before_ms = int(time.time() * 1000)
        time.sleep(CALM_S)
        own.finish()
        benchmark.kill()
        server.stop()
    finally:
        for client in running:
            client.kill()
        server.close()
    said = (clients / "benchmark.log").read_text(errors="replace")
    with open_store(server.root, server.settings) as store:
        bodies = [one.body for one in messages(store, OWN_TOPIC)]
        of_benchmark = _benchmark_outcome(store, judged_before_ms, said)
    kills, faults = dict(server.kills), server.faults
    return KillRun(kills, faults, judged(told(clients), bodies), of_benchmark)


def _benchmark(home: Path, name_server: str) -> Jvm:
    """RocketMQ's TransactionProducer, which sends until it is killed."""
    probe.build()
    arguments = ["-t", BENCHMARK_TOPIC, "-n", name_server, "-w", "4", "-s", "256", "-i", "20"]
    command = [*QUIET_HEAP, "-cp", java_classes(), BENCHMARK, *arguments, *RATES]
    return Jvm("benchmark", home, command, talks=False)


def _benchmark_outcome(store: StoppedStore, before_ms: int, said: str) -> BenchmarkOutcome:
    """Its messages say what becomes of them (TransactionProducer#buildMessage)."""
    halves = {
        one.unique_key: one
        for one in messages(store, HALF_TOPIC)
        if one.properties.get("REAL_TOPIC") == BENCHMARK_TOPIC
    }
    old = {key for key, one in halves.items() if one.head.born_timestamp < before_ms}
    committed = {key for key in halves if _decision(halves[key].body) == COMMIT}
    found = Counter(one.unique_key for one in messages(store, BENCHMARK_TOPIC))
    return BenchmarkOutcome(
        halves=len(halves),
        delivered=len(found),
        lost=len((committed & old) - found.keys()),
        seen_rolled_back=len(found.keys() - committed),
        doubles=found.total() - len(found),
        unexpected_checks=len(_UNEXPECTED.findall(said)),
        duplicated_checks=sum(map(int, _DUPLICATED.findall(said))),
    )


def _decision(body: bytes) -> int:
    """The first of its results that is not "unknown"."""
    results = body[_RESULT_AT : _RESULT_AT + _RESULTS]
    return next((one for one in results if one != UNKNOWN), UNKNOWN)


def messages(store: StoppedStore, topic: str) -> Iterator[Record]:
    """All messages of a topic."""
    for queue in store.queues():
        reader = store.queue(*queue) if queue.topic == topic else None
        for offset in range(reader.min_offset, reader.max_offset) if reader else ():
            unit = reader.unit(offset) if reader else None
            assert unit is not None
            yield store.look_up(unit.physical_offset)


def shown(name: str, found: KillRun) -> str:
    """For people."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(found.kills.items()))
    return "\n".join(
        [
            f"{name}: kills {kinds}",
            *(f"  own {field}: {value}" for field, value in found.own._asdict().items()),
            *(
                f"  TransactionProducer {field}: {value}"
                for field, value in found.benchmark._asdict().items()
            ),
            *(f"  FAULT: {fault}" for fault in found.faults),
        ]
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--seconds", type=float, default=600.0, help="of kills, at each server (default 600)")
    add("--every", type=float, default=10.0, help="seconds between two kills (default 10)")
    add("--broker", action="store_true", help="then a broker of RocketMQ under the same kills")
    add("--seed", type=int, default=1)
    add("--store", type=Path, help="an empty folder to work in, kept (default: temporary)")
    options = parser.parse_args()
    if reason := missing():
        parser.error(reason)
    return options


def main() -> int:
    """Runs, prints, returns the exit code."""
    options = arguments()
    folder = folder_of(options.store, "transactions")
    makers: dict[str, tuple[Callable[[Path], KilledServer], tuple[str, ...]]] = {
        "Keelog": (
            lambda home: KilledKeelog(
                home, random.Random(options.seed), options.tell, more=SETTINGS
            ),
            KILLED,
        )
    }
    if options.broker:
        makers["RocketMQ"] = (
            lambda home: KilledBroker(home, options.tell, SETTINGS),
            KilledBroker.kinds,
        )
    found = {}
    with phases(False) as options.tell:
        for name, (make, kinds) in makers.items():
            home = folder / name
            home.mkdir()
            found[name] = run(make(home), home, options, kinds)
            print(shown(name, found[name]), flush=True)
    # What a broker of RocketMQ does is shown, and not judged.
    return leave(folder, options.store, not found["Keelog"].is_good)


if __name__ == "__main__":
    sys.exit(main())
