"""Selects the messages of a subscription: by the hash in the queue unit, then by the text.

A broker compares hashes only and leaves the text to its client (DefaultMessageFilter, FilterAPI).
"""

import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.store.queues.files import Units
from protocol.errors import BadRequest
from protocol.layout import Readable
from protocol.record.codec import (
    MAGIC_V1,
    RECORD_BYTES_MIN,
    SYS_FLAG_POSITION,
    Record,
    decode,
    record_head,
)
from protocol.record.java_hash import java_hash, java_text
from protocol.record.properties import decode_raw_properties

ALL = "*"
_SEPARATOR = "||"
_SQL = re.compile(
    r"\s(?:AND|OR|BETWEEN)\s|\s(?:[<>]=?|<>|=)\s|[<>]=?\s*['\"\d]|=\s*['\"]|\sIN\s*\("
    r"|\bIS\s+(?:NOT\s+)?NULL\b"
)
"""Comparisons and their words, as RocketMQ's SQL92 filters have them; a tag may hold one sign."""
_MAGIC_V1 = MAGIC_V1.to_bytes(4, "big")
_INT = struct.Struct(">i").unpack_from
_EXT_ADDRESS_MAX = -(2**31) - 1
"""At or below this a unit's code is an address in another file (ConsumeQueueExt), not a hash."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tags of a subscription, and their hashes."""

    tags: frozenset[str]
    hashes: NDArray[np.int32]

    def takes_units(self, units: Units) -> NDArray[np.bool_]:
        """Marks the units whose hash fits; a unit whose hash is in another file passes."""
        codes: NDArray[Any] = units["tags_code"].astype(np.int64)
        return np.isin(codes.astype(np.int32), self.hashes) | (codes <= _EXT_ADDRESS_MAX)

    def takes_record(self, raw: Readable) -> bool:
        """True if the tag's text fits, and for what is not a record: its reader reports that."""
        properties = stored_properties(bytes(raw))
        if properties is None:
            return True
        tags = decode_raw_properties(properties).get(b"TAGS", b"")
        if java_text(tags) in self.tags:
            return True
        # Rare: another tag of the same hash, or damage, which must not be passed over in silence.
        return not isinstance(decode(raw, 0), Record)


def stored_properties(raw: bytes) -> bytes | None:
    """A record's properties by its lengths alone; None when these do not agree."""
    if len(raw) < RECORD_BYTES_MIN:
        return None
    (sys_flag,) = _INT(raw, SYS_FLAG_POSITION)
    head_bytes = record_head(sys_flag).size
    topic_length_bytes = 1 if raw[4:8] == _MAGIC_V1 else 2
    if len(raw) < head_bytes:
        return None
    (body_length,) = _INT(raw, head_bytes - 4)
    topic_at = head_bytes + body_length
    topic_length = int.from_bytes(raw[topic_at : topic_at + topic_length_bytes], "big")
    start = topic_at + topic_length_bytes + topic_length + 2
    length = int.from_bytes(raw[start - 2 : start], "big")
    return raw[start:] if body_length >= 0 and start + length == len(raw) else None


def parse_tags(expression: str | None) -> TagFilter | None:
    """Parses `A || B`; None for `*`, the empty text and no text, which take everything.

    Raises BadRequest if the text names no tag, or is a condition in SQL, which as a tag would find
    nothing.
    """
    if expression is None or expression.strip() in ("", ALL):
        return None
    if _SQL.search(expression):
        raise BadRequest(
            f"{expression[:80]!a} looks like SQL, which is not supported as a filter",
            "write tags as 'A || B'; filter by properties in the program that reads",
        )
    tags = [tag for tag in (part.strip() for part in expression.split(_SEPARATOR)) if tag]
    if not tags:
        raise BadRequest(f"{expression[:80]!a} names no tag", "write 'A || B', or * for all")
    hashes = np.array(sorted({java_hash(tag) for tag in tags}), np.int32)
    return TagFilter(frozenset(tags), hashes)
