"""Sends over RocketMQ's protocol from one connection, many of them under way."""

import socket
import threading
from typing import Self

from protocol.remoting.codes import Language, RequestCode, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader, Serialization

UNDER_WAY_MAX = 1_000
BUFFER_BYTES = 32 * 1024


class PipelinedSends:
    """A producer. Leaving it waits for the answers, and raises RuntimeError for a refusal."""

    def __init__(self, host: str, port: int, topic: str) -> None:
        self._socket = socket.create_connection((host, port), timeout=60.0)
        self._topic = topic
        self._room = threading.Semaphore(UNDER_WAY_MAX)
        self._unsent = bytearray()
        self._sent = 0
        self._answered = 0
        self._refusal = ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def send(self, queue_id: int, properties: str, body: bytes) -> None:
        """Sends one message; waits while too many have no answer."""
        if not self._room.acquire(blocking=False):
            self._flush()
            self._room.acquire()
        self._sent += 1
        fields = {
            "a": "load", "b": self._topic, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0",
            "g": "0", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        header = RemotingHeader(
            RequestCode.SEND_MESSAGE_V2, self._sent, 0, fields,
            language=Language.JAVA, serialization=Serialization.ROCKETMQ,
        )  # fmt: skip
        self._unsent += frame_head(header, len(body))
        self._unsent += body
        if len(self._unsent) >= BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._refusal:
            raise RuntimeError(self._refusal)
        self._socket.sendall(self._unsent)
        self._unsent.clear()

    def _read(self) -> None:
        reader = FrameReader()
        while True:
            try:
                size = self._socket.recv_into(reader.room())
            except OSError:
                return
            if not size:
                return
            for header, _body in reader.received(size):
                if header.code != ResponseCode.SUCCESS and not self._refusal:
                    self._refusal = f"refused with {header.code}: {header.remark}"
                self._answered += 1
                self._room.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._flush()
            for _room in range(UNDER_WAY_MAX):
                if not self._room.acquire(timeout=60.0):
                    raise RuntimeError(f"{self._sent - self._answered} sends got no answer")
            if self._refusal:
                raise RuntimeError(self._refusal)
        self._socket.close()
