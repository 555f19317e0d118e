"""A real writer process on a folder, and a raw socket to it."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import zmq

from node.store.identity.places import create_store
from protocol.record.encode import EncodedRecords
from protocol.wire.frames import VERSION, pack, unpack_answer
from tests.support.single_process import SingleProcess

START_S = 60


class WriterProcess(SingleProcess):
    """A writer; its `endpoint` is empty when it ends before it is ready."""

    def __init__(
        self,
        root: Path,
        settings: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        creates: bool = True,
    ) -> None:
        """`creates`: whether a store is made of `root` before, as a supervisor does."""
        self.root = root
        if creates:
            create_store(root)
        words = [word for pair in settings for word in ("-X", pair)]
        bind = ("--bind", "tcp://127.0.0.1:0")
        super().__init__("node.writer.loop", root, *bind, *words, wait=False, env=env)
        self.hear()


class RawClient:
    """A DEALER socket that speaks frames, good or bad."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, START_S * 1000)
        self.socket.connect(endpoint)
        self._id = 0

    def frames(self, *frames: bytes) -> dict[str, Any]:
        """Sends frames as they are; answers the header of the answer."""
        self.socket.send_multipart(frames)
        return unpack_answer(self.socket.recv_multipart()[0])

    def ask(self, op: str, payload: bytes | None = None, **fields: Any) -> dict[str, Any]:
        """One well-formed request; the answer must name its id."""
        self._id += 1
        header = pack({"v": VERSION, "op": op, "id": self._id, **fields})
        answer = self.frames(header) if payload is None else self.frames(header, payload)
        assert answer["id"] == self._id
        return answer

    def append(self, batch: EncodedRecords, **fields: Any) -> dict[str, Any]:
        """An `append` of ready-made records; fields override what the header says."""
        header: dict[str, Any] = {
            "count": len(batch.sizes),
            "bytes": len(batch.records),
            "crc": zlib.crc32(batch.records),
        }
        return self.ask("append", batch.records, **{**header, **fields})

    def close(self) -> None:
        """Gives the socket back."""
        self.socket.close(0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
