"""Sends with a time through our own protocol: what is stored, when it comes, and taking it back."""

import asyncio
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import keelog.aio
from keelog import BadRequest, IllegalMessage, NotAllowed, OutgoingMessage
from protocol.names import TIMER_TOPIC
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.client.test_delay_level import ADDED_BY_GATEWAY, stored
from tests.gateway.test_timers import waiting
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import RemotingPeer, remoting_place, send_fields

pytestmark = pytest.mark.process


@pytest.fixture
def node(shared_node: RunningNode) -> RunningNode:
    return shared_node


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_message_comes_after_its_delay_and_at_its_time(node: RunningNode) -> None:
    began = now_ms()
    after = node.client.send("late-timed", b"after", queue_id=3, tags="red", delay=1.2)
    at = node.client.send(
        "late-timed", b"at", queue_id=1, deliver_at=datetime.now(UTC) + timedelta(seconds=1.2)
    )
    for receipt, queue_id in ((after, 3), (at, 1)):
        assert (receipt.status, receipt.topic, receipt.queue_id) == (
            "PUT_OK",
            "late-timed",
            queue_id,
        )
        assert began + 1200 <= receipt.deliver_ms < began + 6000
        assert waiting(node, receipt.unique_key).message_id == receipt.msg_id
    wait_until(lambda: len(stored(node, "late-timed")) == 2, "they did not come")
    found = {one.body: one for one in stored(node, "late-timed")}
    for body, receipt in ((b"after", after), (b"at", at)):
        record = found[body]
        assert (record.unique_key, record.head.queue_id) == (receipt.unique_key, receipt.queue_id)
        assert -50 <= record.head.store_timestamp - receipt.deliver_ms < 500


def test_the_record_that_waits_is_that_of_rocketmqs_clients(node: RunningNode) -> None:
    due = now_ms() + 3_600_000
    text = f"TAGS\x01t\x02UNIQ_KEY\x01FROM-JAVA\x02a\x01b\x02TIMER_DELIVER_MS\x01{due}\x02"
    with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
        answer = peer.ask(
            RequestCode.SEND_MESSAGE_V2, send_fields("same-timed", 2, i=text, h=7), b"body"
        )
    assert answer.code == ResponseCode.SUCCESS
    receipt = node.client.send(
        "same-timed", b"body", tags="t", properties={"a": "b"}, queue_id=2, flag=7,
        born_timestamp=1_700_000_000_000, deliver_at=due,
    )  # fmt: skip
    assert receipt.deliver_ms == due
    java, ours = waiting(node, "FROM-JAVA"), waiting(node, receipt.unique_key)
    for name in ("queue_id", "flag", "sys_flag", "born_timestamp", "reconsume_times"):
        assert getattr(ours.head, name) == getattr(java.head, name), name
    left_out = {"UNIQ_KEY", "__CRC32#"}
    wanted = {n: v for n, v in java.properties.items() if n not in left_out | ADDED_BY_GATEWAY}
    assert {n: v for n, v in ours.properties.items() if n not in left_out} == wanted


def test_a_cancelled_message_never_comes(node: RunningNode) -> None:
    due = now_ms() // 1000 * 1000 + 2800
    goes, stays = (
        node.client.send("cancelled", body, deliver_at=due) for body in (b"goes", b"stays")
    )
    node.client.cancel(goes)

    async def main() -> None:
        async with keelog.aio.connect(node.endpoint, timeout=30.0) as client:
            receipt = await client.send("cancelled", b"goes, too", deliver_at=due)
            await client.cancel(receipt)

    asyncio.run(main())
    wait_until(lambda: len(stored(node, "cancelled")) == 1, "it did not come")
    time.sleep(1.0)
    assert [one.unique_key for one in stored(node, "cancelled")] == [stays.unique_key]


def test_what_does_not_wait_cannot_be_cancelled(node: RunningNode) -> None:
    with pytest.raises(BadRequest, match="does not wait"):
        node.client.cancel(node.client.send("now-timed", b"x"))
    receipt = node.client.send("now-timed", b"x", delay=0.3)
    time.sleep(0.6)
    with pytest.raises(IllegalMessage, match="due already"):
        node.client.cancel(receipt)


def test_what_is_due_already_is_there_at_once(node: RunningNode) -> None:
    receipt = node.client.send("past", b"x", deliver_at=1000, queue_id=2)
    assert (receipt.deliver_ms, receipt.queue_offset, receipt.queue_id) == (0, 0, 2)
    assert node.client.send("past", b"y", delay=0, queue_id=2).queue_offset == 1
    assert [one.body for one in stored(node, "past")] == [b"x", b"y"]


def test_producers_send_timed_messages_among_others(node: RunningNode) -> None:
    with node.client.producer() as producer:
        receipts = producer.send_many(
            "mixed-timed",
            [OutgoingMessage(b"%d" % n, delay=0.5 if n % 2 else None) for n in range(10)],
        )
    assert [bool(receipt.deliver_ms) for receipt in receipts] == [False, True] * 5
    wait_until(lambda: len(stored(node, "mixed-timed")) == 10, "not all came", 20)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": "soon"},
        {"deliver_at": "soon"},
        {"delay": 1, "delay_level": 1},
        {"delay": 1, "deliver_at": 5},
    ],
)
def test_what_is_no_time_is_refused(node: RunningNode, options: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        node.client.send("t", b"x", **options)  # type: ignore[arg-type]


def test_a_time_too_far_away_is_refused(node: RunningNode) -> None:
    with pytest.raises(IllegalMessage, match="259200 are allowed"):
        node.client.send("t", b"x", delay=259_201)


def test_a_node_that_delivers_nothing_takes_no_timed_message(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        for options in ({"delay": 1.0}, {"deliver_at": now_ms() + 1000}):
            with pytest.raises(NotAllowed, match="does not deliver delayed messages") as found:
                node.client.send("t", b"x", **options)
            assert "--remoting" in found.value.hint
        assert node.client.topics() == []


def test_a_timed_message_of_the_systems_topic_is_refused(node: RunningNode) -> None:
    with pytest.raises(NotAllowed):
        node.client.send(TIMER_TOPIC, b"x", delay=1)
