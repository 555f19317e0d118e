"""What `Client.tail` and `Client.consume` return: an iterator with two ways to end it."""

from collections.abc import Generator, Iterator
from typing import Generic, Self, TypeVar

from keelog.client.subscription import Subscription

T = TypeVar("T")


class Follower(Generic[T]):
    """The messages, or results, of a topic. One thread iterates."""

    def __init__(self, tail: Subscription, items: Generator[T, None, None]) -> None:
        self._tail = tail
        self._items = items

    def __iter__(self) -> Iterator[T]:
        # A loop asks the generator itself: it costs nothing more for a message.
        return self._items

    def __next__(self) -> T:
        return next(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Ends the iteration from any thread or a signal handler: within a second where it waits,
        else when the next item is asked for. The place until then is committed."""
        self._tail.stop()

    def close(self) -> None:
        """Ends it at once, in the thread that iterates, and commits its cursor. The item in hand
        does not count as read. Harmless when repeated."""
        self._items.close()
