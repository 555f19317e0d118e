"""The properties of a message as a broker stores them: the client's, and what the broker adds.

Most strings of properties need no look at their pairs: what is added goes to the end.

A message with a delay level is stored in SCHEDULE_TOPIC_XXXX, one queue for each level, under
properties that name its real place (RocketMQ: HookUtils#transformDelayLevelMessage). When it is due
a copy goes to that place (ScheduleMessageService#messageTimeUp). A message that a consumer could
not handle goes to its group's retry topic by the same way
(AbstractSendMessageProcessor#consumerSendMsgBack).
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keelog.gateway.settings import REGION
from protocol.errors import IllegalMessage
from protocol.names import DLQ_PREFIX, QUEUE_ID_MAX, RETRY_PREFIX, is_folder_name
from protocol.record import properties as props
from protocol.record import waiting
from protocol.record.codec import TRANSACTION_MASK, Record, has_crc_property
from protocol.record.encode import NOT_OFFERED, pack_fields

CLUSTER, MSG_REGION, TRACE_ON, POP_CK = "CLUSTER", "MSG_REGION", "TRACE_ON", "POP_CK"
_ADDED = (CLUSTER, MSG_REGION, TRACE_ON, POP_CK)
_OFFERED = (props.DELAY, props.TRANSACTION, *waiting.TIMERS)
_REFUSED = {name: what for name, what in NOT_OFFERED.items() if name not in _OFFERED}
_DROPPED = frozenset(name.encode() for name in (*_ADDED, props.CRC32))
_SPECIAL = re.compile(
    b"(?:^|\x02)(?:"
    + b"|".join(re.escape(name.encode()) for name in (*_REFUSED, *_ADDED, props.CRC32))
    + b")\x01"
)
SPECIAL_NAMES = (*NOT_OFFERED, *_ADDED, props.CRC32)
"""Of properties that are not stored as they are, or not of every message."""
_KEY_START = f"{props.UNIQUE_KEY}\x01".encode()
_NAME_END, _PAIR_END = b"\x01", b"\x02"
_NO_VALUE, _NO_NAME = b"\x01\x02", b"\x02\x01"
_NO_WAIT = f"{props.WAIT}\x01false\x02".encode()
_DELETE_START = f"{props.TIMER_DELETE_KEY}\x01".encode()
_DELAY_START = f"{props.DELAY}\x01".encode()
_LEVEL_CHARS_MAX = 11


def broker_properties(cluster: str) -> bytes:
    """What a broker of this cluster adds to each message outside a batch."""
    pairs = ((CLUSTER, cluster), (MSG_REGION, REGION), (TRACE_ON, "true"))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def stored_properties(given: bytes, added: bytes, new_key: Callable[[], str]) -> bytes:
    """The properties of a message whose client sent `given`; with `added` at their end, and a new
    unique key where the client made none. A pair without a name or a value is left out, as
    a broker does: clients with an empty namespace send one.

    Raises IllegalMessage for those by which a broker would do more than store the message.
    """
    if _SPECIAL.search(given) or _has_half_pairs(given):
        given = _without_ours(given)
    elif given and not given.endswith(_PAIR_END):
        given += _PAIR_END
    if not unique_key_of(given):
        given += _KEY_START + new_key().encode() + _PAIR_END
    return given + added


def own_recall(given: bytes, topic: str) -> bytes:
    """Properties of a message to a topic. One that takes another back names it with the topic then,
    so that it takes back a message of its own topic, and of no other."""
    if _DELETE_START not in given:
        return given
    found = props.decode_raw_properties(given)
    name, own = props.TIMER_DELETE_KEY.encode(), f"{topic}+".encode()
    key = found.get(name, b"")
    if key and not key.startswith(own):
        found[name] = own + key
    return waiting.joined_properties(found)


def waits_for_disk(properties: bytes) -> bool:
    """False where the client says WAIT=false: its message need not be flushed before the reply."""
    return not (properties.startswith(_NO_WAIT) or _PAIR_END + _NO_WAIT in properties)


def unique_key_of(properties: bytes) -> bytes:
    """The value of UNIQ_KEY; empty without one."""
    at = properties.find(_KEY_START)
    if at < 0:
        return b""
    if at and properties[at - 1] != _PAIR_END[0]:
        return props.decode_raw_properties(properties).get(props.UNIQUE_KEY.encode(), b"")
    at += len(_KEY_START)
    end = properties.find(_PAIR_END, at)
    return properties[at:] if end < 0 else properties[at:end]


def _has_half_pairs(given: bytes) -> bool:
    """Whether a pair may have no name, no value or no 0x01. For each message, so without a loop."""
    pairs = given.count(_PAIR_END) + (not given.endswith(_PAIR_END) and given != b"")
    return (
        given.count(_NAME_END) != pairs
        or _NO_VALUE in given
        or _NO_NAME in given
        or given.startswith(_NAME_END)
        or given.endswith(_NAME_END)
    )


def _without_ours(given: bytes) -> bytes:
    found = props.decode_raw_properties(given)
    for name, what in _REFUSED.items():
        value = found.get(name.encode())
        if value is not None:
            raise IllegalMessage(
                f"property {name} asks for {what}, which this node does not offer",
                "leave the property out, and send the message when it is due",
            )
    return waiting.joined_properties({n: v for n, v in found.items() if n not in _DROPPED})


class DelayRules(NamedTuple):
    """The bounds of delays: levels above `level_max` become it, a timer message may wait
    `timer_ms_max`. `broker`: the name in recall handles."""

    level_max: int
    timer_ms_max: int
    broker: str

    def delayed(
        self, properties: bytes, place: waiting.RealPlace, at_ms: int
    ) -> tuple[bytes, waiting.RealPlace, waiting.Timed | None]:
        """Where a message for `place` waits, its properties there, and the time of a timer message.
        One that asks for no delay goes to its place at once. Raises IllegalMessage and its kinds.
        """
        if level := delay_level_of(properties, self.level_max):
            properties = waiting.scheduled(properties, place, level)
            return properties, waiting.schedule_place(level), None
        later = waiting.timed(properties, place, at_ms, self.timer_ms_max)
        if later is None:
            return properties, place, None
        return later.properties, waiting.TIMER_PLACE, later

    def recall_handle(self, later: waiting.Timed, place: waiting.RealPlace) -> str:
        """Returns the handle of a timer message for `place`; empty for one of a retry topic
        (SendMessageProcessor#attachRecallHandle)."""
        if place.topic.startswith(RETRY_PREFIX):
            return ""
        key = unique_key_of(later.properties).decode("utf-8", "replace")
        return waiting.recall_handle(
            waiting.RecallHandle(place.topic, self.broker, later.out_ms + 1, key)
        )


def delay_level_of(properties: bytes, level_max: int) -> int:
    """The delay level that properties ask for, `level_max` at most; 0 for none. Raises
    IllegalMessage for one that is not a number."""
    if _DELAY_START not in properties:
        return 0
    text = props.decode_raw_properties(properties).get(props.DELAY.encode(), b"0")
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(text) > _LEVEL_CHARS_MAX:
        raise IllegalMessage(f"the delay level is {text[:40]!a}", f"name one of 1 to {level_max}")
    return max(0, min(int(text), level_max))


def dead_letter(properties: bytes) -> bytes:
    """The properties of a message that was sent to a retry topic once too often."""
    return waiting.joined_properties(
        {**props.decode_raw_properties(properties), props.DELAY.encode(): b"-1"}
    )


def real_place_of(properties: Mapping[bytes, bytes]) -> waiting.RealPlace | None:
    """Where a message that waits is delivered; None where it does not say."""
    raw, queue = (
        properties.get(name.encode(), b"") for name in (props.REAL_TOPIC, props.REAL_QUEUE_ID)
    )
    topic = raw.decode("utf-8", "replace")
    is_queue = queue.isdigit() and len(queue) <= len(str(QUEUE_ID_MAX))
    if not is_queue or int(queue) > QUEUE_ID_MAX or not is_folder_name(topic):
        return None
    return waiting.RealPlace(topic, int(queue))


def is_committed(record: Record) -> bool:
    """Whether a message is of a transaction: a copy of it says so too, which the node alone may
    write."""
    return bool(record.head.sys_flag & TRANSACTION_MASK)


def own_properties(record: Record) -> bytes:
    """The stored properties without the checksum. A broker delivers them as they are, too."""
    raw = record.properties_raw
    return raw[: -props.CRC_PROPERTY_BYTES] if has_crc_property(raw) else raw


def copy_of(
    record: Record,
    place: waiting.RealPlace,
    properties: bytes,
    crc: bool,
    *,
    reconsume_times: int | None = None,
    sys_flag: int | None = None,
    half_offset: int = 0,
) -> bytes:
    """The record that stores a message once more, at `place`; fields that are not named stay."""
    head = record.head
    return pack_fields(
        place.topic, record.raw_body, place.queue_id,
        properties + (props.EMPTY_CRC_PROPERTY if crc else b""),
        head.born_timestamp, record.born_host, head.flag,
        head.sys_flag if sys_flag is None else sys_flag,
        head.reconsume_times if reconsume_times is None else reconsume_times,
        half_offset,
    )  # fmt: skip


def handed_back(
    record: Record, place: waiting.RealPlace, level: int, level_max: int, crc: bool
) -> tuple[waiting.RealPlace, bytes]:
    """The record of a message that its consumers get again after a delay, and where it is stored.
    `level` 0: none, it goes to `place` at once."""
    properties = dict(record.properties)
    properties.pop(props.CRC32, None)
    properties.setdefault(props.RETRY_TOPIC, record.topic)
    properties.setdefault(props.ORIGIN_MESSAGE_ID, record.message_id)
    properties |= {props.WAIT: "false", props.DELAY: str(level)}
    raw = props.encode_properties(properties)
    if level:
        level = min(level, level_max)
        raw, place = waiting.scheduled(raw, place, level), waiting.schedule_place(level)
    times = record.head.reconsume_times + 1
    return place, copy_of(record, place, raw, crc, reconsume_times=times)


def retry_topic(group: str) -> str:
    """The topic from which a group gets messages again."""
    return f"{RETRY_PREFIX}{group}"


def dead_letter_topic(group: str) -> str:
    """The topic of the messages that a group could not handle."""
    return f"{DLQ_PREFIX}{group}"
