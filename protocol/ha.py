"""RocketMQ's replication between a master and who follows it: bytes in, values out.

The follower connects and sends *reports*: an i64, the end of its log. The master sends *frames*:
i64 log offset, i32 size, then bytes of its log of that size; size 0 is a heart-beat that names the
offset to be sent next. There is no greeting and no version (DefaultHAClient,
DefaultHAConnection).

Where a controller elects the master, it begins with greetings: the follower says its id, and the
master its end and its epochs. Then the follower reports as above, with a state before the offset,
and each frame says the epoch of its bytes and how far the log is confirmed (AutoSwitchHAClient,
AutoSwitchHAConnection).

Epochs say who wrote a log from which offset on. A controller gives each master that it elects a
number above all earlier ones. Two logs are the same up to the end of the last epoch that both have,
with the same begin (EpochFileCache). RocketMQ keeps them in a text file: how many lines there are,
their checksum, then a line for each epoch.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from protocol.errors import BadRequest

EPOCHS_MAX = 1_000
"""A master of RocketMQ has room for no more in its greeting."""
FRAME_BODY_BYTES = 32 * 1024
"""The most of a master's log in one frame (haTransferBatchSize)."""
FRAME_BODY_BYTES_MAX = 4 * 1024 * 1024
"""A follower believes no larger frame: a Java follower has a buffer of this size."""
HEARTBEAT_S = 5.0
"""Silence after which either side says something (haSendHeartbeatInterval)."""
SILENCE_S = 20.0
"""Silence after which either side closes (haHousekeepingInterval)."""
ONE_BYTE_BEHIND = 1
"""The report of an empty follower that wants the log from 0: a report of 0 asks for the last
segment alone. The log's first byte is 0 in every store: the top of a record's length."""
GREETING, TRANSFER = 1, 2
"""States, as RocketMQ numbers them (HAConnectionState)."""

_CRC_MASK = 0x7FFFFFFF
_HEAD_LINES = 2
_FOLLOWER = struct.Struct(">ihhq")
_SWITCH_REPORT = struct.Struct(">iq")
_MASTER = struct.Struct(">iiqi")
_ENTRY = struct.Struct(">iq")
_SWITCH_HEAD = struct.Struct(">iiqiqq")
_STATE = struct.Struct(">i")
_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")
REPORT_BYTES = _REPORT.size
HEAD_BYTES = _HEAD.size


class MasterEpoch(NamedTuple):
    """From the log offset `start` on a master wrote that was elected with this `number`."""

    number: int
    start: int


MasterEpochs = tuple[MasterEpoch, ...]
"""Numbers and begins ascend."""


class LogFrame(NamedTuple):
    """Bytes of the master's log at `offset`, or a heart-beat without any.

    `body` is a view that is valid until the reader gets the next bytes. `epoch` and `confirmed` are
    there where a controller elects the master.
    """

    offset: int
    body: memoryview
    epoch: MasterEpoch | None = None
    confirmed: int = 0


def encode_report(end_offset: int) -> bytes:
    """A follower's report: the end of its log."""
    return _REPORT.pack(end_offset)


def encode_head(offset: int, body_bytes: int) -> bytes:
    """What goes before `body_bytes` bytes of the log at `offset`; 0 of them are a heart-beat."""
    return _HEAD.pack(offset, body_bytes)


class ReportReader:
    """The reports of one follower. A master believes the last whole one that has arrived."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | memoryview) -> int | None:
        """Takes received bytes. Returns the last whole report among them, if there is one."""
        all_bytes = self._rest + bytes(data)
        whole = len(all_bytes) - len(all_bytes) % REPORT_BYTES
        self._rest = all_bytes[whole:]
        if not whole:
            return None
        last: int = _REPORT.unpack_from(all_bytes, whole - REPORT_BYTES)[0]
        return last


class LogFrameReader:
    """The frames of one master. It has no socket and no clock.

    The owner puts received bytes where `room` says, then asks `take` for the frames among them.
    """

    head_bytes = HEAD_BYTES

    def __init__(self) -> None:
        self._buffer = bytearray(4 * (FRAME_BODY_BYTES + self.head_bytes))
        self._start = self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes of the connection go. Never empty."""
        have = self._end - self._start
        wanted = self._frame_bytes() if have >= self.head_bytes else self.head_bytes
        if self._start and (wanted > len(self._buffer) - self._start or not have):
            self._buffer[:have] = self._buffer[self._start : self._end]
            self._start, self._end = 0, have
        if wanted > len(self._buffer):
            larger = bytearray(wanted)
            larger[:have] = self._buffer[:have]
            self._buffer = larger
        return memoryview(self._buffer)[self._end :]

    def take(self, received: int) -> Iterator[LogFrame]:
        """Frames that are whole after `received` more bytes, in their order.

        Raises BadRequest for a size that no master sends.
        """
        self._end += received
        while self._end - self._start >= self.head_bytes:
            size = self._frame_bytes()
            if self._end - self._start < size:
                return
            body = memoryview(self._buffer)[self._start + self.head_bytes : self._start + size]
            frame = self._frame(self._start, body)
            self._start += size
            yield frame

    def _size(self, at: int) -> tuple[int, int]:
        offset, size = _HEAD.unpack_from(self._buffer, at)
        return offset, size

    def _frame(self, at: int, body: memoryview) -> LogFrame:
        return LogFrame(self._size(at)[0], body)

    def _frame_bytes(self) -> int:
        offset, size = self._size(self._start)
        if not 0 <= size <= FRAME_BODY_BYTES_MAX:
            raise BadRequest(
                f"a master's frame at offset {offset} has {size} bytes, "
                f"0 to {FRAME_BODY_BYTES_MAX} are possible: is this its replication port?"
            )
        return self.head_bytes + size


