"""The client against a node of real processes: answers as from the fake one, and restarts."""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

import pytest

import keelog
import keelog.aio
from keelog import OutgoingMessage
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("client_with_node")]
SMALL = (
    "store.mapped_file_size_commit_log=1048576",
    "store.max_hash_slot_num=1000",
    "store.max_index_num=4000",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("store"), SMALL) as running:
        yield running


@pytest.fixture
def mq(node: RunningNode) -> Iterator[keelog.Client]:
    with keelog.connect(node.endpoint, timeout=20.0) as client:
        yield client


def test_what_is_sent_singly_or_in_batches_is_read_back_equal(mq: keelog.Client) -> None:
    everything = OutgoingMessage(
        b"\x00all", tags="paid", keys=("k1", "k2"), properties={"t": "ä"}, queue_id=1, flag=7,
        born_timestamp=1_700_000_000_000, born_host="10.1.2.3:4", reconsume_times=2,
        unique_key="MINE",
    )  # fmt: skip
    receipts = [mq.send("there-and-back", everything)]
    with mq.producer() as producer:
        receipts += producer.send_many("there-and-back", [everything])
    one, two = (mq.get(receipt.msg_id) for receipt in receipts)
    for message, receipt in ((one, receipts[0]), (two, receipts[1])):
        assert (message.topic, message.body) == ("there-and-back", b"\x00all")
        assert (message.tags, message.keys) == ("paid", ["k1", "k2"])
        assert (message.properties["t"], message.unique_key) == ("ä", "MINE")
        assert (message.queue_id, message.flag, message.reconsume_times) == (1, 7, 2)
        assert (message.born_timestamp, message.born_host) == (1_700_000_000_000, "10.1.2.3:4")
        assert message.queue_offset == receipt.queue_offset
        assert message.physical_offset == receipt.physical_offset
        assert message.store_timestamp == receipt.store_timestamp
    assert list(one.properties) == list(two.properties)


def test_a_producer_s_receipts_say_where_each_message_is(mq: keelog.Client) -> None:
    mq.create_topic("receipts", queues=4)
    with mq.producer(batch_bytes=20_000) as producer:
        futures = [
            producer.send_nowait("receipts", b"%d" % n, keys=f"key-{n % 7}") for n in range(1000)
        ]
        receipts = [future.result(20) for future in futures]
    for n in range(0, 1000, 97):
        assert mq.get(receipts[n].msg_id).body == b"%d" % n
        assert mq.get(physical_offset=receipts[n].physical_offset).body == b"%d" % n
        place = mq.pull("receipts", receipts[n].queue_id, receipts[n].queue_offset, wait=20.0)
        assert place.messages[0].body == b"%d" % n
    found = {int(m.body) for m in mq.tail("receipts", "earliest", until_end=True)}
    wait_until(lambda: sum(q.max_offset for q in mq.offsets("receipts")) == 1000, "all dispatched")
    found = {int(m.body) for m in mq.tail("receipts", "earliest", until_end=True)}
    assert found == set(range(1000))


def test_keys_are_found_page_by_page(mq: keelog.Client) -> None:
    with mq.producer() as producer:
        receipts = producer.send_many("found", [b"%d" % n for n in range(200)], keys="k")
    wait_until(lambda: len(list(mq.find("found", "k"))) == 200, "all are in the index")
    assert [int(m.body) for m in mq.find("found", "k")] == list(range(199, -1, -1))
    assert [int(m.body) for m in mq.find("found", "k", limit=70)] == list(range(199, 129, -1))
    assert list(mq.find("found", "k", since=datetime(2100, 1, 1, tzinfo=UTC))) == []
    assert mq.get(topic="found", unique_key=receipts[5].unique_key).body == b"5"


def test_a_topic_is_made_by_the_first_message_of_a_producer(mq: keelog.Client) -> None:
    with mq.producer() as producer:
        producer.send_many("fresh", [b"1", b"2"])
        spread = producer.send_many("fresh", [b"3"] * 16)
    assert len({r.queue_id for r in spread}) == 8
    assert "fresh" in {topic.topic for topic in mq.topics()}


def test_order_by_and_refusals_are_as_with_the_fake_node(mq: keelog.Client) -> None:
    mq.create_topic("ordered", queues=5)
    single = mq.send("ordered", b"1", order_by="o-17")
    with mq.producer() as producer:
        batched = producer.send_many("ordered", [b"2", b"3"], order_by="o-17")
        with pytest.raises(keelog.SendManyError) as caught:
            producer.send_many(
                "ordered",
                [OutgoingMessage(b"4"), OutgoingMessage(b"5", topic="TBW102|", queue_id=99)],
            )
    assert {r.queue_id for r in batched} == {single.queue_id}
    assert [r.queue_offset for r in batched] == [single.queue_offset + 1, single.queue_offset + 2]
    assert [f.index for f in caught.value.failed] == [1]
    with pytest.raises(keelog.NotFound):
        mq.get("7F00000100002A9F00000000FFFFFFFF")
    with pytest.raises(keelog.UnknownTopic):
        list(mq.find("never-made", "k"))
    with pytest.raises(keelog.BadRequest):
        mq.send("ordered", b"x", queue_id=77)


