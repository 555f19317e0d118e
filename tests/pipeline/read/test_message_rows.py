"""Arrow columns of records against the plain decoder, for any records at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.pipeline.read.arrays import TYPES, flat_and_ends, pieces
from keelog.pipeline.read.message_rows import MAKERS, MessageRows
from keelog.pipeline.tables import DAMAGE, KAFKA, MESSAGES, TABLES
from protocol.record.bodies import COMPRESSED
from protocol.record.codec import Record
from protocol.record.columns import scan
from tests.pipeline.facts_as_rows import US_MAX, plain_rows
from tests.protocol.records import Draft, drafts, pack_log
from tests.support.golden import Row

pytestmark = pytest.mark.usefixtures("way")


def expected_row(record: Record, node: str) -> Row:
    head = record.head
    return {
        "topic": record.topic,
        "queueId": head.queue_id,
        "queueOffset": head.queue_offset,
        "body": record.raw_body,  # pipeline.read.plain_bodies unpacks it
        "rawBody": record.raw_body if head.sys_flag & COMPRESSED else None,
        "tags": record.tags or None,
        "keys": record.keys,
        "uniqKey": record.unique_key or None,
        "properties": record.properties,
        "flag": head.flag,
        "sysFlag": head.sys_flag,
        "bornTimestamp": micros(head.born_timestamp),
        "bornHost": str(record.born_host),
        "storeTimestamp": micros(head.store_timestamp),
        "storeHost": str(record.store_host),
        "reconsumeTimes": head.reconsume_times,
        "preparedTransactionOffset": head.prepared_transaction_offset,
        "bodyCrc": head.body_crc,
        "msgId": record.message_id,
        "physicalOffset": head.physical_offset,
        "storeSize": head.total_size,
        "node": node,
    }


def micros(ms: int) -> int | None:
    return ms * 1000 if abs(ms * 1000) <= US_MAX else None


@given(st.lists(drafts(), min_size=1, max_size=6))
def test_columns_say_what_the_plain_decoder_says(items: list[Draft]) -> None:
    columns = scan(pack_log(items), 0).columns
    assert len(columns) == len(items)
    batch = MessageRows(columns, "n").batch(MESSAGES.columns)
    batch.validate(full=True)
    expected = [expected_row(columns.record(row), "n") for row in range(len(columns))]
    assert plain_rows(batch) == expected


@pytest.mark.parametrize(
    "properties",
    [
        b"a\x01b\x02a\x01c\x02",
        b"a\x01b\x02a\x01\x02",
        b"\xff\x01x\x02\xfe\x01y\x02",
        b"TAGS\x01\xed\xa0\x80\x02",
        b"Aa\x011\x02BB\x012\x02Aa\x013\x02",
        b"KEYS\x01 a  b \x02TAGS\x01x",
        b"KEYS\x01 \x02",
        b"",
    ],
)
def test_odd_properties_are_read_as_java_reads_them(properties: bytes) -> None:
    columns = scan(pack_log([Draft(properties=properties), Draft(properties=b"k\x01v\x02")]), 0)
    rows = plain_rows(MessageRows(columns.columns, "n").batch(MESSAGES.columns))
    assert rows == [expected_row(columns.columns.record(row), "n") for row in (0, 1)]


def test_every_column_of_messages_can_be_made_and_every_type_is_known() -> None:
    columns = {column.name for column in (*MESSAGES.columns, DAMAGE, *KAFKA.columns)}
    assert set(MAKERS) == columns
    tables = (*TABLES.values(), KAFKA)
    assert {column.ddl for table in tables for column in table.columns} == set(TYPES)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_pieces_are_the_slices_of_the_data(steps: list[tuple[int, int]]) -> None:
    data = np.arange(100, dtype=np.uint8)
    start, length, position = [], [], 0
    for gap, size in steps:
        start.append(position + gap)
        length.append(size)
        position += gap + size
    found = pieces(data, np.array(start, np.int64), np.array(length, np.int64))
    assert found.to_pylist() == [
        data[a : a + n].tobytes() for a, n in zip(start, length, strict=True)
    ]
    flat, ends = flat_and_ends(found)
    assert flat.tobytes() == b"".join(found.to_pylist())
    assert ends.tolist() == np.cumsum(length).astype(int).tolist()
