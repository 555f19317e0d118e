"""Questions to a master's port for requests, one after the other, for a thread that may wait."""

import socket
from collections.abc import Mapping
from itertools import count
from typing import NamedTuple, Self

from node.runtime.addresses import split_place
from protocol.remoting.codes import BrokenFrame, Language
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader


class MasterAnswer(NamedTuple):
    """What the master said. `body` is a copy."""

    code: int
    ext: Mapping[str, str]
    remark: str
    body: bytes


class RemotingAsker:
    """One connection. All methods raise OSError, TimeoutError among them, when it is of no use."""

    def __init__(self, place: str, timeout_s: float) -> None:
        """Connects to HOST:PORT."""
        self._socket = socket.create_connection(split_place(place), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._opaques = count(1)

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> MasterAnswer:
        """The answer to a request; the time limit is for each part that arrives of it."""
        opaque = next(self._opaques)
        header = RemotingHeader(code, opaque, ext=ext or {}, language=Language.PYTHON)
        self._socket.sendall(frame_head(header, len(body)) + body)
        while True:
            count_ = self._socket.recv_into(self._reader.room())
            if not count_:
                raise ConnectionResetError("the connection was closed")
            try:
                for answer, data in self._reader.received(count_):
                    if answer.is_answer and answer.opaque == opaque:
                        remark = answer.remark or ""
                        return MasterAnswer(answer.code, answer.ext, remark, bytes(data))
            except BrokenFrame as error:
                raise ConnectionResetError(f"it sent a broken frame: {error.reason}") from None

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
