"""What a reader takes for a request, and what it refuses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.reader.answers import parse_get
from node.reader.pull_desk import parse_pull
from node.runtime.settings import Settings
from node.store.query.filters import TagFilter
from node.store.query.pull import TransferLimits
from protocol.errors import BadRequest, MqError
from protocol.ids import Queue
from protocol.requests import (
    FIND,
    OFFSETS,
    SEEK,
    FindFields,
    GetById,
    GetByKey,
    GetByOffset,
    GetByQueue,
    OffsetsFields,
    SeekFields,
)

SETTINGS, LIMITS = Settings(), TransferLimits()
PULL = {"topic": "orders", "queue": 3, "offset": 7}


def test_a_pull_has_defaults_for_all_but_topic_queue_and_offset() -> None:
    pull = parse_pull(dict(PULL), SETTINGS, LIMITS)
    assert (pull.queue, pull.offset, pull.wait_ms) == (Queue("orders", 3), 7, 0)
    assert pull.request.max_messages == 32
    assert pull.request.total_bytes_max == 262_144
    assert pull.request.tags is None
    assert pull.request.exact


def test_a_pulls_own_limits_count_instead_of_the_settings() -> None:
    header = {"topic": "t", "queue": 0, "offset": 0, "max_messages": 500, "max_bytes": 1_000_000}
    limits = parse_pull(header, Settings(), TransferLimits()).request.limits
    assert (limits.count_max, limits.cold_count_max) == (500, 500)
    assert (limits.bytes_max, limits.cold_bytes_max) == (1_000_000, 1_000_000)


def test_tags_of_a_pull_become_a_filter_unless_they_take_everything() -> None:
    pull = parse_pull({**PULL, "tags": " a || b||"}, SETTINGS, LIMITS)
    assert isinstance(pull.request.tags, TagFilter)
    assert pull.request.tags.tags == {"a", "b"}
    for everything in ("", "*", " * ", None):
        assert parse_pull({**PULL, "tags": everything}, SETTINGS, LIMITS).request.tags is None


def test_a_pull_may_begin_at_any_number_that_fits() -> None:
    for offset in (-1, -(2**63), 2**63 - 1):
        assert parse_pull({**PULL, "offset": offset}, SETTINGS, LIMITS).offset == offset


@pytest.mark.parametrize(
    "change",
    [
        {"topic": None},
        {"topic": ""},
        {"topic": "../../etc"},
        {"topic": "a\n"},
        {"topic": "x" * 256},
        {"topic": 5},
        {"queue": -1},
        {"queue": 65_536},
        {"queue": True},
        {"queue": "0"},
        {"offset": None},
        {"offset": 2**63},
        {"offset": 1.5},
        {"max_messages": 0},
        {"max_messages": -1},
        {"max_messages": 10_001},
        {"max_bytes": 0},
        {"max_bytes": 2**31},
        {"wait_ms": -1},
        {"wait_ms": 30_001},
        {"tags": "||"},
        {"tags": " || "},
        {"tags": "a\x01b"},
        {"tags": "x" * 4_097},
        {"tags": b"a"},
    ],
)
def test_a_pull_with_a_value_out_of_its_range_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse_pull({**PULL, **change}, SETTINGS, LIMITS)


def test_a_record_is_named_in_one_of_four_ways() -> None:
    message_id = "7F00000100002A9F0000000000000C35"
    assert parse_get({"physical_offset": 5}) == GetByOffset(5)
    assert parse_get({"msg_id": message_id}) == GetById(message_id)
    assert parse_get({"topic": "t", "unique_key": "k"}) == GetByKey("t", "k")
    assert parse_get({"topic": "t", "queue": 1, "offset": 2}) == GetByQueue("t", 1, 2)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"topic": "t"},
        {"physical_offset": 5, "msg_id": "x"},
        {"physical_offset": -1},
        {"physical_offset": 2**63},
        {"msg_id": "not hex"},
        {"msg_id": "00" * 15},
        {"msg_id": ""},
        {"unique_key": "k"},
        {"topic": "t", "unique_key": ""},
        {"topic": "t", "queue": 1, "offset": -2},
        {"topic": "t", "offset": 2},
    ],
)
def test_a_record_named_otherwise_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse_get(header)


def test_a_look_up_by_key_covers_all_times_unless_it_says_otherwise() -> None:
    assert FIND.parse({"topic": "t", "key": "k"}) == FindFields(
        "t", "k", 0, 2**63 - 1, 64, None, False
    )


@pytest.mark.parametrize(
    "change",
    [
        {"key": ""},
        {"key": "k" * 40_000},
        {"key": 1},
        {"begin": 2**63},
        {"end": "now"},
        {"max_messages": 0},
        {"max_messages": 1_001},
        {"cursor": 5},
        {"cursor": "x" * 257},
        {"unique": 1},
    ],
)
def test_a_look_up_by_key_with_a_bad_value_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        FIND.parse({"topic": "t", "key": "k", **change})


def test_a_time_is_looked_for_from_below_unless_told_otherwise() -> None:
    header = {"topic": "t", "queue": 0, "timestamp": 9}
    assert SEEK.parse(header) == SeekFields("t", 0, 9, "lower")
    assert SEEK.parse({**header, "boundary": "upper"}).boundary == "upper"
    for boundary in ("LOWER", "", "x" * 1000):
        with pytest.raises(BadRequest):
            SEEK.parse({**header, "boundary": boundary})


def test_offsets_are_of_one_queue_or_of_all() -> None:
    assert OFFSETS.parse({"topic": "t"}) == OffsetsFields("t", None)
    assert OFFSETS.parse({"topic": "t", "queue": 2}) == OffsetsFields("t", 2)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
fields = st.sampled_from(
    [
        "topic",
        "queue",
        "offset",
        "max_messages",
        "max_bytes",
        "tags",
        "wait_ms",
        "msg_id",
        "key",
        "physical_offset",
        "unique_key",
        "begin",
        "end",
        "cursor",
        "unique",
        "timestamp",
        "boundary",
    ]
)


@given(st.dictionaries(fields, anything, max_size=6))
def test_any_header_is_parsed_or_refused(header: dict[str, Any]) -> None:
    for parse in (parse_get, FIND.parse, SEEK.parse, OFFSETS.parse):
        try:
            assert parse(header)
        except MqError as refused:
            assert refused.reason
    try:
        assert 0 <= parse_pull(header, SETTINGS, LIMITS).wait_ms <= SETTINGS.long_polling_ms_max
    except MqError as refused:
        assert refused.reason
