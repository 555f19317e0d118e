"""What a client refuses before anything is asked: values that a type checker would have found."""

import _thread
import copy
import pickle
from collections.abc import Callable
from datetime import datetime
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import keelog
from keelog import BadRequest
from tests.support.fake_node import FakeNode

Use = Callable[[Any, Any], object]
BEFORE_TIME = datetime(1, 1, 1)  # noqa: DTZ001


def test_a_program_without_threads_of_its_own_is_refused_at_once(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gevent and eventlet put functions of theirs in this place; a call would never return."""

    def green(*_: object) -> None:
        pytest.fail("it is not used")

    green.__module__ = "gevent.thread"
    monkeypatch.setattr(_thread, "start_new_thread", green)
    with pytest.raises(
        keelog.NotAllowed, match="has replaced the threads of this program"
    ) as caught:
        keelog.connect(node.url)
    assert "--worker-class gthread" in caught.value.hint


def test_a_program_under_a_debugger_is_served(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of VS Code and PyCharm, which has threads traced from their start."""
    start = _thread.start_new_thread

    class Tracer:
        def start_new_thread(self, *given: Any) -> int:
            return start(*given)

    monkeypatch.setattr(_thread, "start_new_thread", Tracer().start_new_thread)
    with keelog.connect(node.url) as client:
        assert client.send("orders", b"x").status == "PUT_OK"


@pytest.mark.parametrize("timeout", [-1, nan, inf, "5", 1e9])
def test_what_is_no_time_is_refused_and_the_client_goes_on(
    node: FakeNode, mq: keelog.Client, timeout: Any
) -> None:
    uses: list[Callable[[], object]] = [
        lambda: keelog.connect(node.url, timeout),
        lambda: mq.send("orders", b"x", timeout=timeout),
        lambda: mq.send("orders", b"x", order_by="k", timeout=timeout),
        lambda: mq.topics(timeout),
        lambda: mq.pull("orders", 0, 0, timeout=timeout),
        lambda: mq.pull("orders", 0, 0, wait=timeout),
        lambda: mq.producer(timeout=timeout),
        lambda: mq.producer(linger=timeout),
        lambda: mq.producer().flush(timeout),
        lambda: mq.producer().drain(timeout),
    ]
    for use in uses:
        with pytest.raises(BadRequest):
            use()
    assert node.stored() == []
    assert mq.topics() == []


@pytest.mark.parametrize("timeout", [5, 5.0, np.float32(5), np.int64(5)])
def test_any_number_of_seconds_is_a_time(mq: keelog.Client, timeout: Any) -> None:
    assert mq.send("orders", b"x", timeout=timeout).status == "PUT_OK"
    assert len(mq.topics(timeout)) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda mq, _: mq.pull("orders", 0, 0, colour=1),
        lambda mq, _: mq.get("x", colour=1),
        lambda mq, _: mq.find("orders", "k", colour=1),
        lambda mq, _: mq.find("orders", "k", limit=-1),
        lambda mq, _: mq.find("orders", "k", limit="3"),
        lambda mq, _: mq.find("orders", "k", since="now"),
        lambda mq, _: mq.seek("orders", 0, 0, colour=1),
        lambda mq, _: mq.seek("orders", 0, "now"),
        lambda mq, _: mq.seek("orders", 0, BEFORE_TIME),
        lambda mq, _: mq.find("orders", "k", since=BEFORE_TIME),
        lambda mq, _: mq.tail("orders", queues=0),
        lambda mq, _: mq.tail("orders", queues="01"),
        lambda mq, _: mq.tail("orders", in_flight="1"),
        lambda mq, _: mq.create_topic("orders", colour=1),
        lambda mq, _: mq.tail("orders", colour=1),
        lambda mq, _: mq.producer(colour=1),
        lambda mq, _: mq.producer(max_in_flight="9"),
        lambda mq, _: mq.send("orders", b"x", queue_id=1.0),
        lambda mq, _: mq.send("orders", keelog.OutgoingMessage(b"x"), tags="lost"),
        lambda _, producer: producer.send_nowait("orders", keelog.OutgoingMessage(b"x"), tags="l"),
        lambda _, producer: producer.send_batch("orders", b"one body"),
        lambda _, producer: producer.send_batch("orders", (body for body in [b"x"])),
    ],
)
def test_names_and_values_that_nobody_knows_are_refused(
    node: FakeNode, mq: keelog.Client, use: Use
) -> None:
    with mq.producer() as producer, pytest.raises(BadRequest):
        use(mq, producer)
    assert node.stored() == []
    assert mq.topics() == []


