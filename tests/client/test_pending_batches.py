"""`send_batch`: one request for many messages, receipts on demand, and what goes wrong."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest

import keelog
from keelog.client.options import ProducerSettings
from keelog.client.send.encode import Encoder, UniqueKeys
from keelog.client.send.record_batch import BatchReceipt, RecordBatch
from keelog.client.send.sender import BatchSender
from keelog.client.transport.io_thread import IoThread
from protocol.errors import BadRequest, IllegalMessage, MessageTooLarge, NodeBusy, NotConnected
from protocol.ids import NO_HOST
from tests.support.fake_node import FakeNode
from tests.support.kernel import using
from tests.support.node import wait_until

BODIES = [b"%d" % n for n in range(30)]
WAIT_S = 60.0


@pytest.fixture
def producer(mq: keelog.Client) -> Iterator[keelog.Producer]:
    with mq.producer() as found:
        yield found


def test_a_batch_is_one_request_and_its_receipt_knows_each_message(
    node: FakeNode, mq: keelog.Client, producer: keelog.Producer
) -> None:
    mq.create_topic("orders", queues=4)
    keys = [f"k{n}" for n in range(30)]
    receipt = producer.send_batch("orders", BODIES, tags="paid", keys=keys).result(WAIT_S)
    assert len(node.operations("append")) == 1
    stored = node.stored()
    assert [record.body for record in stored] == BODIES
    assert [record.keys for record in stored] == [[key] for key in keys]
    assert {record.tags for record in stored} == {"paid"}
    assert len({record.head.queue_id for record in stored}) == 1
    assert (receipt.topic, receipt.queue_id) == ("orders", stored[0].head.queue_id)
    assert [r.physical_offset for r in receipt] == [r.physical_offset for r in stored]
    assert [r.queue_offset for r in receipt] == [r.head.queue_offset for r in stored]
    assert [r.unique_key for r in receipt] == [r.unique_key for r in stored]
    assert [r.msg_id for r in receipt] == [r.message_id for r in stored]
    assert receipt.joined_ids() == ",".join(r.message_id for r in stored)
    with using(None):
        assert receipt.joined_ids() == ",".join(r.message_id for r in stored)
    assert receipt.physical_offsets.tolist() == [r.physical_offset for r in stored]
    assert len({r.unique_key for r in receipt}) == 30
    assert receipt[-1] == receipt[29]
    assert receipt[28:] == [receipt[28], receipt[29]]
    assert mq.get(receipt[7].msg_id).body == b"7"
    with pytest.raises(IndexError):
        receipt[30]


def test_a_batch_goes_to_the_queue_that_is_asked_for(
    node: FakeNode, mq: keelog.Client, producer: keelog.Producer
) -> None:
    mq.create_topic("orders", queues=7)
    assert producer.send_batch("orders", BODIES, queue_id=3).result(WAIT_S).queue_id == 3
    batch = producer.send_batch("orders", BODIES, order_by="customer-1").result(WAIT_S)
    single = producer.send_nowait("orders", b"x", order_by="customer-1").result(WAIT_S)
    assert batch.queue_id == single.queue_id
    assert {r.head.queue_id for r in node.stored()[30:]} == {single.queue_id}


def test_order_by_follows_a_topic_that_has_fewer_queues_than_was_thought(
    node: FakeNode, mq: keelog.Client, producer: keelog.Producer
) -> None:
    mq.create_topic("orders", queues=7)
    for key in map(str, range(7)):
        producer.send_batch("orders", BODIES, order_by=key).result(WAIT_S)
    node.memory.topics["orders"] = 2
    for key in map(str, range(7)):
        assert producer.send_batch("orders", BODIES, order_by=key).result(WAIT_S).queue_id < 2


def test_batches_and_messages_keep_the_order_of_the_calls(
    node: FakeNode, mq: keelog.Client, producer: keelog.Producer
) -> None:
    mq.create_topic("orders")
    producer.send_nowait("orders", b"first", queue_id=0)
    producer.send_batch("orders", [b"second"], queue_id=0)
    producer.send_nowait("orders", b"third", queue_id=0)
    producer.flush(5)
    assert [record.body for record in node.stored()] == [b"first", b"second", b"third"]


def test_a_busy_node_gets_the_batch_again(node: FakeNode, producer: keelog.Producer) -> None:
    node.refuse["append"] = [NodeBusy("full")]
    assert len(producer.send_batch("orders", BODIES).result(WAIT_S)) == 30
    assert len(node.stored()) == 30


def test_a_refused_batch_is_refused_as_a_whole(node: FakeNode, producer: keelog.Producer) -> None:
    node.refuse["append"] = [IllegalMessage("no")]
    with pytest.raises(IllegalMessage):
        producer.send_batch("orders", BODIES).result(WAIT_S)
    assert len(node.operations("append")) == 1
    assert node.stored() == []


def test_a_lost_answer_leaves_the_batch_unknown(node: FakeNode, mq: keelog.Client) -> None:
    node.lose_answers["append"] = 1
    with mq.producer(timeout=1.0) as producer, pytest.raises(keelog.OutcomeUnknownError):
        producer.send_batch("orders", BODIES).result(WAIT_S)
    assert len(node.stored()) == 30


def test_more_batches_than_max_batches_wait_or_are_refused(
    node: FakeNode, mq: keelog.Client
) -> None:
    node.delay["append"] = WAIT_S
    with mq.producer(max_batches=2, when_full="raise") as producer:
        futures = [producer.send_batch("orders", BODIES) for _ in range(2)]
        with pytest.raises(NodeBusy):
            producer.send_batch("orders", BODIES)
        node.delay.clear()
        assert all(len(future.result(WAIT_S)) == 30 for future in futures)
    with mq.producer(max_batches=2) as producer:
        futures = [producer.send_batch("orders", BODIES) for _ in range(5)]
    assert all(future.done() for future in futures), "leaving the producer waits for answers"


def test_who_waits_for_room_goes_on_when_a_quarter_is_free_and_who_need_not_wait_at_once() -> None:
    sent: list[RecordBatch] = []

    class Unconnected:
        routes = None

        def on_thread(self) -> bool:
            return threading.current_thread() is threading.main_thread()  # which waits for nothing

    class Sender:
        def send(self, batch: RecordBatch) -> None:
            sent.append(batch)

    io = cast(IoThread, Unconnected())
    encoder = Encoder(io, UniqueKeys(bytes(4)), NO_HOST)
    producer = keelog.Producer(
        io, cast(BatchSender, Sender()), encoder, lambda: None,
        ProducerSettings(max_batches=8, timeout=20.0),
    )  # fmt: skip

    def begin() -> "Future[BatchReceipt]":
        return producer.send_batch("orders", BODIES)

    futures = [begin() for _ in range(8)]
    with ThreadPoolExecutor(1) as pool:
        ninth = pool.submit(begin)
        waiters = producer._batches_answered._waiters  # type: ignore[attr-defined]
        wait_until(lambda: bool(waiters), "the ninth waits")
        for number in range(2):
            sent[number].fail(NotConnected("gone"))
        assert len(sent) == 8
        futures.append(begin())
        for number in range(2, 4):
            sent[number].fail(NotConnected("gone"))
        futures.append(ninth.result(WAIT_S))
    assert len(sent) == 10
    for batch in sent[4:]:
        batch.fail(NotConnected("gone"))
    assert not producer._batches
    assert all(isinstance(future.exception(1), NotConnected) for future in futures)


@pytest.mark.parametrize(
    ("bodies", "options", "kind"),
    [
        ([], {}, BadRequest),
        (["text"], {}, BadRequest),
        ([b"x"], {"keys": ["a", "b"]}, BadRequest),
        ([b"x"], {"keys": 5}, BadRequest),
        ([b"x"], {"tags": 5}, BadRequest),
        ([b"x"], {"queue_id": 0, "order_by": "a"}, BadRequest),
        ([b"x"], {"flag": 1}, BadRequest),
        ([b"x"], {"keys": ["a b"]}, IllegalMessage),
        ([bytes(1 << 20)] * 5, {}, MessageTooLarge),
    ],
)
def test_what_cannot_be_sent_is_refused_at_the_call(
    node: FakeNode,
    producer: keelog.Producer,
    bodies: list[bytes],
    options: dict[str, object],
    kind: type[keelog.MqError],
) -> None:
    with pytest.raises(kind):
        producer.send_batch("orders", bodies, **options)  # type: ignore[arg-type]
    assert node.operations("append") == []
    assert len(producer.send_batch("orders", [b"good"]).result(WAIT_S)) == 1


def test_an_answer_about_something_else_is_no_receipt(
    node: FakeNode, producer: keelog.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = node.memory.store
    odd = {"queues": [["orders", 0, 0, 29]]}
    monkeypatch.setattr(node.memory, "store", lambda *call: {**real(*call), **odd})
    with pytest.raises(keelog.SendTimeout, match="are stored"):
        producer.send_batch("orders", BODIES).result(WAIT_S)
