"""The plain decoder: RocketMQ's own example, every valid record, and everything that is none."""

import zlib
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.ids import Host
from protocol.names import SCHEDULE_TOPIC
from protocol.record.codec import (
    DEFAULT_DELAY_LEVELS_MS,
    FILLER_BYTES,
    FILLER_HEAD,
    MAGIC_FILLER,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SHORT_HEAD,
    Filler,
    Record,
    Torn,
    decode,
    delivery_time,
    filler,
    record_head,
    unit_tags_code,
)
from protocol.record.encode import NewMessage, pack_record
from protocol.record.java_hash import java_text
from protocol.record.properties import CRC_PROPERTY_BYTES, EMPTY_CRC_PROPERTY, crc_property
from tests.protocol.records import I32, I64, Draft, drafts, pack_draft, seal

EXAMPLE = bytes.fromhex(
    "000000a5 daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000000 00000000"
    "0000018bcfe56800 7f0000010000d431 0000018bcfe5687b 0a00000500002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 06 466f6f426172 003f"
    "4b455953016b31206b3202 54414753015461674102 554e49515f4b455901"
    "3746303030303031304132423138423441414332303030303030303030303031 02"
)
EXAMPLE_DRAFT = Draft(
    topic=b"FooBar",
    body=b"hello",
    properties=b"KEYS\1k1 k2\2TAGS\1TagA\2UNIQ_KEY\0017F0000010A2B18B4AAC2000000000001\2",
    queue_id=3,
    queue_offset=7,
    born_timestamp=1_700_000_000_000,
    born_host=Host(bytes([127, 0, 0, 1]), 54321),
    store_timestamp=1_700_000_000_123,
)


def test_rocketmqs_example_decodes_to_its_fields() -> None:
    record = decode(EXAMPLE, 0, expected_offset=0)
    assert isinstance(record, Record)
    assert (record.size, record.version, record.topic, record.raw_body) == (
        165,
        1,
        "FooBar",
        b"hello",
    )
    assert record.head == SHORT_HEAD.row(
        total_size=165,
        magic=0xDAA320A7,
        body_crc=0x3610A686,
        queue_id=3,
        flag=0,
        queue_offset=7,
        physical_offset=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        born_ip=bytes([127, 0, 0, 1]),
        born_port=54321,
        store_timestamp=1_700_000_000_123,
        store_ip=bytes([10, 0, 0, 5]),
        store_port=10911,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_length=5,
    )
    assert record.properties == {
        "KEYS": "k1 k2",
        "TAGS": "TagA",
        "UNIQ_KEY": "7F0000010A2B18B4AAC2000000000001",
    }
    assert (record.tags, record.keys) == ("TagA", ["k1", "k2"])
    assert record.unique_key == "7F0000010A2B18B4AAC2000000000001"
    assert record.message_id == "0A00000500002A9F0000000000000000"
    assert (str(record.born_host), str(record.store_host)) == ("127.0.0.1:54321", "10.0.0.5:10911")
    assert unit_tags_code(record) == 0x27A807


def test_rocketmqs_example_is_packed_byte_for_byte() -> None:
    assert pack_draft(EXAMPLE_DRAFT) == EXAMPLE


def test_rocketmqs_example_with_ipv6_hosts_and_a_long_topic_length_has_190_bytes() -> None:
    v6 = Host(bytes(15) + b"\1", 1)
    raw = pack_draft(replace(EXAMPLE_DRAFT, v2=True, born_host=v6, store_host=v6))
    assert (len(raw), raw[4:8].hex(), raw[36:40].hex()) == (190, "daa320ab", "00000030")
    assert raw[112:125] == b"hello\0\6FooBar"
    record = decode(raw, 0)
    assert isinstance(record, Record)
    assert (record.version, record.born_host, len(record.message_id)) == (2, v6, 56)


def test_the_smallest_record_has_91_bytes() -> None:
    assert len(pack_draft(Draft(topic=b""))) == RECORD_BYTES_MIN == 91
    assert isinstance(decode(pack_draft(Draft(topic=b"")), 0), Record)


def test_the_encoder_and_the_tests_pack_the_same_bytes() -> None:
    draft = Draft(
        topic=b"T", body=b"b", properties=b"a\1b\2", queue_id=5, store_host=Host(bytes(4), 0)
    )
    message = NewMessage("T", b"b", 5)
    assert pack_record(message, b"a\1b\2") == pack_draft(draft)


def test_the_sealed_record_ends_in_its_checksum_least_digit_first() -> None:
    assert crc_property(1_234_567) == b"__CRC32#\x017654321000\x02"
    assert len(EMPTY_CRC_PROPERTY) == CRC_PROPERTY_BYTES == 20
    raw = pack_draft(replace(EXAMPLE_DRAFT, crc=True))
    value = zlib.crc32(raw[:-20]) & 0x7FFFFFFF
    assert raw[-11:-1].decode() == f"{value:010d}"[::-1]


