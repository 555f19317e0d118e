"""RocketMQ's replication between a master and who follows it: bytes in, values out.

The follower connects and sends *reports*: an i64, the end of its log. The master sends *frames*:
i64 log offset, i32 size, then bytes of its log of that size; size 0 is a heart-beat that names the
offset to be sent next. There is no greeting and no version (DefaultHAClient,
DefaultHAConnection).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from protocol.errors import BadRequest
from protocol.ha.epochs import MasterEpoch

DEFAULT_HA_PORT = 10_912
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

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")
REPORT_BYTES = _REPORT.size
HEAD_BYTES = _HEAD.size


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
        """The offset and the size that the head at `at` names."""
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
