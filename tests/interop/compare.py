"""Holds what RocketMQ reports about a store against what was sent, and what Keelog reads."""

import base64
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.store.opening import open_store
from protocol.record.codec import Record, unit_tags_code
from protocol.record.properties import CRC32
from tests.interop.probe import Report, Row
from tests.interop.traffic import Stored, expected_answers

SHOWN = 5
ALL = 1_000_000


def host_hex(ip: bytes, port: int) -> str:
    """As the probe writes an address."""
    return f"{ip.hex()}:{port}"


def row_of(record: Record) -> Row:
    """One record as the probe would report it."""
    head = record.head
    magic = head.magic - 2**32
    return {
        "physicalOffset": record.physical_offset,
        "storeSize": record.size,
        "topic": record.topic,
        "queueId": head.queue_id,
        "queueOffset": head.queue_offset,
        "msgId": record.message_id,
        "bornTimestamp": head.born_timestamp,
        "storeTimestamp": head.store_timestamp,
        "bornHost": host_hex(head.born_ip, head.born_port),
        "storeHost": host_hex(head.store_ip, head.store_port),
        "sysFlag": head.sys_flag,
        "flag": head.flag,
        "bodyCRC": head.body_crc,
        "reconsumeTimes": head.reconsume_times,
        "preparedTransactionOffset": head.prepared_transaction_offset,
        "magic": magic,
        "recordCrc32": str(zlib.crc32(record.raw)),
        "tagsCode": unit_tags_code(record),
        "queued": True,
        "properties": record.properties or None,
        "propertiesString": base64.b64encode(record.properties_raw).decode(),
        "bodyLength": len(record.raw_body),
        "bodySha256": hashlib.sha256(record.raw_body).hexdigest(),
    }


@dataclass(frozen=True, slots=True)
class View:
    """A store as Keelog's own reader sees it, in the probe's words."""

    messages: list[Row]
    units: dict[tuple[str, int], list[tuple[int, ...]]]
    answers: list[list[int]]
    log: tuple[int, int]


def view(root: Path, lookups: Sequence[tuple[str, str]] = ()) -> View:
    """Reads the whole store at `root`, offline."""
    with open_store(root) as store:
        found: list[Row] = []
        for columns in store.log.columns(store.log.min_offset):
            found += [row_of(columns.record(row)) for row in range(len(columns))]
        assert store.log.stopped is None, store.log.stopped
        units: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for name in store.queues():
            queue = store.queue(*name)
            assert queue is not None
            start = queue.min_offset
            rows = queue.units(start, queue.max_offset - start).tolist()
            units[name] = [(start + i, *row) for i, row in enumerate(rows)]
        answers = [store.index.query(t, k, ALL, cap=ALL) for t, k in lookups]
        return View(found, units, answers, (store.log.min_offset, store.log.end))


def _differences(what: str, pairs: Iterable[tuple[Any, Any]]) -> int:
    """How many pairs were compared. Fails with the first few that are not equal."""
    count, wrong = 0, []
    for ours, theirs in pairs:
        count += 1
        if ours != theirs:
            wrong.append((ours, theirs))
    shown = "\n".join(f"  Keelog   {ours}\n  RocketMQ {theirs}" for ours, theirs in wrong[:SHOWN])
    assert not wrong, f"{len(wrong)} of {count} {what} differ:\n{shown}"
    return count


def _units_of(report: Report) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    found: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for row in report.units:
        unit = (row["index"], row["physicalOffset"], row["size"], row["tagsCode"])
        found.setdefault((row["topic"], row["queueId"]), []).append(unit)
    return found


