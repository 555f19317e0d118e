"""Messages of the node's own, each encoded and sealed by one call of the kernel (`kernel_put.c`).

The bytes are those of `record.encode` and `record.patch`, which do what it leaves to them.
"""

import struct
from typing import NamedTuple

import numpy as np

from protocol.kernel.loader import Kernel, address
from protocol.message_id import IPV4_BYTES, NO_HOST, Host
from protocol.record.codec import RECORD_BYTES_MIN
from protocol.record.patch import AppendRules
from protocol.record.properties import PROPERTIES_BYTES_MAX

_RULES, _DRAFT = struct.Struct("=4q"), struct.Struct("=8q4i4s4x")
_TOPIC_BYTES_MAX = 127
_RECORD_BYTES_MAX = RECORD_BYTES_MIN + _TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX


class Put(NamedTuple):
    """A message whose fields are checked. `properties` as stored, without the checksum's."""

    topic: str
    body: bytes
    queue_id: int
    properties: bytes = b""
    born_timestamp: int = 0
    born_host: Host = NO_HOST
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0


class PutKernel:
    """Makes one record after the other in a buffer that stays. Not for two threads."""

    def __init__(self, kernel: Kernel, rules: AppendRules, store_host: bytes) -> None:
        self.kernel = kernel
        self._put = kernel.function("put_message")
        buffer = np.zeros(rules.max_message_bytes + _RECORD_BYTES_MAX, np.uint8)
        self._bytes = memoryview(buffer.data)
        draft = np.zeros(_RULES.size + _DRAFT.size, np.uint8)
        self._draft, self._at = memoryview(draft.data), address(draft)
        host = int.from_bytes(store_host, "big", signed=True)
        _RULES.pack_into(self._draft, 0, host, rules.crc, address(buffer), len(buffer))

    def record(
        self,
        put: Put,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        store_timestamp: int,
    ) -> memoryview | None:
        """The sealed record, valid until the next; None where the plain way has to make it.

        `topic` is as stored, and `queue_id` is not -1 as the message's may be.
        """
        _, body, _, properties, born_timestamp, born_host, flag, sys_flag, reconsumed = put
        ip, port = born_host
        if len(ip) != IPV4_BYTES:
            return None
        try:
            _DRAFT.pack_into(
                self._draft, _RULES.size, len(body), len(properties), len(topic),
                queue_id, queue_offset, physical_offset,
                store_timestamp, born_timestamp, flag, sys_flag, port, reconsumed, ip,
            )  # fmt: skip
        except struct.error:
            return None  # a number that does not fit: it will be named
        size = self._put(self._at, body, topic, properties)
        return None if size < 0 else self._bytes[:size]
