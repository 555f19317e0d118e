"""A gateway remembers transactions, so that none is committed twice while it lives.

A half message that is asked for is stored again, and its producer may end the older copy, the newer
one, or both: the first end counts. A gateway that is killed forgets this, as a broker does.
"""

from typing import TypeVar

from keelog.gateway.sending.half import FIRST_OFFSET, HalfPlace, number_in, place_of
from protocol.record.codec import Record

REMEMBERED_MAX = 200_000
"""Ends, and half messages that were stored again; the oldest are forgotten."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Chains:
    """All transactions, each by the place of its first half message."""

    def __init__(self) -> None:
        self._firsts: dict[HalfPlace, HalfPlace] = {}
        """Of a half message that was stored again: the first of its transaction."""
        self._newest: dict[HalfPlace, int] = {}
        """By first half message: the offset of the newest."""
        self._ended: dict[HalfPlace, None] = {}
        self._ending: set[HalfPlace] = set()

    def first_of(self, half: Record) -> HalfPlace:
        """The first half message of a transaction."""
        place = place_of(half)
        offset = number_in(half, FIRST_OFFSET)
        return self._firsts.get(place, place if offset is None else place._replace(offset=offset))

    def newest_of(self, first: HalfPlace) -> int:
        """The offset of the newest half message of a transaction."""
        return self._newest.get(first, first.offset)

    def stored_again(self, half: Record, offset: int) -> None:
        """A half message was stored again, at an offset of the same queue."""
        first = self.first_of(half)
        _remember(self._firsts, first._replace(offset=offset), first)
        _remember(self._newest, first, offset)

    def begin_end(self, first: HalfPlace) -> bool:
        """False for a transaction that has ended, or ends right now."""
        if first in self._ended or first in self._ending:
            return False
        self._ending.add(first)
        return True

    def end(self, first: HalfPlace, *, is_done: bool) -> None:
        """The end that has begun is done, or has failed."""
        self._ending.discard(first)
        if is_done:
            _remember(self._ended, first, None)

    def has_ended(self, first: HalfPlace) -> bool:
        """Whether its end is known."""
        return first in self._ended

    def is_ending(self, first: HalfPlace) -> bool:
        """Whether its end is under way."""
        return first in self._ending


def _remember(table: dict[Key, Value], key: Key, value: Value) -> None:
    """Notes a pair as the newest."""
    table.pop(key, None)
    if len(table) >= REMEMBERED_MAX:
        del table[next(iter(table))]
    table[key] = value
