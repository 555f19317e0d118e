"""The rules of timer messages: when they are due, where they wait, and what takes them back."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import IllegalMessage, PropertiesTooLarge
from protocol.record.properties import decode_raw_properties
from protocol.record.waiting import (
    PRECISION_MS,
    RealPlace,
    RecallHandle,
    due_ms,
    is_timed,
    parse_recall_handle,
    recall_handle,
    recall_properties,
    timed,
)

NOW = 1_700_000_000_250
DAYS_3 = 3 * 86_400_000
PLACE = RealPlace("late", 3)


def asking(**pairs: object) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()


@pytest.mark.parametrize(
    ("pairs", "asked"),
    [
        ({"TIMER_DELAY_SEC": 5}, NOW + 5000),
        ({"TIMER_DELAY_MS": 1234}, NOW + 1234),
        ({"TIMER_DELIVER_MS": NOW + 1}, NOW + 1),
        ({"TIMER_DELIVER_MS": NOW + 9, "TIMER_DELAY_MS": 50}, NOW + 50),
        ({"TIMER_DELIVER_MS": 1, "TIMER_DELAY_MS": 1, "TIMER_DELAY_SEC": "+7"}, NOW + 7000),
    ],
)
def test_the_first_of_three_properties_counts(pairs: dict[str, object], asked: int) -> None:
    found = timed(asking(A="b", **pairs), PLACE, NOW, DAYS_3)
    assert found is not None
    assert found.out_ms == (asked - 1) // 1000 * 1000
    properties = decode_raw_properties(found.properties)
    assert properties[b"TIMER_OUT_MS"] == b"%d" % found.out_ms
    assert (properties[b"REAL_TOPIC"], properties[b"REAL_QID"]) == (b"late", b"3")
    assert properties[b"A"] == b"b"


def test_an_exact_second_is_of_the_second_before() -> None:
    found = timed(asking(TIMER_DELIVER_MS=NOW - 250 + 5000), PLACE, NOW, DAYS_3)
    assert found is not None
    assert found.out_ms == NOW - 250 + 4000
    assert due_ms(decode_raw_properties(found.properties), found.out_ms, 0) == found.out_ms + 1000


@pytest.mark.parametrize(
    "pairs",
    [
        {},
        {"TAGS": "TIMER_DELAY_SEC"},
        {"TIMER_DELAY_SEC": 0},
        {"TIMER_DELAY_MS": -5},
        {"TIMER_DELIVER_MS": NOW},
        {"TIMER_DELIVER_MS": NOW + 5000, "TIMER_OUT_MS": 1},
    ],
)
def test_what_asks_for_no_later_time_does_not_wait(pairs: dict[str, object]) -> None:
    assert timed(asking(**pairs), PLACE, NOW, DAYS_3) is None


@pytest.mark.parametrize(
    "pairs",
    [
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_SEC": "1.5"},
        {"TIMER_DELIVER_MS": "9" * 30},
        {"TIMER_DELAY_MS": DAYS_3 + 1},
        {"TIMER_DELIVER_MS": NOW, "TIMER_DEL_UNIQKEY": "K"},
    ],
)
def test_times_that_are_none_or_too_far_away_are_refused(pairs: dict[str, object]) -> None:
    with pytest.raises(IllegalMessage):
        timed(asking(**pairs), PLACE, NOW, DAYS_3)
    assert timed(asking(TIMER_DELAY_MS=DAYS_3), PLACE, NOW, DAYS_3) is not None


def test_a_delivery_has_room_for_its_own_properties() -> None:
    with pytest.raises(PropertiesTooLarge):
        timed(asking(TIMER_DELAY_SEC=1, A="x" * 32_600), PLACE, NOW, DAYS_3)


@given(st.integers(1, DAYS_3))
def test_a_message_is_due_when_it_asked_to_be(delay: int) -> None:
    found = timed(asking(TIMER_DELIVER_MS=NOW + delay), PLACE, NOW, DAYS_3)
    assert found is not None
    properties = decode_raw_properties(found.properties)
    due = due_ms(properties, found.out_ms, NOW + 99)
    assert due == NOW + delay
    assert 0 < due - found.out_ms <= PRECISION_MS
    later = decode_raw_properties(asking(TIMER_DELAY_MS=delay))
    assert NOW + delay <= due_ms(later, found.out_ms, NOW + 9) <= found.out_ms + PRECISION_MS
    assert due_ms({}, found.out_ms, NOW) == found.out_ms + PRECISION_MS


def test_batches_know_what_asks_for_a_time() -> None:
    assert is_timed(asking(TIMER_DELAY_SEC=1))
    assert not is_timed(asking(TIMER_DEL_UNIQKEY="k"))
    assert not is_timed(asking(A="TIMER_DELAY_SEC"))


def test_a_handle_is_rocketmqs_and_reads_back() -> None:
    handle = RecallHandle("late", "broker-a", NOW, "KEY")
    text = recall_handle(handle)
    assert base64.urlsafe_b64decode(text) == f"v1 late broker-a {NOW} KEY".encode()
    assert parse_recall_handle(text) == handle
    assert parse_recall_handle(text.rstrip("=")) == handle


@pytest.mark.parametrize(
    "text",
    [
        "", "=", "!!!!", "dj", "\u00e9", base64.urlsafe_b64encode(b"v2 a b 3 k").decode(),
        base64.urlsafe_b64encode(b"v1 a b 3").decode(),
        base64.urlsafe_b64encode(b"v1 a b 3 ").decode(),
    ],
)  # fmt: skip
def test_what_is_no_handle_is_none(text: str) -> None:
    assert parse_recall_handle(text) is None


def test_a_handle_without_a_time_is_of_no_time() -> None:
    found = parse_recall_handle(base64.urlsafe_b64encode(b"v1 a b soon k").decode())
    assert found is not None
    assert found.deliver_ms == -1


def test_what_takes_a_message_back_names_its_key() -> None:
    assert decode_raw_properties(recall_properties("K", NOW, NOW - 5, "g")) == {
        b"TAGS": b"_RECALL_TAG_", b"TIMER_DEL_UNIQKEY": b"K", b"UNIQ_KEY": b"K",
        b"TIMER_DELIVER_MS": b"%d" % NOW, b"BORN_TIMESTAMP": b"%d" % (NOW - 5), b"PGROUP": b"g",
    }  # fmt: skip
