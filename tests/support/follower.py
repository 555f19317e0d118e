"""A follower of a node, as slaves of RocketMQ are: it speaks the protocol and keeps the bytes."""

import re
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from protocol.ha import LogFrameReader, encode_report
from tests.support.node import RunningNode, wait_until

HA = "serve.ha_listen=127.0.0.1:0"
"""The setting of a node that may be followed, at a free port."""
_WHERE = re.compile(r"followers at ([0-9.]+):([0-9]+)")
Keep = Callable[[int, memoryview], None]


def followers_place(node: RunningNode) -> tuple[str, int]:
    """Where followers connect, from the node's ready line; it listens afterwards."""
    found = _WHERE.search(node.stderr)
    assert found is not None, node.stderr
    node.wait_all_run()
    return found[1], int(found[2])


def log_bytes(root: Path, begin: int, end: int) -> bytes:
    """The bytes of a store's log, which has them all."""
    paths = sorted((root / "commitlog").iterdir())
    first = int(paths[0].name)
    data = b"".join(path.read_bytes() for path in paths)
    return data[begin - first : end - first]


class LogFollower:
    """Follows in a thread, as a context. `log` is what it has, from `begin` on.

    `reports` False: it says where it is when it connects, then nothing more.
    """

    def __init__(
        self,
        place: tuple[str, int],
        have: bytes = b"",
        begin: int = 0,
        reports: bool = True,
        *,
        source: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`source`: the address from which it connects."""
        self.place = place
        self._source = source
        self._tls = tls
        self.log = bytearray(have)
        self.begin = begin
        self.reports = reports
        self.frames: list[tuple[int, int]] = []
        """Offset and size of each."""
        self.heartbeats: list[int] = []
        self.is_over = threading.Event()
        """The connection has ended."""
        self.keep: Keep = lambda offset, body: None
        """Is called with what comes, before it is reported."""
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def end(self) -> int:
        """Where its log ends."""
        return self.begin + len(self.log)

    def connect(self, first: int | None = None) -> None:
        """Connects and reports where it is, or `first`. Who is refused at once is over."""
        self.is_over.clear()
        source = (self._source, 0) if self._source else None
        connected = socket.create_connection(self.place, timeout=30, source_address=source)
        try:
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_hostname="localhost")
            connected.sendall(encode_report(self.end if first is None else first))
        except OSError:
            connected.close()
            self.is_over.set()
            return
        self._socket = connected
        self._thread = threading.Thread(target=self._follow, args=(self._socket,), daemon=True)
        self._thread.start()

    def _follow(self, connected: socket.socket) -> None:
        reader = LogFrameReader()
        try:
            while count := connected.recv_into(reader.room()):
                for frame in reader.take(count):
                    self._take(frame.offset, frame.body)
                # A heart-beat is answered too: who says nothing is taken for dead.
                if self.reports:
                    connected.sendall(encode_report(self.end))
        except OSError:
            pass
        finally:
            connected.close()
            self.is_over.set()

    def _take(self, offset: int, body: memoryview) -> None:
        if not len(body):
            self.heartbeats.append(offset)
            return
        if not self.log:
            self.begin = offset
        assert offset == self.end, f"a frame at {offset}, the log ends at {self.end}"
        self.frames.append((offset, len(body)))
        self.log += body
        self.keep(offset, body)

    def report(self, end: int) -> None:
        """Reports by hand."""
        assert self._socket is not None
        self._socket.sendall(encode_report(end))

    def wait_for(self, end: int) -> None:
        """Returns when it has the log up to there."""
        wait_until(lambda: self.end >= end, f"no {end} came, {self}")

    def close(self) -> None:
        """Ends the connection."""
        if self._socket is not None and self._thread is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join(30)

    def __repr__(self) -> str:
        return f"follower at {self.end}, over {self.is_over.is_set()}"

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def raw_frames(place: tuple[str, int], sent: bytes, wait_s: float) -> bytes:
    """What comes back for raw bytes until the node closes the connection, `wait_s` at most."""
    with socket.create_connection(place, timeout=wait_s) as connected:
        connected.sendall(sent)
        found = b""
        try:
            while part := connected.recv(65536):
                found += part
        except ConnectionResetError:
            return found
        return found