BODIES = [b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a.b.c.")[::2]]


def ways(mq: keelog.Client, body: Any) -> list[Callable[[], object]]:
    """Each way to send one body."""
    producer = mq.producer()
    return [
        lambda: mq.send("orders", body),
        lambda: mq.send("orders", body, order_by="k"),
        lambda: producer.send_nowait("orders", body).result(60),
        lambda: producer.send_many("orders", [body]),
        lambda: producer.send_batch("orders", [body, b"next"]).result(60),
    ]


@pytest.mark.parametrize("body", BODIES)
def test_bytes_of_any_kind_are_stored_as_they_are(
    node: FakeNode, mq: keelog.Client, body: Any
) -> None:
    for send in ways(mq, body):
        send()
    assert [record.body for record in node.stored()] == [b"abc"] * 5 + [b"next"]


@pytest.mark.parametrize("body", ["text", np.arange(3), None, 7, [b"x"]])
def test_what_is_no_bytes_is_refused_in_each_way_and_the_error_says_what_helps(
    node: FakeNode, mq: keelog.Client, body: Any
) -> None:
    for send in ways(mq, body):
        with pytest.raises((BadRequest, keelog.SendManyError)) as caught:
            send()
        hint = ".tobytes()" if isinstance(body, np.ndarray) else ".encode()"
        assert hint in caught.value.hint
    assert node.stored() == []


@pytest.mark.parametrize(
    ("url", "retry"),
    [
        (7850, None),
        (b"tcp://127.0.0.1:7850", None),
        ("tcp://127.0.0.1:99999", None),
        ("tcp://127.0.0.1:0", None),
        ("tcp://127.0.0.1:7850", 3),
    ],
)
def test_addresses_and_retries_that_are_none_are_refused(url: Any, retry: Any) -> None:
    with pytest.raises(BadRequest):
        keelog.connect(url, timeout=1.0, retry=retry)


@pytest.mark.parametrize("fields", [{"max_attempts": 0}, {"backoff": -1}, {"backoff_max": nan}])
def test_a_retry_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        keelog.Retry(**fields)


def test_the_address_of_another_process_is_told_from_that_of_the_node(
    node: FakeNode, mq: keelog.Client
) -> None:
    writer = mq.routes().writer
    with pytest.raises(BadRequest, match="not its control address"):
        keelog.connect(writer)


def test_who_uses_a_closed_client_again_and_again_is_told_to_stop(node: FakeNode) -> None:
    mq = keelog.connect(node.url)
    mq.close()
    uses: list[Callable[[], object]] = [
        mq.__enter__,
        mq.producer,
        mq.topics,
        lambda: mq.send("orders", b"x"),
        lambda: next(mq.tail("orders")),
    ]
    for use in uses:
        with pytest.raises(keelog.ClientClosed) as caught:
            use()
        assert not caught.value.retriable


ERRORS = [
    keelog.NotConnected("nobody", "start it"),
    keelog.OffsetOutOfRange("gone", "go on", earliest=3, latest=9),
    keelog.StoreDamaged("commitlog", 7, "zeros", "repair"),
    keelog.MessageDamaged("commitlog", 7, "zeros", "", queue_offset=1, next_offset=2),
    keelog.SendManyError([], [keelog.Failure(0, keelog.NodeBusy("full"))]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_come_whole_from_another_process(error: keelog.MqError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(vars(again)) == repr(vars(error))


def test_clients_and_producers_are_not_copied(mq: keelog.Client) -> None:
    with mq.producer() as producer:
        for made in (mq, producer):
            with pytest.raises(TypeError, match="the other process"):
                copy.copy(made)
            with pytest.raises(TypeError, match="the other process"):
                pickle.dumps(made)


@pytest.mark.parametrize(
    ("options", "reason", "hint"),
    [
        ({"key": "k"}, "a message has no option key", "did you mean keys?"),
        ({"tag": "k"}, "a message has no option tag", "did you mean tags?"),
        ({"tags": 5}, "tags is int, not text", "give str(value)"),
        ({"keys": 5}, "keys is int, not a list of text", "keys=['order-17']"),
        ({"keys": ["a", b"b"]}, "a key is bytes, not text", "decode it: value.decode()"),
        ({"properties": {"n": 5}}, "property 'n' is int, not text", "give str(value)"),
        ({"properties": 5}, "properties is int, not a dict", "properties={'name': 'text'}"),
        ({"queue_id": "5"}, "queue_id is str, not a whole number", "give int(value)"),
    ],
)
def test_a_wrong_field_is_named_with_its_type(
    mq: keelog.Client, options: dict[str, Any], reason: str, hint: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        mq.send("orders", b"x", **options)
    assert (caught.value.reason, caught.value.hint) == (reason, hint)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"a": 1}, "encode it, as JSON: json.dumps(body).encode()"),
        (None, "encode it, as JSON: json.dumps(body).encode()"),
        ("text", "encode text: body.encode()"),
        (np.zeros(3), "an array has .tobytes(), a file .read()"),
    ],
)
def test_a_wrong_body_says_how_to_make_bytes_of_it(mq: keelog.Client, body: Any, hint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        mq.send("orders", body)
    assert caught.value.hint == hint
