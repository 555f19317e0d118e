"""What a store holds, as commands print it: JSON shapes, the form of bodies, lines about damage.

Shapes are those of messages, receipts, queue units, index entries and pulls. Each field is
declared once, with what `--format help` says of it. Scripts rely on them and a contract test pins
the names: adding a field is allowed, renaming or removing one is not.

Bodies are printed plain, as stored with --raw-body, or not at all. Each damaged place that a
command meets on its way gets a line on stderr, and the command ends with exit code 5.
"""

import base64
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from keelog.cli.failures import DAMAGED, OK
from keelog.cli.options import one_of, options
from keelog.cli.output import say
from protocol.derived import file_layouts
from protocol.derived.file_layouts import QUEUE_UNIT, IndexEntry, IndexHeader, QueueUnit
from protocol.errors import BodyUnreadable, CorruptError, MessageDamaged
from protocol.ids import Queue
from protocol.record.bodies import COMPRESSED, COMPRESSION_BITS
from protocol.record.codec import Record
from protocol.record.properties import decode_raw_properties

if TYPE_CHECKING:
    from keelog.client.results import Receipt
    from node.store.query.pull import PulledRecords
    from protocol.layout import StructLayout


Shape = dict[str, Any]
MESSAGE_TABLE = ("topic", "queue_id", "queue_offset", "physical_offset", "tags", "keys", "body")
"""The columns of messages in a table for people."""
_UNREADABLE_SHOWN_MAX = 20
"""Bodies that cannot be unpacked and get a line each; the others are counted."""
body_options = options(
    click.option(
        "--raw-body", is_flag=True, help="Every body as stored, compressed or not, as body_b64."
    ),
    click.option("--no-body", is_flag=True, help="Leaves bodies out."),
)
DAMAGED_SHOWN_MAX = 20
"""Damaged places that get a line each; the others are counted."""
on_damage_option = one_of(
    "--on-damage", ["skip", "fail"], "skip: goes on after a damaged message; fail: ends there."
)


def integers(*names: str) -> Shape:
    """Fields that are integers and need no explanation."""
    return dict.fromkeys(names, "integer")


def texts(*names: str) -> Shape:
    """Fields that are texts and need no explanation."""
    return dict.fromkeys(names, "text")


def stored(layout: "StructLayout[Any]") -> Shape:
    """The fields of a structure on disk, with what its layout says of each."""
    return {name: f"integer: {wire.meaning}" for name, wire in layout.wires.items()}


_RECORD_FIELDS: dict[str, tuple[str, Any]] = {
    "topic": ("topic", "text"),
    "queue_id": ("head.queue_id", "integer"),
    "queue_offset": ("head.queue_offset", "integer"),
    "physical_offset": ("head.physical_offset", "integer"),
    "store_size": ("head.total_size", "integer: bytes"),
    "msg_id": ("message_id", "text: store host and physical offset, upper-case hex"),
    "unique_key": ("unique_key", "text"),
    "tags": ("tags", "text, empty without one"),
    "keys": ("keys", ["text"]),
    "properties": ("properties_raw", {"NAME": 'text, or {"b64": text} when it is not UTF-8'}),
    "flag": ("head.flag", "integer"),
    "sys_flag": ("head.sys_flag", "integer: compression bits only where the body here has it"),
    "born_timestamp": ("head.born_timestamp", "integer: ms since 1970"),
    "born_host": ("born_host", "text: 1.2.3.4:5"),
    "store_timestamp": ("head.store_timestamp", "integer: ms since 1970"),
    "store_host": ("store_host", "text"),
    "body_crc": ("head.body_crc", "integer: of the body as stored"),
    "reconsume_times": ("head.reconsume_times", "integer"),
    "prepared_transaction_offset": ("head.prepared_transaction_offset", "integer"),
    "version": ("version", "1 or 2"),
}
"""The fields of a message: where a record has each, and its kind and meaning."""
_read_record = attrgetter(*(source for source, _ in _RECORD_FIELDS.values()))
MESSAGE: Shape = {name: kind for name, (_, kind) in _RECORD_FIELDS.items()} | {
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


def b64(data: bytes) -> str:
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
    shape: Shape = dict(zip(_RECORD_FIELDS, _read_record(record), strict=True))
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
    return {**queue._asdict(), "queue_offset": queue_offset, **unit._asdict()}


def entry_shape(file: str, slot: int, number: int, entry: IndexEntry) -> Shape:
    """An index entry; `number` counts from 1 in its file."""
    return {"file": file, "slot": slot, "entry": number, **entry._asdict()}


def index_header_shape(file: str, header: IndexHeader) -> Shape:
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


class Bodies:
    """Prints bodies for one run of a command.

    One that cannot be unpacked is printed as stored, with the `sys_flag` that says so, and named on
    stderr; with `fails` it raises BodyUnreadable. CodecMissing is raised in any case.
    """

    def __init__(self, is_raw: bool = False, is_left_out: bool = False, fails: bool = False):
        self._is_raw = is_raw
        self._is_left_out = is_left_out
        self._fails = fails
        self.unreadable = 0

    def shape(self, record: Record, with_record: bool = False) -> Shape:
        """The message as JSON; `with_record` adds the bytes of its record."""
        try:
            return message_shape(record, self._is_raw, self._is_left_out, with_record)
        except BodyUnreadable as error:
            self._note(error)
            return message_shape(record, True, self._is_left_out, with_record)

    def body(self, record: Record) -> bytes:
        if self._is_raw:
            return record.raw_body
        try:
            return record.body
        except BodyUnreadable as error:
            self._note(error)
            return record.raw_body

    def _note(self, error: BodyUnreadable) -> None:
        if self._fails:
            raise error
        self.unreadable += 1
        if self.unreadable <= _UNREADABLE_SHOWN_MAX:
            say(f"damage: {error.reason}; printed as stored")

    def end(self) -> int:
        """The exit code: 5 when there was a body that could not be unpacked."""
        if self.unreadable > _UNREADABLE_SHOWN_MAX:
            say(f"{self.unreadable} bodies were printed as stored")
        return DAMAGED if self.unreadable else OK


class DamagedPlaces:
    """The damaged places that a run meets; each gets a line on stderr."""

    def __init__(self, fails: bool = True) -> None:
        self.fails = fails
        self.places: set[tuple[str, int]] = set()
        self._hint = ""

    def meet(self, error: CorruptError, queue: str) -> int | None:
        """Returns where the queue goes on; None where nobody can say. Raises with `fails`."""
        after = error.next_offset if isinstance(error, MessageDamaged) else None
        then = f"the rest of {queue} cannot be read" if after is None else "passed over"
        self.pass_over(error, then)
        return after

    def pass_over(self, error: CorruptError, then: str = "passed over") -> None:
        """One record, after which the run goes on. Raises with `fails`."""
        if self.fails:
            raise error
        if (error.where, error.offset) not in self.places:
            self.places.add((error.where, error.offset))
            self._hint = self._hint or error.hint.partition("; go on after it")[0]
            if len(self.places) <= DAMAGED_SHOWN_MAX:
                say(f"damage: {error.reason}; {then}")

    def end(self) -> int:
        """Says how many places there were, and the node's command that shows all damage; returns
        the exit code."""
        if not self.places:
            return OK
        say(f"{len(self.places)} damaged; {self._hint}")
        return DAMAGED
