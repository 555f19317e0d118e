"""Messages that wait for their delivery: their place until then, and their properties.

A message with a delay level is stored in SCHEDULE_TOPIC_XXXX, one queue for each level, under
properties that name its real place (RocketMQ: HookUtils#transformDelayLevelMessage).

A timer message is delivered at a time of the sender's choice (RocketMQ: TimerMessageStore). It is
stored in rmq_sys_wheel_timer, under properties that name its real place and TIMER_OUT_MS, the
second in which it is due (HookUtils#transformTimerMessage). A message with TIMER_DEL_UNIQKEY takes
one of the same second back.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import NamedTuple

from protocol.errors import IllegalMessage
from protocol.ids import Queue
from protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from protocol.record import properties as props

TIMERS = (props.TIMER_DELIVER_MS, props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS)
PRECISION_MS = 1000
"""RocketMQ's timerPrecisionMs: the length of a slot of its wheel."""
RECALL_TAG = "_RECALL_TAG_"
RECALL_BODY = b"0"
DELIVERED_BYTES_MAX = 128
"""Of the properties that a message gets when it is delivered, and its checksum."""

_LONG = re.compile(rb"[+-]?\d{1,19}")
_LONG_MAX = 2**63 - 1
_ASKS = (
    (props.TIMER_DELAY_SEC.encode(), 1000),
    (props.TIMER_DELAY_MS.encode(), 1),
)
_DELIVER, _OUT, _DELETE = (
    name.encode() for name in (props.TIMER_DELIVER_MS, props.TIMER_OUT_MS, props.TIMER_DELETE_KEY)
)
_START = b"TIMER_DEL"
"""How all properties begin by which a client asks for a time."""


RealPlace = Queue
TIMER_PLACE = RealPlace(TIMER_TOPIC, 0)


def schedule_place(level: int) -> RealPlace:
    """Where the messages of a delay level wait."""
    return RealPlace(SCHEDULE_TOPIC, level - 1)


def scheduled(properties: bytes, place: RealPlace, level: int) -> bytes:
    """The properties of a message that waits for its delivery at `place`."""
    found = props.decode_raw_properties(properties)
    for name in TIMERS:
        found.pop(name.encode(), None)
    found[props.DELAY.encode()] = b"%d" % level
    found[props.REAL_TOPIC.encode()] = place.topic.encode()
    found[props.REAL_QUEUE_ID.encode()] = b"%d" % place.queue_id
    return joined_properties(found)


def joined_properties(pairs: Mapping[bytes, bytes]) -> bytes:
    """The stored form of properties that were decoded as bytes."""
    return b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs.items())


class Timed(NamedTuple):
    """A message that waits: its properties, and the second in which it is due, in ms."""

    properties: bytes
    out_ms: int


class RecallHandle(NamedTuple):
    """Names a message that may be taken back: where it is, when it is due, and its unique key."""

    topic: str
    broker: str
    deliver_ms: int
    unique_key: str


def timed(properties: bytes, place: RealPlace, now_ms: int, delay_ms_max: int) -> Timed | None:
    """The waiting form of a message for `place` that is sent now; None for one that does not wait.

    Raises IllegalMessage for a time that is not a number or too far away, and for one that would
    take a message back too late; PropertiesTooLarge where a delivery would need more room.
    """
    if _START not in properties:
        return None
    found = props.decode_raw_properties(properties)
    asked = None if _OUT in found else asked_ms(found, now_ms)
    if asked is None:
        return None
    if asked <= now_ms:
        if _DELETE in found:
            raise IllegalMessage(
                "the message that is taken back is due already", "take it back earlier"
            )
        return None
    if asked - now_ms > delay_ms_max:
        raise IllegalMessage(
            f"the message is due in {(asked - now_ms) // 1000} s, {delay_ms_max // 1000} are"
            " allowed",
            "ask for an earlier time, or raise timer_max_delay_sec",
        )
    out_ms = (asked - 1) // PRECISION_MS * PRECISION_MS
    found[_OUT] = b"%d" % out_ms
    found[props.REAL_TOPIC.encode()] = place.topic.encode()
    found[props.REAL_QUEUE_ID.encode()] = b"%d" % place.queue_id
    joined = joined_properties(found)
    props.check_properties_length(len(joined) + DELIVERED_BYTES_MAX)
    return Timed(joined, out_ms)


