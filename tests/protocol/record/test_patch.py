"""The writer's check and patch, and every kind of bad batch."""

import re
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest, IllegalMessage, MessageTooLarge, MqError, NotAllowed
from protocol.ids import Host
from protocol.record.codec import Record, decode, filler
from protocol.record.columns import scan
from protocol.record.encode import NewMessage, encode_batch, encode_message, pack_record
from protocol.record.patch import (
    AppendRules,
    StoreStamp,
    check_plain,
    patch_plain,
)
from protocol.record.properties import EMPTY_CRC_PROPERTY
from tests.protocol.record.test_encode import messages
from tests.protocol.records import Draft, pack_draft

pytestmark = pytest.mark.usefixtures("way")

RULES = AppendRules(max_message_bytes=1_000, crc=True)
STORE_HOST = Host(bytes([10, 0, 0, 5]), 10_911)
STAMP = StoreStamp(1_700_000_000_123, STORE_HOST.to_bytes())


@given(st.lists(messages(), max_size=8), st.booleans())
def test_the_check_finds_the_records(items: list[NewMessage], crc: bool) -> None:
    batch = encode_batch(items, crc)
    rules = RULES._replace(crc=crc)
    rows = check_plain(batch.records, rules)
    assert rows == check_plain(memoryview(batch.records), rules)
    assert [row.size for row in rows] == list(batch.sizes)
    assert [(row.topic, row.queue_id) for row in rows] == [
        (message.topic, message.queue_id) for message in items
    ]


@given(st.lists(messages(), min_size=1, max_size=8), st.booleans(), st.data())
def test_patched_records_are_whole(items: list[NewMessage], crc: bool, data: st.DataObject) -> None:
    records = encode_batch(items, crc).records
    rules = RULES._replace(crc=crc)
    count = len(items)
    offsets = st.lists(st.integers(0, 2**62), min_size=count, max_size=count)
    queue_id = data.draw(st.lists(st.integers(0, 65_535), min_size=count, max_size=count))
    queue_offset = data.draw(offsets)
    base = data.draw(st.integers(0, 2**62))
    stamp = StoreStamp(data.draw(st.integers(0, 2**62)), STORE_HOST.to_bytes())

    plain = bytearray(records)
    for row, number, offset in zip(
        check_plain(records, rules), queue_id, queue_offset, strict=True
    ):
        placed = replace(row, queue_id=number)
        patch_plain(plain, placed, offset, base + row.start, stamp, crc)

    found = scan(plain, base)
    assert (len(found.columns), found.stop) == (count, None)
    for number, message in enumerate(items):
        record = found.columns.record(number)
        head = record.head
        assert (head.queue_id, head.queue_offset) == (queue_id[number], queue_offset[number])
        assert (head.store_timestamp, record.store_host) == (stamp.store_timestamp, STORE_HOST)
        assert (record.topic, record.raw_body) == (message.topic, message.body)
        assert record.born_host == message.born_host
        assert ("__CRC32#" in record.properties) == crc


GOOD = encode_message(NewMessage("t", b"hello", 0, tags="A"), crc=True)
PROPERTIES = b"TAGS\1A\2" + EMPTY_CRC_PROPERTY


def changed(at: int, value: bytes) -> bytes:
    return GOOD[:at] + value + GOOD[at + len(value) :]


def packed(**fields: object) -> bytes:
    draft = Draft(topic=b"t", body=b"hello", properties=PROPERTIES, store_host=Host(bytes(4), 0))
    return pack_draft(replace(draft, **fields))  # type: ignore[arg-type]


