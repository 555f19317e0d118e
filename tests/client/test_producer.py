"""The producer: batches, futures, limits, and what happens to the good with the bad."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, as_completed, wait
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

import keelog
from keelog import OutgoingMessage, Receipt, Retry
from protocol.errors import BadRequest, IllegalMessage, NodeBusy
from tests.support.fake_node import FakeNode, has_lost
from tests.support.node import wait_until

WAIT_S = 60.0


def test_messages_of_one_moment_share_a_batch(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("orders")
    with mq.producer(linger=WAIT_S) as producer:
        futures = [producer.send_nowait("orders", b"%d" % n) for n in range(50)]
        producer.flush(WAIT_S)
        receipts = [future.result(WAIT_S) for future in futures]
    assert len(node.operations("append")) == 1
    assert [r.body for r in node.stored()] == [b"%d" % n for n in range(50)]
    assert [r.physical_offset for r in receipts] == [r.physical_offset for r in node.stored()]
    assert [r.unique_key for r in receipts] == [r.unique_key for r in node.stored()]
    assert [r.queue_id for r in receipts] == [r.head.queue_id for r in node.stored()]
    assert [r.queue_offset for r in receipts] == [r.head.queue_offset for r in node.stored()]
    assert [r.msg_id for r in receipts] == [r.message_id for r in node.stored()]


def test_a_lone_message_goes_when_it_has_lingered(mq: keelog.Client) -> None:
    with mq.producer(linger=0.05) as producer:
        begin = time.monotonic()
        producer.send_nowait("orders", b"x").result(WAIT_S)
        assert time.monotonic() - begin >= 0.04


def test_a_message_behind_a_batch_that_went_lingers_from_its_own_time(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders")
    with mq.producer(linger=0.2, batch_bytes=2_000) as producer:
        for _ in range(2):  # behind a quiet time the same holds
            first = producer.send_nowait("orders", b"x" * 1_500)
            time.sleep(0.1)
            begin = time.monotonic()
            second = producer.send_nowait("orders", b"y" * 1_500)
            assert first.result(WAIT_S).status == "PUT_OK"
            assert second.result(WAIT_S).status == "PUT_OK"
            assert time.monotonic() - begin >= 0.19


def test_a_full_batch_does_not_linger(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("orders")
    with mq.producer(linger=60, batch_bytes=2_000) as producer:
        future = producer.send_nowait("orders", b"x" * 1_000)
        producer.send_nowait("orders", b"x" * 1_000)
        assert future.result(WAIT_S).status == "PUT_OK"


def test_queues_are_taken_in_turn(mq: keelog.Client) -> None:
    mq.create_topic("orders", queues=4)
    with mq.producer() as producer:
        receipts = producer.send_many("orders", [b"x"] * 40)
    ids = [r.queue_id for r in receipts]
    assert Counter(ids) == {0: 10, 1: 10, 2: 10, 3: 10}
    assert all((b - a) % 4 == 1 for a, b in pairwise(ids))


def test_one_batch_may_hold_several_topics_and_queues(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("a", queues=2)
    mq.create_topic("b", queues=2)
    messages = [
        OutgoingMessage(b"1", topic="a", queue_id=1),
        OutgoingMessage(b"2", topic="b", queue_id=0),
        OutgoingMessage(b"3", topic="a", queue_id=1),
        OutgoingMessage(b"4", topic="b", order_by="k"),
        OutgoingMessage(b"5"),
    ]
    with mq.producer() as producer:
        receipts = producer.send_many("a", messages)
    assert len(node.operations("append")) == 1
    assert [(r.topic, r.queue_id, r.queue_offset) for r in receipts[:3]] == [
        ("a", 1, 0), ("b", 0, 0), ("a", 1, 1),
    ]  # fmt: skip
    assert receipts[4].topic == "a"
    for receipt, message in zip(receipts, messages, strict=True):
        assert mq.get(receipt.msg_id).body == message.body


def test_a_topic_that_nobody_knows_is_made_by_its_first_batch(
    node: FakeNode, mq: keelog.Client
) -> None:
    with mq.producer() as producer:
        first = producer.send_many("fresh", [b"1", b"2", b"3"])
        second = producer.send_many("fresh", [b"4"] * 8)
    assert len({r.queue_id for r in first}) == 3, "a new topic has the usual queues"
    assert len({r.queue_id for r in second}) == 8, "the client takes the queues in turn"
    assert [h.get("queue") for h in node.operations("append")] == [None, None]


def test_a_new_topic_with_fewer_queues_than_usual_gets_its_first_batch_too(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = node.memory.topics
    monkeypatch.setattr(node.memory, "need_topic", lambda topic: made.setdefault(topic, 2))
    with mq.producer() as producer:
        receipts = producer.send_many("narrow", [b"%d" % number for number in range(100)])
    assert {r.queue_id for r in receipts} == {0, 1}
    assert len(node.operations("append")) == 2, "the first guess is refused as a whole"


def test_order_by_keeps_the_messages_of_a_key_in_one_queue_and_in_order(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders", queues=7)
    with mq.producer(batch_bytes=3_000) as producer:
        for n in range(300):
            producer.send_nowait("orders", b"%d" % n, order_by=f"key-{n % 10}")
    for key in range(10):
        mine = [r for r in node.stored() if int(r.body) % 10 == key]
        assert len({r.head.queue_id for r in mine}) == 1
        by_offset = sorted(mine, key=lambda r: r.head.queue_offset)
        assert [int(r.body) for r in by_offset] == list(range(key, 300, 10))


def test_order_by_follows_a_topic_that_has_fewer_queues_than_was_thought(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders", queues=8)
    with mq.producer() as producer:
        producer.send_many("orders", [b"x"], order_by="o-18")
        node.memory.topics["orders"] = 1
        receipts = producer.send_many("orders", [b"y"] * 4, order_by="o-18")
    assert {r.queue_id for r in receipts} == {0}


def test_what_a_store_cannot_hold_is_refused_at_the_call(mq: keelog.Client) -> None:
    with mq.producer() as producer:
        with pytest.raises(keelog.MessageTooLarge):
            producer.send_nowait("orders", bytes(5 * 1024 * 1024))
        with pytest.raises(keelog.PropertiesTooLarge):
            producer.send_nowait("orders", b"x", properties={"a": "x" * 40_000})
        with pytest.raises(keelog.IllegalMessage):
            producer.send_nowait("bad topic", b"x")
        assert producer.unanswered == 0


def test_send_many_tells_the_stored_from_the_failed(node: FakeNode, mq: keelog.Client) -> None:
    bodies = [b"1", bytes(5 * 1024 * 1024), b"3"]
    with mq.producer() as producer, pytest.raises(keelog.SendManyError) as caught:
        producer.send_many("orders", bodies)
    assert [f.index for f in caught.value.failed] == [1]
    assert isinstance(caught.value.failed[0].error, keelog.MessageTooLarge)
    assert [r.physical_offset for r in caught.value.succeeded] == [
        r.physical_offset for r in node.stored()
    ]


def test_a_refused_topic_does_not_take_the_others_with_it(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("good", queues=1)
    node.memory.auto_create = False
    messages = [OutgoingMessage(b"%d" % n, topic="good" if n % 2 else "none") for n in range(10)]
    for message in messages:
        assert message.queue_id is None
    placed = [OutgoingMessage(m.body, topic=m.topic, queue_id=0) for m in messages]
    with mq.producer() as producer, pytest.raises(keelog.SendManyError) as caught:
        producer.send_many("good", placed)
    assert [f.index for f in caught.value.failed] == [0, 2, 4, 6, 8]
    assert {type(f.error) for f in caught.value.failed} == {keelog.UnknownTopic}
    assert [r.body for r in node.stored()] == [b"1", b"3", b"5", b"7", b"9"]


def test_a_refused_record_does_not_take_its_batch_with_it(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = node.memory.store

    def picky(frame: bytes, queue: int | None) -> dict[str, object]:
        if b"refused" in frame:
            raise IllegalMessage("I do not like it")
        return store(frame, queue)

    monkeypatch.setattr(node.memory, "store", picky)
    mq.create_topic("orders", queues=1)
    bodies = [b"refused" if n in (3, 20) else b"%d" % n for n in range(32)]
    with mq.producer() as producer, pytest.raises(keelog.SendManyError) as caught:
        producer.send_many("orders", bodies)
    assert [f.index for f in caught.value.failed] == [3, 20]
    assert [r.body for r in node.stored()] == [b for b in bodies if b != b"refused"]


def test_a_busy_node_gets_the_batch_again(node: FakeNode, mq: keelog.Client) -> None:
    node.refuse["append"] = [NodeBusy("full")]
    with mq.producer() as producer:
        assert producer.send_nowait("orders", b"x").result(WAIT_S).status == "PUT_OK"
    assert len(node.stored()) == 1


def test_a_lost_answer_leaves_the_whole_batch_unknown(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("orders")
    node.lose_answers["append"] = 1
    with mq.producer(timeout=1.0, linger=WAIT_S) as producer:  # one batch
        futures = [producer.send_nowait("orders", b"x") for _ in range(3)]
        producer.flush(WAIT_S)
        assert [type(f.exception()) for f in futures] == [keelog.SendTimeout] * 3
        assert producer.failed == 3
    assert len(node.operations("append")) == 1


def test_when_full_raise_refuses_beyond_max_in_flight(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("orders")
    node.delay["append"] = WAIT_S
    with mq.producer(max_in_flight=4, when_full="raise", linger=0) as producer:
        for _ in range(4):
            producer.send_nowait("orders", b"x")
        with pytest.raises(keelog.NodeBusy):
            producer.send_nowait("orders", b"x")
        node.delay.clear()
        producer.flush(WAIT_S)
        producer.send_nowait("orders", b"x")


def test_when_full_block_waits_for_answers(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("orders")
    node.delay["append"] = 0.2
    with mq.producer(max_in_flight=4, linger=60) as producer:
        begin = time.monotonic()
        for _ in range(5):
            producer.send_nowait("orders", b"x")
            assert producer.unanswered <= 4
        assert time.monotonic() - begin >= 0.15
    assert len(node.stored()) == 5


def test_flush_says_when_answers_are_missing(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("orders")
    node.delay["append"] = WAIT_S
    with mq.producer() as producer:
        producer.send_nowait("orders", b"x")
        with pytest.raises(keelog.RequestTimeout):
            producer.flush(0.1)
        node.delay.clear()


def test_leaving_the_producer_sends_what_it_holds(node: FakeNode, mq: keelog.Client) -> None:
    with mq.producer(linger=60) as producer:
        producer.send_oneway("audit", b"x")
        future = producer.send_nowait("orders", b"y")
    assert future.done()
    assert {r.body for r in node.stored()} == {b"x", b"y"}
    with pytest.raises(keelog.ClientClosed):
        producer.send_nowait("orders", b"z")


def test_leaving_the_client_sends_what_its_producers_hold(node: FakeNode) -> None:
    with keelog.connect(node.url, timeout=WAIT_S) as mq:
        future = mq.producer(linger=60).send_nowait("orders", b"x")
        mq.producer(linger=60).send_oneway("orders", b"y")
    assert future.done()
    assert {r.body for r in node.stored()} == {b"x", b"y"}


def test_leaving_the_client_waits_for_a_producer_that_another_thread_leaves(
    node: FakeNode,
) -> None:
    node.delay["append"] = 0.5
    with keelog.connect(node.url, timeout=WAIT_S) as mq:
        producer = mq.producer(linger=60)
        future = producer.send_nowait("orders", b"x")
        leaving = threading.Thread(target=producer.close)
        leaving.start()
        wait_until(lambda: bool(node.operations("append")), "the other thread flushes")
    assert future.result(0).status == "PUT_OK"
    leaving.join(WAIT_S)


def test_no_future_waits_for_ever_behind_the_end_of_its_client(node: FakeNode) -> None:
    mq = keelog.connect(node.url)
    mq.create_topic("orders")
    producer, early = mq.producer(linger=60), mq.producer()
    # A done callback cannot wait for an answer, so what is gathered fails.
    early.send_nowait("orders", b"first").add_done_callback(lambda _: mq.close())
    gathered = producer.send_nowait("orders", b"x")
    assert isinstance(gathered.exception(WAIT_S), keelog.ClientClosed)
    late = producer.send_nowait("orders", b"y")
    assert isinstance(late.exception(WAIT_S), keelog.ClientClosed)
    with pytest.raises(keelog.ClientClosed):
        mq.producer()
    producer.close()


def test_a_done_callback_that_would_wait_for_ever_is_told_so(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders")
    node.delay["append"] = WAIT_S  # the callback is there before the answer
    refused: list[str] = []
    over = threading.Event()
    with mq.producer() as producer:
        waiting: list[Callable[[], object]] = [
            lambda: mq.send("orders", b"1"),
            lambda: mq.send("orders", b"1", order_by="k"),
            lambda: producer.send_many("orders", [b"1"]),
            producer.flush,
            mq.topics,
        ]

        def wait_here(_: object) -> None:
            for call in waiting:
                with suppress(BadRequest):
                    call()
                    continue
                refused.append("refused")
            over.set()

        producer.send_nowait("orders", b"0").add_done_callback(wait_here)
        node.delay.clear()
        assert over.wait(WAIT_S)
    assert len(refused) == len(waiting)
    assert len(node.stored()) == 1
    assert mq.send("orders", b"2").status == "PUT_OK"


def test_acks_flushed_asks_for_a_flush(node: FakeNode, mq: keelog.Client) -> None:
    with mq.producer(acks="flushed") as producer:
        assert producer.send_nowait("orders", b"x").result(WAIT_S).flushed is True
    assert node.operations("append")[0]["wait"] == "flushed"


def test_settings_that_make_no_sense_are_refused(mq: keelog.Client) -> None:
    for options in (
        {"acks": "all"}, {"when_full": "drop"}, {"linger": -1}, {"max_in_flight": 0},
        {"batch_bytes": 0},
    ):  # fmt: skip
        with pytest.raises(keelog.BadRequest):
            mq.producer(**options)


def test_many_threads_may_share_a_producer(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("orders", queues=4)
    futures: list[Future[Receipt]] = []
    with mq.producer(max_in_flight=64) as producer:

        def work(name: int) -> None:
            for n in range(200):
                futures.append(producer.send_nowait("orders", b"%d:%d" % (name, n), queue_id=name))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(f.result(WAIT_S).status == "PUT_OK" for f in futures)
    for name in range(4):
        mine = [r.body for r in node.stored() if r.head.queue_id == name]
        assert mine == [b"%d:%d" % (name, n) for n in range(200)]


def test_a_done_callback_may_send_but_may_not_wait(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("orders")
    node.delay["append"] = WAIT_S  # the callback is there before the answer
    outcome: list[object] = []
    done = threading.Event()
    with mq.producer(max_in_flight=1) as producer:

        def again(_: object) -> None:
            try:
                producer.send_nowait("orders", b"2")
                producer.send_nowait("orders", b"3")
            except NodeBusy as error:
                outcome.append(error)
            done.set()

        producer.send_nowait("orders", b"1").add_done_callback(again)
        node.delay.clear()
        assert done.wait(WAIT_S)
    assert len(outcome) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_done_callback_that_ends_its_thread_leaves_nobody_waiting(
    node: FakeNode, is_batch: bool
) -> None:
    """Futures let SystemExit pass, and it ends the client's thread."""
    mq = keelog.connect(node.url)
    mq.create_topic("orders")
    node.delay["append"] = WAIT_S  # the callbacks are there before the answer
    producer = mq.producer(linger=0.05)
    sent = (
        [producer.send_batch("orders", [b"0"])]
        if is_batch
        else [producer.send_nowait("orders", b"%d" % number) for number in range(3)]
    )
    called: list[Future[Any]] = []

    def leave(future: Future[Any]) -> None:
        called.append(future)
        raise SystemExit

    for future in sent:
        future.add_done_callback(leave)
    node.delay.clear()
    closing = threading.Thread(target=producer.close, daemon=True)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert called == sent
    assert [future.exception() for future in sent] == [None] * len(sent)
    mq.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_request_has_its_outcome_when_each_callback_ends_its_thread(node: FakeNode) -> None:
    mq = keelog.connect(node.url)
    mq.create_topic("orders")
    node.delay["append"] = WAIT_S  # the callbacks are there before the answers
    producer = mq.producer()
    sent = [producer.send_batch("orders", [b"%d" % number]) for number in range(40)]

    def leave(_future: Future[Any]) -> None:
        raise SystemExit

    for future in sent:
        future.add_done_callback(leave)
    node.delay.clear()
    assert len(wait(sent, WAIT_S).done) == len(sent)
    mq.close()


