"""Kills a node in part and as a whole under a mixed load of RocketMQ's Java client.

Five producers send numbered messages to one topic: singly, in batches, with delay levels, with
times, in transactions. Three groups consume them: `steady` has two members, `retrying` fails one
message of ten once, `failing` fails one of twenty until it is a dead letter. Gateway, tasks,
writer, reader, a worker and the whole node are killed with SIGKILL in turn. At the end each
acknowledged message was consumed by each group, or is a dead letter of the failing one, none that
was rolled back was seen, `keelog store verify --deep` finds nothing, and RocketMQ opens the folder.

    python -m tests.soak.clients.mixed_load --seconds 600 --every 30

Exit codes: 0 everything is accounted for, 1 something is not, 2 usage. It needs Java and Maven.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keelog.bench.queue_checks import Ints
from node.runtime.settings import Settings
from node.store.opening import open_store
from protocol.names import DLQ_PREFIX
from scripts.rivals.rocketmq import missing
from tests.soak.clients.mixed_account import (
    MIXED_STORED,
    MixedAccount,
    MixedRows,
    account,
    acknowledged_of,
    table,
    unfinished,
)
from tests.soak.clients.mixed_opening import Ends, open_with_broker, open_with_store
from tests.soak.clients.mixed_programs import GROUPS, MIXED_TOLD, TOPIC, MixedLoad
from tests.soak.clients.servers import KilledKeelog
from tests.soak.command import run_soak, soak_parser
from tests.soak.load import ACKNOWLEDGED, sender_of

SETTINGS: Mapping[str, object] = {"transactionCheckInterval": 5_000}
KILLED = ("gateway", "tasks", "writer", "reader", "worker", "node")
WORKERS = ("queue", "index")
"""In turn, where a worker is to be killed."""
GAP_S_MAX = 90.0
"""How long a kill may keep anything from being acknowledged."""
DRAIN_S = 180.0
SETTLE_S = 15.0
"""After the last message was consumed: dead letters and commits are on their way."""


@dataclass(slots=True)
class MixedRun:
    """What a run came to."""

    kills: Mapping[str, int]
    seconds: float
    found: MixedAccount
    gap_s_max: float = 0.0
    """The longest without an acknowledgement."""
    records: int = 0
    """In the log."""
    faults: list[str] = field(default_factory=list)


class MixedHistory:
    """One node, its load and its kills."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        self._tell: Callable[[str], None] = options.tell
        rnd = random.Random(options.seed)
        self._server = KilledKeelog(folder, rnd, options.tell, more=SETTINGS)
        self._load = MixedLoad(folder / "clients", self._server.name_server)

    def run(self) -> MixedRun:
        """All of it."""
        began = time.monotonic()
        try:
            self._server.start()
            self._under_load()
            self._server.stop()
        finally:
            self._load.kill()
            self._server.close()
        self._tell("the store is read")
        run = self._judged()
        run.seconds = time.monotonic() - began
        return run

    def _under_load(self) -> None:
        producers = self._load.produce(self._options.pause_ms)
        # The topic exists before anybody asks for its route.
        self._await_first()
        consumers = [one for rule in GROUPS for one in self._load.consume(rule)]
        until = time.monotonic() + self._options.seconds
        number = 0
        while (wait_s := min(self._options.every, until - time.monotonic())) > 0:
            time.sleep(wait_s)
            if time.monotonic() < until:
                self._server.kill(self._victim(number))
                number += 1
        producers.next_step()
        self._tell("all is sent")
        self._drain()
        for client in (*consumers, producers):
            client.finish()

    def _victim(self, number: int) -> str:
        rounds, place = divmod(number, len(KILLED))
        kind = KILLED[place]
        return WORKERS[rounds % len(WORKERS)] if kind == "worker" else kind

    def _await_first(self) -> None:
        until = time.monotonic() + GAP_S_MAX
        while not len(acknowledged_of(self._load.told())) and time.monotonic() < until:
            time.sleep(0.1)

    def _drain(self) -> None:
        until = time.monotonic() + DRAIN_S
        while unfinished(self._load.told(), self._load.given()) and time.monotonic() < until:
            time.sleep(1.0)
        time.sleep(SETTLE_S)

    def _judged(self) -> MixedRun:
        stored = read_stored(self._server.root, self._server.settings)
        told = self._load.told()
        dead = {rule.name: stored.dead(rule.name) for rule in GROUPS}
        rows = MixedRows(told, self._load.given(), stored.rows(TOPIC), dead)
        found = account(rows)
        good = told[told[:, MIXED_TOLD.index("outcome")] == ACKNOWLEDGED]
        moments = np.sort(good[:, MIXED_TOLD.index("ns")])
        gap_s = float(np.diff(moments).max()) / 1e9 if len(moments) > 1 else GAP_S_MAX
        faults = [*self._server.faults, *found.faults]
        if gap_s >= GAP_S_MAX:
            faults.append(f"nothing was acknowledged for {gap_s:.0f} s")
        self._tell("RocketMQ opens the folder")
        root = self._server.root
        work = self._folder / "rocketmq"
        faults += open_with_store(root, work, stored.records, stored.ends)
        faults += open_with_broker(root, stored.ends)
        return MixedRun(dict(self._server.kills), 0.0, found, gap_s, stored.records, faults)


