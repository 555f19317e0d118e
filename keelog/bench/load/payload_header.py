"""The first bytes of a body that is followed: intended and real send time, producer, number.

All times are of the monotonic clock, which all processes of a machine share.
"""

import itertools
import struct
import time
from typing import Any, NamedTuple

from keelog.bench.load.sending import Make, Outgoing
from keelog.bench.workload import STAMP_BYTES

_STAMP = struct.Struct(">qqqq")
assert _STAMP.size == STAMP_BYTES
WHO_AT = 16
"""The place of producer and number."""
END = -1
"""The number of a message after all others of its queue."""


def key_of(producer: int, number: int) -> str:
    """The key of a message, where each has one of its own."""
    return f"p{producer}-{number}"


class PayloadHeader(NamedTuple):
    """The fields of the stamp; times in ns."""

    due_ns: int
    sent_ns: int
    producer: int
    number: int

    @classmethod
    def of(cls, body: bytes) -> "PayloadHeader":
        """The stamp of a body."""
        return cls(*_STAMP.unpack_from(body))

    def body(self, fill: bytes) -> bytes:
        """A body with this stamp."""
        return _STAMP.pack(*self) + fill


def stamped(topics: tuple[str, ...], fill: bytes, producer: int, options: dict[str, Any]) -> Make:
    """Requests of one message each, stamped, to the topics in turn."""
    size = STAMP_BYTES + len(fill)
    numbers = itertools.count()

    def make(due_ns: int) -> Outgoing:
        number = next(numbers)
        body = PayloadHeader(due_ns, time.monotonic_ns(), producer, number).body(fill)
        return Outgoing(topics[number % len(topics)], body, options, size)

    return make
