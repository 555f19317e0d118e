"""Reused memory for large replies: fresh pages cost more than the copy into them."""

import weakref
from collections import deque

import numpy as np

from protocol.kernel.loader import Bytes

BUFFERS_BYTES_MAX = 16 << 20
"""Memory that stays allocated; further blocks are allocated and freed each time."""
BUFFER_BYTES_MIN = 1 << 16
"""A smaller block is not worth keeping."""


class Buffers:
    """Blocks of memory. A block is in use while an array from `take`, or a view of it, exists.

    One thread takes blocks; any thread may drop them.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[Bytes, weakref.ref[Bytes]]] = deque()
        self.bytes = 0

    def take(self, size: int) -> Bytes:
        """An array of `size` bytes with arbitrary content."""
        if size < BUFFER_BYTES_MIN:
            return np.empty(size, np.uint8)
        for _ in range(len(self._blocks)):
            block, lent = self._blocks.popleft()
            if lent() is not None:
                self._blocks.append((block, lent))
            elif len(block) >= size:
                return self._lend(block, size)
            else:
                self.bytes -= len(block)  # too small for the replies of today
        room = 1 << (size - 1).bit_length()
        if self.bytes + room > BUFFERS_BYTES_MAX:
            return np.empty(size, np.uint8)
        self.bytes += room
        return self._lend(np.empty(room, np.uint8), size)

    def _lend(self, block: Bytes, size: int) -> Bytes:
        part = block[:size]
        self._blocks.append((block, weakref.ref(part)))
        return part
