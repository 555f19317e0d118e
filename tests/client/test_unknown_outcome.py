"""Sends of which nobody knows whether they were stored: each error names its own message."""

import asyncio
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import keelog
import keelog.aio
from keelog import OutcomeUnknownError
from tests.support.fake_node import FakeNode

TIMEOUT_S = 2.0


def keys_of(node: FakeNode, topic: str = "orders") -> list[str]:
    return [record.unique_key for record in node.stored(topic)]


def error_of(future: "Future[keelog.Receipt]") -> OutcomeUnknownError:
    error = future.exception(60)
    assert isinstance(error, OutcomeUnknownError)
    return error


@pytest.fixture
def silent(node: FakeNode, mq: keelog.Client) -> FakeNode:
    """A node that stores what it gets and does not say so."""
    mq.create_topic("orders", queues=2)
    mq.send("other", b"connected by now")
    node.lose_answers["append"] = 100
    return node


def check_named(errors: Sequence[OutcomeUnknownError], node: FakeNode) -> None:
    assert [error.unique_key for error in errors] == keys_of(node)
    for error in errors:
        assert error.topic == "orders"
        assert error.unique_keys[0] in str(error)
        hint = f"keelog msg get --topic orders --unique-key {error.unique_key}"
        assert error.hint == hint
        assert pickle.loads(pickle.dumps(error)).unique_key == error.unique_key


def test_a_waiting_send_names_its_message(silent: FakeNode, mq: keelog.Client) -> None:
    with pytest.raises(OutcomeUnknownError) as lost:
        mq.send("orders", b"x", queue_id=0, timeout=TIMEOUT_S)
    check_named([lost.value], silent)
    silent.lose_answers.clear()
    again = mq.send("orders", b"x", queue_id=0, unique_key=lost.value.unique_key)
    assert keys_of(silent) == [again.unique_key] * 2


def test_a_key_of_ones_own_is_named(silent: FakeNode, mq: keelog.Client) -> None:
    with pytest.raises(OutcomeUnknownError) as lost:
        mq.send("orders", b"x", unique_key="my own", timeout=TIMEOUT_S)
    assert lost.value.unique_key == "my own"
    assert lost.value.hint == "keelog msg get --topic orders --unique-key 'my own'"


def test_threads_whose_messages_went_together_get_each_their_own(
    silent: FakeNode, mq: keelog.Client
) -> None:
    def send(number: int) -> OutcomeUnknownError:
        with pytest.raises(OutcomeUnknownError) as lost:
            mq.send("orders", b"%d" % number, timeout=TIMEOUT_S)
        return lost.value

    with ThreadPoolExecutor(16) as threads:
        errors = list(threads.map(send, range(16)))
    bodies = {record.unique_key: record.body for record in silent.stored("orders")}
    assert [bodies[error.unique_key] for error in errors] == [b"%d" % n for n in range(16)]


@pytest.mark.parametrize("kinds", [{}, {"flag": 3}], ids=["columns", "one by one"])
def test_futures_of_a_producer_name_each_their_own(
    silent: FakeNode, mq: keelog.Client, kinds: dict[str, int]
) -> None:
    with mq.producer(timeout=TIMEOUT_S) as producer:
        futures = [
            producer.send_nowait("orders", b"%d" % n, queue_id=0, **kinds)  # type: ignore[arg-type]
            for n in range(5)
        ]
    check_named([error_of(future) for future in futures], silent)
    with pytest.raises(OutcomeUnknownError, match=keys_of(silent)[2]):
        futures[2].result()


def test_a_batch_names_all_of_its_messages(silent: FakeNode, mq: keelog.Client) -> None:
    with mq.producer(timeout=TIMEOUT_S) as producer:
        error = producer.send_batch("orders", [b"a", b"b", b"c"], queue_id=0).exception(60)
    assert isinstance(error, OutcomeUnknownError)
    assert (error.topic, error.unique_key) == ("orders", "")
    assert list(error.unique_keys) == keys_of(silent)
    assert "3 messages of topic orders" in str(error)


def test_the_failures_of_a_list_name_each_their_own(silent: FakeNode, mq: keelog.Client) -> None:
    with pytest.raises(keelog.SendManyError) as lost:
        mq.producer(timeout=TIMEOUT_S).send_many("orders", [b"a", b"b"], queue_id=0)
    errors = [failure.error for failure in lost.value.failed]
    check_named([one for one in errors if isinstance(one, OutcomeUnknownError)], silent)
    assert len(errors) == 2


@pytest.mark.parametrize("kinds", [{}, {"flag": 3}], ids=["columns", "one by one"])
def test_tasks_get_each_their_own(silent: FakeNode, kinds: dict[str, int]) -> None:
    async def main() -> list[object]:
        async with keelog.aio.connect(silent.url, timeout=TIMEOUT_S) as client:
            sends = (client.send("orders", b"%d" % n, **kinds) for n in range(5))  # type: ignore[arg-type]
            return await asyncio.gather(*sends, return_exceptions=True)

    errors = asyncio.run(main())
    bodies = {record.unique_key: record.body for record in silent.stored("orders")}
    named = [one.unique_key for one in errors if isinstance(one, OutcomeUnknownError)]
    assert [bodies[key] for key in named] == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize(
    "make", [lambda: OutcomeUnknownError("lost"), lambda: keelog.SendTimeout("lost", "look")]
)
def test_an_error_about_no_message_says_what_it_said(
    make: Callable[[], OutcomeUnknownError],
) -> None:
    error = make()
    assert (str(error), error.topic, error.unique_key, list(error.unique_keys)) == (
        "lost",
        "",
        "",
        [],
    )
