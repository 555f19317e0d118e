"""Waiting sends of many threads and tasks: what goes together, and what each of them is told."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import keelog
import keelog.aio
from keelog import Receipt
from keelog.client.messages import ordered_queue
from keelog.client.send import sender
from keelog.client.transport import direct
from protocol.errors import BadRequest, NodeBusy, UnknownTopic
from tests.support.fake_node import FakeNode
from tests.support.node import wait_until

WAIT_S = 60.0


def at_once(count: int, send: Callable[[int], Receipt]) -> list[Receipt | keelog.MqError]:
    """What so many threads got that sent at the same moment."""
    ready = threading.Barrier(count)

    def one(number: int) -> Receipt | keelog.MqError:
        ready.wait()
        try:
            return send(number)
        except keelog.MqError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_threads_that_send_at_once_share_requests_and_get_their_own_receipts(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("a", queues=4)
    node.delay["append"] = 0.05
    receipts = at_once(
        40, lambda n: mq.send("ab"[n % 2], b"%d" % n, queue_id=[1, None][n % 4 // 2])
    )
    assert len(node.operations("append")) < 20
    stored = {record.body: record for record in node.stored()}
    assert len(stored) == 40
    for number, receipt in enumerate(receipts):
        assert isinstance(receipt, Receipt)
        record = stored[b"%d" % number]
        assert (receipt.topic, receipt.unique_key) == (record.topic, record.unique_key)
        assert (receipt.queue_id, receipt.queue_offset) == (
            record.head.queue_id,
            record.head.queue_offset,
        )
        assert receipt.physical_offset == record.physical_offset
        assert receipt.msg_id == record.message_id


def test_a_message_that_is_refused_takes_no_other_with_it(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders", queues=4)
    node.delay["append"] = 0.05
    outcomes = at_once(24, lambda n: mq.send("orders", b"x", queue_id=99 if n == 7 else 1))
    assert isinstance(outcomes.pop(7), BadRequest)
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert len(node.stored()) == 23


def test_what_is_wrong_with_the_topic_is_not_asked_message_by_message(
    node: FakeNode, mq: keelog.Client
) -> None:
    node.memory.auto_create = False
    node.delay["append"] = 0.05
    outcomes = at_once(24, lambda n: mq.send("none", b"x"))
    assert [type(outcome) for outcome in outcomes] == [UnknownTopic] * 24
    assert len(node.operations("append")) < 24


def test_ordered_sends_share_requests_and_ask_for_the_topics_once(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders", queues=4)
    node.delay["append"] = 0.05
    receipts = at_once(24, lambda n: mq.send("orders", b"x", order_by=f"k{n % 5}"))
    assert len(node.operations("append")) < 24
    assert len(node.operations("topics")) == 1
    for number, receipt in enumerate(receipts):
        assert isinstance(receipt, Receipt)
        assert receipt.queue_id == ordered_queue(f"k{number % 5}", 4)


def test_a_send_that_needs_no_topics_does_not_fail_with_one_that_does(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders", queues=4)
    node.delay["topics"] = 0.2
    node.refuse["topics"] = [UnknownTopic("no table")]
    outcomes = at_once(
        12,
        lambda n: mq.send("orders", b"x", order_by="k") if n % 2 else mq.send("orders", b"x"),
    )
    plain, ordered = {type(one) for one in outcomes[::2]}, {type(one) for one in outcomes[1::2]}
    assert plain == {Receipt}
    assert UnknownTopic in ordered


def test_an_ordered_send_follows_a_topic_that_has_fewer_queues_than_was_thought(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders", queues=7)
    for key in map(str, range(7)):
        assert mq.send("orders", b"x", order_by=key).queue_id == ordered_queue(key, 7)
    node.memory.topics["orders"] = 2
    for key in map(str, range(7)):
        assert mq.send("orders", b"x", order_by=key).queue_id == ordered_queue(key, 2)


def test_a_request_without_an_answer_delays_no_other(node: FakeNode, mq: keelog.Client) -> None:
    node.lose_answers["append"] = sender.UNDER_WAY_MAX + 1
    outcomes: list[object] = []

    def lost() -> None:
        try:
            outcomes.append(mq.send("orders", b"lost", timeout=WAIT_S))
        except keelog.SendTimeout as error:
            outcomes.append(error)

    threads = []
    while node.lose_answers["append"]:
        left = node.lose_answers["append"]
        threads.append(threading.Thread(target=lost))
        threads[-1].start()
        deadline = time.monotonic() + WAIT_S
        while node.lose_answers["append"] == left:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert mq.send("orders", b"x", timeout=WAIT_S).status == "PUT_OK"
    assert not outcomes, "the others still wait"
    mq.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert [type(outcome) for outcome in outcomes] == [keelog.SendTimeout] * len(threads)


def test_messages_of_different_acks_go_in_different_requests(
    node: FakeNode, mq: keelog.Client
) -> None:
    node.delay["append"] = 0.05
    at_once(16, lambda n: mq.send("orders", b"x", acks=("appended", "flushed")[n % 2]))
    asked = node.operations("append")
    assert sum(header["count"] for header in asked if header.get("wait") == "flushed") == 8
    assert sum(header["count"] for header in asked if "wait" not in header) == 8


def test_tasks_that_send_at_once_share_requests(node: FakeNode) -> None:
    receipts: list[Receipt] = []

    async def main() -> None:
        async with keelog.aio.connect(node.url, timeout=WAIT_S) as mq:
            await mq.create_topic("orders")
            sends = (mq.send("orders", b"%d" % n) for n in range(200))
            receipts.extend(await asyncio.gather(*sends))

    asyncio.run(main())
    assert len(node.operations("append")) < 100
    found = {record.body: record.unique_key for record in node.stored()}
    assert [found[b"%d" % n] for n in range(200)] == [receipt.unique_key for receipt in receipts]


def test_a_lone_send_does_not_change_threads(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried: list[bool] = []
    ask = direct.BlockingChannel.ask

    def noted(self: direct.BlockingChannel, *request: Any) -> direct.Reply | None:
        reply = ask(self, *request)
        carried.append(reply is not None)
        return reply

    monkeypatch.setattr(direct.BlockingChannel, "ask", noted)
    deadline = time.monotonic() + WAIT_S
    while not any(carried):
        assert time.monotonic() < deadline, "the connection of its own never came up"
        mq.send("orders", b"x")
    carried.clear()
    node.refuse["append"] = [NodeBusy("full")]
    for _ in range(5):
        assert mq.send("orders", b"x").status == "PUT_OK"
    assert carried == [True] * 5


def test_as_many_threads_as_have_a_connection_carry_their_sends_at_the_same_time(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_by: set[direct.BlockingChannel] = set()
    ask = direct.BlockingChannel.ask

    def noted(self: direct.BlockingChannel, *request: Any) -> direct.Reply | None:
        reply = ask(self, *request)
        if reply is not None:
            carried_by.add(self)
        return reply

    monkeypatch.setattr(direct.BlockingChannel, "ask", noted)
    node.delay["append"] = 0.01
    deadline = time.monotonic() + WAIT_S
    while len(carried_by) < direct.DIRECTS:
        assert time.monotonic() < deadline, "one thread's send goes by the I/O thread"
        receipts = at_once(direct.DIRECTS, lambda n: mq.send("orders", b"%d" % n))
        assert all(isinstance(receipt, Receipt) for receipt in receipts)


@pytest.mark.parametrize("warm", [True, False], ids=["carried here", "by the I/O thread"])
def test_closing_tells_a_waiting_send_that_nobody_knows(node: FakeNode, warm: bool) -> None:
    mq = keelog.connect(node.url, timeout=WAIT_S)
    for _ in range(50 if warm else 0):
        mq.send("orders", b"x")
        time.sleep(0.002)
    node.lose_answers["append"] = 1
    caught: list[BaseException] = []

    def send() -> None:
        try:
            mq.send("orders", b"x", timeout=WAIT_S)
        except keelog.SendTimeout as error:
            caught.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: not node.lose_answers["append"], "the request")
    mq.close()
    thread.join(WAIT_S / 2)
    assert not thread.is_alive()
    assert len(caught) == 1
    with pytest.raises(keelog.ClientClosed):
        mq.send("orders", b"x")