def same_as_keelog(report: Report, seen: View) -> str:
    """RocketMQ and Keelog read the same messages, units and answers, to the last field."""
    theirs = _units_of(report)
    state = report.state
    assert seen.log == (state["minPhyOffset"], state["maxPhyOffset"])
    assert len(seen.messages) == len(report.messages)
    messages = _differences("messages", zip(seen.messages, report.messages, strict=True))
    queues = {name for name, units in seen.units.items() if units}
    assert queues == set(theirs), queues ^ set(theirs)
    for name, rows in theirs.items():
        assert len(seen.units[name]) == len(rows), name
    units = sum(
        _differences(f"units of {name}", zip(seen.units[name], rows, strict=True))
        for name, rows in theirs.items()
    )
    answers = [row["phyOffsets"] for row in report.lookups]
    asked = [(row["topic"], row["key"]) for row in report.lookups]
    found = _differences(
        "look-ups",
        (((*key, a), (*key, b)) for key, a, b in zip(asked, seen.answers, answers, strict=True)),
    )
    return f"Keelog's own reading: {messages} messages, {units} units, {found} look-ups equal"


def holds_stored(report: Report, stored: Sequence[Stored], others_max: int = 0) -> str:
    """RocketMQ sees every acknowledged message where and as it was acknowledged.

    `others_max`: how many more messages there may be, sent but not acknowledged. With none, the
    look-ups must be answered exactly; else nothing that was acknowledged may be missing in them.
    """
    rows = {row["physicalOffset"]: row for row in report.messages}
    missing = [one for one in stored if one.physical_offset not in rows]
    assert not missing, f"{len(missing)} acknowledged messages are not there: {missing[:SHOWN]}"
    others = len(rows) - len(stored)
    assert 0 <= others <= others_max, f"{others} messages that nobody sent"
    messages = _differences(
        "messages", ((_told(one), _told_by(rows[one.physical_offset], one)) for one in stored)
    )
    units = _units_hold(report, stored, others)
    answers = [row["phyOffsets"] for row in report.lookups]
    asked = [(row["topic"], row["key"]) for row in report.lookups]
    expected = expected_answers(stored, asked)
    if others_max:
        for key, wanted, found in zip(asked, expected, answers, strict=True):
            assert set(wanted) <= set(found), f"{key}: {wanted} expected, {found} found"
        lookups = len(asked)
    else:
        lookups = _differences("look-ups", zip(expected, answers, strict=True))
    _pulls_hold(report)
    return f"what was acknowledged: {messages} messages, {units} units, {lookups} look-ups equal"


def _units_hold(report: Report, stored: Sequence[Stored], others: int) -> int:
    """Every message has its unit, and no unit is without its message."""
    sizes = {row["physicalOffset"]: row["storeSize"] for row in report.messages}
    found = {
        (row["topic"], row["queueId"], row["index"]): (
            row["physicalOffset"],
            row["size"],
            row["tagsCode"],
        )
        for row in report.units
    }
    assert len(found) == len(report.units) == len(stored) + others
    return _differences(
        "units",
        (
            (
                (one.physical_offset, sizes[one.physical_offset], one.tags_code),
                found.get((one.topic, one.queue_id, one.queue_offset)),
            )
            for one in stored
        ),
    )


def _pulls_hold(report: Report) -> None:
    """Its own pulls brought every message of every queue."""
    pulled = {(row["topic"], row["queueId"]): row["messages"] for row in report.pulls}
    units = {name: len(rows) for name, rows in _units_of(report).items()}
    assert {name: count for name, count in pulled.items() if count} == units


def _told(one: Stored) -> Row:
    told = {
        "topic": one.topic,
        "queueId": one.queue_id,
        "queueOffset": one.queue_offset,
        "physicalOffset": one.physical_offset,
        "msgId": one.msg_id,
        "storeTimestamp": one.store_timestamp,
        "flag": one.flag,
        "tagsCode": one.tags_code,
        "bodyLength": one.body_length,
        "bodySha256": one.body_sha256,
        "properties": one.properties,
        "reconsumeTimes": one.reconsume_times,
    }
    if one.born_host is not None:
        told["bornHost"] = one.born_host
    if one.born_timestamp is not None:
        told["bornTimestamp"] = one.born_timestamp
    return told


def _told_by(row: Row, one: Stored) -> Row:
    """The same fields as the probe has them; the checksum property is the node's own."""
    told = {name: row[name] for name in _told(one)}
    properties = dict(row["properties"] or {})
    properties.pop(CRC32, None)
    told["properties"] = properties
    return told
