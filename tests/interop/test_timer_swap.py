"""A directory with timer messages that wait goes from a node to a real broker and back."""

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from keelog import UnknownTopic, connect
from keelog.bench.node_process import ANY_DISK, Node
from protocol.names import TIMER_TOPIC
from protocol.record.codec import Record
from protocol.remoting.codes import RequestCode, ResponseCode
from scripts.rivals.rocketmq import Addresses, RocketMQ, class_path, missing, start_name_server
from tests.interop.test_rocketmq import settings_of
from tests.support.node import wait_until
from tests.support.remoting import RemotingPeer, send_fields

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
BROKER, CLUSTER = "timed", "swapped"
HEAP = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
SIZES: dict[str, object] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 8_000,
}
BROKER_SETTINGS = {
    **SIZES, "brokerName": BROKER, "brokerClusterName": CLUSTER, "recallMessageEnable": "true",
    "diskMaxUsedSpaceRatio": 95,
}  # fmt: skip
COUNT = 30
PATIENCE_S = 60.0


class Swapped:
    """A directory and its two possible owners, at one address and under one name."""

    def __init__(self, home: Path, addresses: Addresses) -> None:
        host, _, port = addresses.broker.partition(":")
        self.place = (host, int(port))
        self.broker = RocketMQ(class_path(), home, addresses, BROKER_SETTINGS, HEAP)
        pairs = [
            *settings_of(SIZES), *ANY_DISK, f"serve.remoting={addresses.broker}",
            f"broker.broker_name={BROKER}", f"broker.broker_cluster_name={CLUSTER}",
            "recall_message_enable=true",
        ]  # fmt: skip
        self.node = Node(self.broker.store, pairs, readers=1)
        self.node.talk = home / "node.log"

    def send(self, body: str, due_ms: int) -> str:
        """Sends a timer message; returns its recall handle."""
        text = f"UNIQ_KEY\x01{body}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
        with closing(RemotingPeer(self.place)) as peer:
            answer = peer.ask(
                RequestCode.SEND_MESSAGE_V2, send_fields("timed", 1, i=text), body.encode()
            )
        assert answer.code == ResponseCode.SUCCESS, answer.header.remark
        return answer.ext["recallHandle"]

    def recall(self, handle: str) -> None:
        with closing(RemotingPeer(self.place)) as peer:
            fields = {"producerGroup": "g", "topic": "timed", "recallHandle": handle}
            answer = peer.ask(RequestCode.RECALL_MESSAGE, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.header.remark

    def end(self, is_killed: bool) -> None:
        """Ends whoever owns the directory."""
        owner = self.broker if self.broker.jvm is not None else self.node
        if owner is self.broker or self.node.is_running:
            end = owner.kill if is_killed else owner.stop
            end()


@pytest.fixture
def swapped(tmp_path: Path) -> Iterator[Swapped]:
    addresses = Addresses.free()
    home = tmp_path / "home"
    names = start_name_server(class_path(), tmp_path / "names", addresses.name_server)
    home.mkdir()
    found = Swapped(home, addresses)
    try:
        yield found
    finally:
        found.end(is_killed=True)
        names.kill()


def now_ms() -> int:
    return int(time.time() * 1000)


def delivered(node: Node, topic: str = "timed") -> list[Record]:
    with connect(node.endpoint, timeout=30.0) as client, suppress(UnknownTopic):
        return [one.record for one in client.tail(topic, "earliest", until_end=True)]
    return []


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_timer_messages_go_on_at_each_owner_of_a_folder(swapped: Swapped, is_killed: bool) -> None:
    due: dict[str, int] = {}
    recalled: list[str] = []

    def send_some(owner: str) -> None:
        """Due now and then, at this owner, in the change, at the next one."""
        began = now_ms()
        for number in range(COUNT):
            name = f"{owner}-{number}"
            due[name] = began + 1500 + number * 1300
            swapped.send(name, due[name])
        recalled.append(swapped.send(f"{owner}-gone", began + 1500 + COUNT * 1300))

    swapped.node.start()
    with connect(swapped.node.endpoint, timeout=30.0) as client:
        client.create_topic("timed", 4)
    send_some("node")
    time.sleep(4.0)
    swapped.end(is_killed)

    swapped.broker.start()
    began = now_ms()
    send_some("broker")
    for handle in recalled:
        swapped.recall(handle)
    time.sleep(8.0)
    swapped.end(is_killed)
    ended = now_ms()

    swapped.node.start()
    wait_until(
        lambda: len({one.unique_key for one in delivered(swapped.node)}) >= len(due),
        "some did not come", PATIENCE_S,
    )  # fmt: skip
    time.sleep(max(0.0, max(due.values()) / 1000 + 4.0 - time.time()))
    found = delivered(swapped.node)
    assert {one.unique_key for one in found} == set(due), "those that were recalled never come"
    repeats = len(found) - len(due)
    assert repeats <= (12 if is_killed else 3), "those of some seconds, of the second of the stop"
    times = {one.unique_key: one.head.store_timestamp for one in found}
    for one in found:
        assert one.head.store_timestamp >= due[one.unique_key]
    at_broker = {key for key, one in times.items() if began < one < ended}
    assert {key.partition("-")[0] for key in at_broker} == {"node", "broker"}
    assert any(one > ended and key.startswith("broker") for key, one in times.items())
    waited = delivered(swapped.node, TIMER_TOPIC)
    assert len({one.unique_key for one in waited}) == len(due) + 2
    swapped.end(is_killed=False)
