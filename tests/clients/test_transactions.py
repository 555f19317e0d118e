"""Transactions of RocketMQ's Java client, unmodified: at a node and at a broker, then a directory
with open transactions that goes from one to the other and back."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.store.opening import open_store
from protocol.names import HALF_TOPIC, OP_TOPIC
from protocol.record.codec import Record
from scripts.rivals.rocketmq import missing
from tests.clients.test_folder_swap import SwappedFolder
from tests.interop import probe
from tests.interop.test_name_server import NameServer
from tests.soak.clients.servers import BROKER
from tests.soak.clients.transaction_load import (
    KINDS,
    JavaTransactions,
    TransactionLoad,
    is_committed,
    judged,
    told,
)
from tests.support.node import wait_until

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
TOPIC = "decided"
QUICK: dict[str, object] = {
    "transactionTimeOut": 3_000,
    "transactionCheckInterval": 4_000,
    "transactionCheckMax": 1_000,
    "transactionOpBatchInterval": 200,
    "messageDelayLevel": "1s 2s",
    "defaultTopicQueueNums": 1,
}
COUNT = 50
OPEN_KINDS = 3
PATIENCE_S = 120.0
OWN_NAMES = ("UNIQ_KEY", "__transactionId__", "__CRC32#", "REAL_QID", "CLUSTER")
"""Properties with another value in each run."""


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[NameServer]:
    probe.build()
    server = NameServer(tmp_path / "names")
    try:
        server.start()
        yield server
    finally:
        server.kill()


def records_of(folder: SwappedFolder, topic: str) -> list[Record]:
    """All messages of a topic, by queue and offset, of a store at rest or not."""
    found = []
    with open_store(folder.root) as store:
        for queue_id in range(16):
            queue = store.queue(topic, queue_id)
            if queue is None:
                continue
            for offset in range(queue.min_offset, queue.max_offset):
                unit = queue.unit(offset)
                assert unit is not None
                found.append(store.look_up(unit.physical_offset))
    return found


def fields_of(record: Record, halves: dict[int, bytes]) -> tuple[Any, ...]:
    """What must be equal at both owners; a half message is named by its body."""
    head = record.head
    properties = {name: value for name, value in record.properties.items() if name not in OWN_NAMES}
    names = sorted(name for name in record.properties if name != "__CRC32#")
    half = halves.get(head.prepared_transaction_offset, b"")
    return (
        record.topic, record.body.strip(), head.flag, head.sys_flag, head.reconsume_times,
        half.strip(), tuple(sorted(properties.items())), tuple(names), record.tags,
    )  # fmt: skip


def stored_fields(folder: SwappedFolder) -> dict[str, list[tuple[Any, ...]]]:
    """The fields of the messages of transactions, and the offsets in op messages."""
    halves = records_of(folder, HALF_TOPIC)
    by_place = {one.physical_offset: one.body for one in halves}
    by_offset = {one.head.queue_offset: one.body.strip() for one in halves}
    ops = records_of(folder, OP_TOPIC)
    ended = [int(one) for op in ops for one in op.body.split(b",") if one]
    shapes = {
        (op.tags, op.head.sys_flag, op.head.flag, op.head.queue_id, op.body[-1:],
         tuple(sorted((n, v) for n, v in op.properties.items() if n != "__CRC32#")))
        for op in ops
    }  # fmt: skip
    return {
        "halves": sorted({fields_of(one, by_place) for one in halves}),
        "delivered": sorted({fields_of(one, by_place) for one in records_of(folder, TOPIC)}),
        "ended": sorted({(by_offset[one],) for one in ended}),
        "ops": sorted(shapes),
    }


def all_delivered(folder: SwappedFolder, count: int) -> Callable[[], bool]:
    """Whether all messages before a number are, that are committed."""
    wanted = {number for number in range(count) if is_committed(number)}
    return lambda: wanted <= {int(one.body) for one in records_of(folder, TOPIC)}


def all_ended(folder: SwappedFolder) -> bool:
    """Whether an op message names the newest half message of each transaction."""
    newest = {one.unique_key: one.head.queue_offset for one in records_of(folder, HALF_TOPIC)}
    ops = records_of(folder, OP_TOPIC)
    ended = {int(one) for op in ops for one in op.body.split(b",") if one}
    return set(newest.values()) <= ended


def run_at(
    folder: SwappedFolder, home: Path, name_server: NameServer
) -> dict[str, list[tuple[Any, ...]]]:
    """All kinds of transactions at the running owner, until all have ended."""
    wait_until(lambda: name_server.brokers("TBW102") == {BROKER}, "no route", PATIENCE_S)
    load = TransactionLoad(threads=1, pause_ms=1, messages=COUNT)
    producer = JavaTransactions("all", home, name_server.place, TOPIC, load)
    try:
        producer.send_no_more()
        wait_until(all_delivered(folder, COUNT), "not delivered", PATIENCE_S)
        wait_until(lambda: all_ended(folder), "not ended", PATIENCE_S)
        producer.finish()
    finally:
        producer.kill()
    return stored_fields(folder)


def test_all_records_of_transactions_have_the_fields_of_a_brokers(
    tmp_path: Path, name_server: NameServer
) -> None:
    found = {}
    for owner in ("node", "broker"):
        folder = SwappedFolder(tmp_path / owner, name_server.place, QUICK)
        try:
            if owner == "node":
                folder.node.start()
                folder.node.await_all()
            else:
                folder.broker.start()
            found[owner] = run_at(folder, tmp_path / f"client-{owner}", name_server)
            (folder.node if owner == "node" else folder.broker).stop()
        finally:
            folder.close()
        wait_until(lambda: not name_server.brokers("TBW102"), "still there", PATIENCE_S)
        bodies = [one.body for one in records_of(folder, TOPIC)]
        outcome = judged(told(tmp_path / f"client-{owner}"), bodies)
        assert outcome.acknowledged == COUNT
        assert (outcome.lost, outcome.seen_rolled_back) == (0, 0), owner
        if owner == "node":
            # A broker asks for what its client has ended in the moment before.
            assert outcome[4:] == (0, COUNT * 2 // KINDS, 0, 0), outcome
    for what, rows in found["broker"].items():
        assert found["node"][what] == rows, what


class Owners:
    """A folder with two possible owners, and the client that is at each in turn."""

    def __init__(self, folder: SwappedFolder, home: Path, name_server: NameServer) -> None:
        self.folder, self._home, self._names = folder, home, name_server
        self.clients: list[JavaTransactions] = []

    def start(self, owner: str) -> None:
        """Starts an owner; its clients find it."""
        if owner == "node":
            self.folder.node.start()
            self.folder.node.await_all()
        else:
            self.folder.broker.start()
        wait_until(lambda: self._names.brokers("TBW102") == {BROKER}, "no route", PATIENCE_S)

    def end(self, owner: str, *, is_killed: bool) -> None:
        """Ends an owner."""
        server = self.folder.node if owner == "node" else self.folder.broker
        if not is_killed:
            server.stop()
        elif owner == "node":
            self.folder.node.kill_node()
        else:
            self.folder.broker.kill()
        wait_until(lambda: not self._names.brokers("TBW102"), "still there", PATIENCE_S)

    def client(self, name: str, load: TransactionLoad) -> JavaTransactions:
        """A producer that has sent all; it answers questions."""
        made = JavaTransactions(name, self._home, self._names.place, TOPIC, load)
        self.clients.append(made)
        made.send_no_more()
        return made

    def leave_open(self, name: str, first: int) -> None:
        """Sends transactions; those that are asked for are open still, after some questions."""
        load = TransactionLoad(threads=1, pause_ms=1, first=first, messages=COUNT, decides=False)
        client = self.client(name, load)
        asked = {first + n for n in range(COUNT) if (first + n) % KINDS >= OPEN_KINDS}
        wait_until(lambda: asked <= told(self._home).asked.keys(), "not asked", PATIENCE_S)
        client.finish()

    def decide(self, name: str, count: int) -> None:
        """A producer of the group answers for all that is open."""
        # A client is at no broker before it has sent something.
        client = self.client(name, TransactionLoad(threads=1, first=1_000 * count, messages=1))
        wait_until(all_delivered(self.folder, count), "not delivered", PATIENCE_S)
        wait_until(lambda: all_ended(self.folder), "not ended", PATIENCE_S)
        client.finish()


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_open_transactions_go_on_at_each_owner_of_a_folder(
    tmp_path: Path, name_server: NameServer, is_killed: bool
) -> None:
    home = tmp_path / "clients"
    folder = SwappedFolder(tmp_path / "home", name_server.place, QUICK)
    owners = Owners(folder, home, name_server)
    try:
        owners.start("node")
        owners.leave_open("at-node", 0)
        owners.end("node", is_killed=is_killed)
        owners.start("broker")
        owners.decide("decides-at-broker", COUNT)
        owners.leave_open("at-broker", COUNT)
        owners.end("broker", is_killed=is_killed)
        owners.start("node")
        owners.decide("decides-at-node", 2 * COUNT)
        owners.end("node", is_killed=False)
    finally:
        for client in owners.clients:
            client.kill()
        folder.close()
    said = told(home)
    outcome = judged(said, [one.body for one in records_of(folder, TOPIC)])
    assert len(said.sent) == 2 * COUNT + 2
    assert (outcome.lost, outcome.seen_rolled_back) == (0, 0), outcome
