"""The JSON shapes that scripts rely on: messages, receipts, queue units, index entries, pulls.

A contract test pins each. Adding a field is allowed, renaming or removing one is not.
"""

import base64
from collections.abc import Iterable
from typing import Any, Protocol

from protocol.derived.index_entry import IndexEntry, IndexHeader
from protocol.derived.queue_unit import QueueUnit
from protocol.ids import Queue
from protocol.record.codec import Record
from protocol.record.properties import decode_raw_properties

Shape = dict[str, Any]

MESSAGE_COLUMNS = (
    *("topic", "queue_id", "queue_offset", "physical_offset", "store_size", "msg_id"),
    *("unique_key", "tags", "keys", "properties", "flag", "sys_flag", "born_timestamp"),
    *("born_host", "store_timestamp", "store_host", "body_crc", "reconsume_times"),
    *("prepared_transaction_offset", "version", "body", "body_b64"),
)
"""The columns of messages in CSV: both kinds of body, one of them empty."""
MESSAGE_TABLE = ("topic", "queue_id", "queue_offset", "physical_offset", "tags", "keys", "body")
"""The columns of messages in a table for people."""


def b64(data: bytes) -> str:
    """Base64 as text."""
    return base64.b64encode(data).decode()


def text_or_b64(data: bytes) -> str | dict[str, str]:
    """Text when the bytes are UTF-8, else `{"b64": …}`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"b64": b64(data)}


def properties_shape(stored: bytes) -> Shape:
    """Every property as stored, the reserved ones too."""
    return {
        name.decode("utf-8", "replace"): text_or_b64(value)
        for name, value in decode_raw_properties(stored).items()
    }


def body_shape(body: bytes, raw_body: bool = False) -> Shape:
    """`body` when it is UTF-8 without NUL, else `body_b64`, which `raw_body` forces."""
    if not raw_body and b"\0" not in body:
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            pass
    return {"body_b64": b64(body)}


def message_shape(
    record: Record, raw_body: bool = False, no_body: bool = False, raw: bool = False
) -> Shape:
    """A message. `no_body` leaves the body out, `raw` adds the record as stored."""
    head = record.head
    shape: Shape = {
        "topic": record.topic,
        "queue_id": head.queue_id,
        "queue_offset": head.queue_offset,
        "physical_offset": head.physical_offset,
        "store_size": head.total_size,
        "msg_id": record.message_id,
        "unique_key": record.unique_key,
        "tags": record.tags,
        "keys": record.keys,
        "properties": properties_shape(record.properties_raw),
        "flag": head.flag,
        "sys_flag": head.sys_flag,
        "born_timestamp": head.born_timestamp,
        "born_host": str(record.born_host),
        "store_timestamp": head.store_timestamp,
        "store_host": str(record.store_host),
        "body_crc": head.body_crc,
        "reconsume_times": head.reconsume_times,
        "prepared_transaction_offset": head.prepared_transaction_offset,
        "version": record.version,
    }
    if not no_body:
        shape.update(body_shape(record.body, raw_body))
    if raw:
        shape["record_b64"] = b64(record.raw)
    return shape


class ReceiptShape(Protocol):
    """What `send` answers."""

    @property
    def status(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def msg_id(self) -> str: ...
    @property
    def unique_key(self) -> str: ...
    @property
    def flushed(self) -> bool: ...


def receipt_shape(receipt: ReceiptShape) -> Shape:
    """Where a message was stored, and whether it is on the disk."""
    return {
        "status": receipt.status,
        "topic": receipt.topic,
        "queue_id": receipt.queue_id,
        "queue_offset": receipt.queue_offset,
        "physical_offset": receipt.physical_offset,
        "msg_id": receipt.msg_id,
        "unique_key": receipt.unique_key,
        "flushed": receipt.flushed,
    }


def unit_shape(queue: Queue, queue_offset: int, unit: QueueUnit) -> Shape:
    """A queue unit."""
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "queue_offset": int(queue_offset),
        "physical_offset": int(unit.physical_offset),
        "size": int(unit.size),
        "tags_code": int(unit.tags_code),
    }


def entry_shape(file: str, slot: int, number: int, entry: IndexEntry) -> Shape:
    """An index entry; `number` counts from 1 in its file."""
    return {
        "file": file,
        "slot": int(slot),
        "entry": int(number),
        "key_hash": int(entry.key_hash),
        "physical_offset": int(entry.physical_offset),
        "time_diff_s": int(entry.time_diff_s),
        "prev": int(entry.prev),
    }


def index_header_shape(file: str, header: IndexHeader) -> Shape:
    """The header of an index file."""
    return {"file": file, **header._asdict()}


def pull_shape(
    status: str,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    messages: Iterable[Shape],
) -> Shape:
    """One pull, as RocketMQ's getMessage answers it."""
    return {
        "status": status,
        "next_begin_offset": int(next_begin_offset),
        "min_offset": int(min_offset),
        "max_offset": int(max_offset),
        "messages": list(messages),
    }
