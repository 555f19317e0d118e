"""Messages of one kind are gathered as columns: which do, and in what order they are stored."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keelog
from keelog import OutgoingMessage
from keelog.client.results import Receipt
from keelog.client.send.encode import (
    NOT_TAKEN,
    UNIQUE_KEY_CHARS,
    Encoder,
    MessageBatch,
    UniqueKeys,
    kind_of,
)
from keelog.client.send.producer import KINDS_MAX, SendMany
from keelog.client.send.record_batch import EncodedMessage, EntryBatch
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.routes import NO_ROUTES, Routes
from protocol.errors import BadRequest, IllegalMessage, MqError
from protocol.ids import Host
from protocol.kernel import loader
from protocol.record.codec import SHORT_HEAD
from tests.support.fake_node import FakeNode, fake_node

IP = b"\x7f\x00\x00\x01"
ROOM = 1_000_000
BORN = slice(SHORT_HEAD.offsets["born_timestamp"], SHORT_HEAD.offsets["born_ip"])

needs_kernel = pytest.mark.skipif(loader.kernel is None, reason="columns need the kernel")


class FakeIo(IoThread):
    """Routes, and nothing else."""

    def __init__(self, crc: bool) -> None:
        self.routes = Routes("w", ("r",), crc, 1000, 1, "fake")


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with fake_node() as running:
        running.memory.topics["orders"] = 4
        yield running


def content(record: bytes) -> bytes:
    """The record without its time and unique key."""
    found = bytearray(record)
    found[BORN] = bytes(8)
    key = found.rindex(b"UNIQ_KEY\x01") + len(b"UNIQ_KEY\x01")
    found[key : key + UNIQUE_KEY_CHARS] = b""
    return bytes(found)


text = st.text(max_size=6) | st.sampled_from(["", "a b", "\x01", "ü", "\ud800", "k" * 32_000])
some_keys = st.none() | text | st.lists(text, max_size=3) | st.just(7)


@needs_kernel
@given(
    crc=st.booleans(),
    topic=st.sampled_from(["orders", "bad topic", "t" * 130]),
    shared=st.fixed_dictionaries(
        {}, optional={"tags": text | st.none(), "queue_id": st.integers(-2, 9) | st.none()}
    ),
    rows=st.lists(st.tuples(st.binary(max_size=1_005), st.none() | some_keys), max_size=8),
)
def test_columns_hold_the_records_that_single_encoding_makes(
    crc: bool, topic: str, shared: dict[str, Any], rows: list[tuple[bytes, Any]]
) -> None:
    io = FakeIo(crc)
    one_by_one = Encoder(io, UniqueKeys(IP), Host(IP, 0))
    kind = kind_of(topic, shared, io.routes or NO_ROUTES)  # type: ignore[arg-type]
    columns = None if kind is None else MessageBatch(kind, shared, ROOM)  # type: ignore[arg-type]
    expected: list[bytes] = []
    for body, keys in rows:
        options: Any = shared if keys is None else {**shared, "keys": keys}
        try:
            record = one_by_one.entry(topic, body, options, None).record
        except MqError:
            # The columns leave it to the other way, which says why.
            assert columns is None or columns.take(topic, body, options) == NOT_TAKEN
        else:
            if columns is not None and columns.take(topic, body, options) != NOT_TAKEN:
                expected.append(record)
            else:
                assert kind is None
    if columns is None or not expected:
        return
    assert columns.bytes == sum(map(len, expected))
    encoded = one_by_one.gathered(columns).encoded
    found, at = [], 0
    for size in encoded.sizes.tolist():
        found.append(content(encoded.records[at : at + size].tobytes()))
        at += size
    assert found == [content(record) for record in expected]


@needs_kernel
def test_messages_of_other_options_leave_the_columns_and_keep_their_order(
    node: FakeNode, mq: keelog.Client
) -> None:
    bodies = [b"%d" % n for n in range(30)]
    with mq.producer(linger=60) as producer:
        futures = [
            producer.send_nowait("orders", body, queue_id=1, tags="ab"[n >= 10 and n % 3 == 0])
            for n, body in enumerate(bodies)
        ]
        assert producer.unanswered == 30
        other = producer.send_nowait("other", b"x")
    assert len(node.operations("append")) == 2, "one for each topic"
    stored = [record for record in node.stored() if record.topic == "orders"]
    assert [record.body for record in stored] == bodies
    assert [f.result(0).unique_key for f in futures] == [record.unique_key for record in stored]
    assert [f.result(0).queue_offset for f in futures] == list(range(30))
    assert other.result(0).topic == "other"


def test_a_message_that_is_not_right_is_refused_at_once_and_leaves_the_others(
    node: FakeNode, mq: keelog.Client
) -> None:
    with mq.producer(linger=60) as producer:
        good = [producer.send_nowait("orders", b"0", keys="k0")]
        for body, options in (
            (bytes(5 * 1024 * 1024), {}), (b"x", {"keys": "a b"}), (b"x", {"keys": [7]}),
            (b"x", {"tags": "\x01"}), (b"x", {"queue_id": -3}), ("text", {}), (b"x", {"no": 1}),
        ):  # fmt: skip
            with pytest.raises(MqError):
                producer.send_nowait("orders", body, **options)  # type: ignore[arg-type]
        good.append(producer.send_nowait("orders", b"1"))
        assert producer.unanswered == 2
    assert [record.body for record in node.stored()] == [b"0", b"1"]
    assert [future.result(0).queue_offset for future in good] == [0, 1]


def test_a_bad_message_that_the_node_refuses_takes_no_other_with_it(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = node.memory.store

    def picky(frame: bytes, queue: int | None) -> dict[str, object]:
        if b"refused" in frame:
            raise IllegalMessage("I do not like it")
        return store(frame, queue)

    monkeypatch.setattr(node.memory, "store", picky)
    bodies = [b"refused" if n in (3, 20) else b"%d" % n for n in range(32)]
    told: list[int] = []
    with mq.producer(linger=60) as producer:
        futures = [producer.send_nowait("orders", body, queue_id=2) for body in bodies]
        for row, future in enumerate(futures):
            future.add_done_callback(lambda _, row=row: told.append(row))  # type: ignore[misc]
    assert sorted(told) == list(range(32))
    assert producer.failed == 2
    good = [body for body in bodies if body != b"refused"]
    assert [record.body for record in node.stored()] == good
    keys = {record.body: record.unique_key for record in node.stored()}
    for body, future in zip(bodies, futures, strict=True):
        if body == b"refused":
            assert isinstance(future.exception(0), IllegalMessage)
        else:
            assert future.result(0).unique_key == keys[body]


def test_a_message_for_a_queue_that_is_not_there_takes_no_other_with_it(
    node: FakeNode, mq: keelog.Client
) -> None:
    with mq.producer(linger=60) as producer:
        futures = [
            producer.send_nowait("orders", b"%d" % n, queue_id=[0, 99, 1][n % 3]) for n in range(9)
        ]
    refused = [isinstance(future.exception(0), BadRequest) for future in futures]
    assert refused == [n % 3 == 1 for n in range(9)]
    assert sorted(record.body for record in node.stored()) == [
        b"%d" % n for n in (0, 2, 3, 5, 6, 8)
    ]


def test_keys_are_those_of_the_moment_of_the_call(node: FakeNode, mq: keelog.Client) -> None:
    keys = ["a", "b"]
    with mq.producer(linger=60) as producer:
        producer.send_nowait("orders", b"0", queue_id=0)
        producer.send_nowait("orders", b"1", queue_id=0, keys=keys)
        keys.append("late")
        producer.send_nowait("orders", b"2", queue_id=0, keys="c")
        producer.send_nowait("orders", b"3", queue_id=0)
    assert [record.properties.get("KEYS") for record in node.stored()] == [None, "a b", "c", None]


def test_a_batch_goes_when_it_has_its_bytes_or_messages(node: FakeNode, mq: keelog.Client) -> None:
    with mq.producer(linger=60, batch_bytes=2_000, max_in_flight=20) as producer:
        for size in (900, 900, 900, 5_000, 10):
            producer.send_nowait("orders", bytes(size), queue_id=0)
        for _ in range(12):
            producer.send_nowait("orders", b"", queue_id=0)
    assert [header["count"] for header in node.operations("append")] == [1, 1, 1, 1, 10, 3]


def test_without_the_kernel_messages_are_encoded_one_by_one(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "kernel", None)
    with mq.producer(linger=60) as producer:
        futures = [producer.send_nowait("orders", b"%d" % n, queue_id=0) for n in range(20)]
    assert [record.body for record in node.stored()] == [b"%d" % n for n in range(20)]
    assert [future.result(0).queue_offset for future in futures] == list(range(20))


def test_send_many_keeps_plain_bodies_and_other_messages_in_order(
    node: FakeNode, mq: keelog.Client
) -> None:
    bodies: list[Any] = [b"%d" % n for n in range(40)]
    bodies[0] = OutgoingMessage(bodies[0], flag=3)
    bodies[7] = OutgoingMessage(bodies[7], tags="t")
    bodies[8] = bytes(5 * 1024 * 1024)
    bodies[30] = "text"
    with (
        mq.producer(batch_bytes=2_000) as producer,
        pytest.raises(keelog.SendManyError) as caught,
    ):
        producer.send_many("orders", bodies, queue_id=0, keys=["k", "l"])
    assert [failure.index for failure in caught.value.failed] == [8, 30]
    stored = [record for record in node.stored() if record.head.queue_id == 0]
    # What is no plain body says all by itself, also its queue.
    left = [n for n in range(40) if n not in (0, 7, 8, 30)]
    assert [record.body for record in stored if record.properties.get("KEYS") == "k l"] == [
        b"%d" % n for n in left
    ]
    keys = {record.body: record.unique_key for record in node.stored()}
    receipts = iter(caught.value.succeeded)
    for n in sorted([0, 7, *left]):
        assert next(receipts).unique_key == keys[b"%d" % n]


class Collector:
    """Takes batches as a sender does, and says that all of them are stored."""

    def __init__(self) -> None:
        self.entries: list[EncodedMessage] = []

    def send(self, batch: EntryBatch) -> None:
        self.entries += batch.entries
        receipts = [
            Receipt("PUT_OK", one.topic, 0, 0, 0, "", one.unique_key, False, 0)
            for one in batch.entries
        ]
        batch.deliver(batch.entries, receipts)


few_tags: st.SearchStrategy[Any] = st.sampled_from([None, "", "a", "a", "\x01", 0, []])
few_queues = st.sampled_from([None, 0, 1, 1, -3, True, 1.0, "1"])
usual_messages = st.builds(
    OutgoingMessage,
    st.binary(max_size=20),
    topic=st.sampled_from([None, None, "other"]),
    tags=st.sampled_from([None, "a"]),
    keys=st.sampled_from([(), ["k", "l"], "k"]),
    queue_id=st.sampled_from([None, 1]),
)
odd: dict[str, list[Any]] = {
    "body": [bytes(1_001), bytearray(b"x"), "text", None],
    "topic": ["", "bad topic", "t" * 130, 7],
    "tags": ["", "\x01", 0, []],
    "keys": [["l m"], [""], [7], "", None, {"k"}, 7, ("k",)],
    "queue_id": [0, -3, True, 1.0, "1"],
    "properties": [{"a": "b"}, {"UNIQ_KEY": "U"}, {"": ""}, None, [], ()],
    "order_by": ["o", ""],
    "flag": [7, False, 0.0],
    "delay": [0.0, 2.5],
}
odd_values = st.sampled_from([(name, value) for name, values in odd.items() for value in values])
odd_messages = st.builds(
    lambda usual, odd: replace(usual, **dict([odd])), usual_messages, odd_values
)
messages = usual_messages | odd_messages
call_options = st.fixed_dictionaries(
    {}, optional={"tags": few_tags, "queue_id": few_queues, "keys": some_keys}
)


@settings(max_examples=200)
@given(
    crc=st.booleans(),
    bodies=st.lists(messages | st.binary(max_size=9), max_size=40),
    options=call_options,
    batch_bytes=st.sampled_from([1, 500, 2_000, ROOM]),
)
def test_send_many_makes_the_records_that_single_encoding_makes(
    crc: bool, bodies: list[Any], options: Any, batch_bytes: int
) -> None:
    encoder = Encoder(FakeIo(crc), UniqueKeys(IP), Host(IP, 0))
    expected: list[EncodedMessage] = []
    errors: list[tuple[int, str]] = []
    for index, body in enumerate(bodies):
        own: Any = {} if isinstance(body, OutgoingMessage) else options
        try:
            expected.append(encoder.entry("orders", body, own, index))
        except MqError as error:
            errors.append((index, repr(error)))
    collector = Collector()
    many = SendMany(collector, encoder, None, 1.0, batch_bytes)  # type: ignore[arg-type]
    try:
        receipts, failed = many.run("orders", bodies, options), []
    except keelog.SendManyError as error:
        receipts, failed = error.succeeded, error.failed
    assert [(failure.index, repr(failure.error)) for failure in failed] == errors

    def told(entry: EncodedMessage) -> tuple[object, ...]:
        return content(entry.record), *entry[1:4], entry.slot, entry.later

    assert list(map(told, collector.entries)) == list(map(told, expected))
    assert [one.unique_key for one in receipts] == [one.unique_key for one in collector.entries]


@needs_kernel
def test_messages_of_kinds_that_alternate_are_encoded_a_kind_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = Encoder(FakeIo(False), UniqueKeys(IP), Host(IP, 0))
    alone: list[object] = []
    entry = encoder.entry

    def noting(topic: str, body: Any, options: Any, slot: Any) -> EncodedMessage:
        alone.append(body)
        return entry(topic, body, options, slot)

    monkeypatch.setattr(encoder, "entry", noting)
    bodies = [b"%d" % n for n in range(300)]
    sent = [
        OutgoingMessage(body, tags="abc"[n % 3], queue_id=n % 2, keys=[f"k{n}"])
        for n, body in enumerate(bodies)
    ]
    collector = Collector()
    SendMany(collector, encoder, None, 1.0, ROOM).run("orders", sent, {})  # type: ignore[arg-type]
    assert not alone
    assert [one.slot for one in collector.entries] == list(range(300))
    assert len({one.unique_key for one in collector.entries}) == 300


@needs_kernel
def test_more_kinds_than_columns_keep_their_order() -> None:
    sent = [OutgoingMessage(b"%d" % n, tags=f"t{n}") for n in range(3 * KINDS_MAX)]
    collector = Collector()
    encoder = Encoder(FakeIo(False), UniqueKeys(IP), Host(IP, 0))
    SendMany(collector, encoder, None, 1.0, ROOM).run("orders", sent, {})  # type: ignore[arg-type]
    for n, one in enumerate(collector.entries):
        assert one.slot == n
        assert b"TAGS\x01t%d\x02" % n in one.record


def test_threads_of_different_kinds_share_a_producer(node: FakeNode, mq: keelog.Client) -> None:
    with mq.producer(max_in_flight=64) as producer:

        def work(name: int) -> None:
            for n in range(300):
                tags = {"tags": "t"} if name % 2 and n % 50 == 0 else {}
                producer.send_nowait("orders", b"%d" % n, queue_id=name // 2, **tags)  # type: ignore[arg-type]

        threads = [threading.Thread(target=work, args=(name,)) for name in (0, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for queue, senders in ((0, 1), (1, 2), (2, 1)):
        mine = [int(record.body) for record in node.stored() if record.head.queue_id == queue]
        assert sorted(mine) == sorted(list(range(300)) * senders)
        if senders == 1:
            assert mine == list(range(300))
