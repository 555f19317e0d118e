"""Stages batches at a node and publishes them, each once: the client side of Spark's sink.

Everything here may be repeated: a frame that is there is not staged again, a batch that is
published is not published again. So calls go on through lost connections and a writer that is
started again, until their time is up.
"""

import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from time import monotonic
from typing import NamedTuple, Self

from keelog.client.client import run
from keelog.client.core import ClientCore
from keelog.client.operations import topics
from keelog.client.transport.exchange import Call, NodeAnswer, NodeRole, Retry
from keelog.client.transport.keys import ClientKeys
from keelog.client.transport.routes import Routes
from protocol.errors import UnknownTopic
from protocol.wire.frames import PAYLOAD_BYTES_MAX

FRAMES_UNDER_WAY_MAX = 8
"""Frames of one stage without an answer; `put` then waits for the oldest."""
CONNECT_S_MAX = 10.0
_PATIENT = Retry(max_attempts=1_000_000, backoff=0.02, backoff_max=0.5)


class StagedPart(NamedTuple):
    """One stage, as `publish` wants it; `bytes` are those of its records."""

    stage: str
    frames: int
    records: int
    bytes: int


class PublishOutcome(NamedTuple):
    """`already`: the batch, or a later one of the query, was published before."""

    already: bool
    records: int
    bytes: int


class StageClient:
    """One connection to one node. Times are in seconds and for each call, its repeats included."""

    def __init__(self, url: str, timeout: float = 60.0, keys: ClientKeys | None = None) -> None:
        """Connects. Raises NotConnected without an answer, BadRequest for a bad address."""
        self.timeout = timeout
        self._core = ClientCore(url, min(timeout, CONNECT_S_MAX), _PATIENT, keys=keys)
        try:
            self.routes: Routes = run(self._core, self._core.open())
        except BaseException:
            self._core.close()
            raise

    def write_queues(self, topic: str) -> int:
        """How many queues of a topic are written to. Raises UnknownTopic where there is none."""
        for found in run(self._core, topics(monotonic() + self.timeout, NodeRole.WRITER)):
            if found.topic == topic:
                return found.write_queues
        raise UnknownTopic(f"there is no topic {topic}")

    def stage(self, query: str, batch: int, stage: str) -> "StageWriter":
        """A new stage; nothing is sent yet."""
        return StageWriter(self, query, batch, stage)

    def start(self, call: Call) -> "Future[NodeAnswer]":
        return self._core.start(call)

    def publish(
        self,
        query: str,
        batch: int,
        parts: Sequence[StagedPart],
        final: bool = False,
        timeout: float | None = None,
    ) -> PublishOutcome:
        """Publishes the stages in this order, and waits until all is in the log and on disk.

        `final`: no batch of the query follows. Raises NotFound when a stage is not all there,
        RequestTimeout when it takes longer; it goes on then, and may be waited for again.
        """
        lines = "".join(
            f"{part.stage} {part.frames} {part.records} {part.bytes}\n" for part in parts
        )
        fields = {"query": query, "batch": batch, "stages": len(parts), "final": final}
        deadline = monotonic() + (self.timeout if timeout is None else timeout)
        call = Call(NodeRole.WRITER, "publish", fields, deadline, payload=lines.encode())
        header = self.start(call).result().header
        return PublishOutcome(header["already"], header["records"], header["bytes"])

    def unstage(
        self, query: str, batch: int, stage: str | None = None, timeout: float | None = None
    ) -> int:
        """Drops what is staged of a batch that is not published, or one stage of it; returns how
        many stages."""
        fields = {"query": query, "batch": batch} | ({} if stage is None else {"stage": stage})
        deadline = monotonic() + (self.timeout if timeout is None else timeout)
        call = Call(NodeRole.WRITER, "unstage", fields, deadline)
        dropped: int = self.start(call).result().header["dropped"]
        return dropped

    def close(self) -> None:
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StageWriter:
    """One stage: frames go out while the next ones are made. For one thread."""

    def __init__(self, client: StageClient, query: str, batch: int, stage: str) -> None:
        self._client = client
        self._place = {"query": query, "batch": batch, "stage": stage}
        self._stage = stage
        self._under_way: list[Future[NodeAnswer]] = []
        self._frames = self._records = self._bytes = 0
        self.published = False
        """The batch is published already: nothing more need be staged."""

    def put(self, records: bytes | memoryview, count: int) -> None:
        """Sends a frame of `count` encoded records, of at most 4 MiB. Do not change them later.

        Raises what this frame or one before it was refused with.
        """
        size = len(records)
        assert 0 < size <= PAYLOAD_BYTES_MAX
        fields = {
            **self._place,
            "frame": self._frames,
            "count": count,
            "bytes": size,
            "crc": zlib.crc32(records),
        }
        while len(self._under_way) >= FRAMES_UNDER_WAY_MAX:
            self._take_oldest()
        deadline = monotonic() + self._client.timeout
        call = Call(NodeRole.WRITER, "stage", fields, deadline, payload=records)
        self._under_way.append(self._client.start(call))
        self._frames += 1
        self._records += count
        self._bytes += size

    def _take_oldest(self) -> None:
        answer = self._under_way.pop(0).result()
        self.published = self.published or answer.header["published"]

    def finish(self) -> StagedPart | None:
        """Waits for all answers; None when nothing was staged, or the batch is published."""
        while self._under_way:
            self._take_oldest()
        if self.published or not self._frames:
            return None
        return StagedPart(self._stage, self._frames, self._records, self._bytes)
