"""One directory goes from a node to a real broker and back, in the middle of a group's work."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keelog.bench.node_process import ANY_DISK, Node
from node.runtime.settings import load_settings
from node.supervisor.bind import free_ports
from protocol.names import CONSUMER_OFFSETS_FILE, DELAY_OFFSETS_FILE
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import parse_java_json
from scripts.rivals.rocketmq import Addresses, RocketMQ, class_path, missing
from tests.interop import probe
from tests.interop.test_name_server import NameServer
from tests.interop.test_rocketmq import settings_of
from tests.soak.clients.check import (
    HANDED_BACK,
    SENT,
    Committed,
    Repeats,
    check_committed,
    check_given,
    check_stored,
    committed_of,
    read_kept,
)
from tests.soak.clients.programs import JavaLoad
from tests.soak.clients.servers import BROKER, BROKER_HEAP, BROKER_SETTINGS, NO_SETTINGS
from tests.soak.harness import KilledNode
from tests.support.node import wait_until
from tests.support.remoting import RemotingPeer

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
CLUSTER = "swapped"
SOON_S, LATER_S = 2, 60
"""Of the first delay level, and of the others: longer than a change of owners takes."""
SIZES: dict[str, object] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 8_000,
    "messageDelayLevel": f"{SOON_S}s {LATER_S}s {LATER_S}s",
}
COUNT, PART = 300, 250
"""Messages of each of two producers at an owner, and how many of them it lets the group consume."""
PATIENCE_S = 180.0
SAVED_S = 6.0
"""A broker saves the offsets of groups each 5 s."""


class Positions(NamedTuple):
    """The offsets that an owner has left: the group's by queue, and those of delay levels."""

    committed: Committed
    delays: dict[int, int]


class SwappedFolder:
    """A directory and its two possible owners, at one address and under one name."""

    def __init__(
        self, home: Path, name_server: str, more: Mapping[str, object] = NO_SETTINGS
    ) -> None:
        home.mkdir()
        port = free_ports(4) + 2
        self.place = ("127.0.0.1", port)
        named = {"brokerName": BROKER, "brokerClusterName": CLUSTER}
        addresses = Addresses(name_server, f"127.0.0.1:{port}")
        self.broker = RocketMQ(
            class_path(),
            home,
            addresses,
            {**BROKER_SETTINGS, **SIZES, **named, **more},
            BROKER_HEAP,
        )
        self.root = self.broker.store
        files = [*settings_of({**SIZES, **more}), *ANY_DISK]
        self.settings = load_settings(files)
        pairs = [
            *files, f"serve.remoting=127.0.0.1:{port}", f"broker.broker_name={BROKER}",
            f"broker.broker_cluster_name={CLUSTER}", f"broker.namesrv_addr={name_server}",
        ]  # fmt: skip
        self.node = KilledNode(home, Node(self.root, pairs, readers=1))

    def positions(self, load: JavaLoad) -> Positions:
        """What the owner that has ended left in its files."""
        groups = self._table(CONSUMER_OFFSETS_FILE)
        topics = {load.topic: 0, load.retry_topic: 2}
        committed = {
            (0, number, int(queue)): offset
            for topic, number in topics.items()
            for queue, offset in groups.get(f"{topic}@{load.group}", {}).items()
        }
        levels = self._table(DELAY_OFFSETS_FILE)
        return Positions(committed, {int(level): offset for level, offset in levels.items()})

    def _table(self, name: str) -> dict[str, Any]:
        path = self.root / name
        if not path.exists():
            return {}
        table: dict[str, Any] = parse_java_json(path.read_text())["offsetTable"]
        return table

    def delays_of_broker(self) -> dict[int, tuple[int, int]]:
        """For each level the offset of the next message and the end, as the broker has them.

        Empty while it cannot say: in its first second a broker fails to reckon its rates.
        """
        with closing(RemotingPeer(self.place)) as peer:
            answer = peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        if answer.code != ResponseCode.SUCCESS:
            return {}
        found = {}
        for name, text in parse_java_json(answer.body.decode())["table"].items():
            if name.startswith("scheduleMessageOffset_"):
                offset, _, end = text.partition(",")
                found[int(name.rpartition("_")[2])] = int(offset), int(end)
        return found

    def close(self) -> None:
        """Nobody owns it any more."""
        self.broker.kill()
        if self.node.node.is_running:
            self.node.node.kill()


def consume_some(load: JavaLoad, name: str) -> None:
    """A member of the group consumes PART messages and leaves, in the middle of the backlog."""
    before = len(load.given())
    consumer = load.consume(name, threads=1, limit=PART)
    wait_until(lambda: len(load.given()) == before + PART, "not consumed", PATIENCE_S)
    time.sleep(SOON_S + 1.0)
    consumer.finish()


def send_and_consume_some(load: JavaLoad, first: int, name: str) -> None:
    """Leaves a backlog, delayed messages, and messages that were handed back."""
    load.produce(first=first, count=COUNT, pause_ms=2).finish()
    consume_some(load, name)


