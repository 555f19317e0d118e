"""The messages of one queue between their pull and their commit. No sockets, no clock.

Messages end in any order. The offset that may be committed is that of the first one that has not
ended: a group never goes on after a message that was not handled.
"""

from collections import deque
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class PulledMessage(NamedTuple, Generic[T]):
    """A message with its offset, and the bytes that it costs."""

    offset: int
    size: int
    message: T


class QueueProgress(Generic[T]):
    """How far one queue was pulled, handed out and handled."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.held_bytes = 0
        """Of all messages that have not ended."""
        self._waiting: deque[PulledMessage[T]] = deque()
        self._sizes: dict[int, int] = {}
        self._order: deque[int] = deque()
        self._ended: set[int] = set()

    @property
    def committable(self) -> int:
        """The next offset of the group: all messages before it have ended, or did not match."""
        return self._order[0] if self._order else self.next_offset

    @property
    def held(self) -> int:
        """How many messages have not ended."""
        return len(self._sizes)

    @property
    def span(self) -> int:
        """How far the pulls are ahead of what may be committed. It bounds what comes again after a
        crash, and the memory for messages that have ended before an earlier one."""
        return self.next_offset - self.committable

    @property
    def in_hand(self) -> int:
        """How many messages were handed out and have not ended."""
        return len(self._sizes) - len(self._waiting)

    @property
    def has_waiting(self) -> bool:
        """Whether there is a message to hand out."""
        return bool(self._waiting)

    def take(self, found: list[PulledMessage[T]], next_offset: int) -> None:
        """Takes the messages of a pull, in their order, and where the next one begins."""
        for pulled in found:
            if pulled.offset >= self.next_offset:
                self._waiting.append(pulled)
                self._order.append(pulled.offset)
                self._sizes[pulled.offset] = pulled.size
                self.held_bytes += pulled.size
        self.next_offset = max(self.next_offset, next_offset)

    def hand_out(self) -> T | None:
        """The next message, None without one."""
        return self._waiting.popleft().message if self._waiting else None

    def put_back(self, offset: int, message: T) -> None:
        """A message that was handed out is the next one again."""
        self._waiting.appendleft(PulledMessage(offset, self._sizes[offset], message))

    def end(self, offset: int) -> None:
        """A message that was handed out has ended: it was handled, or comes again by another way.
        Harmless when repeated."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return
        self.held_bytes -= size
        self._ended.add(offset)
        while self._order and self._order[0] in self._ended:
            self._ended.remove(self._order.popleft())
