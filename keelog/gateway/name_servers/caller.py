"""The asking end of a remoting connection: our requests out, the replies of the peer in."""

import asyncio
from collections.abc import Mapping
from itertools import count
from types import MappingProxyType
from typing import NamedTuple, Self

from protocol.remoting.codes import BrokenFrame
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader

FIRST_ROOM_BYTES = 4_096
"""Replies are small, and a larger one makes room."""


class CallerReply(NamedTuple):
    """The outcome of a request of ours."""

    code: int
    remark: str
    body: bytes
    ext: Mapping[str, str] = MappingProxyType({})


class RemotingCaller(asyncio.BufferedProtocol):
    """One connection. Make it with `connect`; all runs in the loop's thread.

    What nobody asked for is ignored: replies that come too late, and requests of the peer.
    """

    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason as a text, once the connection has ended."""
        self._reader = FrameReader(FIRST_ROOM_BYTES)
        self._waiting: dict[int, asyncio.Future[CallerReply]] = {}
        self._numbers = count(1)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, host: str, port: int, timeout_s: float) -> Self:
        """Raises OSError, and TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, caller = await loop.create_connection(cls, host, port)
        return caller

    async def ask(
        self, code: int, ext: Mapping[str, str], body: bytes, timeout_s: float
    ) -> CallerReply:
        """Sends a request and waits for its answer.

        Raises BadCommand for one that is too large, ConnectionError, TimeoutError.
        """
        self.check()
        opaque = next(self._numbers)
        head = frame_head(RemotingHeader(code, opaque, ext=ext), len(body))
        coming: asyncio.Future[CallerReply] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = coming
        try:
            assert self._transport is not None
            self._transport.write(head + body)
            async with asyncio.timeout(timeout_s):
                return await coming
        finally:
            del self._waiting[opaque]

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the peer has the address from which this end has connected."""
        assert self._transport is not None
        own, peer = (self._transport.get_extra_info(one) for one in ("sockname", "peername"))
        return bool(own and peer and own[0] == peer[0])

    def check(self) -> None:
        """Raises ConnectionResetError when the connection has ended."""
        if self.lost.done():
            raise ConnectionResetError(self.lost.result())

    def close(self) -> None:
        """Ends the connection; what is unsent is dropped."""
        if self._transport is not None:
            self._transport.abort()

    # Of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Of asyncio."""
        self._end(str(error) if error else "the connection was closed")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Of asyncio."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Of asyncio: takes the replies that are whole."""
        try:
            for header, body in self._reader.received(nbytes):
                coming = self._waiting.get(header.opaque) if header.is_answer else None
                if coming is not None and not coming.done():
                    remark = header.remark or ""
                    coming.set_result(CallerReply(header.code, remark, bytes(body), header.ext))
        except BrokenFrame as error:
            self._end(f"it sent a broken frame: {error.reason}")
            self.close()

    def _end(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
        for coming in self._waiting.values():
            if not coming.done():
                coming.set_exception(ConnectionResetError(why))