@dataclass(slots=True)
class StoredMessages:
    """What a store at rest has: kind, number and place of each message, by topic."""

    by_topic: dict[str, list[tuple[int, int, int]]]
    ends: Ends
    records: int

    def rows(self, topic: str) -> Ints:
        """Rows of MIXED_STORED."""
        return np.array(self.by_topic.get(topic, []), np.int64).reshape(-1, len(MIXED_STORED))

    def dead(self, group: str) -> Ints:
        """The dead letters of a group."""
        return self.rows(f"{DLQ_PREFIX}{group}")


def read_stored(root: Path, settings: Settings) -> StoredMessages:
    """Reads the whole log, and where queues end."""
    wanted = {TOPIC, *(f"{DLQ_PREFIX}{rule.name}" for rule in GROUPS)}
    found = StoredMessages({name: [] for name in wanted}, {}, 0)
    with open_store(root, settings) as store:
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            found.records += len(columns)
            for row in range(len(columns)):
                topic = columns.piece(columns.topic_start, columns.topic_length, row).decode()
                if topic in wanted:
                    body = columns.piece(columns.body_start, columns.body_length, row)
                    place = int(columns.physical_offset[row])
                    found.by_topic[topic].append((*sender_of(body), place))
        for queue in store.queues():
            if queue.topic in wanted:
                reader = store.queue(*queue)
                found.ends[queue.topic, queue.queue_id] = reader.max_offset if reader else 0
    return found


def shown(run: MixedRun) -> str:
    """For people: two tables."""
    kills = ", ".join(f"{kind} {count}" for kind, count in sorted(run.kills.items()))
    return "\n".join(
        [
            f"{sum(run.kills.values())} kills in {run.seconds:.0f} s ({kills});"
            f" {run.records:,} records; longest gap {run.gap_s_max:.1f} s",
            table("kind", run.found.kinds),
            table("group", run.found.groups),
            *(f"FAULT: {fault}" for fault in run.faults),
            *([] if run.faults else ["everything is accounted for"]),
        ]
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = soak_parser(__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=600.0, help="of load (default 600)")
    add("--every", type=float, default=30.0, help="seconds between two kills (default 30)")
    add("--pause-ms", type=int, default=10, help="of each producer after a send (default 10)")
    options = parser.parse_args()
    if options.seconds <= 0 or options.every <= 0 or options.pause_ms < 0:
        parser.error("times are above 0")
    if reason := missing():
        parser.error(reason)
    return options


def main() -> int:
    """Runs, prints, returns the exit code."""
    options = arguments()
    return run_soak(options, "mixed", lambda folder: MixedHistory(folder, options).run(), shown)


if __name__ == "__main__":
    sys.exit(main())
