"""Messages that wait in the schedule topic, and those that a group wants again: their properties.

A message with a delay level is stored in SCHEDULE_TOPIC_XXXX, one queue for each level, under
properties that name its real place (RocketMQ: HookUtils#transformDelayLevelMessage). When it is due
a copy goes to that place (ScheduleMessageService#messageTimeUp). A message that a consumer could
not handle goes to its group's retry topic by the same way
(AbstractSendMessageProcessor#consumerSendMsgBack).
"""

from collections.abc import Mapping
from typing import NamedTuple

from keelog.gateway.sending.stored_properties import unique_key_of
from protocol.errors import IllegalMessage
from protocol.names import (
    DLQ_PREFIX,
    QUEUE_ID_MAX,
    RETRY_PREFIX,
    is_folder_name,
)
from protocol.record.codec import TRANSACTION_MASK, Record, has_crc_property
from protocol.record.encode import pack_fields
from protocol.record.properties import (
    CRC32,
    CRC_PROPERTY_BYTES,
    DELAY,
    EMPTY_CRC_PROPERTY,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    WAIT,
    decode_raw_properties,
    encode_properties,
)
from protocol.record.waiting import (
    RealPlace,
    RecallHandle,
    Timed,
    joined_properties,
    recall_handle,
    schedule_place,
    scheduled,
)


class DelayRules(NamedTuple):
    """The bounds of delays: levels above `level_max` become it, a timer message may wait
    `timer_ms_max`. `broker`: the name in recall handles."""

    level_max: int
    timer_ms_max: int
    broker: str

    def recall_handle(self, later: Timed, place: RealPlace) -> str:
        """Returns the handle of a timer message for `place`; empty for one of a retry topic
        (SendMessageProcessor#attachRecallHandle)."""
        if place.topic.startswith(RETRY_PREFIX):
            return ""
        key = unique_key_of(later.properties).decode("utf-8", "replace")
        return recall_handle(RecallHandle(place.topic, self.broker, later.out_ms + 1, key))


FIRST_RETRY_LEVEL = 3
"""Of a message that was never handed back: 10 s by the usual levels."""
_DELAY_START = f"{DELAY}\x01".encode()
_LEVEL_CHARS_MAX = 11


def delay_level_of(properties: bytes, level_max: int) -> int:
    """The delay level that properties ask for, `level_max` at most; 0 for none.

    Raises IllegalMessage for one that is not a number.
    """
    if _DELAY_START not in properties:
        return 0
    text = decode_raw_properties(properties).get(DELAY.encode(), b"0")
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(text) > _LEVEL_CHARS_MAX:
        raise IllegalMessage(f"the delay level is {text[:40]!a}", f"name one of 1 to {level_max}")
    return max(0, min(int(text), level_max))


def dead_letter(properties: bytes) -> bytes:
    """The properties of a message that was sent to a retry topic once too often."""
    return joined_properties({**decode_raw_properties(properties), DELAY.encode(): b"-1"})


def real_place_of(properties: Mapping[bytes, bytes]) -> RealPlace | None:
    """Where a message that waits is delivered; None where it does not say."""
    raw, queue = (properties.get(name.encode(), b"") for name in (REAL_TOPIC, REAL_QUEUE_ID))
    topic = raw.decode("utf-8", "replace")
    is_queue = queue.isdigit() and len(queue) <= len(str(QUEUE_ID_MAX))
    if not is_queue or int(queue) > QUEUE_ID_MAX or not is_folder_name(topic):
        return None
    return RealPlace(topic, int(queue))


def is_committed(record: Record) -> bool:
    """Whether a message is of a transaction: a copy of it says so too, which the node alone may
    write."""
    return bool(record.head.sys_flag & TRANSACTION_MASK)


def own_properties(record: Record) -> bytes:
    """The stored properties without the checksum. A broker delivers them as they are, too."""
    raw = record.properties_raw
    return raw[:-CRC_PROPERTY_BYTES] if has_crc_property(raw) else raw


def delivered(record: Record, place: RealPlace, properties: bytes, crc: bool) -> bytes:
    """The record to append when a message that waits is due."""
    return _copy(record, place, properties, record.head.reconsume_times, crc)


def handed_back(
    record: Record, place: RealPlace, level: int, level_max: int, crc: bool
) -> tuple[RealPlace, bytes]:
    """The record of a message that its consumers get again after a delay, and where it is stored.

    `level` 0: none, it goes to `place` at once.
    """
    properties = dict(record.properties)
    properties.pop(CRC32, None)
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, record.message_id)
    properties |= {WAIT: "false", DELAY: str(level)}
    raw = encode_properties(properties)
    if level:
        level = min(level, level_max)
        raw, place = scheduled(raw, place, level), schedule_place(level)
    return place, _copy(record, place, raw, record.head.reconsume_times + 1, crc)


def retry_topic(group: str) -> str:
    """The topic from which a group gets messages again."""
    return f"{RETRY_PREFIX}{group}"


def dead_letter_topic(group: str) -> str:
    """The topic of the messages that a group could not handle."""
    return f"{DLQ_PREFIX}{group}"


def retry_level(asked: int, reconsume_times: int) -> int:
    """The delay level of a message that is handed back: the asked one, else a growing one."""
    return asked or FIRST_RETRY_LEVEL + reconsume_times


def is_dead(asked_level: int, reconsume_times: int, times_max: int) -> bool:
    """Whether a message that is handed back becomes a dead letter."""
    return asked_level < 0 or reconsume_times >= times_max


def _copy(
    record: Record, place: RealPlace, properties: bytes, reconsume_times: int, crc: bool
) -> bytes:
    head = record.head
    return pack_fields(
        place.topic, record.raw_body, place.queue_id,
        properties + (EMPTY_CRC_PROPERTY if crc else b""),
        head.born_timestamp, record.born_host,
        head.flag, head.sys_flag, reconsume_times,
    )  # fmt: skip
