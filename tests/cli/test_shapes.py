"""The shapes that scripts rely on: no field may be renamed or go."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keelog.cli import shapes
from node.store.query.pull import PulledRecords, PullStatus
from node.store.queues import NO_UNITS
from protocol.derived.file_layouts import IndexEntry, IndexHeader, QueueUnit
from protocol.ids import Queue, parse_host
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, encode_message

MESSAGE = set(shapes.MESSAGE_COLUMNS)


def record(**fields: Any) -> Record:
    message = NewMessage(
        "orders",
        fields.pop("body", b"hello"),
        queue_id=3,
        tags="paid",
        keys=("k1", "k2"),
        born_host=parse_host("1.2.3.4:5"),
        born_timestamp=7,
        **fields,
    )
    decoded = decode(encode_message(message, crc=False), 0, sealed=False)
    assert isinstance(decoded, Record)
    return decoded


def test_a_message_has_the_fields_of_the_contract() -> None:
    shape = shapes.message_shape(record(properties={"tenant": "a"}, unique_key="U"))
    assert set(shape) == MESSAGE - {"body_b64"}
    assert shape["body"] == "hello"
    assert shape["born_host"] == "1.2.3.4:5"
    assert (shape["tags"], shape["keys"], shape["unique_key"]) == ("paid", ["k1", "k2"], "U")
    assert shape["properties"] == {
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "U",
        "tenant": "a",
    }
    assert len(shape["msg_id"]) == 32
    assert shape["version"] == 1


@pytest.mark.parametrize("body", [b"a\0b", b"\xff"])
def test_a_body_that_is_no_plain_text_is_base64(body: bytes) -> None:
    shape = shapes.message_shape(record(body=body))
    assert base64.b64decode(shape["body_b64"]) == body
    assert "body" not in shape


def test_the_body_can_be_forced_to_base64_or_left_out_and_the_record_added() -> None:
    forced = shapes.message_shape(record(), raw_body=True)
    assert set(forced) == MESSAGE - {"body"}
    assert set(shapes.message_shape(record(), no_body=True)) == MESSAGE - {"body", "body_b64"}
    whole = record()
    raw = shapes.message_shape(whole, raw=True)["record_b64"]
    assert base64.b64decode(raw) == whole.raw


def test_property_values_that_are_no_text_become_base64() -> None:
    stored = b"a\x01\xff\xfe\x02b\x01x\x02"
    found = shapes.properties_shape(replace(record(), properties_raw=stored))
    assert found == {"a": {"b64": "//4="}, "b": "x"}


def test_units_entries_and_pulls_have_the_fields_of_the_contract() -> None:
    assert list(shapes.unit_shape(Queue("t", 1), 2, QueueUnit(3, 4, 5))) == [
        *("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")
    ]
    assert list(shapes.entry_shape("f", 1, 2, IndexEntry(3, 4, 5, 6))) == [
        *("file", "slot", "entry", "key_hash", "physical_offset", "time_diff_s", "prev")
    ]
    assert list(shapes.index_header_shape("f", IndexHeader(1, 2, 3, 4, 5, 6))) == [
        *("file", "begin_timestamp", "end_timestamp", "begin_physical_offset"),
        *("end_physical_offset", "slot_count", "index_count"),
    ]
    none = np.zeros(0, np.int64)
    pulled = PulledRecords(PullStatus.FOUND, 1, 0, 2, NO_UNITS, none, b"")
    assert list(shapes.pull_shape(pulled, [])) == [
        *("status", "next_begin_offset", "min_offset", "max_offset", "messages")
    ]
