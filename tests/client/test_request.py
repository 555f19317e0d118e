"""When a request is repeated, and which error its caller gets: the rules as a table."""

import time

import pytest

from keelog.client.send.encode import UniqueKeys
from keelog.client.transport.exchange import (
    Call,
    Decision,
    Exchange,
    NodeAnswer,
    NodeRole,
    RepeatAfter,
    Retry,
)
from keelog.client.transport.io_thread import Timers
from keelog.client.transport.routes import local_ip
from protocol.errors import (
    BadRequest,
    MqError,
    NodeBusy,
    NotConnected,
    RequestTimeout,
    SendTimeout,
)

NOW = 100.0


def call(*, repeatable: bool, sent: bool = False, maybe: bool = False, attempts: int = 1) -> Call:
    made = Call(NodeRole.WRITER, "send", {}, NOW + 5, repeatable=repeatable)
    made.sent, made.maybe_done, made.attempts = sent, maybe, attempts
    return made


def error_of(decision: Decision) -> type[MqError]:
    assert isinstance(decision, MqError)
    return type(decision)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_busy_refusal_is_repeated_even_for_sends(repeatable: bool) -> None:
    decision = call(repeatable=repeatable).refused(NodeBusy("full"), Retry(), NOW)
    assert isinstance(decision, RepeatAfter)
    assert decision.delay >= NodeBusy.retry_after


def test_a_refusal_that_is_not_retriable_is_the_callers() -> None:
    assert error_of(call(repeatable=True).refused(BadRequest("no"), Retry(), NOW)) is (BadRequest)


def test_attempts_and_deadline_end_the_repeating() -> None:
    last = call(repeatable=False, attempts=5)
    assert error_of(last.refused(NodeBusy("full"), Retry(), NOW)) is NodeBusy
    late = call(repeatable=False)
    assert error_of(late.refused(NodeBusy("full"), Retry(), NOW + 4.95)) is NodeBusy


def test_a_lost_connection_repeats_reads_but_not_sends() -> None:
    assert isinstance(call(repeatable=True).lost("gone", Retry(), NOW), RepeatAfter)
    assert error_of(call(repeatable=False).lost("gone", Retry(), NOW)) is SendTimeout
    careless = Retry(duplicates_ok=True)
    assert isinstance(call(repeatable=False).lost("gone", careless, NOW), RepeatAfter)
    assert error_of(call(repeatable=True, attempts=5).lost("gone", Retry(), NOW)) is (NotConnected)


def test_what_may_be_stored_stays_unknown_whatever_comes_later() -> None:
    once_lost = call(repeatable=False, maybe=True)
    assert error_of(once_lost.refused(BadRequest("no"), Retry(), NOW)) is SendTimeout
    assert type(once_lost.at_deadline("the writer")) is SendTimeout


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (call(repeatable=False), NotConnected),
        (call(repeatable=True), NotConnected),
        (call(repeatable=False, sent=True), SendTimeout),
        (call(repeatable=True, sent=True), RequestTimeout),
    ],
)
def test_the_error_at_the_deadline_says_what_is_known(made: Call, kind: type[MqError]) -> None:
    assert type(made.at_deadline("the writer")) is kind


def test_a_call_that_waits_for_its_next_attempt_ends_with_its_last_error() -> None:
    made = call(repeatable=False)
    made.last_error = NodeBusy("full")
    assert made.at_deadline("the writer") is made.last_error


def test_the_waits_grow_to_their_ceiling_and_are_random_below_it() -> None:
    retry = Retry(max_attempts=99, backoff=0.05, backoff_max=1.0)
    waits = []
    for attempts in (1, 2, 3, 4, 5, 60):
        decision = call(repeatable=True, attempts=attempts).lost("", retry, NOW, chance=1.0)
        assert isinstance(decision, RepeatAfter)
        waits.append(decision.delay)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    none = call(repeatable=True).lost("", retry, NOW, chance=0.0)
    assert none == RepeatAfter(0.0)


def under_way(exchange: Exchange, number: int, *, repeatable: bool = True) -> Call:
    made = call(repeatable=repeatable, attempts=0)
    exchange.sent(made, number)
    return made


def test_an_answer_ends_its_call_and_finds_nobody_the_second_time() -> None:
    exchange = Exchange(Retry())
    made = under_way(exchange, 7)
    assert (made.sent, made.attempts) == (True, 1)
    header = {"id": 7, "ok": True}
    assert exchange.answered({"id": 8, "ok": True}, b"", NOW) is None
    assert exchange.answered(header, b"x", NOW) == (made, NodeAnswer(header, b"x"))
    assert exchange.answered(header, b"x", NOW) is None
    assert not made.sent


