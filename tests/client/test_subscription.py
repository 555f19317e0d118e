"""Following a topic: where it starts, what it passes over, when it ends."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

import keelog
from keelog.client import subscription
from keelog.client.transport import direct
from protocol.errors import ClientClosed, ServiceNotAvailable, UnknownTopic
from tests.support.fake_node import FakeNode
from tests.support.meanwhile import meanwhile
from tests.support.node import CATCH_UP_S, wait_until


@pytest.fixture
def mq(node: FakeNode) -> Iterator[keelog.Client]:
    with keelog.connect(node.url, timeout=30.0) as client:
        client.create_topic("orders", queues=3)
        yield client


def fill(mq: keelog.Client, count: int, first: int = 0) -> None:
    with mq.producer() as producer:
        for n in range(first, first + count):
            producer.send_nowait("orders", b"%d" % n, queue_id=n % 3)


def numbers(messages: Iterable[keelog.Message]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def test_every_queue_is_read_to_its_end_in_its_order(mq: keelog.Client) -> None:
    fill(mq, 1000)
    queues: dict[int, list[int]] = defaultdict(list)
    for message in mq.tail("orders", "earliest", until_end=True):
        queues[message.queue_id].append(int(message.body))
    assert {q: len(found) for q, found in queues.items()} == {0: 334, 1: 333, 2: 333}
    assert all(found == sorted(found) for found in queues.values())


def test_the_end_is_where_it_was_at_the_start(mq: keelog.Client) -> None:
    fill(mq, 30)
    found = mq.tail("orders", "earliest", until_end=True, max_messages=2)
    first = next(found)
    fill(mq, 30, first=30)
    assert numbers([first, *found]) == list(range(30))


def test_an_empty_topic_has_an_end_at_once(mq: keelog.Client) -> None:
    assert list(mq.tail("orders", "earliest", until_end=True)) == []
    assert list(mq.tail("orders", "earliest", follow=False)) == []
    assert list(mq.tail("orders", until_end=True)) == []


def test_without_follow_it_stops_where_nothing_more_comes(mq: keelog.Client) -> None:
    fill(mq, 100)
    assert numbers(mq.tail("orders", "earliest", follow=False)) == list(range(100))


def test_starts_are_offsets_counts_from_the_end_and_times(mq: keelog.Client) -> None:
    fill(mq, 30)
    assert numbers(mq.tail("orders", 8, until_end=True)) == list(range(24, 30))
    assert numbers(mq.tail("orders", -1, until_end=True)) == [27, 28, 29]
    assert numbers(mq.tail("orders", -99, until_end=True)) == list(range(30))
    past, future = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    assert numbers(mq.tail("orders", past, until_end=True)) == list(range(30))
    assert numbers(mq.tail("orders", future, until_end=True)) == []


@pytest.mark.parametrize(
    ("topic", "start", "options"),
    [
        ("orders", "yesterday", {}),
        ("orders", "latest", {"timeout": 0}),
        ("orders", "latest", {"timeout": -1.0}),
        ("orders", "latest", {"max_messages": 0}),
        ("orders", "latest", {"max_bytes": "many"}),
        ("orders", "latest", {"tags": 5}),
        ("no such topic!", "latest", {}),
        (None, "latest", {}),
    ],
)
def test_wrong_arguments_are_an_error_of_the_call(
    mq: keelog.Client, topic: Any, start: Any, options: Any
) -> None:
    for follow in (mq.tail, mq.consume):
        with pytest.raises(keelog.BadRequest):
            follow(topic, start, **options)


@pytest.mark.parametrize("hold", [True, False])
def test_it_ends_when_no_message_came_for_the_timeout(
    node: FakeNode, mq: keelog.Client, hold: bool
) -> None:
    node.hold_pulls = hold
    fill(mq, 30)
    began = time.monotonic()
    found = []
    for message in mq.tail("orders", "earliest", timeout=0.5):
        found.append(message)
        if len(found) == 30:
            time.sleep(0.6)  # the time of the caller does not count
            fill(mq, 3, first=30)
    assert numbers(found) == list(range(33))
    assert time.monotonic() - began >= 0.5 + 0.6
    assert list(mq.consume("orders", timeout=0.1)) == []
    assert list(mq.tail("not-there-yet", timeout=0.1)) == []


def test_it_is_stopped_from_another_thread_while_it_waits(
    node: FakeNode, mq: keelog.Client
) -> None:
    node.hold_pulls = True
    follower = mq.tail("orders")
    found: list[keelog.Message] = []
    thread = threading.Thread(target=lambda: found.extend(follower))
    thread.start()
    wait_until(lambda: bool(node.held_offsets()), "a held pull")
    follower.stop()
    thread.join(CATCH_UP_S)
    assert not thread.is_alive()
    assert found == []
    assert mq.send("orders", b"the client goes on").status == "PUT_OK"


def test_only_the_queues_that_were_asked_for_are_read(mq: keelog.Client) -> None:
    fill(mq, 30)
    found = list(mq.tail("orders", "earliest", queues=[1], until_end=True))
    assert {message.queue_id for message in found} == {1}
    assert len(found) == 10


def test_tags_choose_the_messages_and_the_rest_is_passed_over(mq: keelog.Client) -> None:
    for n in range(200):
        mq.send("orders", b"%d" % n, tags="even" if n % 2 == 0 else "odd", queue_id=0)
    found = mq.tail("orders", "earliest", tags="even || never", until_end=True)
    assert numbers(found) == list(range(0, 200, 2))


@pytest.mark.parametrize("hold", [True, False])
def test_a_follower_gets_what_comes_later(node: FakeNode, mq: keelog.Client, hold: bool) -> None:
    node.hold_pulls = hold
    fill(mq, 3)
    begin = time.monotonic()
    with meanwhile(lambda: len(node.operations("pull")) >= 3, lambda: fill(mq, 3, first=3)):
        assert numbers(islice(mq.tail("orders", "latest"), 3)) == [3, 4, 5]
    pulls_max = 3 * (2 + (time.monotonic() - begin) / subscription.PAUSE_S)
    assert len(node.operations("pull")) <= pulls_max, "empty pulls are asked without a pause"


def test_a_follower_takes_up_new_queues_from_their_start(
    mq: keelog.Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keelog.client.subscription.QUEUES_S", 0.1)
    follower = mq.tail("orders", "latest")

    def grow() -> None:
        node.memory.topics["orders"] = 5
        mq.send("orders", b"new", queue_id=4)

    with meanwhile(lambda: len(node.operations("pull")) >= 3, grow):
        assert next(follower).body == b"new"


def test_a_follower_lives_through_the_restart_of_the_reader(
    node: FakeNode, mq: keelog.Client
) -> None:
    def restart() -> None:
        node.stop_process("reader")
        time.sleep(0.2)
        node.start_process("reader", same_port=False)
        fill(mq, 3)

    with meanwhile(lambda: len(node.held_offsets()) == 3, restart):
        assert numbers(islice(mq.tail("orders", "latest"), 3)) == [0, 1, 2]


def test_a_follower_lives_through_a_node_that_cannot_say_where_its_queues_are(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "QUEUES_S", 0.0)
    mq.send("orders", b"first", queue_id=0)
    with keelog.connect(node.url, retry=keelog.Retry(max_attempts=1)) as follower:
        found = follower.tail("orders", "earliest")
        assert next(found).body == b"first"
        node.refuse["offsets"] = [ServiceNotAvailable("away") for _ in range(3)]
        mq.send("orders", b"second", queue_id=0)
        assert next(found).body == b"second"
        assert len(node.refuse["offsets"]) < 3
        node.refuse["offsets"] = [UnknownTopic("deleted")]
        with pytest.raises(UnknownTopic):
            next(found)


def test_a_stream_goes_on_where_it_was_when_its_reader_is_restarted(
    node: FakeNode, mq: keelog.Client
) -> None:
    found: list[int] = []
    follower = mq.tail("orders", "latest", queues=[0])
    reader = threading.Thread(target=lambda: found.extend(numbers(islice(follower, 5))))
    reader.start()
    wait_until(lambda: node.held_offsets() == [0], "a held pull")
    for number in range(3):
        mq.send("orders", b"%d" % number, queue_id=0)
    wait_until(lambda: node.held_offsets() == [3], "three answers")
    assert len(node.operations("pull")) == 1
    node.stop_process("reader")
    node.start_process("reader", same_port=False)
    for number in range(3, 5):
        mq.send("orders", b"%d" % number, queue_id=0)
    reader.join(CATCH_UP_S)
    assert found == list(range(5))


def test_a_stream_that_lost_an_answer_is_asked_for_again(node: FakeNode, mq: keelog.Client) -> None:
    found: list[int] = []
    follower = mq.tail("orders", "latest", queues=[0])
    reader = threading.Thread(target=lambda: found.extend(numbers(islice(follower, 3))))
    reader.start()
    wait_until(lambda: node.held_offsets() == [0], "a held pull")
    node.lose_next_part()
    for number in range(3):
        mq.send("orders", b"%d" % number, queue_id=0)
    reader.join(CATCH_UP_S)
    assert found == list(range(3))


def test_closing_the_client_ends_its_followers(node: FakeNode) -> None:
    client = keelog.connect(node.url, timeout=30.0)
    client.create_topic("orders", queues=1)
    client.send("orders", b"one", queue_id=0)
    resting = client.tail("orders", "earliest")
    assert next(resting).body == b"one"
    waiting = client.tail("orders", "earliest")
    assert next(waiting).body == b"one"
    ended = threading.Event()

    def follow() -> None:
        with pytest.raises(ClientClosed):
            next(waiting)
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: bool(node.held_offsets()), "a held pull")
    client.close()
    assert ended.wait(CATCH_UP_S)
    thread.join()
    with pytest.raises(ClientClosed):
        next(resting)


def test_closing_the_client_ends_its_followers_all_at_the_same_time(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "PULL_SLICE_S", 1.0)
    node.hold_pulls = True
    client = keelog.connect(node.url, timeout=30.0)
    client.create_topic("orders", queues=1)

    def follow() -> None:
        with suppress(ClientClosed):
            next(client.tail("orders"))

    followers = [threading.Thread(target=follow) for _ in range(30)]
    for follower in followers:
        follower.start()
    wait_until(lambda: len(node.operations("pull")) == 30, "all wait")
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 8  # one after the other it takes twice as long
    for follower in followers:
        follower.join(CATCH_UP_S)
    assert not any(follower.is_alive() for follower in followers)


@pytest.mark.parametrize("options", [{"until_end": True}, {"follow": False}])
def test_a_topic_that_is_not_there_has_no_end(
    mq: keelog.Client, options: keelog.TailOptions
) -> None:
    with pytest.raises(keelog.UnknownTopic):
        next(mq.tail("nothing", **options))


@pytest.mark.parametrize("start", ["latest", "earliest", -1, 1, datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_follower_waits_for_its_topic_and_reads_all_of_it(
    mq: keelog.Client, start: subscription.Start, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(1) as thread, keelog.connect(mq.endpoint, timeout=30.0) as other:
        found = thread.submit(lambda: list(islice(other.tail("later", start), 2)))
        wait_until(lambda: "topic later is not there yet" in caplog.text, "it does not say so")
        time.sleep(2 * subscription.TOPIC_S)
        for number in range(3):
            mq.send("later", b"%d" % number, queue_id=0)
        first = 1 if start == 1 else 0
        assert numbers(found.result(30.0)) == [first, first + 1]
    assert len([one for one in caplog.records if one.name == "keelog.client"]) == 1


def test_a_wrong_start_is_an_error_before_the_topic_is_there(mq: keelog.Client) -> None:
    wrong: Any = "begin"
    with pytest.raises(keelog.BadRequest, match="start is 'begin'"):
        next(mq.tail("nothing", wrong))


def test_more_queues_than_pulls_take_turns(mq: keelog.Client) -> None:
    mq.create_topic("wide", queues=70)
    for queue_id in range(70):
        mq.send("wide", b"%d" % queue_id, queue_id=queue_id)
    assert numbers(mq.tail("wide", "earliest", until_end=True)) == list(range(70))
    assert numbers(islice(mq.tail("wide", "earliest"), 70)) == list(range(70))


def test_what_retention_has_deleted_is_passed_over(
    node: FakeNode, mq: keelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(mq, 30)
    pull_now = node._pull_now

    def trimmed(header: dict[str, object]) -> object:
        if header["queue"] == 0 and int(str(header["offset"])) < 5:
            reply = pull_now({**header, "offset": 10**6})
            fields = {**reply.fields, "status": "OFFSET_TOO_SMALL", "next_begin_offset": 5}
            return reply._replace(fields=fields)
        return pull_now(header)

    monkeypatch.setattr(node, "_pull_now", trimmed)
    found = numbers(mq.tail("orders", "earliest", until_end=True))
    assert found == [n for n in range(30) if n % 3 or n >= 15]


def test_a_follower_of_many_queues_sleeps_while_its_pulls_are_held(
    node: FakeNode, mq: keelog.Client
) -> None:
    mq.create_topic("wide", queues=50)
    timer = threading.Timer(0.5, lambda: mq.send("wide", b"x", queue_id=49))
    with meanwhile(lambda: bool(node.held_offsets()), timer.start):
        begin = time.thread_time()
        assert next(mq.tail("wide", "latest")).body == b"x"
        assert time.thread_time() - begin < 0.25
    timer.join()


def test_whole_answers_hold_every_message_once_and_in_order(mq: keelog.Client) -> None:
    fill(mq, 1000)
    queues: dict[int, list[int]] = defaultdict(list)
    for result in mq.consume("orders", "earliest", until_end=True, max_messages=70):
        assert result.count == len(result.messages) == len(result.columns()) > 0
        assert {m.queue_id for m in result.messages} == {result.queue_id}
        queues[result.queue_id] += [int(message.body) for message in result.messages]
    assert sorted(n for found in queues.values() for n in found) == list(range(1000))
    assert all(found == sorted(found) for found in queues.values())


def test_answers_end_where_the_queues_ended_at_the_start(mq: keelog.Client) -> None:
    fill(mq, 30)
    results = mq.consume("orders", "earliest", until_end=True, max_messages=8)
    first = next(results)
    fill(mq, 30, first=30)
    found = [message for result in [first, *results] for message in result.messages]
    assert numbers(found) == list(range(30))


def test_the_next_pulls_are_under_way_while_the_caller_works(
    node: FakeNode, mq: keelog.Client
) -> None:
    fill(mq, 60)
    results = mq.consume("orders", "earliest", queues=[1], until_end=True, max_messages=5)
    next(results)
    wait_until(lambda: len(node.operations("pull")) >= 2, "nothing was asked for ahead")
    assert len(list(results)) == 3


def test_no_more_pulls_are_under_way_than_asked_for(node: FakeNode, mq: keelog.Client) -> None:
    mq.create_topic("wide", queues=9)
    node.hold_pulls = True
    results = mq.consume("wide", "latest", in_flight=4)
    with meanwhile(
        lambda: len(node.held_offsets()) == 4, lambda: mq.send("wide", b"x", queue_id=8)
    ):
        assert next(results).messages[0].body == b"x"
    assert node.held_max == 4
    for wrong in (0, 33):
        with pytest.raises(keelog.BadRequest):
            next(mq.consume("wide", in_flight=wrong))
