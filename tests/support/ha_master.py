"""A master's replication in the process of the tests: serves a log of bytes, as RocketMQ does."""

import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Self

from tests.support.single_process import is_readable

_HEAD = struct.Struct(">qi")
_REPORT = struct.Struct(">q")


class HaMaster:
    """Serves `log`, whose first byte is at log offset `begin`, from `port` on.

    A first report below the begin or above the end gets heart-beats alone. `cuts`: the sizes of
    the frames, in turn; none reaches over the end of a segment.
    """

    def __init__(
        self,
        log: bytes,
        segment_bytes: int,
        begin: int = 0,
        cuts: Sequence[int] = (32_768,),
        beat_s: float = 0.2,
        port: int = 0,
    ) -> None:
        self.begin = begin
        self.segment_bytes = segment_bytes
        self.reports: list[int] = []
        self.connections = 0
        self._log = bytearray(log)
        self._cuts = cuts
        self._beat_s = beat_s
        self._open: set[socket.socket] = set()
        self._is_over = False
        self._server = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    @property
    def end(self) -> int:
        """The end of its log."""
        return self.begin + len(self._log)

    def grow(self, data: bytes) -> None:
        """Appends to its log."""
        self._log += data

    def become(self, log: bytes, begin: int = 0) -> None:
        """Drops all connections and has another log from now on, as after a restart."""
        self.drop()  # first: an old connection would go on in the middle of the new log
        self._log, self.begin = bytearray(log), begin

    def drop(self) -> None:
        """Ends all connections."""
        for one in list(self._open):
            one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends."""
        self._is_over = True
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)
        self.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._is_over:
            try:
                found, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(found)
            threading.Thread(target=self._serve, args=(found,), daemon=True).start()

    def _serve(self, found: socket.socket) -> None:
        try:
            self._send_all(found)
        except OSError:
            pass
        finally:
            self._open.discard(found)
            found.close()

    def _send_all(self, found: socket.socket) -> None:
        position, number, beat_at = -1, 0, time.monotonic() + self._beat_s
        rest = b""
        while True:
            while is_readable(found.fileno(), 0 if 0 <= position < self.end else 0.01):
                data = found.recv(4096)
                if not data:
                    return
                rest += data
                while len(rest) >= _REPORT.size:
                    (end,) = _REPORT.unpack_from(rest)
                    rest = rest[_REPORT.size :]
                    self.reports.append(end)
                    if position < 0:
                        position = self.end - self.end % self.segment_bytes if end == 0 else end
            if self.begin <= position < self.end:
                left = self.segment_bytes - position % self.segment_bytes
                size = min(self._cuts[number % len(self._cuts)], left, self.end - position)
                number += 1
                body = self._log[position - self.begin : position - self.begin + size]
                found.sendall(_HEAD.pack(position, size) + body)
                position += size
                beat_at = time.monotonic() + self._beat_s
            elif position >= 0 and time.monotonic() >= beat_at:
                found.sendall(_HEAD.pack(position, 0))
                beat_at = time.monotonic() + self._beat_s
