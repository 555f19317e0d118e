"""The frames of a remoting connection: bytes in, headers and bodies out.

A frame is an i32 length of all that follows, a byte with the header's serialisation, the header's
length in 24 bits, the header and the body. A connection begins with a frame, without a greeting.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from protocol.remoting.codes import BadCommand, BrokenFrame
from protocol.remoting.headers import RemotingHeader, Serialization, decode_header, encode_header

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""A whole frame with its length, as in Java (com.rocketmq.remoting.frameMaxLength)."""
HEADER_BYTES_MAX = 128 * 1024
ROOM_BYTES = 64 * 1024
FIRST_BYTES = 4_096
"""A frame that has begun, and does not fill a room, has so much memory of its own at first."""
FIRST_SHOWN_BYTES = 16
GROWTH = 4
"""A buffer grows to this many times what has arrived: a large length alone costs no memory."""

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">iI")
_FORMS = len(Serialization)
_WORD_BYTES = _HEAD.size - _LENGTH.size
_LENGTH_MAX = FRAME_BYTES_MAX - _LENGTH.size
_HEADER_LENGTH_BITS = 24
_HEADER_LENGTH_MASK = (1 << _HEADER_LENGTH_BITS) - 1


class RemotingFrame(NamedTuple):
    """One frame. Its body is a view of the reader's buffer, valid until the next `room`."""

    header: RemotingHeader
    body: memoryview


class FrameReader:
    """The receiving end of one connection. It has no socket and no clock.

    The owner puts received bytes where `room` says and calls `received` with their number.
    Readers may share a room: each then calls `keep` before another one's turn, and a connection
    costs memory only while a frame of it has begun.
    """

    def __init__(self, room_bytes: int = ROOM_BYTES, shared: memoryview | None = None) -> None:
        self._shared = shared
        self._room_bytes = room_bytes if shared is None else len(shared)
        self._view = memoryview(bytearray(room_bytes)) if shared is None else shared
        self._start = self._end = 0
        self._is_busy = shared is None
        """Whether much comes at once: then it is read in large pieces."""

    @property
    def buffer_bytes(self) -> int:
        """The memory that the connection costs: at most a room, or the frame that arrives."""
        return 0 if self._view is self._shared else len(self._view)

    @property
    def begun(self) -> bytes:
        """The first bytes of the frame that has begun, or is broken."""
        return bytes(self._view[self._start : min(self._end, self._start + FIRST_SHOWN_BYTES)])

    def room(self) -> memoryview:
        """Returns where the next bytes of the connection go. Never empty."""
        have, size = self._end - self._start, len(self._view)
        if not have and self._shared is not None:
            self._view, size = self._shared, len(self._shared)
        if have == size:
            frame_bytes = _LENGTH.size + _LENGTH.unpack_from(self._view)[0]
            size = min(frame_bytes, GROWTH * have)
        elif self._start and have < self._room_bytes:
            size = self._usual_bytes(have)  # a large frame was taken, its memory is given back
        if size != len(self._view):
            view = memoryview(bytearray(size))
            view[:have] = self._view[self._start : self._end]
            self._view = view
        elif self._start and have:
            self._view[:have] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, have
        return self._view[have:]

    def keep(self, count: int) -> int:
        """Takes what is left out of the shared room; `count` bytes came with the last read. Returns
        the memory that the connection costs then."""
        have = self._end - self._start
        if not have and self._shared is not None:
            self._view, self._start, self._end = self._shared, 0, 0
        if self._view is not self._shared:
            return len(self._view)
        if not have:
            return 0
        self._is_busy = GROWTH * count >= self._room_bytes
        view = memoryview(bytearray(self._usual_bytes(have)))
        view[:have] = self._view[self._start : self._end]
        self._view, self._start, self._end = view, 0, have
        return len(view)

    def _usual_bytes(self, have: int) -> int:
        """The size of a buffer with `have` bytes, which are less than a room."""
        if self._is_busy:
            return self._room_bytes
        return min(self._room_bytes, max(FIRST_BYTES, 2 * have))

    def received(self, count: int) -> Iterator[RemotingFrame]:
        """Takes `count` bytes that were put into `room`, and yields the frames that are whole.

        Raises BrokenFrame for the first one that is not a frame, after those before it. The
        connection cannot go on then.
        """
        self._end += count
        while (have := self._end - self._start) >= _LENGTH.size:
            view, start = self._view, self._start
            if have < _HEAD.size:
                _check_length(_LENGTH.unpack_from(view, start)[0])
                return
            length, word = _HEAD.unpack_from(view, start)
            header_bytes, form = word & _HEADER_LENGTH_MASK, word >> _HEADER_LENGTH_BITS
            if (
                not _WORD_BYTES + header_bytes <= length <= _LENGTH_MAX
                or header_bytes > HEADER_BYTES_MAX
                or form >= _FORMS
            ):
                raise _broken(length, header_bytes, form)
            if have < _LENGTH.size + length:
                return
            body_start = start + _HEAD.size + header_bytes
            header = decode_header(form, view[start + _HEAD.size : body_start])
            self._start = stop = start + _LENGTH.size + length
            yield tuple.__new__(RemotingFrame, (header, view[body_start:stop]))


def _check_length(length: int) -> None:
    """Raises BrokenFrame for a length that no frame has."""
    if not _WORD_BYTES <= length <= _LENGTH_MAX:
        size = f"of {length + _LENGTH.size} bytes" if length >= 0 else f"with the length {length}"
        raise BrokenFrame(f"a frame {size}", f"frames have {_HEAD.size} to {FRAME_BYTES_MAX} bytes")


def _broken(length: int, header_bytes: int, form: int) -> BrokenFrame:
    _check_length(length)
    if form >= _FORMS:
        return BrokenFrame(f"a header in serialisation {form}", "use 0, JSON, or 1, binary")
    return BrokenFrame(
        f"a header of {header_bytes} bytes in a frame of {length + _LENGTH.size}",
        f"headers end in their frame, and have up to {HEADER_BYTES_MAX} bytes",
    )


def frame_head(header: RemotingHeader, body_bytes: int) -> bytes:
    """Returns the bytes of a frame that precede its body of `body_bytes`.

    Raises BadCommand for a frame that no peer would take.
    """
    encoded = encode_header(header)
    length = _WORD_BYTES + len(encoded) + body_bytes
    if length > _LENGTH_MAX:
        raise BadCommand(f"the frame has {length + _LENGTH.size} bytes", "ask for less")
    word = header.serialization << _HEADER_LENGTH_BITS | len(encoded)
    return _HEAD.pack(length, word) + encoded
