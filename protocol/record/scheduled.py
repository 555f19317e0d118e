"""Messages that wait in the schedule topic: their place there, and their properties.

A message with a delay level is stored in SCHEDULE_TOPIC_XXXX, one queue for each level, under
properties that name its real place (RocketMQ: HookUtils#transformDelayLevelMessage).
"""

from collections.abc import Mapping
from typing import NamedTuple

from protocol.names import SCHEDULE_TOPIC
from protocol.record.properties import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    decode_raw_properties,
)

TIMERS = (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)


class RealPlace(NamedTuple):
    """A topic and the number of a queue."""

    topic: str
    queue_id: int


def schedule_place(level: int) -> RealPlace:
    """Where the messages of a delay level wait."""
    return RealPlace(SCHEDULE_TOPIC, level - 1)


def scheduled(properties: bytes, place: RealPlace, level: int) -> bytes:
    """The properties of a message that waits for its delivery at `place`."""
    found = decode_raw_properties(properties)
    for name in TIMERS:
        found.pop(name.encode(), None)
    found[DELAY.encode()] = b"%d" % level
    found[REAL_TOPIC.encode()] = place.topic.encode()
    found[REAL_QUEUE_ID.encode()] = b"%d" % place.queue_id
    return joined_properties(found)


def joined_properties(pairs: Mapping[bytes, bytes]) -> bytes:
    """The stored form of properties that were decoded as bytes."""
    return b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs.items())