def test_batches_keep_their_order_while_a_restarted_writer_is_awaited(
    node: FakeNode,
) -> None:
    with keelog.connect(node.url, timeout=WAIT_S, retry=Retry(max_attempts=5)) as mq:
        mq.create_topic("orders", queues=1)
        with mq.producer(batch_bytes=1) as producer:
            producer.send_many("orders", [b"first"])
            node.stop_process("writer")
            wait_until(lambda: has_lost(mq, node.endpoints["writer"]), "the end is not seen")
            futures = [producer.send_nowait("orders", b"%d" % n) for n in range(20)]
            node.start_process("writer", same_port=False)
            assert all(future.result(WAIT_S) for future in futures)
    assert [r.body for r in node.stored()] == [b"first", *(b"%d" % n for n in range(20))]


def test_futures_of_one_producer_are_waited_for_like_any_others(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("orders", queues=2)
    node.delay["append"] = WAIT_S
    with mq.producer(linger=0) as producer:
        first = [producer.send_nowait("orders", b"%d" % n) for n in range(3)]
        with pytest.raises(TimeoutError):
            first[0].result(0.001)
        with pytest.raises(TimeoutError):
            first[0].exception(0.001)
        node.delay.clear()
        bad = producer.send_nowait("orders", b"bad", queue_id=99)
        done, missing = wait([*first, bad], timeout=WAIT_S)
        assert (len(done), len(missing)) == (4, 0)
        assert isinstance(bad.exception(), keelog.BadRequest)
        stored = {record.body: record.physical_offset for record in node.stored()}
        later = [producer.send_nowait("orders", b"%d" % n) for n in range(3, 6)]
        assert {future.result().physical_offset for future in as_completed(later, WAIT_S)} == {
            record.physical_offset for record in node.stored()[3:]
        }
    assert [future.result(0).physical_offset for future in first] == [
        stored[b"%d" % n] for n in range(3)
    ]
    assert all(isinstance(future.result(), Receipt) for future in first + later)


def test_a_flush_has_one_deadline_for_messages_and_batches(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float | None] = []

    def wait_for(_until: object, timeout: float | None) -> bool:
        left.append(timeout)
        return True

    producer = mq.producer(linger=WAIT_S)
    monkeypatch.setattr(producer._batches_answered, "wait_for", wait_for)
    for timeout in (WAIT_S, None):
        node.delay["append"] = 0.1  # from the flush on: nothing goes before
        producer.send_nowait("orders", b"x")
        producer.flush(timeout)
    assert left[0] is not None
    assert left[0] < WAIT_S - 0.05
    assert left[1] is None
