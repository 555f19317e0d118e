"""Memory for large answers, used again: fresh pages cost more than what is copied into them."""

import weakref
from collections import deque

import numpy as np

from protocol.kernel.loader import Bytes

BUFFERS_BYTES_MAX = 16 << 20
"""Memory that is kept; what is under way beyond it is allocated, and given back, each time."""
BUFFER_BYTES_MIN = 1 << 16
"""Smaller ones are as good as new."""


class Buffers:
    """Blocks of memory, each lent out while anybody holds the array taken, or a memoryview of it.

    Not for several threads at once; whoever holds one may let it go in any thread.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[Bytes, weakref.ref[Bytes]]] = deque()
        self.bytes = 0

    def take(self, size: int) -> Bytes:
        """`size` bytes of any content."""
        if size < BUFFER_BYTES_MIN:
            return np.empty(size, np.uint8)
        for _ in range(len(self._blocks)):
            block, lent = self._blocks.popleft()
            if lent() is not None:
                self._blocks.append((block, lent))
            elif len(block) >= size:
                return self._lend(block, size)
            else:
                self.bytes -= len(block)  # Outgrown.
        room = 1 << (size - 1).bit_length()
        if self.bytes + room > BUFFERS_BYTES_MAX:
            return np.empty(size, np.uint8)
        self.bytes += room
        return self._lend(np.empty(room, np.uint8), size)

    def _lend(self, block: Bytes, size: int) -> Bytes:
        part = block[:size]
        self._blocks.append((block, weakref.ref(part)))
        return part
