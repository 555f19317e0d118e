"""The requests of a consumer that are under way on one connection, and its frames. No sockets.

The thread that owns the connection gives it received bytes, and sends what is in `unsent`.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from protocol.remoting.codes import Language, ResponseCode
from protocol.remoting.frame_reader import FrameReader, RemotingFrame, frame_head
from protocol.remoting.headers import ONE_WAY, RemotingHeader

if TYPE_CHECKING:
    from protocol.access.credentials import Credentials, signed

_NO_EXT: Mapping[str, str] = {}


class RemotingAnswer(NamedTuple):
    """What the node said. `body` is a copy."""

    code: int
    ext: Mapping[str, str]
    remark: str
    body: bytes


WhenAnswered = Callable[[RemotingAnswer | None, float], None]
"""Learns the answer and the time, or None when the connection was lost before."""


class RemotingExchange:
    """One connection. Times are seconds of the monotonic clock."""

    def __init__(self, credentials: "Credentials | None" = None) -> None:
        """Each request is signed with the credentials."""
        self._credentials = credentials
        self.unsent = bytearray()
        """The bytes to send next."""
        self._reader = FrameReader()
        self._under_way: dict[int, tuple[float, WhenAnswered]] = {}
        """The deadline of each."""
        self._opaques = count(1)

    def ask(
        self,
        code: int,
        ext: Mapping[str, str],
        deadline: float,
        done: WhenAnswered,
        body: bytes = b"",
    ) -> None:
        """Sends a request. `done` is called once, by `received` or by `lost`."""
        opaque = next(self._opaques)
        self._under_way[opaque] = deadline, done
        header = RemotingHeader(code, opaque, ext=ext, language=Language.PYTHON)
        self._put(self._signed(header, body), body)

    def notify(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> None:
        """Sends a request that gets no answer."""
        opaque = next(self._opaques)
        header = RemotingHeader(code, opaque, ONE_WAY, ext, language=Language.PYTHON)
        self._put(self._signed(header, body), body)

    def refuse(self, request: RemotingHeader) -> None:
        """Refuses a request of the node that a consumer does not know."""
        if not request.is_one_way:
            text = f" request type {request.code} not supported"
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._put(request.answer(code, remark=text)._replace(language=Language.PYTHON), b"")

    def _signed(self, header: RemotingHeader, body: bytes) -> RemotingHeader:
        return header if self._credentials is None else signed(self._credentials, header, body)

    def _put(self, header: RemotingHeader, body: bytes) -> None:
        self.unsent += frame_head(header, len(body)) + body

    def room(self) -> memoryview:
        return self._reader.room()

    def received(self, size: int, now: float) -> Iterator[RemotingHeader]:
        """Takes received bytes: ends requests by their replies, and yields the node's requests.

        Raises BrokenFrame.
        """
        for frame in self._reader.received(size):
            if frame.header.is_answer:
                self._answered(frame, now)
            else:
                yield frame.header

    def _answered(self, frame: RemotingFrame, now: float) -> None:
        header = frame.header
        asked = self._under_way.pop(header.opaque, None)
        if asked is not None:
            answer = RemotingAnswer(header.code, header.ext, header.remark or "", bytes(frame.body))
            asked[1](answer, now)

    @property
    def next_deadline(self) -> float | None:
        """When the first request that is under way should have its answer."""
        return min((deadline for deadline, _ in self._under_way.values()), default=None)

    def lost(self, now: float) -> None:
        """Ends all requests without an answer."""
        ended, self._under_way = list(self._under_way.values()), {}
        for _, done in ended:
            done(None, now)
