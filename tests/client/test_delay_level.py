"""Sends with a delay level through our own protocol: what is stored, and when it comes."""

import asyncio
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

import keelog.aio
from keelog import BadRequest, NotAllowed, OutgoingMessage, Receipt, UnknownTopic
from protocol.names import SCHEDULE_TOPIC
from protocol.record.codec import Record
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import RemotingPeer, remoting_place, send_fields
from tests.support.shared_node import LEVELS

pytestmark = pytest.mark.process
LAST = len(LEVELS)
"""The level of hours."""
ADDED_BY_GATEWAY = {"CLUSTER", "MSG_REGION", "TRACE_ON"}
"""Of a single send of RocketMQ's clients, with a delay or without."""


@pytest.fixture
def node(shared_node: RunningNode) -> RunningNode:
    return shared_node


def stored(node: RunningNode, topic: str) -> list[Record]:
    with suppress(UnknownTopic):
        return [one.record for one in node.client.tail(topic, "earliest", until_end=True)]
    return []


def waiting(node: RunningNode, unique_key: str) -> Record:
    def found() -> list[Record]:
        return [one for one in stored(node, SCHEDULE_TOPIC) if one.unique_key == unique_key]

    wait_until(lambda: len(found()) == 1, "it does not wait")
    return found()[0]


def test_a_message_comes_after_its_level_and_its_receipt_names_its_queue(
    node: RunningNode,
) -> None:
    began = time.time()
    receipt = node.client.send(
        "late-sent",
        b"body",
        tags="red",
        keys=["k"],
        properties={"a": "b"},
        queue_id=3,
        delay_level=1,
    )
    assert (receipt.status, receipt.topic, receipt.queue_id) == ("PUT_OK", "late-sent", 3)
    waits = waiting(node, receipt.unique_key)
    assert (waits.physical_offset, waits.message_id) == (receipt.physical_offset, receipt.msg_id)
    message = next(node.client.tail("late-sent", "earliest"))
    assert 1.0 <= time.time() - began < 10.0
    assert (message.body, message.queue_id, message.tags) == (b"body", 3, "red")
    assert message.unique_key == receipt.unique_key


def test_the_record_that_waits_is_that_of_rocketmqs_clients(node: RunningNode) -> None:
    text = f"TAGS\x01t\x02KEYS\x01k\x02UNIQ_KEY\x01FROM-JAVA\x02a\x01b\x02DELAY\x01{LAST}\x02"
    with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
        answer = peer.ask(
            RequestCode.SEND_MESSAGE_V2, send_fields("same-level", 2, i=text, h=7), b"body"
        )
    assert answer.code == ResponseCode.SUCCESS
    receipt = node.client.send(
        "same-level", b"body", tags="t", keys="k", properties={"a": "b"}, queue_id=2, flag=7,
        born_timestamp=1_700_000_000_000, delay_level=LAST,
    )  # fmt: skip
    java, ours = waiting(node, "FROM-JAVA"), waiting(node, receipt.unique_key)
    for name in ("queue_id", "flag", "sys_flag", "born_timestamp", "reconsume_times"):
        assert getattr(ours.head, name) == getattr(java.head, name), name
    assert (ours.topic, ours.body, ours.version) == (java.topic, java.body, java.version)
    left_out = {"UNIQ_KEY", "__CRC32#"}
    wanted = {n: v for n, v in java.properties.items() if n not in left_out | ADDED_BY_GATEWAY}
    assert {n: v for n, v in ours.properties.items() if n not in left_out} == wanted
    assert (wanted["DELAY"], wanted["REAL_TOPIC"], wanted["REAL_QID"]) == (
        str(LAST),
        "same-level",
        "2",
    )


def test_a_level_beyond_the_last_is_the_last(node: RunningNode) -> None:
    receipt = node.client.send("far-sent", b"x", delay_level=99)
    waits = waiting(node, receipt.unique_key)
    assert (waits.head.queue_id, waits.properties["DELAY"]) == (LAST - 1, str(LAST))
    assert waits.properties["REAL_QID"] == str(receipt.queue_id)


def test_producers_and_tasks_delay_messages_among_others(node: RunningNode) -> None:
    with node.client.producer() as producer:
        futures = [
            producer.send_nowait("mixed-levels", b"%d" % n, delay_level=n % 2) for n in range(10)
        ]
    receipts = [future.result() for future in futures]
    receipts += node.client.producer().send_many(
        "mixed-levels", [OutgoingMessage(b"10"), OutgoingMessage(b"11", delay_level=1)]
    )

    async def main() -> list[Receipt]:
        async with keelog.aio.connect(node.endpoint, timeout=30.0) as client:
            return await asyncio.gather(
                *(client.send("mixed-levels", b"%d" % n, delay_level=n % 2) for n in range(12, 20))
            )

    receipts += asyncio.run(main())
    assert {receipt.status for receipt in receipts} == {"PUT_OK"}
    assert len({receipt.unique_key for receipt in receipts}) == 20
    early = {one.body for one in stored(node, "mixed-levels")}
    assert {b"%d" % n for n in range(0, 20, 2)} <= early
    wait_until(lambda: len(stored(node, "mixed-levels")) == 20, "not all came", 20)
    assert {one.body for one in stored(node, "mixed-levels")} == {b"%d" % n for n in range(20)}


@pytest.mark.parametrize("level", [-1, "3", 1.5])
def test_what_is_not_a_level_is_refused(node: RunningNode, level: int) -> None:
    with pytest.raises(BadRequest):
        node.client.send("t", b"x", delay_level=level)


def test_the_topic_is_checked_as_of_any_send(node: RunningNode) -> None:
    with pytest.raises(NotAllowed):
        node.client.send(SCHEDULE_TOPIC, b"x", delay_level=1)
    with pytest.raises(BadRequest, match="outside"):
        node.client.send("late-sent", b"x", queue_id=1000, delay_level=1)


def test_a_node_that_delivers_nothing_takes_no_delayed_message(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        with pytest.raises(NotAllowed, match="does not deliver delayed messages") as found:
            node.client.send("t", b"x", delay_level=1)
        assert "--remoting" in found.value.hint
        assert node.client.send("t", b"x", delay_level=0).queue_offset == 0
        assert {one.topic for one in node.client.topics()} == {"t"}
