"""What the operations `stage`, `publish` and `unstage` ask for, from header and payload."""

from dataclasses import dataclass

from node.store.staging_files import StagedBatch, StageSummary
from node.writer.append_request import AppendRequest, check_crc
from node.writer.requests import batch_of, refuse_payload
from protocol.errors import BadRequest
from protocol.request_checks import staging_id
from protocol.requests import PUBLISH, STAGE, UNSTAGE
from protocol.wire.frames import PAYLOAD_BYTES_MAX, Header

OPERATIONS = ("stage", "publish", "unstage")


@dataclass(frozen=True, slots=True)
class StageRequest:
    """A frame of records; `crc` is that of the payload."""

    batch: StagedBatch
    stage: str
    frame: int
    append: AppendRequest
    crc: int


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """The stages to publish, in this order."""

    batch: StagedBatch
    parts: tuple[StageSummary, ...]
    final: bool


def parse_stage(header: Header, payload: bytes | None) -> StageRequest:
    """Raises BadRequest, MessageTooLarge."""
    if payload is None or len(payload) > PAYLOAD_BYTES_MAX:
        refuse_payload(payload)
    query, batch, stage, frame, records, size, crc, sizes = STAGE.values(header)
    if header.get("queue") is not None:
        raise BadRequest("stage takes no field queue", "each record names its own queue")
    append = batch_of(payload, records, size, crc, sizes, any_queue=False)
    check_crc(append)
    return StageRequest(StagedBatch(query, batch), stage, frame, append, crc)


def parse_publish(header: Header, payload: bytes | None) -> PublishRequest:
    """Raises BadRequest."""
    asked = PUBLISH.parse(header)
    lines = (payload or b"").decode("ascii", "replace").split("\n")[:-1]
    if len(lines) != asked.stages:
        raise BadRequest(
            f"the header says {asked.stages} stages, the payload has {len(lines)} lines",
            "one line for each: stage frames records bytes",
        )
    parts = tuple(_part(line) for line in lines)
    if len({part.stage for part in parts}) < len(parts):
        raise BadRequest("a stage stands there twice", "name each once")
    return PublishRequest(StagedBatch(asked.query, asked.batch), parts, asked.final)


def parse_unstage(header: Header, payload: bytes | None) -> tuple[StagedBatch, str | None]:
    """The batch, and the stage where only one is meant. Raises BadRequest."""
    if payload is not None:
        raise BadRequest("unstage is one frame, two came")
    asked = UNSTAGE.parse(header)
    return StagedBatch(asked.query, asked.batch), asked.stage


def _part(line: str) -> StageSummary:
    words = line.split(" ")
    if len(words) != 4 or not all(word.isdecimal() and len(word) < 19 for word in words[1:]):
        raise BadRequest(f"{line[:80]!a} is no stage", "write: stage frames records bytes")
    return StageSummary(staging_id("stage", words[0]), *map(int, words[1:]))
