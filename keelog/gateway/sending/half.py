"""Half messages: how the message of an open transaction is stored, and what becomes of it.

Values in, values out. The fields are those of RocketMQ 5.5.0 (TransactionalMessageBridge,
EndTransactionProcessor, DefaultTransactionalMessageCheckListener).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keelog.client.results import Receipt
from keelog.gateway.sending.stored_properties import copy_of, real_place_of
from protocol.ids import Host, parse_offset_message_id
from protocol.names import HALF_TOPIC, OP_TOPIC, UNDECIDED_TOPIC
from protocol.record import properties as props
from protocol.record.codec import TRANSACTION_COMMIT, TRANSACTION_MASK, Record
from protocol.record.encode import pack_fields
from protocol.record.patch import PlainRow, StoreStamp, patch_plain
from protocol.record.waiting import RealPlace, joined_properties

HALF_PLACE = RealPlace(HALF_TOPIC, 0)
"""Every half message goes there."""
PRODUCER_GROUP, TRANSACTION_ID = "PGROUP", "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""In a half message that was stored again while nobody may ask: its first queue offset."""
OP_TAG = "d"
_TRANSACTION_START = f"{props.TRANSACTION}\x01"
_GROWTH_BYTES = 128
"""Room for what is added to the properties of a half message while it is asked for."""
_TEXT_CHARS_MAX = 18
"""Of a number in a property."""


class HalfPlace(NamedTuple):
    """A queue of half messages, and an offset there."""

    queue_id: int
    offset: int


def place_of(record: Record) -> HalfPlace:
    return HalfPlace(record.head.queue_id, record.head.queue_offset)


def asks_for_transaction(properties: str) -> bool:
    """Whether properties say that their message is the first half of a transaction."""
    if _TRANSACTION_START not in properties:
        return False
    value = props.decode_raw_properties(properties.encode()).get(props.TRANSACTION.encode(), b"")
    return value.lower() == b"true"


def half_properties(properties: bytes, place: RealPlace) -> bytes:
    """The properties of a half message that goes to `place` when it is committed. Raises
    PropertiesTooLarge where they could not grow any more."""
    found = props.decode_raw_properties(properties)
    if key := found.get(props.UNIQUE_KEY.encode()):
        found[TRANSACTION_ID.encode()] = key
    found[props.REAL_TOPIC.encode()] = place.topic.encode()
    found[props.REAL_QUEUE_ID.encode()] = b"%d" % place.queue_id
    joined = joined_properties(found)
    props.check_properties_length(len(joined) + _GROWTH_BYTES)
    return joined


def number_in(record: Record, name: str) -> int | None:
    """A property that is a number from 0 on; None where it is not."""
    text = record.properties.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= _TEXT_CHARS_MAX
    return int(text) if is_number else None


def immunity_ms(record: Record, timeout_ms: int) -> int | None:
    """How long after its birth a message asks not to be asked for; None where it does not say."""
    if IMMUNITY_S not in record.properties:
        return None
    seconds = number_in(record, IMMUNITY_S)
    return timeout_ms if seconds is None else seconds * 1000


def committed_properties(record: Record) -> bytes:
    """The properties of the message that a commit delivers: TRAN_MSG and the id stay there."""
    found = _raw(record)
    for name in (props.REAL_TOPIC, props.REAL_QUEUE_ID):
        found.pop(name.encode(), None)
    return joined_properties(found)


def committed(record: Record, place: RealPlace, properties: bytes, crc: bool) -> bytes:
    """The record that a commit of a half message stores at `place`."""
    sys_flag = record.head.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    offset = record.head.physical_offset
    return copy_of(record, place, properties, crc, sys_flag=sys_flag, half_offset=offset)


def asked_again(record: Record, crc: bool) -> bytes:
    """The half message to store again before its producer is asked."""
    return _again(record, _counted(record), crc)


def immune_again(record: Record, crc: bool) -> bytes:
    """The half message to store again because nobody may ask yet. A broker counts that as a
    question, and so gives up a message that is immune for long without ever asking."""
    found = {**_raw(record), props.WAIT.encode(): b"false"}
    found.setdefault(FIRST_OFFSET.encode(), b"%d" % record.head.queue_offset)
    return _again(record, found, crc)


def undecided(record: Record, crc: bool) -> bytes:
    """The record of a half message that was asked for too often."""
    return copy_of(record, RealPlace(UNDECIDED_TOPIC, 0), joined_properties(_raw(record)), crc)


def ended(queue_id: int, offsets: Iterable[int], born_ms: int, host: Host, crc: bool) -> bytes:
    """The op message: these half messages are resolved."""
    body = b"".join(b"%d," % offset for offset in offsets)
    properties = props.encode_properties({props.WAIT: "true", props.TAGS: OP_TAG})
    properties += props.EMPTY_CRC_PROPERTY if crc else b""
    return pack_fields(OP_TOPIC, body, queue_id, properties, born_ms, host)


def ended_offsets(record: Record) -> list[int]:
    """The offsets in an op message; none where it is something else."""
    if record.tags != OP_TAG:
        return []
    parts = record.raw_body.split(b",")
    return [int(part) for part in parts if part.isdigit() and len(part) <= _TEXT_CHARS_MAX]


def question(record: Record, again: Receipt, broker: str) -> tuple[Mapping[str, str], bytes]:
    """The header and the body of 39, about a half message that was stored again as `again`."""
    key = record.properties.get(props.UNIQUE_KEY, "")
    ext = {
        "topic": HALF_TOPIC,
        "tranStateTableOffset": str(again.queue_offset),
        "commitLogOffset": str(again.physical_offset),
        "offsetMsgId": again.msg_id,
        "bname": broker,
    }
    if key:
        ext |= {"msgId": key, "transactionId": key}
    place = real_place_of(_raw(record)) or RealPlace(record.topic, record.head.queue_id)
    properties = joined_properties({**_counted(record), props.WAIT.encode(): b"false"})
    head = record.head
    body = bytearray(copy_of(record, place, properties, crc=False))
    row = PlainRow(0, len(body), place.topic, place.queue_id, head.sys_flag)
    host, _ = parse_offset_message_id(again.msg_id)
    stamp = StoreStamp(head.store_timestamp, host.to_bytes())
    patch_plain(body, row, again.queue_offset, again.physical_offset, stamp, crc=False)
    return ext, bytes(body)


def _raw(record: Record) -> dict[bytes, bytes]:
    found = props.decode_raw_properties(record.properties_raw)
    found.pop(props.CRC32.encode(), None)
    return found


def _counted(record: Record) -> dict[bytes, bytes]:
    times = (number_in(record, CHECK_TIMES) or 0) + 1
    return {**_raw(record), CHECK_TIMES.encode(): b"%d" % times}


def _again(record: Record, properties: Mapping[bytes, bytes], crc: bool) -> bytes:
    """A broker copies neither the flag nor how often the message was consumed."""
    head = record.head
    raw = joined_properties(properties) + (props.EMPTY_CRC_PROPERTY if crc else b"")
    return pack_fields(
        HALF_TOPIC, record.raw_body, head.queue_id, raw,
        head.born_timestamp, record.born_host, 0, head.sys_flag,
    )  # fmt: skip
