"""Requests over RocketMQ's protocol from one connection, many of them under way."""

import socket
import threading
from collections.abc import Mapping
from typing import Self

from protocol.remoting import codes, frame_reader, headers

UNDER_WAY_MAX = 1_000
BUFFER_BYTES = 32 * 1024


class PipelinedRequests:
    """A client. Leaving it waits for all replies, and raises RuntimeError for a refusal."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=60.0)
        self._room = threading.Semaphore(UNDER_WAY_MAX)
        self._unsent = bytearray()
        self._sent = 0
        self._answered = 0
        self.reply_bytes = 0
        """Of the bodies of all replies so far."""
        self._refusal = ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Sends one request; waits while too many have no reply."""
        if not self._room.acquire(blocking=False):
            self._flush()
            self._room.acquire()
        self._sent += 1
        header = headers.RemotingHeader(
            code, self._sent, 0, fields,
            language=codes.Language.JAVA, serialization=headers.Serialization.ROCKETMQ,
        )  # fmt: skip
        self._unsent += frame_reader.frame_head(header, len(body))
        self._unsent += body
        if len(self._unsent) >= BUFFER_BYTES:
            self._flush()

    def wait(self) -> None:
        """Returns when each request has its reply. Raises RuntimeError for a refusal."""
        self._flush()
        for _room in range(UNDER_WAY_MAX):
            if not self._room.acquire(timeout=60.0):
                raise RuntimeError(f"{self._sent - self._answered} requests got no reply")
        if self._refusal:
            raise RuntimeError(self._refusal)
        self._room.release(UNDER_WAY_MAX)

    def _flush(self) -> None:
        if self._refusal:
            raise RuntimeError(self._refusal)
        self._socket.sendall(self._unsent)
        self._unsent.clear()

    def _read(self) -> None:
        reader = frame_reader.FrameReader()
        while True:
            try:
                size = self._socket.recv_into(reader.room())
            except OSError:
                return
            if not size:
                return
            for header, body in reader.received(size):
                if header.is_answer:
                    self._replied(header, len(body))

    def _replied(self, header: headers.RemotingHeader, body_bytes: int) -> None:
        if header.code != codes.ResponseCode.SUCCESS and not self._refusal:
            self._refusal = f"refused with {header.code}: {header.remark}"
        self.reply_bytes += body_bytes
        self._answered += 1
        self._room.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._socket.close()


class PipelinedSends(PipelinedRequests):
    """A producer of one topic."""

    def __init__(self, host: str, port: int, topic: str) -> None:
        super().__init__(host, port)
        self._topic = topic

    def send(self, queue_id: int, properties: str, body: bytes) -> None:
        fields = {
            "a": "load", "b": self._topic, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0",
            "g": "0", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        self.ask(codes.RequestCode.SEND_MESSAGE_V2, fields, body)
