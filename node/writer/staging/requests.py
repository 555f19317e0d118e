"""What the operations `stage`, `publish` and `unstage` ask for, from header and payload."""

from dataclasses import dataclass

from node.store.staging_files import BATCH_MAX, StagedBatch, StageSummary, check_id
from node.writer.append_request import AppendRequest, check_crc
from node.writer.requests import parse_append
from protocol.errors import BadRequest
from protocol.wire.frames import Header, take, take_int

OPERATIONS = ("stage", "publish", "unstage")
PARTS_MAX = 10_000
_FRAME_MAX = 2**31 - 1


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


def parse_batch(header: Header) -> StagedBatch:
    """The fields `query` and `batch`. Raises BadRequest."""
    query = check_id("query", take(header, "query", str))
    return StagedBatch(query, take_int(header, "batch", 0, BATCH_MAX))


def parse_stage(header: Header, payload: bytes | None) -> StageRequest:
    """Raises BadRequest, MessageTooLarge."""
    batch = parse_batch(header)
    stage = check_id("stage", take(header, "stage", str))
    frame = take_int(header, "frame", 0, _FRAME_MAX)
    append = parse_append(header, payload)
    if append.any_queue:
        raise BadRequest("stage takes no field queue", "each record names its own queue")
    check_crc(append)
    assert append.crc is not None
    return StageRequest(batch, stage, frame, append, append.crc)


def parse_publish(header: Header, payload: bytes | None) -> PublishRequest:
    """Raises BadRequest."""
    batch = parse_batch(header)
    final = take(header, "final", bool, False)
    count = take_int(header, "stages", 0, PARTS_MAX)
    lines = (payload or b"").decode("ascii", "replace").split("\n")[:-1]
    if len(lines) != count:
        raise BadRequest(
            f"the header says {count} stages, the payload has {len(lines)} lines",
            "one line for each: stage frames records bytes",
        )
    parts = tuple(_part(line) for line in lines)
    if len({part.stage for part in parts}) < len(parts):
        raise BadRequest("a stage stands there twice", "name each once")
    return PublishRequest(batch, parts, final)


def parse_unstage(header: Header, payload: bytes | None) -> tuple[StagedBatch, str | None]:
    """The batch, and the stage where only one is meant. Raises BadRequest."""
    if payload is not None:
        raise BadRequest("unstage is one frame, two came")
    stage = take(header, "stage", str, None)
    return parse_batch(header), None if stage is None else check_id("stage", stage)


def _part(line: str) -> StageSummary:
    words = line.split(" ")
    if len(words) != 4 or not all(word.isdecimal() and len(word) < 19 for word in words[1:]):
        raise BadRequest(f"{line[:80]!a} is no stage", "write: stage frames records bytes")
    return StageSummary(check_id("stage", words[0]), *map(int, words[1:]))
