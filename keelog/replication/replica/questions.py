"""Questions to a master's port for requests, for a thread that may wait.

`RemotingAsker` asks one after the other. `ask_facts` asks what the master says of its log: where it
begins and ends, and the length of its segments.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import NamedTuple, Self

from node.runtime.addresses import split_place
from protocol.errors import MqError
from protocol.remoting.bodies import KVTable
from protocol.remoting.codes import BrokenFrame, Language, RequestCode, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_json import read_body

ANSWER_S = 3.0
"""How long a connection or an answer may take."""
_SEGMENT_SETTING = "mappedFileSizeCommitLog"


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
            size = self._socket.recv_into(self._reader.room())
            if not size:
                raise ConnectionResetError("the connection was closed")
            try:
                for answer, data in self._reader.received(size):
                    if answer.is_answer and answer.opaque == opaque:
                        remark = answer.remark or ""
                        return MasterAnswer(answer.code, answer.ext, remark, bytes(data))
            except BrokenFrame as error:
                raise ConnectionResetError(f"it sent a broken frame: {error.reason}") from None

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MasterFacts(NamedTuple):
    """Log offsets, and the bytes of a segment; 0 where it does not say."""

    begin: int
    end: int
    segment_bytes: int = 0


def ask_facts(place: str, with_segments: bool = True) -> MasterFacts | None:
    """Asks the master at HOST:PORT (28, and 26 `with_segments`); None without such an answer."""
    with suppress(OSError, MqError, ValueError, KeyError), RemotingAsker(place, ANSWER_S) as asker:
        answer = asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code != ResponseCode.SUCCESS:
            return None
        table = read_body(KVTable, answer.body).table
        begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        # An empty log of RocketMQ begins at -1.
        return MasterFacts(
            max(begin, 0), max(end, 0), _segment_bytes(asker) if with_segments else 0
        )
    return None


def _segment_bytes(asker: RemotingAsker) -> int:
    answer = asker.ask(RequestCode.GET_BROKER_CONFIG)
    for line in answer.body.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == _SEGMENT_SETTING and value.strip().isdigit():
            return int(value)
    return 0
