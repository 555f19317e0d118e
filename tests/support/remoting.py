"""A client of RocketMQ's protocol, a blocking socket: requests in, answers out."""

import re
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

from protocol.access.signature import ACCESS_KEY, SIGNATURE, signature
from protocol.remoting.codes import Language
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import ONE_WAY, RemotingHeader, Serialization

ANSWER_S = 20.0
REMOTING = "serve.remoting=127.0.0.1:0"
"""The setting of a node with a gateway at a free port."""
_READY = re.compile(r"remoting ([0-9.]+):([0-9]+)")


class Answered(NamedTuple):
    """A frame that came: the answer to a request, or a request of the node."""

    header: RemotingHeader
    body: bytes

    @property
    def code(self) -> int:
        """The response code, or of a request its code."""
        return self.header.code

    @property
    def ext(self) -> Mapping[str, str]:
        """The fields of its header."""
        return self.header.ext


def remoting_place(stderr: str) -> tuple[str, int]:
    """Where the node listens, from its ready line."""
    found = _READY.search(stderr)
    assert found is not None, stderr
    return found[1], int(found[2])


class RemotingPeer:
    """One connection."""

    def __init__(
        self,
        place: tuple[str, int],
        serialization: Serialization = Serialization.JSON,
        source: str = "",
    ) -> None:
        """`source`: the address from which it comes."""
        here = (source, 0) if source else None
        self.socket = socket.create_connection(place, ANSWER_S, here)
        self._serialization = serialization
        self._reader = FrameReader()
        self.came: list[Answered] = []
        """What nobody has asked for yet."""
        self._opaque = 0

    def send(self, code: int, ext: Mapping[str, object], body: bytes = b"", flag: int = 0) -> int:
        """Sends a request; returns its opaque."""
        self._opaque += 1
        fields = {name: str(value) for name, value in ext.items()}
        header = RemotingHeader(
            code, self._opaque, flag, fields,
            language=Language.JAVA, serialization=self._serialization,
        )  # fmt: skip
        self.socket.sendall(frame_head(header, len(body)) + body)
        return self._opaque

    def tell(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> None:
        """Sends a request that gets no answer."""
        self.send(code, ext, body, ONE_WAY)

    def ask(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> Answered:
        """Sends a request and waits for its answer."""
        return self.answer_to(self.send(code, ext, body))

    def answer_to(self, opaque: int) -> Answered:
        """The answer to the request `opaque`, whatever comes before it."""
        return self._next(lambda came: came.header.is_answer and came.header.opaque == opaque)

    def request(self, code: int) -> Answered:
        """The next request of this code that the node sends."""
        return self._next(lambda came: not came.header.is_answer and came.code == code)

    def _next(self, fits: Callable[[Answered], bool]) -> Answered:
        while True:
            for came in self.came:
                if fits(came):
                    self.came.remove(came)
                    return came
            size = self.socket.recv_into(self._reader.room())
            if not size:
                raise ConnectionResetError("the node has closed the connection")
            self.came += [Answered(*one) for one in self._frames(size)]

    def _frames(self, size: int) -> list[tuple[RemotingHeader, bytes]]:
        return [(header, bytes(body)) for header, body in self._reader.received(size)]

    def is_closed(self) -> bool:
        """Whether the node has ended the connection; waits for what comes."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()


class SignedPeer(RemotingPeer):
    """One that signs its requests, as RocketMQ's clients do for a user."""

    def __init__(self, place: tuple[str, int], user: str, secret: str, source: str = "") -> None:
        super().__init__(place, source=source)
        self._user, self._secret = user, secret

    def send(self, code: int, ext: Mapping[str, object], body: bytes = b"", flag: int = 0) -> int:
        fields = {name: str(value) for name, value in ext.items()} | {ACCESS_KEY: self._user}
        proof = signature(self._secret, fields, body, RemotingHeader(code, 0).version)
        return super().send(code, {**fields, SIGNATURE: proof}, body, flag)


def send_fields(topic: str, queue_id: int = 0, **others: object) -> dict[str, object]:
    """The fields of 310, by their letters."""
    return {
        "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0,
        "g": 1_700_000_000_000, "h": 0, "i": "", "j": 0, "k": False, "m": False, **others,
    }  # fmt: skip


def pull_fields(topic: str, queue_id: int, offset: int, **others: object) -> dict[str, object]:
    """The fields of 11, with the subscription in the header."""
    return {
        "consumerGroup": "g", "topic": topic, "queueId": queue_id, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, **others,
    }  # fmt: skip