@given(drafts(), st.integers(0, 2**62))
def test_every_valid_record_decodes_to_what_was_written(draft: Draft, offset: int) -> None:
    raw = pack_draft(draft, offset)
    record = decode(b"before" + raw + b"behind", 6, expected_offset=offset)
    assert isinstance(record, Record), record
    assert record.raw == raw
    assert (record.topic.encode(), record.raw_body) == (draft.topic, draft.body)
    assert record.properties_raw[: len(draft.properties)] == draft.properties
    assert (record.born_host, record.store_host) == (draft.born_host, draft.store_host)
    assert (record.version, record.size, record.physical_offset) == (1 + draft.v2, len(raw), offset)
    for name in (
        *("queue_id", "flag", "queue_offset", "born_timestamp", "store_timestamp"),
        *("reconsume_times", "prepared_transaction_offset"),
    ):
        assert getattr(record.head, name) == getattr(draft, name), name
    assert record.head.sys_flag & ~0x30 == draft.sys_flag & ~0x30


@given(drafts(crc=True), st.data())
def test_any_flipped_bit_of_a_sealed_record_is_refused(draft: Draft, data: st.DataObject) -> None:
    raw = bytearray(pack_draft(draft, 0))
    # All places in small records, drawn ones in large: most bits then lie in the body.
    bits = st.one_of(
        st.integers(0, len(raw) * 8 - 1),
        st.integers(0, 91 * 8),
        st.integers((len(raw) - 60) * 8, len(raw) * 8 - 1),
    )
    for bit in data.draw(st.lists(bits, min_size=1, max_size=30)):
        raw[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode(raw, 0, expected_offset=0), Torn), bit
        raw[bit // 8] ^= 1 << bit % 8


def test_every_single_flipped_bit_of_the_sealed_example_is_refused() -> None:
    raw = bytearray(pack_draft(replace(EXAMPLE_DRAFT, crc=True)))
    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode(raw, 0), Torn), bit
        raw[bit // 8] ^= 1 << bit % 8


@given(drafts(), st.data())
def test_a_flipped_bit_in_the_body_is_refused(draft: Draft, data: st.DataObject) -> None:
    raw = bytearray(pack_draft(draft))
    if draft.body:
        head = record_head(int.from_bytes(raw[36:40], "big")).size
        bit = data.draw(st.integers(0, len(draft.body) * 8 - 1))
        raw[head + bit // 8] ^= 1 << bit % 8
        found = decode(raw, 0)
        assert isinstance(found, Torn)
        assert found.kind == "bad_crc"


@given(drafts(), st.data())
def test_every_truncation_is_torn(draft: Draft, data: st.DataObject) -> None:
    raw = pack_draft(draft)
    for length in (
        *range(min(len(raw), 12)),
        data.draw(st.integers(0, len(raw) - 1)),
        len(raw) - 1,
    ):
        found = decode(raw[:length], 0)
        assert isinstance(found, Torn)
        assert found.kind == "cut"


@given(st.binary(max_size=300), st.integers(0, 310), st.one_of(st.none(), I64))
def test_any_bytes_at_all_are_a_record_a_filler_or_torn(
    data: bytes, position: int, expected: int | None
) -> None:
    assert isinstance(decode(data, position, expected), Record | Filler | Torn)


@given(
    st.sampled_from([MAGIC_V1, MAGIC_V2]),
    I32,
    st.binary(max_size=250),
    st.integers(0, 0x3F),
    st.data(),
)
def test_garbage_behind_a_right_magic_is_a_record_or_torn(
    magic: int, body_length: int, rest: bytes, flags: int, data: st.DataObject
) -> None:
    """Sizes and lengths near the truth: what random bytes alone never reach."""
    raw = bytearray(rest.ljust(120, b"\0"))
    size = data.draw(st.one_of(I32, st.integers(85, len(raw) + 3)))
    raw[0:4], raw[4:8] = size.to_bytes(4, "big", signed=True), magic.to_bytes(4, "big")
    raw[36:40] = flags.to_bytes(4, "big")
    at = record_head(flags).offsets["body_length"]
    near = data.draw(st.one_of(st.just(body_length), st.integers(0, 30)))
    raw[at : at + 4] = near.to_bytes(4, "big", signed=True)
    found = decode(raw, 0)
    assert isinstance(found, Record | Torn)
    if isinstance(found, Record):
        assert found.size == size <= len(raw)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (bytes(200), "end"),
        (bytes(8), "end"),
        (b"", "cut"),
        (bytes(7), "cut"),
        (b"\0\0\0\xa5\0\0\0\0" + bytes(200), "bad_magic"),
        (b"\0\0\0\x5a" + EXAMPLE[4:], "bad_size"),
        (b"\xff\xff\xff\xff" + EXAMPLE[4:], "bad_size"),
        (b"\x7f\xff\xff\xff" + EXAMPLE[4:], "cut"),
        (EXAMPLE[:84] + b"\xff\xff\xff\xff" + EXAMPLE[88:], "bad_size"),
        (EXAMPLE[:93] + b"\xff" + EXAMPLE[94:], "bad_size"),
        (EXAMPLE[:100] + b"\xff\xff" + EXAMPLE[102:], "bad_size"),
        (EXAMPLE[:88] + b"jello" + EXAMPLE[93:], "bad_crc"),
        (EXAMPLE[:94] + b"\xff" + EXAMPLE[95:], "bad_size"),
        (EXAMPLE[:36] + b"\0\0\0\x30" + EXAMPLE[40:], "bad_size"),
    ],
)
def test_what_is_no_record_says_why(raw: bytes, kind: str) -> None:
    found = decode(raw, 0)
    assert isinstance(found, Torn)
    assert (found.kind, found.position) == (kind, 0)
    assert found.why


