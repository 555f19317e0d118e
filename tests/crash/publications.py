"""A client that stages batches and publishes them through crashes, as Spark's tasks and commits do.

Its rows are the oracle: whatever happens, each row of a batch that was answered is in the log once.
"""

import random
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from node.serving.request_server import Received
from node.store.staging_files import StageSummary
from protocol.record.codec import Filler, Record, decode
from protocol.record.encode import NewMessage, encode_message
from protocol.wire.frames import VERSION, pack
from tests.crash.scene import Scene
from tests.crash.truth import Violation
from tests.crash.writer_life import WriterLife, tiny_settings

TURNS_MAX = 2_000
QUEUES = 3
Fields = dict[str, Any]


class Refused(Exception):
    """The node's answer was an error; `kind` is its class."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


class Row(NamedTuple):
    """A message that a batch must bring into the log once."""

    body: bytes
    queue_id: int


def rows_of(batch: int, parts: int, count: int, size: int) -> list[list[Row]]:
    """The rows of a batch, by part; bodies name batch, part and number."""
    return [
        [
            Row(f"b{batch}.p{part}.{i:03d}.".encode().ljust(size, b"x"), i % QUEUES)
            for i in range(count)
        ]
        for part in range(parts)
    ]


def encode_rows(rows: Sequence[Row], stage: str, crc: bool = True) -> list[bytes]:
    """Their records, with unique keys that name the stage."""
    return [
        encode_message(
            NewMessage(
                topic="staged", body=row.body, queue_id=row.queue_id, unique_key=f"{stage}-{i}",
                tags="spark", properties={"row": str(i)},
            ),
            crc,
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip


class StagingClient:
    """Sends the operations into a writer that is moved by hand, and finds its answers."""

    def __init__(self, life: WriterLife) -> None:
        self.life = life
        self._next = 1 << 41

    def send(self, op: str, payload: bytes | None = None, **fields: Any) -> int:
        """Hands a request to the writer; answers its number."""
        self._next += 1
        header = {"v": VERSION, "op": op, "id": self._next, **fields}
        self.life.server.requests.append(Received(b"spark", pack(header), payload))
        return self._next

    def turn(self) -> None:
        """The threads do what they were told, then the loop turns."""
        self.life.run_jobs()
        self.life.now += 0.3
        self.life.writer.step(self.life.now)

    def answer(self, number: int) -> Fields | None:
        """The answer, when it is there. Raises Refused."""
        for answer in self.life.server.answers:
            if answer["id"] == number:
                self.life.server.answers.remove(answer)
                if not answer["ok"]:
                    raise Refused(answer["error"]["kind"], answer["error"]["reason"])
                return answer
        return None

    def ask(self, op: str, payload: bytes | None = None, **fields: Any) -> Fields:
        """Turns until the answer is there. Raises Refused."""
        number = self.send(op, payload, **fields)
        for _ in range(TURNS_MAX):
            found = self.answer(number)
            if found is not None:
                return found
            self.turn()
        raise Violation(f"no answer to {op} {fields} in {TURNS_MAX} turns")

    def stage(self, records: Sequence[bytes], frame: int = 0, **fields: Any) -> Fields:
        """One frame."""
        payload = b"".join(records)
        sizes = {"count": len(records), "bytes": len(payload), "crc": zlib.crc32(payload)}
        return self.ask("stage", payload, frame=frame, **{**sizes, **fields})

    def publish(
        self, query: str, batch: int, parts: Sequence[StageSummary], **fields: Any
    ) -> Fields:
        """Waits for its end; a node that is busy is asked again."""
        asked = {"query": query, "batch": batch, "stages": len(parts), **fields}
        for _ in range(TURNS_MAX):
            try:
                return self.ask("publish", lines_of(parts), **asked)
            except Refused as refused:
                if refused.kind != "NodeBusy":
                    raise
                self.turn()
        raise Violation(f"batch {batch} is busy for {TURNS_MAX} turns")


def lines_of(parts: Sequence[StageSummary]) -> bytes:
    """The payload of `publish`."""
    return "".join(f"{p.stage} {p.frames} {p.records} {p.bytes}\n" for p in parts).encode()


def stage_rows(
    client: StagingClient, place: tuple[str, int], stage: str, rows: Sequence[Row], per_frame: int
) -> StageSummary | None:
    """Stages rows in frames; None when the batch is published already."""
    query, batch = place
    records = encode_rows(rows, stage)
    frames = [records[at : at + per_frame] for at in range(0, len(records), per_frame)]
    for number, frame in enumerate(frames):
        answer = client.stage(frame, number, query=query, batch=batch, stage=stage)
        if answer["published"]:
            return None
    return StageSummary(stage, len(frames), len(records), sum(map(len, records)))


def log_records(data: bytes, segment_bytes: int) -> list[Record]:
    """All records of a log."""
    found: list[Record] = []
    at = 0
    while at < len(data):
        stop = at - at % segment_bytes + segment_bytes
        stands = decode(data[at:stop].ljust(stop - at, b"\0"), 0, at)
        if isinstance(stands, Record):
            found.append(stands)
        elif not isinstance(stands, Filler):
            break
        at += stands.size
    return found


class PublicationHistory:
    """One seed: batches of a query, published by a client that repeats what had no answer."""

    def __init__(self, seed: int, folder: Path, batches: int = 2) -> None:
        self.rnd = random.Random(seed)
        mode = self.rnd.choice(["sync", "async", "async", "pool"])
        self.scene = Scene(folder, seed=seed)
        self.scene.settings = replace(
            tiny_settings(self.rnd, mode),
            mapped_file_size_commit_log=self.scene.truth.segment_bytes,
        )
        self.batches = batches
        self.attempts = 0
        self.published: dict[int, list[list[Row]]] = {}
        """What was answered as published."""
        self._last_parts: tuple[int, list[StageSummary]] | None = None

    def go_on(self, life: WriterLife) -> None:
        """Publishes what is not yet, beginning with what had no answer."""
        client = StagingClient(life)
        for batch in range(len(self.published), self.batches):
            rows = rows_of(batch, 2, 5, 40)
            repeated = self._last_parts is not None and self._last_parts[0] == batch
            if not (repeated and self._repeat(client)):
                self._stage_and_publish(client, batch, rows)
            self.published[batch] = rows
            self._last_parts = None
        self.check(life)

    def _repeat(self, client: StagingClient) -> bool:
        """The commit had no answer: it is asked for again. False when its stages are lost."""
        assert self._last_parts is not None
        batch, parts = self._last_parts
        try:
            client.publish("q", batch, parts)
        except Refused as refused:
            if refused.kind != "NotFound":
                raise Violation(f"batch {batch}: {refused}") from None
            return False
        return True

    def _stage_and_publish(self, client: StagingClient, batch: int, rows: list[list[Row]]) -> None:
        parts: list[StageSummary] = []
        self.attempts += 1
        for number, part in enumerate(rows):
            stage = f"s{self.attempts}-{number}"
            staged = stage_rows(client, ("q", batch), stage, part, per_frame=3)
            self._others(client.life)
            if staged is not None:
                parts.append(staged)
        self._last_parts = batch, parts
        client.publish("q", batch, parts)

    def _others(self, life: WriterLife) -> None:
        """Other producers send meanwhile."""
        life.turn(self.scene.producer, self.rnd.choice([0, 1, 2]), 0.1)

    def check(self, life: WriterLife) -> None:
        """Each row of a published batch once, in the order of its queue; no row twice at all."""
        data = bytes(self.scene.truth.data[: life.store.log.end])
        stored = [
            record
            for record in log_records(data, self.scene.truth.segment_bytes)
            if record.topic == "staged"
        ]
        counts = Counter(record.body for record in stored)
        twice = [body for body, count in counts.items() if count > 1]
        if twice:
            raise Violation(f"stored more than once: {twice[:3]}")
        for batch, parts in self.published.items():
            rows = [row for part in parts for row in part]
            missing = [row.body for row in rows if row.body not in counts]
            if missing:
                raise Violation(f"batch {batch} lacks {missing[:3]}")
            for queue in range(QUEUES):
                wanted = [row.body for row in rows if row.queue_id == queue]
                found = [
                    record.body
                    for record in stored
                    if record.head.queue_id == queue and record.body in wanted
                ]
                if found != wanted:
                    raise Violation(f"batch {batch}, queue {queue}: another order")
