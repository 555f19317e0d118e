"""RocketMQ's facts about golden stores as rows of our tables, and rows as plain values."""

import base64
import hashlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from keelog.pipeline.options import parse_options
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.resolve import plan_parts
from protocol.derived.file_layouts import key_hash
from protocol.ids import Host
from protocol.record.bodies import COMPRESSED, unpack
from protocol.record.properties import split_keys
from tests.support.golden import Facts, Row
from tests.support.golden_view import size_pairs

US_MAX = 2**63 - 1


def options_for(name: str, known: Facts, **more: str) -> dict[str, str]:
    """`store.…` options with the sizes that no file of this golden store tells."""
    pairs = (pair.split("=") for pair in size_pairs(name, known))
    return {**dict(pairs), **more}


def read_rows(**options: str) -> list[Row]:
    """Every row of a read, as tasks give them, without Spark."""
    parts = plan_parts(parse_options(options))
    return [row for part in parts for batch in read_part(part) for row in plain_rows(batch)]


def plain_rows(rows: pa.RecordBatch | pa.Table) -> list[Row]:
    """Rows with times in microseconds, which Python's datetime cannot always hold, and dicts."""
    columns = {}
    for field in rows.schema:
        column = rows.column(field.name)
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        columns[field.name] = [
            dict(value) if pa.types.is_map(field.type) else value for value in values
        ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def message_row(fact: Row, node: str) -> Row:
    """What the table `messages` must have for a fact; a long body as its digest."""
    properties = fact["properties"] or {}
    return {
        "topic": fact["topic"],
        "queueId": fact["queueId"],
        "queueOffset": fact["queueOffset"],
        "body": fact.get("bodySha256") or unpack(base64.b64decode(fact["body"]), fact["sysFlag"]),
        "rawBody": base64.b64decode(fact["body"]) if fact["sysFlag"] & COMPRESSED else None,
        "tags": properties.get("TAGS"),
        "keys": split_keys(properties.get("KEYS", "")),
        "uniqKey": properties.get("UNIQ_KEY"),
        "properties": properties,
        "flag": fact["flag"],
        "sysFlag": fact["sysFlag"],
        "bornTimestamp": _micros(fact["bornTimestamp"]),
        "bornHost": _host(fact["bornHost"]),
        "storeTimestamp": _micros(fact["storeTimestamp"]),
        "storeHost": _host(fact["storeHost"]),
        "reconsumeTimes": fact["reconsumeTimes"],
        "preparedTransactionOffset": fact["preparedTransactionOffset"],
        "bodyCrc": fact["bodyCRC"],
        "msgId": fact["msgId"],
        "physicalOffset": fact["physicalOffset"],
        "storeSize": fact["storeSize"],
        "node": node,
    }


def comparable(rows: Iterable[Row], known: Facts) -> list[Row]:
    """Message rows as `message_row` has them: bodies that facts give as a digest, digested."""
    digested = {fact["physicalOffset"] for fact in known.messages if "bodySha256" in fact}
    return [
        {**row, "body": hashlib.sha256(row["body"]).hexdigest()}
        if row["physicalOffset"] in digested
        else row
        for row in rows
    ]


def unit_row(fact: Row, node: str) -> Row:
    """What the table `queues` must have for a fact."""
    return {
        "topic": fact["topic"],
        "queueId": fact["queueId"],
        "queueOffset": fact["index"],
        "physicalOffset": fact["physicalOffset"],
        "storeSize": fact["size"],
        "tagsCode": fact["tagsCode"],
        "node": node,
    }


def assert_index_is(rows: list[Row], known: Facts, step: int = 1) -> None:
    """The rows of `index` have as many entries as RocketMQ counts, and answer its queries.

    Of the queries every `step`-th is tried.
    """
    files: dict[str, dict[int, Row]] = {}
    for row in rows:
        files.setdefault(row["file"], {})[row["entry"]] = row
    ordered = [files[name] for name in sorted(files)]
    headers = [fact for fact in known.index_headers if fact["indexCount"] > 1]
    assert [len(entries) for entries in ordered] == [fact["indexCount"] - 1 for fact in headers]
    for entries, fact in zip(ordered, headers, strict=True):
        places = (entries[1]["physicalOffset"], entries[len(entries)]["physicalOffset"])
        assert places == (fact["beginPhyOffset"], fact["endPhyOffset"])
    newest = [{row["slot"]: row["entry"] for row in entries.values()} for entries in ordered]
    slot_count = known.state["config"]["maxHashSlotNum"]
    for query in known.index_queries[::step]:
        found = _query(ordered, newest, headers, slot_count, query)
        assert found == query["phyOffsets"], query


def _query(
    files: list[dict[int, Row]],
    newest: list[dict[int, int]],
    headers: list[Row],
    slot_count: int,
    query: Row,
) -> list[int]:
    """IndexService#queryOffset over the rows of the table."""
    begin, end = query["begin"], query["end"]
    limit = min(query["maxNum"], query.get("maxMsgsNumBatch", 64))
    wanted = key_hash(query["topic"], query["key"])
    found: list[int] = []
    for entries, heads, header in reversed(list(zip(files, newest, headers, strict=True))):
        if begin <= header["endTimestamp"] and end >= header["beginTimestamp"]:
            number = heads.get(wanted % slot_count, 0)
            for row in _chain(entries, number):
                if len(found) >= limit:
                    break
                time = row["storeTimestamp"] // 1000
                if row["keyHash"] == wanted and begin <= time <= end:
                    found.append(row["physicalOffset"])
                if time < begin:
                    break
        if header["beginTimestamp"] < begin or len(found) >= limit:
            break
    return found


def _chain(entries: dict[int, Row], number: int) -> Iterator[Row]:
    while number:
        yield entries[number]
        number = entries[number]["prevEntry"]


def _micros(ms: int) -> int | None:
    return ms * 1000 if abs(ms * 1000) <= US_MAX else None


def _host(text: str) -> str:
    address, _, port = text.rpartition(":")
    return str(Host(bytes.fromhex(address), int(port)))