def is_timed(properties: bytes) -> bool:
    """Whether properties ask for a time of delivery."""
    if _START not in properties:
        return False
    found = props.decode_raw_properties(properties)
    return any(name in found for name in (*dict(_ASKS), _DELIVER))


def asked_ms(properties: Mapping[bytes, bytes], now_ms: int) -> int | None:
    """The time that properties ask for, in ms since 1970; None where they ask for none.

    `now_ms`: the begin of a delay. Raises IllegalMessage for other text than a number.
    """
    for name, unit_ms in _ASKS:
        delay = properties.get(name)
        if delay is not None:
            return now_ms + _number(name, delay) * unit_ms
    deliver = properties.get(_DELIVER)
    return None if deliver is None else _number(_DELIVER, deliver)


def delay_of(properties: Mapping[bytes, bytes]) -> int | None:
    """The delay that properties ask for, in ms; None where they ask for none, or for a time."""
    if not any(name in properties for name, _ in _ASKS):
        return None
    try:
        return asked_ms(properties, 0)
    except IllegalMessage:
        return None


def due_ms(properties: Mapping[bytes, bytes], out_ms: int, stored_ms: int) -> int:
    """When a message of the timer topic is due, to the ms: within the second after `out_ms`.

    A delay counts from its store time; without either it is due when the second ends, as RocketMQ
    delivers it.
    """
    last = out_ms + PRECISION_MS
    try:
        asked = asked_ms(properties, stored_ms)
    except IllegalMessage:
        return last
    return last if asked is None else min(max(asked, out_ms + 1), last)


def recall_handle(handle: RecallHandle) -> str:
    """As RocketMQ writes it (RecallMessageHandle.HandleV1)."""
    text = f"v1 {handle.topic} {handle.broker} {handle.deliver_ms} {handle.unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def parse_recall_handle(text: str) -> RecallHandle | None:
    """The handle of a text; None for anything else. A time in other text than digits is -1."""
    try:
        padded = text.encode() + b"=" * (-len(text) % 4)
        raw = base64.b64decode(padded, b"-_", validate=True)
        items = raw.decode("utf-8", "replace").rstrip(" ").split(" ")
    except (binascii.Error, UnicodeEncodeError):
        return None
    if items[0] != "v1" or len(items) < 5:
        return None
    number = items[3].encode()
    deliver_ms = int(number) if _LONG.fullmatch(number) else -1
    return RecallHandle(items[1], items[2], deliver_ms, items[4])


def recall_properties(unique_key: str, deliver_ms: int, now_ms: int, group: str) -> bytes:
    """The properties of a message that takes another back (RecallMessageProcessor#buildMessage)."""
    pairs = {
        props.TAGS: RECALL_TAG,
        props.TIMER_DELETE_KEY: unique_key,
        props.UNIQUE_KEY: unique_key,
        props.TIMER_DELIVER_MS: str(deliver_ms),
        props.BORN_TIMESTAMP: str(now_ms),
    }
    return props.encode_properties({**pairs, props.PRODUCER_GROUP: group} if group else pairs)


def _number(name: bytes, text: bytes) -> int:
    """As Java reads a long."""
    if _LONG.fullmatch(text) is None or abs(int(text)) > _LONG_MAX:
        raise IllegalMessage(
            f"{name.decode()} is {text[:40]!a}, not a whole number",
            "give ms, or s as the name says",
        )
    return int(text)
