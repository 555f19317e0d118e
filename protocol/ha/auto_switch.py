"""RocketMQ's replication where a controller elects the master: bytes in, values out.

It begins with greetings: the follower says its id, and the master its end and its epochs. Then the
follower reports as in `protocol.ha.stream`, with a state before the offset, and each frame says the
epoch of its bytes and how far the log is confirmed (AutoSwitchHAClient, AutoSwitchHAConnection).
"""

import struct
from typing import NamedTuple

from protocol.errors import BadRequest
from protocol.ha.epochs import EPOCHS_MAX, MasterEpoch, MasterEpochs, last_number
from protocol.ha.stream import LogFrame, LogFrameReader

GREETING, TRANSFER = 1, 2
"""States, as RocketMQ numbers them (HAConnectionState)."""
_FOLLOWER = struct.Struct(">ihhq")
_REPORT = struct.Struct(">iq")
_MASTER = struct.Struct(">iiqi")
_ENTRY = struct.Struct(">iq")
_HEAD = struct.Struct(">iiqiqq")
_STATE = struct.Struct(">i")


class MasterGreeting(NamedTuple):
    """The end of a master's log, and its epochs."""

    end: int
    epochs: MasterEpochs


def encode_greeting(broker_id: int) -> bytes:
    """A follower's greeting. It wants the log from its begin, and belongs to those in sync."""
    return _FOLLOWER.pack(GREETING, 0, 0, broker_id)


def encode_switch_report(end: int) -> bytes:
    """A follower's report: the end of its log."""
    return _REPORT.pack(TRANSFER, end)


def encode_answer(greeting: MasterGreeting) -> bytes:
    """A master's greeting."""
    entries = b"".join(_ENTRY.pack(*one) for one in greeting.epochs)
    head = _MASTER.pack(GREETING, len(entries), greeting.end, last_number(greeting.epochs))
    return head + entries


def encode_switch_head(offset: int, body_bytes: int, epoch: MasterEpoch, confirmed: int) -> bytes:
    """What goes before `body_bytes` bytes of the log at `offset`; 0 of them are a heart-beat."""
    return _HEAD.pack(TRANSFER, body_bytes, offset, epoch.number, epoch.start, confirmed)


class FollowerReader:
    """What one follower says: `broker_id` once it has greeted, then its reports."""

    def __init__(self) -> None:
        self._rest = b""
        self.broker_id: int | None = None

    def feed(self, data: bytes | memoryview) -> int | None:
        """Takes received bytes. Returns the last whole report among them, if there is one.

        Raises BadRequest for a state that no follower has.
        """
        have = self._rest + bytes(data)
        at, report = 0, None
        while len(have) - at >= _REPORT.size:
            state: int = _STATE.unpack_from(have, at)[0]
            if state == GREETING:
                if len(have) - at < _FOLLOWER.size:
                    break
                self.broker_id = _FOLLOWER.unpack_from(have, at)[3]
                at += _FOLLOWER.size
            elif state == TRANSFER and self.broker_id is not None:
                report = _REPORT.unpack_from(have, at)[1]
                at += _REPORT.size
            else:
                raise BadRequest(f"it sent state {state}, a greeting or a report was expected")
        self._rest = have[at:]
        return report


class GreetingReader:
    """A master's greeting, which may come in parts."""

    def __init__(self) -> None:
        self._have = b""

    def feed(self, data: bytes | memoryview) -> MasterGreeting | None:
        """Takes received bytes; None while it is not whole. Raises BadRequest."""
        self._have += bytes(data)
        if len(self._have) < _MASTER.size:
            return None
        state, size, end, _ = _MASTER.unpack_from(self._have)
        if state != GREETING or not 0 <= size <= EPOCHS_MAX * _ENTRY.size or size % _ENTRY.size:
            raise BadRequest(
                f"the master's greeting has state {state} and {size} bytes of epochs:"
                " is this the replication port of a master in controller mode?"
            )
        if len(self._have) < _MASTER.size + size:
            return None
        body = self._have[_MASTER.size : _MASTER.size + size]
        epochs = tuple(MasterEpoch(*one) for one in _ENTRY.iter_unpack(body))
        return MasterGreeting(max(end, 0), epochs)


class SwitchFrameReader(LogFrameReader):
    """The frames that follow a master's greeting."""

    head_bytes = _HEAD.size

    def _size(self, at: int) -> tuple[int, int]:
        _, size, offset, *_ = _HEAD.unpack_from(self._buffer, at)
        return offset, size

    def _frame(self, at: int, body: memoryview) -> LogFrame:
        _, _, offset, number, start, confirmed = _HEAD.unpack_from(self._buffer, at)
        return LogFrame(offset, body, MasterEpoch(number, start), confirmed)
