"""The record that `keelog store repair` puts in the place of one that damage took.

It has exactly the length of what it replaces, so the chain of lengths stays whole, for a broker
too. Where topic, queue and queue offset of the lost message are known it carries them: offsets of
the queue stay without a gap (a broker's rebuild would move all later units by one otherwise).
Where they are not, it is a rolled-back transaction of a system topic: neither queued nor indexed.
"""

import zlib
from dataclasses import replace
from typing import NamedTuple

from protocol.ids import Queue
from protocol.names import SHORT_TOPIC_CHARS_MAX
from protocol.record.codec import RECORD_BYTES_MIN, SHORT_HEAD, TRANSACTION_ROLLBACK
from protocol.record.encode import NewMessage, pack_record
from protocol.record.properties import (
    CRC_PROPERTY_BYTES,
    EMPTY_CRC_PROPERTY,
    PROPERTIES_BYTES_MAX,
    crc_property,
    encode_properties,
)

LOST = "KEELOG_LOST"
"""The property of a marker. Its value is `damaged`, with spaces after it up to the length."""
LOST_TOPIC = "rmq_sys_keelog_lost"
"""The topic of a marker for bytes of unknown origin; its end is cut off where room is short."""
GAP_MARKER_BYTES_MIN = RECORD_BYTES_MIN + 1
GAP_MARKER_BYTES_MAX = 1 << 20

_VALUE = "damaged"
_PAIR_BYTES = len(LOST) + 2
LOST_PROPERTY_BYTES = _PAIR_BYTES + len(_VALUE)
"""The property whole. In less room its value is shorter, or a body of zeros takes its place."""
_NAMED_BYTES_MAX = PROPERTIES_BYTES_MAX - CRC_PROPERTY_BYTES


class MarkerPlace(NamedTuple):
    """Where a marker is: its log offset and bytes, the store time in ms of the record before
    it, and whether it is to carry the whole-record checksum if there is room."""

    offset: int
    size: int
    store_timestamp: int
    sealed: bool


def queue_marker_bytes_min(topic: str, sealed: bool) -> int:
    """The shortest marker that can be in a queue of this topic."""
    long = len(topic) > SHORT_TOPIC_CHARS_MAX
    crc = CRC_PROPERTY_BYTES if sealed else 0
    return RECORD_BYTES_MIN + long + len(topic.encode()) + crc


def queue_marker(place: MarkerPlace, queue: Queue, queue_offset: int) -> bytes:
    """The record for a lost message of a queue."""
    return _marker(place, NewMessage(queue.topic, b"", queue.queue_id), queue_offset)


def gap_marker(place: MarkerPlace) -> bytes:
    """The record for bytes of which nobody knows what they were."""
    room = place.size - RECORD_BYTES_MIN
    topic = LOST_TOPIC[: max(room - (CRC_PROPERTY_BYTES if place.sealed else 0), 1)]
    topic = topic[:room]
    return _marker(place, NewMessage(topic, b"", 0, sys_flag=TRANSACTION_ROLLBACK), 0)


def gap_sizes(size: int) -> list[int]:
    """How `size` bytes are shared out among markers of a bounded length. At least one fits."""
    sizes: list[int] = []
    while size > GAP_MARKER_BYTES_MAX + GAP_MARKER_BYTES_MIN:
        sizes.append(GAP_MARKER_BYTES_MAX)
        size -= GAP_MARKER_BYTES_MAX
    return [*sizes, size]


def _marker(place: MarkerPlace, message: NewMessage, queue_offset: int) -> bytes:
    room = place.size - queue_marker_bytes_min(message.topic, sealed=False)
    assert room >= 0, place
    crc = EMPTY_CRC_PROPERTY if place.sealed and room >= CRC_PROPERTY_BYTES else b""
    body, named = _filled(room - len(crc))
    # The body takes what properties cannot: RocketMQ bounds them, and a pair has a least length.
    filled = replace(message, body=body, born_timestamp=place.store_timestamp)
    record = bytearray(pack_record(filled, named + crc))
    for name, value in (
        ("queue_offset", queue_offset),
        ("physical_offset", place.offset),
        ("store_timestamp", place.store_timestamp),
    ):
        at = SHORT_HEAD.offsets[name]
        record[at : at + 8] = value.to_bytes(8, "big")
    if crc:
        record[-len(crc) :] = crc_property(zlib.crc32(memoryview(record)[: -len(crc)]))
    assert len(record) == place.size
    return bytes(record)


def _filled(room: int) -> tuple[bytes, bytes]:
    """Body and properties that together have `room` bytes."""
    if room <= _PAIR_BYTES:
        return bytes(room), b""
    size = room if room <= _NAMED_BYTES_MAX else LOST_PROPERTY_BYTES
    value = _VALUE[: size - _PAIR_BYTES].ljust(size - _PAIR_BYTES)
    return bytes(room - size), encode_properties([(LOST, value)])
