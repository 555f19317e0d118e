"""The JSON shapes of messages, receipts, queue units, index entries and pulls.

Each field is declared once, with what `--format help` says of it. Scripts rely on them and a
contract test pins the names: adding a field is allowed, renaming or removing one is not.
"""

import base64
import inspect
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.derived import file_layouts
from protocol.derived.file_layouts import QUEUE_UNIT, IndexEntry, IndexHeader, QueueUnit
from protocol.ids import Queue
from protocol.record.bodies import COMPRESSED, COMPRESSION_BITS
from protocol.record.codec import Record
from protocol.record.properties import decode_raw_properties

if TYPE_CHECKING:
    from keelog.client.results import Receipt
    from node.store.query.pull import PulledRecords
    from protocol.layout import StructLayout

Shape = dict[str, Any]


def integers(*names: str) -> Shape:
    """Fields that are integers and need no explanation."""
    return dict.fromkeys(names, "integer")


def texts(*names: str) -> Shape:
    """Fields that are texts and need no explanation."""
    return dict.fromkeys(names, "text")


def stored(layout: "StructLayout[Any]") -> Shape:
    """The fields of a structure on disk, with what its layout says of each."""
    return {name: f"integer: {wire.meaning}" for name, wire in layout.wires.items()}


_KINDS: dict[object, str] = {
    str: "text",
    int: "integer",
    bool: "true or false",
    int | None: "integer, or null",
    str | None: "text, or null",
}


def fields_of(kind: type, **meanings: str) -> Shape:
    """The fields of a dataclass or NamedTuple; `meanings` say more than a type, or add a field."""
    hints = inspect.get_annotations(kind)
    return {name: _KINDS[hint] for name, hint in hints.items()} | meanings


class RecordField(NamedTuple):
    """A field of a message: its name, where a record has it, and its kind and meaning."""

    name: str
    source: str
    kind: Any


_RECORD_FIELDS = (
    RecordField("topic", "topic", "text"),
    RecordField("queue_id", "head.queue_id", "integer"),
    RecordField("queue_offset", "head.queue_offset", "integer"),
    RecordField("physical_offset", "head.physical_offset", "integer"),
    RecordField("store_size", "head.total_size", "integer: bytes"),
    RecordField("msg_id", "message_id", "text: store host and physical offset, upper-case hex"),
    RecordField("unique_key", "unique_key", "text"),
    RecordField("tags", "tags", "text, empty without one"),
    RecordField("keys", "keys", ["text"]),
    RecordField(
        "properties", "properties_raw", {"NAME": 'text, or {"b64": text} when it is not UTF-8'}
    ),
    RecordField("flag", "head.flag", "integer"),
    RecordField(
        "sys_flag", "head.sys_flag", "integer: compression bits only where the body here has it"
    ),
    RecordField("born_timestamp", "head.born_timestamp", "integer: ms since 1970"),
    RecordField("born_host", "born_host", "text: 1.2.3.4:5"),
    RecordField("store_timestamp", "head.store_timestamp", "integer: ms since 1970"),
    RecordField("store_host", "store_host", "text"),
    RecordField("body_crc", "head.body_crc", "integer: of the body as stored"),
    RecordField("reconsume_times", "head.reconsume_times", "integer"),
    RecordField("prepared_transaction_offset", "head.prepared_transaction_offset", "integer"),
    RecordField("version", "version", "1 or 2"),
)
_RECORD_NAMES = tuple(field.name for field in _RECORD_FIELDS)
_read_record = attrgetter(*(field.source for field in _RECORD_FIELDS))

