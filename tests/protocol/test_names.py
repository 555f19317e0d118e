"""Names of topics, segments and index files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import IllegalMessage, MqError, NotAllowed
from protocol.ids import Queue, shard_of
from protocol.names import (
    NOT_FOR_CLIENTS,
    check_topic,
    check_topic_for_send,
    index_file_name,
    is_folder_name,
    is_index_file_name,
    next_index_file_name,
    offset_file_name,
    parse_offset_file_name,
)


@pytest.mark.parametrize(
    "topic",
    [
        *("a", "%", "|", "-", "_", "0", "%RETRY%group", "%DLQ%group", "TBW102", "A-z_0|9%"),
        *("t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250),
    ],
)
def test_a_topic_that_rocketmq_allows_is_allowed(topic: str) -> None:
    check_topic_for_send(topic)
    assert is_folder_name(topic)


@pytest.mark.parametrize(
    "topic",
    [
        *("", ".", "..", "/", "a/b", "../x", "a\\b", "a\0", "\0", "a\n", "\na", "a b", "a.b", "é"),
        *(
            "名",
            "\ud800",
            "a\1",
            "t" * 128,
            "t" * 255,
            "t" * 256,
            "%RETRY%" + "g" * 249,
            "%retry%é",
        ),
        *("%RETRY" + "g" * 122, "%DLQ%" + "g" * 251, "٣", "a\r", "topic:1", "#"),
    ],
)
def test_any_other_topic_is_illegal_and_says_why(topic: str) -> None:
    with pytest.raises(IllegalMessage) as caught:
        check_topic(topic)
    assert caught.value.hint
    assert len(caught.value.reason) < 1_000
    caught.value.reason.encode()


@pytest.mark.parametrize("topic", [*sorted(NOT_FOR_CLIENTS), "rmq_sys_wheel_timer"])
def test_the_systems_topics_are_not_for_clients(topic: str) -> None:
    check_topic(topic)
    with pytest.raises(NotAllowed, match="reserved"):
        check_topic_for_send(topic)


@given(st.text())
def test_any_text_is_a_topic_or_refused_and_no_topic_leads_out_of_its_folder(topic: str) -> None:
    try:
        check_topic_for_send(topic)
    except MqError:
        return
    assert is_folder_name(topic)
    assert not set(topic) & set("/\\.\0\n")


def test_a_folder_name_has_at_most_255_bytes() -> None:
    assert is_folder_name("x" * 255)
    assert not is_folder_name("x" * 256)
    assert not is_folder_name("..")


@given(st.integers(0, 2**63 - 1))
def test_a_segments_name_is_its_offset_in_20_digits(offset: int) -> None:
    name = offset_file_name(offset)
    assert len(name) == 20
    assert parse_offset_file_name(name) == offset


@pytest.mark.parametrize(
    "name",
    [
        *("", "0", "0" * 19, "0" * 21, "0" * 20 + "\n", "-" + "0" * 19, "+" + "0" * 19, " " * 20),
        *("0000000000000000000x", "٣" * 20, "0" * 20 + ".tmp", "09223372036854775808", "9" * 20),
    ],
)
def test_any_other_name_is_no_segments(name: str) -> None:
    assert parse_offset_file_name(name) is None


def test_an_index_files_name_is_a_time_in_utc() -> None:
    assert index_file_name(0) == "19700101000000000"
    assert index_file_name(1_700_000_000_123) == "20231114221320123"
    assert index_file_name(253_402_300_799_999) == "99991231235959999"


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**45), 2**45)))
def test_any_store_time_names_an_index_file(timestamp_ms: int) -> None:
    assert is_index_file_name(index_file_name(timestamp_ms))


@given(st.integers(0, 2**45), st.integers(0, 2**45))
def test_index_files_have_rising_names(earlier: int, later: int) -> None:
    last = index_file_name(earlier)
    name = next_index_file_name(later, last)
    assert is_index_file_name(name)
    assert name > last
    assert name == max(index_file_name(later), name)
    if later > earlier:
        assert name == index_file_name(later)
    else:
        assert name == index_file_name(earlier + 1)


def test_the_first_index_file_is_named_for_its_time() -> None:
    assert next_index_file_name(5, None) == "19700101000000005"


@pytest.mark.parametrize("last", ["99991231235959999", "20231399000000000", "20230230000000000"])
def test_a_last_name_that_is_no_date_is_still_followed_by_a_greater_one(last: str) -> None:
    name = next_index_file_name(0, last)
    assert name > last
    assert is_index_file_name(name)


@pytest.mark.parametrize("name", ["", "1", "0" * 16, "0" * 18, "0" * 17 + "\n", "٣" * 17, "x" * 17])
def test_other_names_are_no_index_files(name: str) -> None:
    assert not is_index_file_name(name)


def test_the_shard_of_a_queue_is_the_same_in_every_process() -> None:
    assert [shard_of(Queue("FooBar", queue_id), 4) for queue_id in range(6)] == [2, 0, 2, 0, 3, 1]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 9), st.integers(1, 64))
def test_every_queue_has_a_shard(topic: str, queue_id: int, shards: int) -> None:
    assert 0 <= shard_of(Queue(topic, queue_id), shards) < shards
