"""Which messages a subscription takes: by the hash in the queue unit, then by the text.

A broker compares hashes only and leaves the text to its client (DefaultMessageFilter, FilterAPI).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.store.queue_files import Units
from protocol.errors import BadRequest
from protocol.java_hash import java_hash
from protocol.layout import Readable
from protocol.record import Record, decode

ALL = "*"
_SEPARATOR = "||"
_EXT_ADDRESS_MAX = -(2**31) - 1
"""At or below this a unit's code is no hash but an address in another file (ConsumeQueueExt)."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tags of a subscription, and their hashes."""

    tags: frozenset[str]
    hashes: NDArray[np.int32]

    def takes_units(self, units: Units) -> NDArray[np.bool_]:
        """By hash; a unit whose hash is kept elsewhere passes."""
        codes: NDArray[Any] = units["tags_code"].astype(np.int64)
        return np.isin(codes.astype(np.int32), self.hashes) | (codes <= _EXT_ADDRESS_MAX)

    def takes_record(self, raw: Readable) -> bool:
        """By text; what is no record passes, so that whoever reads it finds out."""
        found = decode(raw, 0)
        return not isinstance(found, Record) or found.tags in self.tags


def parse_tags(expression: str | None) -> TagFilter | None:
    """`A || B`; None for `*`, the empty text and no text, which take everything.

    Raises BadRequest when the text names no tag.
    """
    if expression is None or expression.strip() in ("", ALL):
        return None
    tags = [tag for tag in (part.strip() for part in expression.split(_SEPARATOR)) if tag]
    if not tags:
        raise BadRequest(f"{expression[:80]!a} names no tag", "write 'A || B', or * for all")
    hashes = np.array(sorted({java_hash(tag) for tag in tags}), np.int32)
    return TagFilter(frozenset(tags), hashes)
