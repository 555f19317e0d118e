"""How a follower and this node speak: by RocketMQ's default replication, or as its brokers do where
a controller elects the master."""

from collections.abc import Callable
from typing import Protocol

from protocol.ha import (
    FollowerReader,
    MasterEpoch,
    MasterEpochs,
    MasterGreeting,
    ReportReader,
    encode_answer,
    encode_head,
    encode_switch_head,
    epoch_at,
)


class FollowerWire(Protocol):
    """One connection's bytes. `broker_id`: who follows, as it said; 0: it did not say."""

    @property
    def broker_id(self) -> int:
        """Who follows."""

    def feed(self, data: bytes) -> int | None:
        """The last whole report, if there is one. Raises BadRequest."""

    def greeting(self, end: int) -> bytes:
        """What has to be sent now, before the log: once, and often nothing."""

    def piece(self, offset: int, size: int) -> int:
        """How much of `size` bytes at `offset` one frame may hold."""

    def head(self, offset: int, size: int) -> bytes:
        """What goes before a frame's bytes."""


class PlainWire:
    """Without a controller."""

    broker_id = 0

    def __init__(self) -> None:
        self._reports = ReportReader()

    def feed(self, data: bytes) -> int | None:
        """As FollowerWire."""
        return self._reports.feed(data)

    def greeting(self, end: int) -> bytes:
        """There is none."""
        return b""

    def piece(self, offset: int, size: int) -> int:
        """All of them."""
        return size

    def head(self, offset: int, size: int) -> bytes:
        """As FollowerWire."""
        return encode_head(offset, size)


class SwitchWire:
    """With a controller. `epochs` loads those of the log; `confirmed` returns its end as all who
    must have it have acknowledged it."""

    def __init__(self, epochs: Callable[[], MasterEpochs], confirmed: Callable[[], int]) -> None:
        self._reader = FollowerReader()
        self._load = epochs
        self._epochs: MasterEpochs = ()
        self._confirmed = confirmed
        self._has_greeted = False

    @property
    def broker_id(self) -> int:
        """0 before the greeting."""
        return self._reader.broker_id or 0

    def feed(self, data: bytes) -> int | None:
        """As FollowerWire. Raises BadRequest."""
        return self._reader.feed(data)

    def greeting(self, end: int) -> bytes:
        """The end and the epochs of the log, once the follower has greeted. Raises StoreDamaged."""
        if self._has_greeted or self._reader.broker_id is None:
            return b""
        self._has_greeted = True
        self._epochs = self._load()
        return encode_answer(MasterGreeting(end, self._epochs))

    def piece(self, offset: int, size: int) -> int:
        """A frame belongs to one epoch."""
        _, end = epoch_at(self._epochs, offset)
        return size if end is None else min(size, end - offset)

    def head(self, offset: int, size: int) -> bytes:
        """As FollowerWire."""
        epoch, _ = epoch_at(self._epochs, offset)
        first = self._epochs[0] if self._epochs else MasterEpoch(-1, 0)
        return encode_switch_head(offset, size, epoch or first, self._confirmed())