def test_flushed_means_flushed(mq: keelog.Client) -> None:
    receipt = mq.send("flushed", b"x", acks="flushed")
    assert receipt.flushed
    assert mq.status().log.flushed > receipt.physical_offset
    with mq.producer(acks="flushed") as producer:
        assert all(r.flushed for r in producer.send_many("flushed", [b"x"] * 50))


def test_a_batch_larger_than_a_segment_is_split(mq: keelog.Client) -> None:
    bodies = [bytes([n]) * 100_000 for n in range(25)]
    with mq.producer(batch_bytes=3_000_000) as producer:
        receipts = producer.send_many("large", bodies, queue_id=0)
    assert [r.queue_offset for r in receipts] == list(range(25))
    assert [mq.get(r.msg_id).body for r in receipts] == bodies


def test_a_follower_sees_a_message_soon_after_its_receipt(mq: keelog.Client) -> None:
    mq.create_topic("followed", queues=3)
    follower = mq.tail("followed", "earliest")
    for n in range(20):
        mq.send("followed", b"%d" % n)
    assert sorted(int(m.body) for m in islice(follower, 20)) == list(range(20))


def test_a_receipt_counts_at_a_reader_that_is_busy_with_others(
    node: RunningNode, mq: keelog.Client
) -> None:
    mq.producer().send_batch("read-again", [bytes(1000)] * 900, queue_id=0).result(20)
    stop = threading.Event()

    def read_again_and_again() -> None:
        with keelog.connect(node.endpoint, timeout=20.0) as other:
            while not stop.is_set():
                other.pull("read-again", 0, 0, max_messages=10_000, max_bytes=1 << 20)
                other.topics()

    others = [threading.Thread(target=read_again_and_again) for _ in range(4)]
    for thread in others:
        thread.start()
    try:
        for _ in range(200):
            receipt = mq.send("read-once", b"x", queue_id=0)
            assert mq.get(receipt.msg_id).queue_offset == receipt.queue_offset
    finally:
        stop.set()
        for thread in others:
            thread.join(20)


def test_asyncio_works_alike(node: RunningNode) -> None:
    async def scenario() -> None:
        async with keelog.aio.connect(node.endpoint, timeout=20.0) as mq:
            receipts = await asyncio.gather(*(mq.send("aio", b"%d" % n) for n in range(50)))
            assert len({r.physical_offset for r in receipts}) == 50
            found = []
            async for message in mq.tail("aio", "earliest"):
                found.append(int(message.body))
                if len(found) == 50:
                    break
            assert sorted(found) == list(range(50))
            assert (await mq.health()).ready

    asyncio.run(scenario())


def test_sends_and_followers_live_through_the_restart_of_every_process(node: RunningNode) -> None:
    with keelog.connect(node.endpoint, timeout=30.0) as mq:
        mq.create_topic("orders", queues=2)
        stored = [mq.send("orders", b"before")]
        follower = mq.tail("orders", "earliest")
        assert next(follower).body == b"before"
        for role in ("writer", "queue", "index", "reader"):
            node.kill(role)
            unknown = 0
            for n in range(20):
                try:
                    stored.append(mq.send("orders", b"%s-%d" % (role.encode(), n)))
                except keelog.SendTimeout:
                    unknown += 1
                time.sleep(0.005)
            # The I/O thread may not have seen the end of its connection when the next one goes.
            assert unknown <= 2, "one send at a time: one on each connection has no answer"
        seen = {next(follower).unique_key for _ in range(len(stored) - 1)}
        assert len({r.unique_key for r in stored} - seen) <= 2


def test_a_stop_ends_it_before_the_next_message_and_commits_what_was_read(
    mq: keelog.Client,
) -> None:
    for n in range(5):
        mq.send("stopped", b"%d" % n, queue_id=0)
    follower = mq.tail("stopped", "earliest", cursor="billing", queues=[0])
    assert [next(follower).body, next(follower).body] == [b"0", b"1"]
    follower.stop()
    assert list(follower) == []
    assert mq.cursor("stopped", "billing") == {0: 2}
    with mq.tail("stopped", cursor="billing", queues=[0]) as again:
        assert [next(again).body, next(again).body] == [b"2", b"3"]
    assert mq.cursor("stopped", "billing") == {0: 3}, "the one in hand does not count as read"

    async def again_with_asyncio() -> None:
        async with keelog.aio.connect(mq.endpoint, timeout=20.0) as own:
            stopped = own.tail("stopped", "earliest", cursor="reports", queues=[0])
            assert [(await anext(stopped)).body for _ in range(2)] == [b"0", b"1"]
            stopped.stop()
            assert [message async for message in stopped] == []
            assert await own.cursor("stopped", "reports") == {0: 2}

    asyncio.run(again_with_asyncio())
