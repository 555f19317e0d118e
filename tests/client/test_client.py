"""The client against a fake node: what it sends, what it reads back, what it refuses."""

import os
from datetime import UTC, datetime

import pytest

import keelog
from keelog.client.send.record_batch import BatchReceipt
from protocol.ids import offset_message_id, parse_host
from protocol.record.java_hash import java_hash
from tests.support.fake_node import FakeNode


def test_a_receipt_says_where_the_message_is_stored(node: FakeNode, mq: keelog.Client) -> None:
    receipt = mq.send("orders", b"hello", tags="paid", keys=["o-17", "c-3"], properties={"t": "a"})
    (record,) = node.stored()
    assert receipt.status == "PUT_OK"
    assert (receipt.topic, receipt.queue_id) == (record.topic, record.head.queue_id)
    assert receipt.queue_offset == record.head.queue_offset
    assert receipt.physical_offset == record.physical_offset
    assert receipt.msg_id == record.message_id
    assert receipt.unique_key == record.unique_key
    assert receipt.store_timestamp == record.head.store_timestamp
    assert receipt.flushed is False
    assert list(receipt.as_dict()) == [
        "status", "topic", "queue_id", "queue_offset", "physical_offset", "msg_id", "unique_key",
        "flushed", "store_timestamp", "deliver_ms",
    ]  # fmt: skip
    assert receipt.deliver_ms == 0


def test_the_receipts_of_a_batch_are_whole_however_they_are_taken() -> None:
    answer = {
        "queues": [["t", 1, 10, 2]], "status": "PUT_OK", "flushed": False, "store_timestamp": 9,
        "physical_offset": 1_000, "store_host": "127.0.0.1:7850",
    }  # fmt: skip
    batch = BatchReceipt("t", [100, 110], ["a", "b"], answer)
    assert list(batch) == [batch[0], batch[1]]
    assert [receipt.deliver_ms for receipt in batch] == [0, 0]


def test_all_that_a_message_may_say_is_stored(node: FakeNode, mq: keelog.Client) -> None:
    mq.send(
        "orders", b"\x00\xff", tags="paid", keys="o-17", properties={"tenant": "a"}, queue_id=3,
        flag=7, born_timestamp=1_700_000_000_000, born_host="10.1.2.3:4", reconsume_times=2,
        unique_key="MINE",
    )  # fmt: skip
    (record,) = node.stored()
    head = record.head
    assert (record.body, record.tags, record.keys) == (b"\x00\xff", "paid", ["o-17"])
    assert record.properties["tenant"] == "a"
    assert (head.queue_id, head.flag, head.born_timestamp) == (3, 7, 1_700_000_000_000)
    assert (str(record.born_host), head.reconsume_times) == ("10.1.2.3:4", 2)
    assert record.unique_key == "MINE"


def test_single_and_batched_sends_store_equal_records(node: FakeNode, mq: keelog.Client) -> None:
    options = {
        "tags": "paid", "keys": ["a", "b"], "properties": {"x": "y"}, "queue_id": 2, "flag": 1,
        "born_timestamp": 5, "born_host": "10.0.0.1:2", "reconsume_times": 3, "unique_key": "U",
    }  # fmt: skip
    mq.send("orders", b"body", **options)  # type: ignore[arg-type]
    with mq.producer() as producer:
        producer.send_many("orders", [b"body"], **options)  # type: ignore[arg-type]
    one, two = node.stored()
    assert one.properties_raw[:-12] == two.properties_raw[:-12]  # the checksums differ
    again = two.head._replace(
        queue_offset=one.head.queue_offset,
        physical_offset=one.head.physical_offset,
        store_timestamp=one.head.store_timestamp,
    )
    assert one.head == again


