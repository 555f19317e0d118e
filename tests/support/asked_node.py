"""Whoever takes RocketMQ's requests, in the process of the tests: it notes each, and answers as it
is told."""

import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from protocol.access.signature import is_signed
from protocol.remoting.codes import BrokenFrame, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader

Reply = tuple[int, str | None, bytes]
Decide = Callable[[RemotingHeader, bytes], Reply]
REFUSED: Reply = (ResponseCode.NO_PERMISSION, "check signature failed.", b"")


def empty(header: RemotingHeader, body: bytes) -> Reply:
    """Each request is well answered, with nothing."""
    return ResponseCode.SUCCESS, None, b""


class AskedNode:
    """Serves in threads, as a context."""

    def __init__(self, decide: Decide = empty, ext: dict[str, str] | None = None) -> None:
        """Each answer has the fields `ext`."""
        self.asked: list[tuple[RemotingHeader, bytes]] = []
        node = self

        class Connection(socketserver.BaseRequestHandler):
            """One connection."""

            def handle(self) -> None:
                """Replies until it ends."""
                frames = FrameReader()
                with suppress(BrokenFrame, OSError):
                    while count := self.request.recv_into(frames.room()):
                        for header, view in frames.received(count):
                            body = bytes(view)
                            node.asked.append((header, body))
                            code, remark, reply = decide(header, body)
                            answer = header.answer(code, ext or {}, remark)
                            self.request.sendall(frame_head(answer, len(reply)) + reply)

        class Server(socketserver.ThreadingTCPServer):
            """Threads that nobody waits for."""

            daemon_threads = True
            block_on_close = False
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Connection)
        self.place = "{}:{}".format(*self._server.server_address)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def codes(self) -> list[int]:
        """Those of all requests."""
        return [header.code for header, _ in self.asked]

    def are_signed(self, user: str, secret: str) -> bool:
        """Whether this user signed each request."""
        return bool(self.asked) and all(
            header.ext.get("AccessKey") == user
            and is_signed(secret, header.ext, body, header.version)
            for header, body in self.asked
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