MESSAGE: Shape = {field.name: field.kind for field in _RECORD_FIELDS} | {
    "body": "text; UTF-8 without NUL, else there is",
    "body_b64": "text; forced by --raw-body, as stored then; both left out by --no-body",
}
MESSAGE_RAW: Shape = MESSAGE | {"record_b64": "text: the record as stored, with --raw"}
RECEIPT: Shape = {
    "status": "PUT_OK, FLUSH_DISK_TIMEOUT, …",
    "topic": "text",
    **integers("queue_id", "queue_offset", "physical_offset"),
    **texts("msg_id", "unique_key"),
    "flushed": "true or false: whether the disk has it",
}
UNIT: Shape = {"topic": "text", **integers("queue_id", "queue_offset"), **stored(QUEUE_UNIT)}
ENTRY: Shape = {
    "file": "text",
    "slot": "integer",
    "entry": "integer: counts from 1",
    **stored(file_layouts.INDEX_ENTRY),
}
INDEX_HEADER: Shape = {"file": "text", **stored(file_layouts.INDEX_HEADER)}
PULL: Shape = {
    "status": "FOUND, NO_MATCHED_MESSAGE, NO_MESSAGE_IN_QUEUE, OFFSET_FOUND_NULL, …",
    **integers("next_begin_offset", "min_offset", "max_offset"),
    "messages": [MESSAGE],
}

MESSAGE_COLUMNS = tuple(MESSAGE)
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


def properties_shape(record: Record) -> Shape:
    """Every property as stored, the reserved ones too."""
    try:
        record.properties_raw.decode()
    except UnicodeDecodeError:
        raw = decode_raw_properties(record.properties_raw)
        return {name.decode("utf-8", "replace"): text_or_b64(value) for name, value in raw.items()}
    return record.properties


def body_shape(body: bytes, is_raw: bool = False) -> Shape:
    """`body` when it is UTF-8 without NUL, else `body_b64`, which `is_raw` forces."""
    if not is_raw and b"\0" not in body:
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            pass
    return {"body_b64": b64(body)}


def message_shape(
    record: Record, raw_body: bool = False, no_body: bool = False, raw: bool = False
) -> Shape:
    """A message, its body plain, or as stored with `raw_body`. `sys_flag` says how the body in the
    shape is compressed, so that `produce --jsonl` sends either of them right.

    `no_body` leaves the body out, `raw` adds the record as stored. Raises BodyUnreadable,
    CodecMissing.
    """
    shape: Shape = dict(zip(_RECORD_NAMES, _read_record(record), strict=True))
    shape["properties"] = properties_shape(record)
    shape["born_host"] = str(shape["born_host"])
    shape["store_host"] = str(shape["store_host"])
    if not no_body:
        if raw_body:
            shape.update(body_shape(record.raw_body, is_raw=True))
        else:
            shape.update(body_shape(record.body))
            if record.head.sys_flag & COMPRESSED:
                shape["sys_flag"] &= ~COMPRESSION_BITS
    if raw:
        shape["record_b64"] = b64(record.raw)
    return shape


def receipt_shape(receipt: "Receipt") -> Shape:
    """The place of a stored message, and whether it is on the disk."""
    return {name: getattr(receipt, name) for name in RECEIPT}


def unit_shape(queue: Queue, queue_offset: int, unit: QueueUnit) -> Shape:
    """A queue unit."""
    return {**queue._asdict(), "queue_offset": queue_offset, **unit._asdict()}


def entry_shape(file: str, slot: int, number: int, entry: IndexEntry) -> Shape:
    """An index entry; `number` counts from 1 in its file."""
    return {"file": file, "slot": slot, "entry": number, **entry._asdict()}


def index_header_shape(file: str, header: IndexHeader) -> Shape:
    """The header of an index file."""
    return {"file": file, **header._asdict()}


def pull_shape(result: "PulledRecords", messages: Iterable[Shape]) -> Shape:
    """One pull, as RocketMQ's getMessage returns it."""
    return {
        "status": result.status.value,
        "next_begin_offset": int(result.next_begin_offset),
        "min_offset": int(result.min_offset),
        "max_offset": int(result.max_offset),
        "messages": list(messages),
    }