def test_order_by_takes_the_queue_that_a_java_client_takes(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders", queues=5)
    for key in ("o-17", "o-18", "", "€", "polygenelubricants"):
        receipt = mq.send("orders", b"x", order_by=key)
        remainder = java_hash(key) - int(java_hash(key) / 5) * 5
        assert receipt.queue_id == abs(remainder)


def test_the_key_with_the_least_java_hash_has_a_queue(mq: keelog.Client) -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    mq.create_topic("orders", queues=5)
    assert mq.send("orders", b"x", order_by="polygenelubricants").queue_id == 2**31 % 5


def test_order_by_works_for_a_topic_that_the_send_makes(node: FakeNode, mq: keelog.Client) -> None:
    first = mq.send("fresh", b"1", order_by="o-17")
    second = mq.send("fresh", b"2", order_by="o-17")
    assert first.queue_id == second.queue_id


@pytest.mark.parametrize(
    ("options", "wait"),
    [
        ({}, None),
        ({"acks": "appended"}, None),
        ({"acks": "flushed"}, "flushed"),
        ({"wait": False}, "none"),
    ],
)
def test_acks_and_wait_become_the_field_wait(
    node: FakeNode, mq: keelog.Client, options: dict[str, object], wait: str | None
) -> None:
    mq.send("orders", b"x", **options)  # type: ignore[arg-type]
    assert node.operations("append")[0].get("wait") == wait
    # A record whose sender does not wait for the disk says so, as RocketMQ's do.
    stored = node.stored()[0].properties.get("WAIT")
    assert stored == ("false" if wait == "none" else None)


def test_nonsense_is_refused_before_anything_is_sent(node: FakeNode, mq: keelog.Client) -> None:
    with pytest.raises(keelog.BadRequest):
        mq.send("orders", b"x", queue_id=1, order_by="k")
    with pytest.raises(keelog.BadRequest):
        mq.send("orders", "text")  # type: ignore[arg-type]
    with pytest.raises(keelog.BadRequest):
        mq.send("orders", b"x", colour="red")  # type: ignore[call-arg]
    with pytest.raises(keelog.BadRequest):
        mq.send("orders", b"x", acks="all")  # type: ignore[arg-type]
    with pytest.raises(keelog.BadRequest):
        mq.send("orders", b"x", born_host="nowhere")
    with pytest.raises(keelog.BadRequest):
        mq.pull("orders", 0, 0, wait=31)
    with pytest.raises(keelog.BadRequest):
        mq.get()
    assert node.operations("send") == node.operations("append") == []


def test_refusals_of_the_node_arrive_as_their_own_classes(
    node: FakeNode, mq: keelog.Client
) -> None:
    with pytest.raises(keelog.IllegalMessage):
        mq.send("bad topic", b"x")
    with pytest.raises(keelog.NotAllowed):
        mq.send("SCHEDULE_TOPIC_XXXX", b"x")
    with pytest.raises(keelog.UnknownTopic) as caught:
        mq.offsets("nothing")
    assert caught.value.retriable is False


def test_a_pull_reads_what_was_sent(mq: keelog.Client) -> None:
    mq.create_topic("orders", queues=1)
    sent = [mq.send("orders", b"%d" % n, queue_id=0) for n in range(5)]
    result = mq.pull("orders", 0, 1, max_messages=3)
    assert result.status == "FOUND"
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (4, 0, 5)
    assert [m.body for m in result.messages] == [b"1", b"2", b"3"]
    assert [m.msg_id for m in result.messages] == [r.msg_id for r in sent[1:4]]
    end = mq.pull("orders", 0, 5)
    assert (end.status, end.messages) == ("OFFSET_OVERFLOW_ONE", [])


def test_a_message_has_the_names_of_the_command_line(mq: keelog.Client) -> None:
    receipt = mq.send("orders", b"hello", tags="paid", keys=["k"], properties={"p": "v"})
    message = mq.get(receipt.msg_id)
    assert (message.topic, message.body) == ("orders", b"hello")
    assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.queue_offset)
    assert message.physical_offset == receipt.physical_offset
    assert (message.tags, message.keys) == ("paid", ["k"])
    assert message.properties["p"] == "v"
    assert message.unique_key == receipt.unique_key
    assert message.store_timestamp == receipt.store_timestamp
    assert message.store_host == "127.0.0.1:7850"
    assert (message.version, message.flag, message.sys_flag) == (1, 0, 0)
    assert message.store_size == len(message.raw)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (0, 0)
    assert message.body_crc > 0
    assert message.born_host.startswith("127.0.0.1:")
    assert message.born_timestamp > 0
    assert message == keelog.Message(message.raw)


def test_a_message_is_found_by_each_of_its_names(mq: keelog.Client) -> None:
    receipt = mq.send("orders", b"hello")
    by_id = mq.get(receipt.msg_id)
    assert by_id.body == b"hello"
    assert mq.get(physical_offset=receipt.physical_offset) == by_id
    assert mq.get(topic="orders", unique_key=receipt.unique_key) == by_id
    place = {"queue_id": receipt.queue_id, "queue_offset": receipt.queue_offset}
    assert mq.get(topic="orders", **place) == by_id  # type: ignore[arg-type]
    with pytest.raises(keelog.NotFound):
        mq.get(offset_message_id(parse_host("127.0.0.1:1"), 10**9))


