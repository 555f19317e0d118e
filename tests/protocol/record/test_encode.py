"""Messages become records, and what cannot be stored is refused by exactly one typed error."""

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import (
    BadRequest,
    IllegalMessage,
    MessageTooLarge,
    MqError,
    NotAllowed,
    PropertiesTooLarge,
)
from protocol.ids import Host
from protocol.names import DEFAULT_MAX_MESSAGE_BYTES, RECORD_EXTRA_BYTES_MAX
from protocol.record.codec import Record, decode, has_crc_property
from protocol.record.encode import NewMessage, encode_batch, encode_message
from tests.protocol.records import HOSTS, I32, I64

WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\1\2 "), min_size=1, max_size=9
)
TOPICS = st.one_of(
    st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True),
    st.integers(115, 248).map(lambda n: "%RETRY%" + "g" * n),
).filter(lambda topic: topic not in ("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"))


@st.composite
def messages(draw: st.DrawFn) -> NewMessage:
    return NewMessage(
        topic=draw(TOPICS),
        body=draw(st.binary(max_size=50)),
        queue_id=draw(st.integers(-1, 65_535)),
        tags=draw(st.one_of(st.just(""), WORDS)),
        keys=tuple(draw(st.lists(WORDS, max_size=3))),
        properties=draw(st.dictionaries(WORDS.map("p".__add__), WORDS, max_size=3)),
        unique_key=draw(st.one_of(st.just(""), WORDS)),
        flag=draw(I32),
        sys_flag=draw(st.integers(0, 0x7FFFFFFF)) & ~0xCC,
        born_timestamp=draw(I64),
        born_host=draw(HOSTS),
        reconsume_times=draw(I32),
        wait=draw(st.booleans()),
    )


@given(messages(), st.booleans())
def test_a_message_comes_back_from_its_record(message: NewMessage, crc: bool) -> None:
    raw = encode_message(message, crc)
    record = decode(raw, 0, sealed=False)
    assert isinstance(record, Record), record
    assert (record.topic, record.raw_body) == (message.topic, message.body)
    assert (record.tags, record.keys) == (message.tags, list(message.keys))
    assert record.unique_key == message.unique_key
    expected = dict(message.properties)
    expected |= {"WAIT": "false"} if not message.wait else {}
    named = {name: record.properties[name] for name in expected}
    assert named == expected
    assert has_crc_property(record.properties_raw) == crc
    assert record.born_host == message.born_host
    head = record.head
    assert head.queue_id == message.queue_id
    assert (head.flag, head.reconsume_times) == (message.flag, message.reconsume_times)
    assert head.born_timestamp == message.born_timestamp
    assert head.sys_flag & ~0x30 == message.sys_flag & ~0x30
    assert bool(head.sys_flag & 0x10) == message.born_host.is_v6
    assert (head.queue_offset, head.physical_offset, head.store_timestamp) == (0, 0, 0)
    assert (record.store_host.ip, record.store_host.port) == (bytes(4), 0)
    assert record.version == (2 if len(message.topic) > 127 else 1)


@given(st.lists(messages(), max_size=5), st.booleans())
def test_a_batch_is_its_records_back_to_back(items: list[NewMessage], crc: bool) -> None:
    batch = encode_batch(items, crc)
    records = [encode_message(message, crc) for message in items]
    assert batch.records == b"".join(records)
    assert batch.sizes == tuple(map(len, records))
    assert batch.crc == zlib.crc32(batch.records)


def test_the_host_bits_follow_from_the_hosts_whatever_the_message_says() -> None:
    for ip, bit in ((bytes(4), 0), (bytes(16), 0x10)):
        raw = encode_message(
            NewMessage("t", b"", 0, sys_flag=0x31, born_host=Host(ip, 7)), crc=False
        )
        record = decode(raw, 0)
        assert isinstance(record, Record)
        assert record.head.sys_flag == 1 | bit
        assert record.born_host == Host(ip, 7)


@pytest.mark.parametrize(("length", "version"), [(127, 1), (128, 2), (255, 2)])
def test_long_retry_topics_take_the_second_version(length: int, version: int) -> None:
    topic = "%RETRY%".ljust(length, "g")
    record = decode(encode_message(NewMessage(topic, b"x"), crc=False), 0)
    assert isinstance(record, Record)
    assert (record.topic, record.version) == (topic, version)


def test_properties_that_are_fields_or_the_nodes_own_are_not_repeated() -> None:
    message = NewMessage(
        "t",
        b"",
        tags="A",
        properties={"TAGS": "B", "__CRC32#": "1234567890", "KEYS": "k", "z": "1"},
    )
    record = decode(encode_message(message, crc=False), 0)
    assert isinstance(record, Record)
    assert list(record.properties.items()) == [("TAGS", "A"), ("KEYS", "k"), ("z", "1")]