def test_a_refusal_is_repeated_or_is_the_callers() -> None:
    exchange = Exchange(Retry(max_attempts=2))
    made = under_way(exchange, 1)
    busy = {"id": 1, "ok": False, "error": {"kind": "NodeBusy", "reason": "full"}}
    found = exchange.answered(busy, b"", NOW)
    assert found is not None
    assert isinstance(found[1], RepeatAfter)
    exchange.sent(made, 1)
    found = exchange.answered(busy, b"", NOW)
    assert found is not None
    assert error_of(found[1]) is NodeBusy
    assert made.last_error is found[1]


def test_each_call_of_a_lost_connection_is_decided_by_itself() -> None:
    exchange = Exchange(Retry())
    read, send = under_way(exchange, 1), under_way(exchange, 2, repeatable=False)
    (first, repeated), (second, given_up) = exchange.lost("gone", NOW)
    assert (first, second) == (read, send)
    assert isinstance(repeated, RepeatAfter)
    assert error_of(given_up) is SendTimeout
    assert (read.maybe_done, send.maybe_done) == (False, True)
    assert not exchange.under_way


def test_only_calls_whose_time_is_up_expire_and_closing_ends_the_others() -> None:
    exchange = Exchange(Retry())
    early, late = under_way(exchange, 1), under_way(exchange, 2, repeatable=False)
    early.deadline = NOW
    ((ended, error),) = exchange.expired(NOW, "the writer")
    assert (ended, type(error)) == (early, RequestTimeout)
    ((ended, error),) = exchange.closed()
    assert (ended, type(error)) == (late, SendTimeout)
    assert not exchange.under_way


def test_a_call_with_several_answers_goes_on_from_the_next() -> None:
    exchange = Exchange(Retry())
    made = under_way(exchange, 1)
    assert exchange.answered({"id": 1, "ok": True}, b"", NOW) is not None
    exchange.goes_on(made, {"offset": 5})
    assert (made.sent, made.fields) == (True, {"offset": 5})
    assert exchange.answered({"id": 1, "ok": True}, b"", NOW) is not None


def test_a_call_ends_once_and_a_refusal_in_advance_counts_as_an_attempt() -> None:
    made = call(repeatable=True, attempts=4)
    assert error_of(made.refused_unsent(NodeBusy("full"), Retry(), NOW)) is NodeBusy
    assert made.attempts == 5
    assert made.finish()
    assert not made.finish()


def test_timers_come_in_order_and_cancelled_ones_do_not_pile_up() -> None:
    timers, done = Timers(), []
    for when in (3.0, 1.0, 2.0):
        timers.at(when, lambda when=when: done.append(when))  # type: ignore[misc]
    assert timers.next_at() == 1.0
    for action in timers.take_due(2.5):
        action()
    assert done == [1.0, 2.0]
    for _ in range(5000):
        timers.cancel(timers.at(9.0, lambda: None))
    assert len(timers._heap) < 2500
    assert timers.next_at() == 3.0


def test_unique_keys_are_those_of_a_java_client() -> None:
    moment = time.mktime((2035, 11, 20, 10, 30, 0, 0, 0, -1)) + 0.25
    month = time.mktime((2035, 11, 1, 0, 0, 0, 0, 0, -1))
    keys = UniqueKeys(b"\x0a\x00\x00\x05")
    first, second = (bytes.fromhex(keys.next(moment)) for _ in range(2))
    assert len(first) == 16
    assert first[:4] == b"\x0a\x00\x00\x05"
    assert first[:10] == second[:10]
    assert int.from_bytes(first[10:14], "big") == int((moment - month) * 1000)
    counters = [int.from_bytes(key[14:], "big") for key in (first, second)]
    assert (counters[1] - counters[0]) & 0xFFFF == 1


def test_unique_keys_begin_again_with_the_month() -> None:
    keys = UniqueKeys(bytes(4))
    december = time.mktime((2035, 12, 1, 0, 0, 0, 0, 0, -1))
    assert int(keys.next(december + 1)[20:28], 16) == 1000
    assert int(keys.next(december - 60)[20:28], 16) == 0, "a clock that was set back gives 0"


def test_the_address_in_the_keys_is_the_one_towards_the_node() -> None:
    assert local_ip("tcp://127.0.0.1:7850") == b"\x7f\x00\x00\x01"
    assert len(local_ip("ipc://somewhere")) == 4
    assert len(local_ip("tcp://[::1]:7850")) == 4


def test_a_call_whose_last_attempt_is_not_answered_says_why_the_one_before_was_refused() -> None:
    made = call(repeatable=True)
    made.last_error, made.sent = NodeBusy("disk_full: no room"), True
    error = made.at_deadline("the writer")
    assert isinstance(error, RequestTimeout)
    assert error.reason.endswith("in time; before that: disk_full: no room")