def test_find_goes_through_all_pages_and_stops_at_the_limit(
    node: FakeNode, mq: keelog.Client
) -> None:
    with mq.producer() as producer:
        producer.send_many("orders", [b"%d" % n for n in range(150)], keys="k")
    found = [int(message.body) for message in mq.find("orders", "k")]
    assert found == list(range(149, -1, -1))
    assert len(node.operations("find")) == 3
    assert len(list(mq.find("orders", "k", limit=70))) == 70
    assert list(mq.find("orders", "k", limit=0)) == []
    assert list(mq.find("orders", "k", until=1)) == []
    assert list(mq.find("orders", "k", since=datetime(2100, 1, 1, tzinfo=UTC))) == []
    assert list(mq.find("orders", "k", unique=True)) == []


def test_topics_are_made_listed_and_deleted(mq: keelog.Client) -> None:
    made = mq.create_topic("orders", queues=3)
    assert (made.topic, made.queues, made.created) == ("orders", 3, True)
    assert mq.create_topic("orders", queues=9).created is False
    with pytest.raises(keelog.BadRequest):
        mq.create_topic("orders", exist_ok=False)
    (topic,) = mq.topics()
    assert (topic.topic, topic.queues, topic.write_queues, topic.perm) == ("orders", 3, 3, 6)
    assert [q.queue_id for q in mq.offsets("orders")] == [0, 1, 2]
    assert [q.queue_id for q in mq.offsets("orders", queue_id=1)] == [1]
    assert mq.delete_topic("orders")
    assert not mq.delete_topic("orders")


def test_seek_takes_datetimes_and_milliseconds(mq: keelog.Client) -> None:
    mq.create_topic("orders", queues=1)
    receipt = mq.send("orders", b"x")
    assert mq.seek("orders", 0, receipt.store_timestamp) == 0
    assert mq.seek("orders", 0, receipt.store_timestamp + 1) == 1
    assert mq.seek("orders", 0, datetime(2000, 1, 1, tzinfo=UTC)) == 0


def test_status_and_health_are_typed_and_keep_later_fields(mq: keelog.Client) -> None:
    status = mq.status()
    assert status.ready
    assert status.processes[0].role == "writer"
    assert status.processes[0].restarts is None
    assert status.raw["processes"][0]["new"] == 1
    assert "id" not in status.raw
    health = mq.health()
    assert health.ready
    assert health.checks[0].name == "writer"


def test_no_repr_prints_a_long_body(mq: keelog.Client) -> None:
    body = b"A" * 79 + b"END" + b"B" * 100
    message = mq.get(mq.send("orders", body).msg_id)
    for shown in (repr(message), repr(keelog.OutgoingMessage(body))):
        assert "BB" not in shown
        assert "182 bytes" in shown
    pulled = mq.pull("orders", message.queue_id, 0)
    assert pulled.messages == [message]
    assert "END" not in repr(pulled)


def test_a_damaged_record_is_reported_when_it_is_looked_at(mq: keelog.Client) -> None:
    message = mq.get(mq.send("orders", b"hello").msg_id)
    damaged = keelog.Message(message.raw.replace(b"hello", b"hellO"))
    with pytest.raises(keelog.StoreDamaged):
        _ = damaged.topic


def test_a_client_in_a_forked_child_refuses_to_work(mq: keelog.Client) -> None:
    with mq.producer() as producer:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for use in (
                    lambda: mq.send("orders", b"x"),
                    mq.topics,
                    lambda: producer.send_nowait("orders", b"x"),
                    lambda: mq.tail("orders"),
                ):
                    try:
                        use()
                    except keelog.ForkedClient:
                        continue
                    os._exit(2)
                producer.close()
                mq.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mq.send("orders", b"x").status == "PUT_OK"


def test_the_environment_names_node_and_timeout(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEELOG_NODE", node.url)
    monkeypatch.setenv("KEELOG_TIMEOUT", "7.5")
    with keelog.connect() as client:
        assert client.endpoint == node.url
        assert client.timeout == 7.5
    monkeypatch.setenv("KEELOG_NODE", node.url.removeprefix("tcp://"))
    with keelog.connect() as client:
        assert client.endpoint == node.url
    monkeypatch.setenv("KEELOG_TIMEOUT", "soon")
    with pytest.raises(keelog.BadRequest):
        keelog.connect()


@pytest.mark.parametrize("url", ["nonsense", "tcp://", "tcp://127.0.0.1", "udp://x:1"])
def test_a_bad_address_is_an_error_of_connect(url: str) -> None:
    with pytest.raises(keelog.BadRequest):
        keelog.connect(url, timeout=1.0)


def test_a_closed_client_says_so(node: FakeNode) -> None:
    client = keelog.connect(node.url)
    client.close()
    client.close()
    with pytest.raises(keelog.ClientClosed):
        client.send("orders", b"x")