class MasterGreeting(NamedTuple):
    """The end of a master's log, and its epochs."""

    end: int
    epochs: MasterEpochs


def encode_greeting(broker_id: int) -> bytes:
    """A follower's greeting. It wants the log from its begin, and belongs to those in sync."""
    return _FOLLOWER.pack(GREETING, 0, 0, broker_id)


def encode_switch_report(end: int) -> bytes:
    """A follower's report: the end of its log."""
    return _SWITCH_REPORT.pack(TRANSFER, end)


def encode_answer(greeting: MasterGreeting) -> bytes:
    """A master's greeting."""
    entries = b"".join(_ENTRY.pack(*one) for one in greeting.epochs)
    head = _MASTER.pack(GREETING, len(entries), greeting.end, last_number(greeting.epochs))
    return head + entries


def encode_switch_head(offset: int, body_bytes: int, epoch: MasterEpoch, confirmed: int) -> bytes:
    """What goes before `body_bytes` bytes of the log at `offset`; 0 of them are a heart-beat."""
    return _SWITCH_HEAD.pack(TRANSFER, body_bytes, offset, epoch.number, epoch.start, confirmed)


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
        while len(have) - at >= _SWITCH_REPORT.size:
            state: int = _STATE.unpack_from(have, at)[0]
            if state == GREETING:
                if len(have) - at < _FOLLOWER.size:
                    break
                self.broker_id = _FOLLOWER.unpack_from(have, at)[3]
                at += _FOLLOWER.size
            elif state == TRANSFER and self.broker_id is not None:
                report = _SWITCH_REPORT.unpack_from(have, at)[1]
                at += _SWITCH_REPORT.size
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

    head_bytes = _SWITCH_HEAD.size

    def _size(self, at: int) -> tuple[int, int]:
        _, size, offset, *_ = _SWITCH_HEAD.unpack_from(self._buffer, at)
        return offset, size

    def _frame(self, at: int, body: memoryview) -> LogFrame:
        _, _, offset, number, start, confirmed = _SWITCH_HEAD.unpack_from(self._buffer, at)
        return LogFrame(offset, body, MasterEpoch(number, start), confirmed)


def last_number(epochs: MasterEpochs) -> int:
    """The number of the last epoch; -1 without any, as RocketMQ reports it."""
    return epochs[-1].number if epochs else -1


def with_epoch(epochs: MasterEpochs, added: MasterEpoch) -> MasterEpochs:
    """The epochs with one more, which takes the place of those that begin where it does, or later:
    nothing was written in them."""
    if added in epochs:
        return epochs
    kept = (one for one in epochs if one.start < added.start and one.number < added.number)
    return (*kept, added)[-EPOCHS_MAX:]


def epochs_below(epochs: MasterEpochs, end: int) -> MasterEpochs:
    """The epochs of a log that was cut at `end`."""
    return tuple(one for one in epochs if one.start < end)


def epochs_from(epochs: MasterEpochs, begin: int) -> MasterEpochs:
    """The epochs of a log that begins at `begin`, because older segments were deleted."""
    gone = sum(following.start <= begin for following in epochs[1:])
    return epochs[gone:]


def epoch_at(epochs: MasterEpochs, offset: int) -> tuple[MasterEpoch | None, int | None]:
    """The epoch that an offset belongs to, and where that ends: None for the last one."""
    found, end = None, None
    for one in epochs:
        if one.start > offset:
            end = one.start
            break
        found = one
    return found, end if found is not None else None


def common_point(
    ours: MasterEpochs, our_end: int, theirs: MasterEpochs, their_end: int
) -> int | None:
    """Up to which offset two logs are the same; None where they have no epoch in common."""
    known = dict(theirs)
    for one in reversed(ours):
        if known.get(one.number) == one.start:
            return min(_end_of(one, ours, our_end), _end_of(one, theirs, their_end))
    return None


def _end_of(epoch: MasterEpoch, epochs: MasterEpochs, end: int) -> int:
    after = [one.start for one in epochs if one.number > epoch.number]
    return min(after, default=end)


def encode_epochs(epochs: MasterEpochs) -> bytes:
    lines = "".join(f"{one.number}-{one.start}\n" for one in epochs)
    return f"{len(epochs)}\n{crc32(lines.encode()) & _CRC_MASK}\n{lines}".encode()


def parse_epochs(text: str) -> MasterEpochs:
    """Reads the file. Raises BadRequest for anything else."""
    lines = text.splitlines()
    body = "".join(f"{line}\n" for line in lines[_HEAD_LINES:])
    try:
        count, checksum = (int(line) for line in lines[:_HEAD_LINES])
        parts = (line.partition("-")[::2] for line in lines[_HEAD_LINES:])
        found = tuple(MasterEpoch(*map(int, both)) for both in parts)
    except ValueError as error:
        raise BadRequest(f"it makes no sense ({error})") from None
    # RocketMQ does not look at a checksum of 0.
    if checksum not in (0, crc32(body.encode()) & _CRC_MASK):
        raise BadRequest("its checksum is wrong")
    if count != len(found) or list(found) != sorted(found):
        raise BadRequest(f"{count} epochs were written, and these are there: {found}")
    return found