@pytest.fixture(scope="module")
def swaps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[bool, "Future[Repeats]"]]:
    """Both swaps at once: each waits most of its time for delay levels. By `is_killed`."""
    probe.build()
    class_path()
    with ThreadPoolExecutor(2) as pool:
        yield {
            is_killed: pool.submit(swap, tmp_path_factory.mktemp("swap"), is_killed)
            for is_killed in (False, True)
        }


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_group_goes_on_at_each_owner_of_a_folder(
    swaps: Mapping[bool, "Future[Repeats]"], is_killed: bool
) -> None:
    repeats = swaps[is_killed].result()
    assert repeats.faults == []
    again = repeats.given_again, repeats.delivered_twice, repeats.retried_twice
    assert is_killed or again == (0, 0, 0), "each owner goes on exactly where the other was"


def swap(home: Path, is_killed: bool) -> Repeats:
    """From a node to a broker and back; each ends in order, or is killed."""
    with ExitStack() as ends:
        name_server = NameServer(home / "names")
        ends.callback(name_server.kill)
        name_server.start()
        folder = SwappedFolder(home / "home", name_server.place)
        load = JavaLoad(home / "clients", name_server.place, (BROKER,))
        ends.callback(folder.close)
        ends.callback(load.kill)
        left = work_at_node(folder, load, name_server, is_killed)
        left = go_on_at_broker(folder, load, left, is_killed)
        end_at_node(folder, load, name_server, left)
    return check_all(folder, load)


def work_at_node(
    folder: SwappedFolder, load: JavaLoad, name_server: NameServer, is_killed: bool
) -> Positions:
    """The first owner: a node."""
    folder.node.start()
    folder.node.await_all()
    wait_until(lambda: name_server.brokers("TBW102") == {BROKER}, "no route", PATIENCE_S)
    send_and_consume_some(load, 0, "at-node")
    if is_killed:
        time.sleep(SAVED_S)
        folder.node.kill_node()
    else:
        folder.node.stop()
    left = folder.positions(load)
    assert len(left.committed) == 4, "of the topic's queues; no message was tried again yet"
    assert 0 < sum(left.committed.values()) < 2 * COUNT
    return left


def go_on_at_broker(
    folder: SwappedFolder, load: JavaLoad, left: Positions, is_killed: bool
) -> Positions:
    """The second: RocketMQ's broker. It delivers what waited, and more comes."""
    folder.broker.start()
    wait_until(lambda: set(folder.delays_of_broker()) >= {1, 2, 3}, "no levels", PATIENCE_S)
    found = folder.delays_of_broker()
    assert committed_of(folder.place, load) == left.committed
    assert {level: found[level][0] for level in left.delays} == left.delays
    assert left.delays[1] == found[1][1] > 0, "the first level is delivered"
    assert all(found[level][0] < found[level][1] for level in (2, 3)), "the others wait"

    wait_until(lambda: is_all_delivered(folder), "not delivered", PATIENCE_S)
    send_and_consume_some(load, COUNT, "at-broker")
    if is_killed:
        time.sleep(SAVED_S)
        folder.broker.kill()
    else:
        folder.broker.stop()
    left = folder.positions(load)
    assert is_killed or (0, 2, 0) in left.committed, "the retry topic, too"
    assert sum(left.committed.values()) > 0
    return left


def end_at_node(
    folder: SwappedFolder, load: JavaLoad, name_server: NameServer, left: Positions
) -> None:
    """The third: the node again. The group consumes all that is left."""
    folder.node.start()
    folder.node.await_all()
    assert committed_of(folder.place, load) == left.committed
    now = folder.positions(load).delays
    assert all(now[level] >= offset for level, offset in left.delays.items()), "none goes back"
    wait_until(lambda: name_server.brokers(load.topic) == {BROKER}, "no route", PATIENCE_S)
    last = load.consume("last")
    assert not load.await_all_consumed(PATIENCE_S)
    last.finish()
    assert check_committed(committed_of(folder.place, load), load.given()) == []
    folder.node.stop()


def check_all(folder: SwappedFolder, load: JavaLoad) -> Repeats:
    """Nothing is lost; returns what was wrong, and what came twice."""
    kept = {0: read_kept(folder.root, folder.settings, load)}
    repeats = Repeats()
    check_stored(load, kept, repeats)
    check_given(load, kept, repeats)
    assert repeats.acknowledged == len(load.acknowledged()) == 4 * COUNT
    assert min((kept[0].kinds == kind).sum() for kind in (SENT, HANDED_BACK)) > 0
    folder.node.verify(settings_of(SIZES))
    assert folder.node.faults == []
    return repeats


def is_all_delivered(folder: SwappedFolder) -> bool:
    """Whether nothing waits at the broker."""
    found = folder.delays_of_broker()
    return bool(found) and all(offset == end for offset, end in found.values())