LONE = "x\ud800"
REFUSED: list[tuple[str, dict[str, Any], type[MqError]]] = [
    ("no topic", {"topic": ""}, IllegalMessage),
    ("topic too long", {"topic": "t" * 128}, IllegalMessage),
    ("retry topic too long", {"topic": "%RETRY%" + "t" * 249}, IllegalMessage),
    ("topic with a slash", {"topic": "a/b"}, IllegalMessage),
    ("topic with two dots", {"topic": ".."}, IllegalMessage),
    ("topic with a newline", {"topic": "a\n"}, IllegalMessage),
    ("topic with a lone surrogate", {"topic": LONE}, IllegalMessage),
    ("reserved topic", {"topic": "SCHEDULE_TOPIC_XXXX"}, NotAllowed),
    ("queue below -1", {"queue_id": -2}, BadRequest),
    ("queue too high", {"queue_id": 65_536}, BadRequest),
    ("body too large", {"body": bytes(1_025)}, MessageTooLarge),
    ("prepared", {"sys_flag": 0x4}, IllegalMessage),
    ("commit", {"sys_flag": 0x8}, IllegalMessage),
    ("inner batch", {"sys_flag": 0x80}, IllegalMessage),
    ("to unwrap", {"sys_flag": 0x40}, IllegalMessage),
    ("all flags", {"sys_flag": -1}, IllegalMessage),
    ("sysFlag of 33 bits", {"sys_flag": 1 << 32}, BadRequest),
    ("flag of 33 bits", {"flag": 1 << 31}, BadRequest),
    ("flag below", {"flag": -(1 << 31) - 1}, BadRequest),
    ("reconsumeTimes of 33 bits", {"reconsume_times": 1 << 31}, BadRequest),
    ("born time of 65 bits", {"born_timestamp": 1 << 63}, BadRequest),
    ("born port of 33 bits", {"born_host": Host(bytes(4), 1 << 31)}, BadRequest),
    ("born address of 5 bytes", {"born_host": Host(bytes(5), 0)}, BadRequest),
    ("no born address", {"born_host": Host(b"", 0)}, BadRequest),
    ("empty key", {"keys": ("a", "")}, IllegalMessage),
    ("key with a space", {"keys": ("a b",)}, IllegalMessage),
    ("key with 0x01", {"keys": ("a\1b",)}, IllegalMessage),
    ("key with 0x02", {"keys": ("a\2",)}, IllegalMessage),
    ("key with a lone surrogate", {"keys": (LONE,)}, IllegalMessage),
    ("tags with 0x02", {"tags": "a\2KEYS\1b"}, IllegalMessage),
    ("tags with a lone surrogate", {"tags": LONE}, IllegalMessage),
    ("unique key with 0x01", {"unique_key": "\1"}, IllegalMessage),
    ("value with 0x02", {"properties": {"a": "b\2c\1d"}}, IllegalMessage),
    ("name with 0x01", {"properties": {"a\1": "b"}}, IllegalMessage),
    ("no name", {"properties": {"": "b"}}, IllegalMessage),
    ("no value", {"properties": {"a": ""}}, IllegalMessage),
    ("value with a lone surrogate", {"properties": {"a": LONE}}, IllegalMessage),
    ("name with a lone surrogate", {"properties": {LONE: "a"}}, IllegalMessage),
    ("delay level", {"properties": {"DELAY": "3"}}, NotAllowed),
    ("timer", {"properties": {"TIMER_DELIVER_MS": "3"}}, NotAllowed),
    ("properties too large", {"properties": {"a": "v" * 32_765}}, PropertiesTooLarge),
    ("keys too large", {"keys": ("k" * 32_767,)}, PropertiesTooLarge),
]


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize(
    ("fields", "kind"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_bad_message_is_refused_by_one_typed_error(
    fields: dict[str, Any], kind: type[MqError], crc: bool
) -> None:
    message = NewMessage(**{"topic": "t", "body": b"", **fields})
    with pytest.raises(MqError) as caught:
        encode_message(message, crc, max_message_bytes=1_024)
    assert type(caught.value) is kind
    assert caught.value.reason
    assert caught.value.hint
    assert not caught.value.retriable
    (caught.value.reason + caught.value.hint).encode()


def test_the_largest_properties_leave_room_for_the_checksum() -> None:
    fits = NewMessage("t", b"", properties={"a": "v" * (32_767 - 20 - 3)})
    assert isinstance(decode(encode_message(fits, crc=True), 0, sealed=False), Record)
    over = NewMessage("t", b"", properties={"a": "v" * (32_767 - 20 - 2)})
    assert isinstance(decode(encode_message(over, crc=False), 0), Record)
    with pytest.raises(PropertiesTooLarge):
        encode_message(over, crc=True)


def test_the_largest_message_fits_into_a_request() -> None:
    message = NewMessage(
        "%RETRY%" + "g" * 248,
        bytes(DEFAULT_MAX_MESSAGE_BYTES),
        properties={"a": "v" * (32_767 - 20 - 3)},
        born_host=Host(bytes(16), 0),
    )
    raw = encode_message(message, crc=True)
    assert len(raw) <= DEFAULT_MAX_MESSAGE_BYTES + RECORD_EXTRA_BYTES_MAX


@given(
    st.fixed_dictionaries(
        {"topic": st.text(max_size=5), "body": st.binary(max_size=5)},
        optional={
            "queue_id": st.integers(),
            "tags": st.text(max_size=5),
            "keys": st.lists(st.text(max_size=5), max_size=3).map(tuple),
            "properties": st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
            "flag": st.integers(),
            "sys_flag": st.integers(),
            "born_timestamp": st.integers(),
            "born_host": st.builds(Host, st.binary(max_size=17), st.integers()),
            "reconsume_times": st.integers(),
        },
    )
)
def test_any_message_is_encoded_or_refused_and_nothing_else(fields: dict[str, Any]) -> None:
    message = NewMessage(**{**fields, "topic": fields["topic"] or "t"})
    try:
        raw = encode_message(message, crc=True)
    except MqError:
        return
    assert struct.unpack_from(">i", raw)[0] == len(raw)