BAD: list[tuple[str, bytes, type[MqError]]] = [
    ("zeros", bytes(100), IllegalMessage),
    ("a few bytes", b"abc", IllegalMessage),
    ("cut", GOOD[:-1], IllegalMessage),
    ("too long", GOOD + b"\0", IllegalMessage),
    ("no magic", changed(4, b"\0\0\0\1"), IllegalMessage),
    ("a filler", filler(100), IllegalMessage),
    ("a filler of a record's length", filler(len(GOOD)).ljust(len(GOOD), b"\0"), IllegalMessage),
    ("size too small", changed(0, struct.pack(">i", len(GOOD) - 1)), IllegalMessage),
    ("size negative", changed(0, struct.pack(">i", -1)), IllegalMessage),
    ("size of 2 GiB", changed(0, struct.pack(">i", 2**31 - 1)), IllegalMessage),
    ("body length lies", changed(84, struct.pack(">i", 4)), IllegalMessage),
    ("body length negative", changed(84, struct.pack(">i", -5)), IllegalMessage),
    ("body of another checksum", changed(88, b"j"), IllegalMessage),
    ("body checksum of another body", changed(8, b"\1"), IllegalMessage),
    ("topic length lies", changed(93, b"\2"), IllegalMessage),
    ("topic length negative", changed(93, b"\xff"), IllegalMessage),
    ("properties length lies", changed(95, b"\0\1"), IllegalMessage),
    ("properties length negative", changed(95, b"\xff\xff"), IllegalMessage),
    ("topic of no UTF-8", changed(94, b"\xff"), IllegalMessage),
    ("topic with a slash", changed(94, b"/"), IllegalMessage),
    ("topic that is a dot", changed(94, b"."), IllegalMessage),
    ("no topic", packed(topic=b""), IllegalMessage),
    ("topic of 128 bytes", packed(topic=b"t" * 128, v2=True), IllegalMessage),
    ("reserved topic", packed(topic=b"SELF_TEST_TOPIC"), NotAllowed),
    ("queue below -1", packed(queue_id=-2), BadRequest),
    ("queue too high", packed(queue_id=65_536), BadRequest),
    ("prepared", packed(sys_flag=0x4), IllegalMessage),
    ("commit", packed(sys_flag=0x8), IllegalMessage),
    ("rollback", packed(sys_flag=0xC), IllegalMessage),
    ("inner batch", packed(sys_flag=0x80), IllegalMessage),
    ("to unwrap", packed(sys_flag=0x40), IllegalMessage),
    ("IPv6 store host", packed(store_host=Host(bytes(16), 0)), IllegalMessage),
    ("host bits that lie", changed(36, b"\0\0\0\x10"), IllegalMessage),
    ("body too large", packed(body=bytes(1_001)), MessageTooLarge),
    ("no room for the checksum", packed(properties=b"TAGS\1A\2"), IllegalMessage),
    ("no properties", packed(properties=b""), IllegalMessage),
    ("room not at the end", packed(properties=EMPTY_CRC_PROPERTY + b"TAGS\1A\2"), IllegalMessage),
    ("a property without a value", packed(properties=b"A\1\2" + PROPERTIES), IllegalMessage),
    ("properties without an end", packed(properties=PROPERTIES[:-1]), IllegalMessage),
    (
        "room that is the body",
        packed(body=b"xx__CRC32#\1", properties=b"A\1bcde\2"),
        IllegalMessage,
    ),
]
BAD_IDS = [row[0] for row in BAD]


@pytest.mark.parametrize(("raw", "kind"), [row[1:] for row in BAD], ids=BAD_IDS)
@pytest.mark.parametrize("place", [0, 2])
def test_one_bad_record_refuses_its_batch(raw: bytes, kind: type[MqError], place: int) -> None:
    frame = GOOD * place + raw
    with pytest.raises(MqError) as caught:
        check_plain(frame, RULES)
    assert type(caught.value) is kind
    assert not caught.value.retriable
    (caught.value.reason + caught.value.hint).encode()
    assert caught.value.hint
    if kind is not NotAllowed and not caught.value.reason.startswith(("topic", "the topic")):
        row = place + (raw[: len(GOOD)] == GOOD)
        assert f"record {row} of the batch" in caught.value.reason


def test_a_node_without_whole_record_checksums_wants_no_room_for_them() -> None:
    rules = RULES._replace(crc=False)
    with pytest.raises(IllegalMessage, match="must not have room"):
        check_plain(GOOD, rules)
    assert len(check_plain(encode_message(NewMessage("t", b""), crc=False), rules)) == 1


def test_an_empty_batch_has_no_records() -> None:
    assert check_plain(b"", RULES) == []


@given(st.binary(max_size=300))
def test_any_bytes_at_all_are_refused_or_records(raw: bytes) -> None:
    try:
        rows = check_plain(raw, RULES)
    except MqError:
        return
    assert sum(row.size for row in rows) == len(raw)


def test_a_patch_changes_only_what_the_node_knows() -> None:
    buffer = bytearray(GOOD)
    (row,) = check_plain(GOOD, RULES)
    patch_plain(buffer, replace(row, queue_id=3), 7, 0, STAMP, crc=True)
    different = {at for at in range(len(GOOD)) if GOOD[at] != buffer[at]}
    allowed = {
        *range(12, 16),
        *range(20, 36),
        *range(56, 72),
        *range(len(GOOD) - 11, len(GOOD) - 1),
    }
    assert different <= allowed
    found = decode(bytes(buffer), 0, expected_offset=0)
    assert isinstance(found, Record)
    assert found.message_id == "0A00000500002A9F0000000000000000"


PIECES = st.sampled_from([b"a", b"KEY", b"\x01", b"\x02", b"\xc3\xa4", b"\xff", b""])


@given(st.lists(st.lists(PIECES, max_size=8).map(b"".join), min_size=1, max_size=4))
def test_properties_that_are_no_pairs_are_refused(many: list[bytes]) -> None:
    rules = RULES._replace(crc=False)
    frame = b"".join(pack_record(NewMessage("t", b"x", 0), properties) for properties in many)
    try:
        is_taken = len(check_plain(frame, rules)) == len(many)
    except IllegalMessage:
        is_taken = False
    assert is_taken == all(is_regular(properties) for properties in many)


def is_regular(properties: bytes) -> bool:
    """Pairs of name 0x01 value 0x02 in UTF-8, none empty, told another way than the check does."""
    try:
        text = properties.decode()
    except UnicodeDecodeError:
        return False
    return re.fullmatch("([^\x01\x02]+\x01[^\x01\x02]+\x02)*", text) is not None