def test_a_record_in_the_wrong_place_is_refused() -> None:
    found = decode(EXAMPLE, 0, expected_offset=165)
    assert isinstance(found, Torn)
    assert found.kind == "wrong_place"


def test_a_body_that_looks_like_the_checksum_property_is_no_checksum() -> None:
    """The last 20 bytes are `__CRC32#`, 0x01 … 0x02, but most of them are not properties."""
    for draft in (
        Draft(topic=b"t", body=b"xx__CRC32#\1", properties=b"A\1bcde\2"),
        Draft(topic=b"T", body=b"xx__CRC32#", properties=b"TAGS\1ab\2"),
    ):
        raw = pack_draft(draft)
        assert raw[-20:-11] == b"__CRC32#\1"
        assert isinstance(decode(raw, 0), Record)


def test_an_unsealed_record_is_held_to_its_bodys_checksum_alone() -> None:
    raw = pack_draft(replace(EXAMPLE_DRAFT, crc=True))[:-20] + EMPTY_CRC_PROPERTY
    assert isinstance(decode(raw, 0), Torn)
    assert isinstance(decode(raw, 0, sealed=False), Record)
    damaged = raw.replace(b"hello", b"jello")
    assert isinstance(decode(damaged, 0, sealed=False), Torn)
    assert isinstance(decode(seal(damaged), 0), Record), "the whole-record checksum replaces it"


@given(I32, st.binary(max_size=20))
def test_a_filler_is_eight_bytes_and_what_follows_does_not_count(size: int, rest: bytes) -> None:
    raw = FILLER_HEAD.pack(FILLER_HEAD.row(size, MAGIC_FILLER)) + rest
    assert decode(raw, 0) == Filler(0, size)
    assert len(filler(8)) == FILLER_BYTES


def test_the_filler_of_a_hundred_bytes() -> None:
    assert filler(100).hex() == "00000064cbd43194"


def test_a_layout_never_reads_outside_the_buffer() -> None:
    for position in (-1, 1, 2**40):
        with pytest.raises(ValueError, match="needs"):
            FILLER_HEAD.read(bytes(8), position)


@pytest.mark.parametrize(
    ("delay", "due"),
    [
        ("1", 1_000 + 5),
        ("+2", 5_000 + 5),
        ("18", 7_200_000 + 5),
        ("19", 7_200_000 + 5),
        ("2147483647", 7_200_000 + 5),
        ("00000000000003", 10_000 + 5),
        ("٣", 10_000 + 5),
        ("0", 77),
        ("-2147483648", 77),
        ("2147483648", None),
        ("9999999999", None),
        ("-2147483649", None),
        ("", None),
        (" 1", None),
        ("1\n", None),
        ("1_0", None),
        ("1.0", None),
        ("9" * 6_000, None),
    ],
)
def test_a_delay_is_a_java_int(delay: str, due: int | None) -> None:
    assert delivery_time(delay, 5, DEFAULT_DELAY_LEVELS_MS, 77) == due


def test_a_delivery_time_wraps_at_64_bits_as_in_java() -> None:
    assert delivery_time("1", 2**63 - 1, (1000,), 0) == -(2**63) + 999


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        (SCHEDULE_TOPIC, b"DELAY\0013\2TAGS\1TagA\2", 10_009),
        (SCHEDULE_TOPIC, b"DELAY\1-1\2TAGS\1TagA\2", 2_598_919),
        (SCHEDULE_TOPIC, b"DELAY\1x\2TAGS\1TagA\2", None),
        (SCHEDULE_TOPIC, b"TAGS\1TagA\2", 2_598_919),
        ("other", b"DELAY\0013\2TAGS\1TagA\2", 2_598_919),
        ("other", b"", 0),
    ],
)
def test_the_tags_code_of_a_unit(topic: str, properties: bytes, code: int | None) -> None:
    record = decode(
        pack_draft(Draft(topic=topic.encode(), properties=properties, store_timestamp=9)), 0
    )
    assert isinstance(record, Record)
    assert unit_tags_code(record) == code


@given(st.binary(max_size=30))
@example(b"\xed\xa0\x80")
def test_properties_of_any_bytes_are_text(value: bytes) -> None:
    record = decode(pack_draft(Draft(properties=b"TAGS\1" + value)), 0)
    assert isinstance(record, Record)
    first = value.split(b"\2")[0]
    if b"\2" not in value and first:
        assert record.tags == java_text(first)
    assert all(isinstance(text, str) for pair in record.properties.items() for text in pair)
