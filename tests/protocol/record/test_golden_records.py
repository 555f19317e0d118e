"""Records that RocketMQ wrote, against what RocketMQ says about each: plain and as columns."""

import base64
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.file_layouts import INDEX_HEADER, QUEUE_UNIT, decode_checkpoint
from protocol.ids import Host
from protocol.names import CHECKPOINT_FILE_BYTES, is_index_file_name, parse_offset_file_name
from protocol.record.codec import Filler, Record, Torn, decode, unit_tags_code
from protocol.record.columns import Scan, scan
from tests.support.golden import GetStore, facts

pytestmark = pytest.mark.usefixtures("way")

STORES = ["mixed-kinds", "crc32-property"]
LOGS = [*STORES, "small-clean", "small-clean-533", "trimmed"]
Row = dict[str, Any]


def segments(store: Path) -> Iterator[tuple[int, bytes]]:
    for path in sorted((store / "commitlog").iterdir()):
        base = parse_offset_file_name(path.name)
        assert base is not None
        yield base, path.read_bytes()


def scans(store: Path) -> Iterator[tuple[int, bytes, Scan]]:
    for base, data in segments(store):
        yield base, data, scan(data, base)


def host_of(text: str) -> Host:
    ip, port = text.split(":")
    return Host(bytes.fromhex(ip), int(port))


def assert_is(record: Record, row: Row) -> None:
    head = record.head
    assert (head.physical_offset, record.size) == (row["physicalOffset"], row["storeSize"])
    assert zlib.crc32(record.raw) == int(row["recordCrc32"])
    assert head.magic == row["magic"] % 2**32
    assert (record.topic, head.queue_id, head.queue_offset) == (
        row["topic"],
        row["queueId"],
        row["queueOffset"],
    )
    assert record.message_id == row["msgId"]
    assert (head.born_timestamp, head.store_timestamp) == (
        row["bornTimestamp"],
        row["storeTimestamp"],
    )
    assert (record.born_host, record.store_host) == (
        host_of(row["bornHost"]),
        host_of(row["storeHost"]),
    )
    assert (head.sys_flag, head.flag, head.body_crc) == (
        row["sysFlag"],
        row["flag"],
        row["bodyCRC"],
    )
    assert (head.reconsume_times, head.prepared_transaction_offset) == (
        row["reconsumeTimes"],
        row["preparedTransactionOffset"],
    )
    assert record.properties_raw == base64.b64decode(row["propertiesString"] or "")
    assert record.properties == (row["properties"] or {})
    assert len(record.raw_body) == row["bodyLength"]
    if "bodySha256" in row:
        assert hashlib.sha256(record.raw_body).hexdigest() == row["bodySha256"]
    else:
        assert record.raw_body == base64.b64decode(row["body"])
    assert unit_tags_code(record) == row["tagsCode"]


@pytest.mark.parametrize("name", LOGS)
def test_every_record_decodes_to_what_rocketmq_says(golden: GetStore, name: str) -> None:
    rows = iter(facts(name).messages)
    for base, data in segments(golden(name)):
        position = 0
        while isinstance(found := decode(data, position, base + position), Record):
            assert_is(found, next(rows))
            position += found.size
        assert isinstance(found, Filler) or found.kind == "end", found
        if isinstance(found, Filler):
            assert found.size == len(data) - position
    assert next(rows, None) is None


