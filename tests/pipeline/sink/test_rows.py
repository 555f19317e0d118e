"""Rows become the records that the plain encoder makes, and a bad row is named with its place."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.client.messages import ordered_queue
from keelog.pipeline.errors import BadRow
from keelog.pipeline.sink import RESERVED, KeyMaker, RowEncoder
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, encode_message
from protocol.record.patch import AppendRules, check_plain
from protocol.record.properties import UNIQUE_KEY

PAIRS = pa.map_(pa.string(), pa.string())
TYPES = {
    "body": pa.binary(), "topic": pa.string(), "queueId": pa.int32(), "tags": pa.string(),
    "keys": pa.list_(pa.string()), "properties": PAIRS, "flag": pa.int32(),
    "delayLevel": pa.int32(), "shardingKey": pa.string(),
    "bornTimestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
QUEUES = {"orders": 4, "audit": 3}
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02 "), max_size=6)
NAMES = TEXT.filter(lambda name: bool(name) and name not in RESERVED)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=30),
            "topic": st.sampled_from(["orders", "audit", "%RETRY%" + "g" * 150]),
            "queueId": st.integers(0, 2),
            "tags": st.none() | TEXT,
            "keys": st.none() | st.lists(TEXT.filter(bool), max_size=3),
            "properties": st.none()
            | st.dictionaries(NAMES, st.none() | TEXT.filter(bool), max_size=3),
            "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
            "bornTimestamp": st.integers(0, 2**40),
        }
    ),
    min_size=1,
    max_size=6,
)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = list(rows[0])
    columns = []
    for name in names:
        values = [row[name] for row in rows]
        if name == "properties":
            values = [None if value is None else list(value.items()) for value in values]
        if name == "bornTimestamp":
            columns.append(
                pa.array([value * 1000 for value in values], pa.int64()).view(TYPES[name])
            )
        else:
            columns.append(pa.array(values, TYPES[name]))
    return pa.record_batch(columns, names)


def encoder(batch: pa.RecordBatch, topic: str | None = None, **rules: Any) -> RowEncoder:
    places = {name: place for place, name in enumerate(batch.schema.names)}
    node = {"crc": True, "max_message_bytes": 1000, **rules}
    return RowEncoder(places, topic, 3, write_queues=lambda name: QUEUES.get(name, 5), **node)


def records_of(batch: pa.RecordBatch, topic: str | None = None, crc: bool = True) -> list[Record]:
    encoded, ends = encoder(batch, topic, crc=crc).encode(batch)
    data = bytes(encoded)
    assert ends[-1] == len(data)
    check_plain(data, AppendRules(1000, crc))
    records = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        found = decode(data, int(start), sealed=False)
        assert isinstance(found, Record)
        assert start + found.size == end
        records.append(found)
    return records


@given(rows=ROWS, crc=st.booleans())
def test_columns_become_what_the_plain_encoder_makes(rows: list[dict[str, Any]], crc: bool) -> None:
    batch = batch_of(rows)
    data = bytes(encoder(batch, crc=crc).encode(batch)[0])
    expected = b""
    for row, record in zip(rows, records_of(batch, crc=crc), strict=True):
        message = NewMessage(
            topic=row["topic"], body=row["body"], queue_id=row["queueId"], tags=row["tags"] or "",
            keys=tuple(row["keys"] or ()), flag=row["flag"] or 0, unique_key="K" * 32,
            properties={k: v for k, v in (row["properties"] or {}).items() if v},
            born_timestamp=row["bornTimestamp"],
        )  # fmt: skip
        encoded = encode_message(message, crc)
        key = record.properties[UNIQUE_KEY].encode()
        expected += encoded.replace(b"K" * 32, key, 1)
    again = bytes(encoder(batch, crc=crc).encode(batch)[0])
    assert len(again) == len(expected)
    assert without_keys(data) == without_keys(expected) == without_keys(again)


def without_keys(data: bytes) -> bytes:
    """Unique keys differ from one encoder to the next."""
    parts = data.split(f"{UNIQUE_KEY}\x01".encode())
    return b"".join([parts[0], *(part[32:] for part in parts[1:])])


def test_no_two_rows_have_one_unique_key() -> None:
    maker = KeyMaker()
    keys = [key for _ in range(3) for key in maker.take(65_536).to_pylist()]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}


def test_keys_as_text_are_split_at_spaces() -> None:
    batch = pa.record_batch({"body": [b"x", b"y"], "keys": ["  a   b ", None]})
    assert [record.properties.get("KEYS") for record in records_of(batch, "orders")] == [
        "a b",
        None,
    ]


def test_text_is_a_body_too_and_the_option_topic_wins() -> None:
    batch = pa.record_batch({"body": ["grün"], "topic": ["audit"]})
    (record,) = records_of(batch, "orders")
    assert (record.body, record.topic) == ("grün".encode(), "orders")


def test_rows_without_a_queue_take_them_all_in_turn() -> None:
    batch = pa.record_batch({"body": [b"x"] * 9, "topic": ["orders", "audit", "orders"] * 3})
    counts = Counter((r.topic, r.head.queue_id) for r in records_of(batch))
    assert all(count == 1 for (topic, _), count in counts.items() if topic == "audit")
    assert sorted(n for (topic, _), n in counts.items() if topic == "orders") == [1, 1, 2, 2]


def test_rows_of_one_sharding_key_share_the_queue_of_rocketmqs_selector() -> None:
    keys = ["a", "ü", "polygenelubricants", None, "a"]
    batch = pa.record_batch({"body": [b"x"] * 5, "shardingKey": keys, "queueId": [None] * 4 + [2]})
    records = records_of(batch, "orders")
    for key, record in zip(keys[:3], records, strict=False):
        assert record.head.queue_id == ordered_queue(str(key), 4)
    assert records[4].head.queue_id == 2


def test_a_slice_of_a_batch_is_encoded_as_its_rows_alone() -> None:
    rows = [
        {
            "body": f"{i}".encode() * i,
            "keys": [f"k{i}"],
            "properties": {"n": str(i)},
            "tags": f"t{i}",
        }
        for i in range(9)
    ]
    batch = batch_of(rows)
    part = batch.slice(4, 3)
    assert [record.body for record in records_of(part, "orders")] == [r["body"] for r in rows[4:7]]
    assert [r.properties["n"] for r in records_of(part, "orders")] == ["4", "5", "6"]
    assert [r.properties["KEYS"] for r in records_of(part, "orders")] == ["k4", "k5", "k6"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"body": None}, "body is NULL"),
    ({"body": b"x" * 1001}, "the body is too large: 1000 bytes are allowed"),
    ({"topic": None}, "topic is NULL"),
    ({"topic": "a b"}, "has characters other than"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, "reserved for the system"),
    ({"queueId": 4}, "queueId is no queue of the topic, which has 4"),
    ({"queueId": -1}, "queueId is no queue"),
    ({"tags": "a\x01b"}, "tags hold 0x01"),
    ({"keys": ["a b"]}, "one of the keys is NULL, empty, or holds a space"),
    ({"keys": [None]}, "one of the keys"),
    ({"keys": [""]}, "one of the keys"),
    ({"keys": ["a\x02"]}, "keys hold 0x01"),
    ({"properties": {"a": "b\x02"}}, "properties hold 0x01"),
    ({"properties": {"": "b"}}, "a property has no name"),
    ({"properties": {"a": ""}}, "a property has an empty value"),
    ({"properties": {"TAGS": "b"}}, "reserved"),
    ({"properties": {"DELAY": "3"}}, "reserved"),
    ({"properties": {"a": "x" * 33_000}}, "the properties are too large: 32767 bytes"),
    ({"delayLevel": 3}, "delayLevel asks for delayed delivery"),
]


@pytest.mark.parametrize(("change", "why"), BAD, ids=lambda value: str(value)[:30])
def test_a_bad_row_is_named_with_partition_row_and_values(change: dict[str, Any], why: str) -> None:
    good: dict[str, Any] = {
        "body": b"fine", "topic": "orders", "queueId": 1, "tags": "t", "keys": ["k"],
        "properties": {"a": "b"}, "delayLevel": 0,
    }  # fmt: skip
    first = batch_of([good] * 4)
    second = batch_of([good, {**good, **change}, good])
    made = encoder(first)
    made.encode(first)
    with pytest.raises(BadRow) as raised:
        made.encode(second)
    text = str(raised.value)
    assert text.startswith("[KEELOG_BAD_ROW] partition 3, row 5: ")
    assert why in text
    assert next(iter(change)) + "=" in text


def test_large_texts_are_taken_as_other_texts_are() -> None:
    batch = pa.record_batch(
        {"body": pa.array([b"x"], pa.large_binary()), "tags": pa.array(["t"], pa.large_string())}
    )
    (record,) = records_of(batch, "orders")
    assert (record.body, record.properties["TAGS"]) == (b"x", "t")


def test_the_queues_of_a_topic_are_asked_for_once() -> None:
    asked: list[str] = []

    def queues(name: str) -> int:
        asked.append(name)
        return 4

    batch = pa.record_batch({"body": [b"x"] * 2, "topic": ["orders", "audit"]})
    answers: Callable[[str], int] = queues
    made = RowEncoder({"body": 0, "topic": 1}, None, 0, True, 100, answers)
    made.encode(batch)
    made.encode(batch)
    assert asked == ["orders", "audit"]
