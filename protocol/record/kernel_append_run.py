"""Requests of one queue each, checked and sealed in one pass by the kernel (`kernel_append_run.c`).

As `kernel_append`, it writes the bytes that `record.patch` would, and leaves whatever is
odd to others.
"""

import struct

import numpy as np

from protocol.kernel.loader import Kernel, address
from protocol.record.patch import AppendRules, StoreStamp

_RUN_WORDS, _LAST_AT = 15, 14
_RUN = struct.Struct(f"={_RUN_WORDS}q")
_BYTES_MIN = 256 * 1024


class SealedRuns:
    """Sealed requests back to back in a buffer that stays: `clear`, then `add` each.

    Not for two threads. `records` is valid until the next `clear`.
    """

    def __init__(self, kernel: Kernel, rules: AppendRules) -> None:
        self.kernel = kernel
        self._seal = kernel.function("append_run")
        self._rules = rules.max_message_bytes, int(rules.crc)
        self._base = self._time = self._host = 0
        run = np.zeros(_RUN_WORDS, np.int64)
        self._words = memoryview(run.data)
        self._at = address(run)
        self._make_buffer(_BYTES_MIN)

    def _make_buffer(self, size: int) -> None:
        buffer = np.zeros(size, np.uint8)
        self._bytes, self._size = memoryview(buffer.data), size
        self._bytes_at = address(buffer)
        self.end = self.last_at = 0
        """The bytes of all requests up to now, and where the last record begins."""

    def clear(self, size: int, base: int, stamp: StoreStamp) -> None:
        """Begins anew at log offset `base`, with room for `size` bytes. All records get `stamp`."""
        if size > self._size:
            self._make_buffer(1 << (size - 1).bit_length())
        self.end, self._base, self._time = 0, base, stamp.store_timestamp
        self._host = int.from_bytes(stamp.store_host, "big", signed=True)

    def add(
        self,
        records: bytes | memoryview,
        count: int,
        crc: int,
        sizes: bytes,
        flags: int,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
    ) -> bool:
        """Adds a request, unless another way has to look at it.

        The first five are as `AppendGroup.add` takes them; `topic` is as stored, `queue_offset`
        the first record's.
        """
        end, size = self.end, len(records)
        _RUN.pack_into(
            self._words, 0, size, count, crc, flags, len(topic), queue_id, queue_offset,
            self._base + end, self._time, self._host, *self._rules,
            self._bytes_at + end, self._size - end, 0,
        )  # fmt: skip
        if sizes and len(sizes) != 4 * count:
            return False
        place = records if type(records) is bytes else address(np.frombuffer(records, np.uint8))
        if self._seal(self._at, place, sizes or None, topic) < 0:
            return False
        self.last_at = end + self._words[_LAST_AT]
        self.end = end + size
        return True

    @property
    def records(self) -> memoryview:
        """The sealed records of all requests."""
        return self._bytes[: self.end]