@pytest.mark.parametrize("name", LOGS)
def test_every_column_holds_what_rocketmq_says(golden: GetStore, name: str) -> None:
    known = facts(name)
    rows = known.messages
    at = 0
    for base, data, found in scans(golden(name)):
        here = rows[at : at + len(found.columns)]
        at += len(here)
        columns, requests = found.columns, DispatchRequests(found.columns)
        for values, field in (
            (columns.physical_offset, "physicalOffset"),
            (columns.size, "storeSize"),
            (columns.queue_id, "queueId"),
            (columns.queue_offset, "queueOffset"),
            (columns.born_timestamp, "bornTimestamp"),
            (columns.store_timestamp, "storeTimestamp"),
            (columns.sys_flag, "sysFlag"),
            (columns.flag, "flag"),
            (columns.body_crc, "bodyCRC"),
            (columns.reconsume_times, "reconsumeTimes"),
            (columns.prepared_transaction_offset, "preparedTransactionOffset"),
            (columns.body_length, "bodyLength"),
            (requests.tags_code, "tagsCode"),
            (requests.is_queued, "queued"),
        ):
            assert values.tolist() == [row[field] for row in here], (name, base, field)
        assert [requests.topics[i] for i in requests.topic_id] == [row["topic"] for row in here]
        stop = found.stop
        assert isinstance(stop, Filler) or (isinstance(stop, Torn) and stop.kind == "end")
        for blank in known.state["blanks"]:
            if base <= blank["physicalOffset"] < base + len(data):
                assert stop == Filler(blank["physicalOffset"] - base, blank["sizeField"])
    assert at == len(rows)


@pytest.mark.parametrize("name", STORES)
def test_single_records_of_columns_are_the_plain_ones(golden: GetStore, name: str) -> None:
    _, data, found = next(scans(golden(name)))
    for row in range(0, len(found.columns), 97):
        assert found.columns.record(row) == decode(data, int(found.columns.start[row]))


def test_a_torn_log_ends_where_rocketmq_cuts_it(golden: GetStore) -> None:
    known = facts("small-torn")
    count = 0
    for _, _, found in scans(golden("small-torn")):
        count += len(found.columns)
        if not isinstance(found.stop, Filler):
            break
    assert count == known.state["messages"]
    assert isinstance(found.stop, Torn)
    assert found.stop.kind != "end"


@pytest.mark.parametrize("name", STORES)
def test_every_unit_of_a_queue_is_what_dispatch_computes(golden: GetStore, name: str) -> None:
    expected = {
        (row["topic"], row["queueId"], row["index"]): (
            row["physicalOffset"],
            row["size"],
            row["tagsCode"],
        )
        for row in facts(name).queue_units
    }
    store = golden(name)
    units = {}
    for path in (store / "consumequeue").glob("*/*/*"):
        base = parse_offset_file_name(path.name)
        assert base is not None
        topic, queue = path.parts[-3:-1]
        for i, unit in enumerate(QUEUE_UNIT.view(path.read_bytes()).tolist()):
            if unit[1]:
                units[topic, int(queue), base // QUEUE_UNIT.size + i] = unit
    assert units == expected


@pytest.mark.parametrize("name", STORES)
def test_checkpoint_and_index_headers_read_as_rocketmq_reads_them(
    golden: GetStore, name: str
) -> None:
    store, known = golden(name), facts(name)
    data = (store / "checkpoint").read_bytes()
    assert len(data) == CHECKPOINT_FILE_BYTES
    before = {key.lower(): value for key, value in known.state["checkpointBefore"].items()}
    checkpoint = decode_checkpoint(data)
    assert checkpoint.physic_msg_timestamp == before["physicmsgtimestamp"]
    assert checkpoint.logics_msg_timestamp == before["logicsmsgtimestamp"]
    assert checkpoint.index_msg_timestamp == before["indexmsgtimestamp"]
    names = sorted(path.name for path in (store / "index").iterdir())
    assert all(is_index_file_name(file) for file in names)
    headers = [
        INDEX_HEADER.read((store / "index" / file).read_bytes()[: INDEX_HEADER.size])
        for file in names
    ]
    assert [tuple(header) for header in headers] == [
        (
            row["beginTimestamp"],
            row["endTimestamp"],
            row["beginPhyOffset"],
            row["endPhyOffset"],
            row["hashSlotCount"],
            row["indexCount"],
        )
        for row in known.state["indexHeadersBefore"]
    ]
