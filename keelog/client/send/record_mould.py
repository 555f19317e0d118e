"""The common part of the records of one topic and tag: made once, not for each message."""

import struct
from functools import lru_cache
from typing import Any, NamedTuple

from keelog.client.send.unique_key import UNIQUE_KEY_CHARS
from protocol.errors import MqError
from protocol.names import SHORT_TOPIC_CHARS_MAX, check_topic_for_send
from protocol.record.codec import SHORT_HEAD
from protocol.record.properties import (
    EMPTY_CRC_PROPERTY,
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQUE_KEY,
    encode_properties,
)

_KEYS_START = f"{KEYS}\x01".encode()
UNIQUE_KEY_START = f"{UNIQUE_KEY}\x01".encode()
_PAIR_END = b"\x02"
SHORT = struct.Struct(">h")


class Mould(NamedTuple):
    """The common part of records of one topic and tag, after the body.

    `topic`: its length and name; `tags`: the property TAGS; `end`: what follows the unique key.
    The two sizes, and `middle`, all between body and unique key, are those without keys.
    """

    topic: bytes
    tags: bytes
    end: bytes
    record_bytes: int
    properties_bytes: int
    middle: bytes


@lru_cache(maxsize=1024)
def record_mould(topic: str, tags: str, crc: bool) -> Mould | None:
    """None where the general way must say what is wrong, or a long topic needs another head."""
    try:
        check_topic_for_send(topic)
        encoded = encode_properties([(TAGS, tags)] if tags else [])
    except MqError:
        return None
    if len(topic) > SHORT_TOPIC_CHARS_MAX:
        return None
    name = bytes([len(topic)]) + topic.encode()
    end = _PAIR_END + (EMPTY_CRC_PROPERTY if crc else b"")
    size = len(encoded) + len(UNIQUE_KEY_START) + UNIQUE_KEY_CHARS + len(end)
    if size > PROPERTIES_BYTES_MAX:
        return None
    middle = b"".join((name, SHORT.pack(size), encoded, UNIQUE_KEY_START))
    return Mould(name, encoded, end, SHORT_HEAD.size + len(name) + 2 + size, size, middle)


def keys_property(keys: Any) -> bytes | None:
    """The property KEYS, empty without keys; None when a key cannot be one."""
    if isinstance(keys, str):
        keys = (keys,)
    if keys is None:
        return None
    if not keys:
        return b""
    text = " ".join(keys)
    if "\x01" in text or "\x02" in text or text.count(" ") >= len(keys) or not all(keys):
        return None
    try:
        return _KEYS_START + text.encode() + _PAIR_END
    except UnicodeEncodeError:
        return None
