"""Records that clients stage: checked as for an append, kept beside the log till published.

Spark's tasks stage rows, and the commit of their batch publishes them (`staging.publisher`), by the
operations `stage`, `publish` and `unstage`. Staged records are not synced: the publication checks
that all of them are there.

Staged bytes are nobody's messages yet, so no acknowledged message may go for them. All that is
staged must fit a second time below the ratio at which messages would go: its publication copies it
into the log before the stages go. When the disk needs room, abandoned batches go first.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from node.access.asking import PortAsker
from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import refusal_for, room_below
from node.runtime.store_paths import held_open
from node.store import staging_files as files
from node.store.checkpoints import own_dir
from node.writer.appender import AppendRequest
from node.writer.log.retention import LOOK_EVERY_S, staging_ratio
from node.writer.requests import batch_of, refuse_payload
from node.writer.topic_table import TopicTable
from protocol import errors
from protocol.derived.dispatch_request import look_up
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR
from protocol.record.append import Sealer
from protocol.record.columns import RecordColumns, scan
from protocol.record.patch import AppendRules
from protocol.record.properties import UNIQUE_KEY
from protocol.request_fields import staging_id
from protocol.requests import PUBLISH, STAGE, UNSTAGE
from protocol.wire.frames import PAYLOAD_BYTES_MAX, Header

log = logging.getLogger("keelog.staging")

OPERATIONS = ("stage", "publish", "unstage")

DROPPED_AT_ONCE_MAX = 100
"""Abandoned batches that one turn of the writer's loop drops."""
_BLOCK_BYTES = 4096
"""A frame may begin a block more than its bytes fill: counted until the next look at the disk."""

QUERIES_MAX = 10_000
"""Queries with something staged, or with a batch that is remembered."""
STAGES_MAX = 10_000
"""Stages of one batch."""
FRAMES_MAX = 100_000
"""Frames of one stage."""
FRAMES_AHEAD_MAX = 64
"""A frame up to this far ahead of its turn is refused as busy: those between may be coming."""


@dataclass(frozen=True, slots=True)
class StageRequest:
    """A frame of records; `crc` is that of the payload."""

    batch: files.StagedBatch
    stage: str
    frame: int
    append: AppendRequest
    crc: int


@dataclass(slots=True)
class Stage:
    """One stage: the checksum of each frame, and how much there is."""

    crcs: list[int] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    end: int = 0
    """Where the next frame begins in the file."""

    def add(self, frame: files.Frame) -> None:
        """Counts a frame that is in the file."""
        self.crcs.append(frame.crc)
        self.records += frame.records
        self.bytes += frame.bytes
        self.end = frame.end


class Old(NamedTuple):
    """What is past its retention: unpublished batches, and queries without any."""

    batches: list[files.StagedBatch]
    queries: list[str]


class Staging:
    """All stages of a store. For the writer's own thread."""

    def __init__(
        self,
        root: Path,
        settings: Settings,
        rules: AppendRules,
        topics: TopicTable,
        record_bytes_max: int,
    ) -> None:
        self.root = root
        self._checker = Sealer(rules)
        self._topics = topics
        self._record_bytes_max = record_bytes_max
        self._stages: dict[files.StagedBatch, dict[str, Stage]] = {}
        self._queries = set(files.list_queries(root))
        self.bytes = sum(
            files.staged_bytes(files.query_dir(root, query)) for query in self._queries
        )
        self.retention_ms = settings.staging_retention_hours * 3_600_000
        """How long a batch may wait for its publication."""
        self.abandoned_ms = settings.staging_abandoned_minutes * 60_000
        """How long nobody has touched a batch that goes when the disk needs room."""
        self.room = StagingRoom(settings, partial(room_left, root, settings))
        self.begun: set[files.StagedBatch] = set()
        """Batches whose publication has begun: nothing more is staged for them."""

    def is_published(self, batch: files.StagedBatch) -> bool:
        """Whether the batch, or one after it, is recorded. Raises StoreDamaged."""
        is_known = batch.query in self._queries
        last = files.load_published(self.root, batch.query) if is_known else None
        return last is not None and batch.number <= last.number

    def bind(self, query: str, asker: PortAsker, begins: bool) -> None:
        """A query is its first user's, until its folder goes. `begins`: the request may be the
        first one of a query.

        Raises NotAllowed for that of another user, or of the operator, StoreDamaged, and
        ServiceNotAvailable when the disk is full. Super users may do everything.
        """
        if asker.is_free:
            return
        if files.query_dir(self.root, query).is_dir():
            owner = files.load_owner(self.root, query)
            if owner != asker.user:
                raise asker.refused(
                    "",
                    f"query {query} was begun by {owner or 'the operator'}, not by {asker.user}.",
                    "begin another one: each stream has a checkpoint of its own",
                )
        elif begins:
            self._check_queries(query)
            try:
                files.save_owner(self.root, query, asker.user)
            except OSError as error:
                if error.errno not in disk.PASSING:
                    raise
                raise refusal_for(error, str(files.query_dir(self.root, query))) from None
            self._queries.add(query)

    def put(self, request: StageRequest) -> Stage | None:
        """Stages a frame, or finds that it is there already; returns the stage so far, None if the
        batch is published already.

        Raises what an append of its records would be refused with, NodeBusy where frames before it
        are missing, NotAllowed over a limit, ServiceNotAvailable when the disk is full.
        """
        batch = request.batch
        if batch in self.begun or self.is_published(batch):
            return None
        stages = self._stages.get(batch, {})
        stage = stages.get(request.stage) or self._found(batch, request.stage)
        number, crc = request.frame, request.crc
        if number < len(stage.crcs):
            if stage.crcs[number] != crc:
                raise errors.BadRequest(
                    f"frame {number} of stage {request.stage} is there with other records",
                    "stage under another id",
                )
            return stage
        if number > len(stage.crcs):
            what = f"frame {number} of stage {request.stage} came, {len(stage.crcs)} is the next"
            if number - len(stage.crcs) <= FRAMES_AHEAD_MAX:
                raise errors.NodeBusy(what, "send the frames between, then this one again")
            raise errors.BadRequest(what, "stage under another id, from frame 0 on")
        self._check_limits(request, stages, stage)
        self.check_records(request.append)
        self._write(request, stage)
        self._queries.add(batch.query)
        self._stages.setdefault(batch, {})[request.stage] = stage
        return stage

    def _found(self, batch: files.StagedBatch, name: str) -> Stage:
        """A stage of the files: a writer before this one may have taken its first frames."""
        stage = Stage()
        for frame in files.frames_of(files.stage_path(self.root, batch, name)):
            stage.add(frame)
        return stage

    def _check_limits(self, request: StageRequest, stages: dict[str, Stage], stage: Stage) -> None:
        if len(stage.crcs) >= FRAMES_MAX:
            raise errors.NotAllowed(
                f"stage {request.stage} has {FRAMES_MAX} frames", "use larger frames"
            )
        if not stage.crcs and len(stages) >= STAGES_MAX:
            raise errors.NotAllowed(
                f"{request.batch} has {STAGES_MAX} stages", "use fewer partitions"
            )
        self._check_queries(request.batch.query)
        self.room.check(self.bytes, len(request.append.records))

    def _check_queries(self, query: str) -> None:
        if query not in self._queries and len(self._queries) >= QUERIES_MAX:
            raise errors.NotAllowed(
                f"{QUERIES_MAX} queries have staged batches or are remembered",
                "remove the folders of queries that have ended from"
                f" {files.staging_dir(self.root)}",
            )

    def check_records(self, request: AppendRequest) -> None:
        """Raises what an append would be refused with, and IllegalMessage without unique keys."""
        parts = self._checker.check(request)
        columns = scan(request.records, base=None, sealed=False).columns
        over = np.flatnonzero(columns.size > self._record_bytes_max)
        if len(over):
            raise errors.MessageTooLarge(
                f"record {over[0]} of the batch has {columns.size[over[0]]} bytes, a segment of the"
                f" log takes {self._record_bytes_max}",
                "send smaller messages",
            )
        for part in parts:
            self._topics.check_queue(self._topics.would_take(part.topic), part.queue_id)
        without = _first_without_unique_key(columns)
        if without is not None:
            raise errors.IllegalMessage(
                f"record {without} of the batch has no {UNIQUE_KEY}, by which a staged record is"
                " found again after a crash",
                "give each a unique key",
            )

    def _write(self, request: StageRequest, stage: Stage) -> None:
        path = files.stage_path(self.root, request.batch, request.stage)
        records = request.append.records
        frame = files.frame_bytes(request.frame, request.append.count, records)
        try:
            if not stage.crcs:
                files.make_trash(self.root)
                disk.make_dir(path.parent)
            with held_open(disk.open_file(path, create=True, own=True)) as descriptor:
                if os.fstat(descriptor).st_size > stage.end:
                    disk.set_length(descriptor, stage.end)
                disk.write_all(descriptor, frame, stage.end)
        except OSError as error:
            if error.errno in disk.PASSING:
                raise refusal_for(error, str(path)) from None
            raise errors.ServiceNotAvailable(
                f"{path} cannot be written: {error.strerror}", "mend the disk; staging goes on"
            ) from None
        start = stage.end + len(frame) - len(records)
        stage.add(files.Frame(start, request.append.count, len(records), request.crc))
        self.bytes += len(frame)
        self.room.take(len(frame))

    def drop(self, batch: files.StagedBatch, stage: str | None) -> int:
        """Removes one stage, or all of a batch; returns how many there were.

        A batch whose publication has begun stays: it ends by itself. Dropped files are moved aside,
        and `jobs.sweep` removes them. Raises ServiceNotAvailable if the disk is too full.
        """
        if batch in self.begun:
            return 0
        if stage is None:
            stages = files.list_stages(self.root, batch)
            if files.batch_dir(self.root, batch).is_dir():
                size = files.staged_bytes(files.batch_dir(self.root, batch))
                self._discard(files.batch_dir(self.root, batch))
                self.bytes -= size
            self._stages.pop(batch, None)
            return len(stages)
        path = files.stage_path(self.root, batch, stage)
        self._stages.get(batch, {}).pop(stage, None)
        if not path.exists():
            return 0
        self.bytes -= path.stat().st_size
        disk.unlink(path)
        return 1

    def _discard(self, folder: Path) -> None:
        try:
            files.move_to_trash(self.root, folder)
        except OSError as error:
            if error.errno not in disk.DISK_FULL:
                raise
            why = f"disk_full: {folder} cannot be moved aside: {error.strerror}"
            raise errors.ServiceNotAvailable(why, "free space, then drop it again") from None

    def ended(self, batch: files.StagedBatch) -> None:
        """Its publication is over; the folder of its query stays."""
        self.begun.discard(batch)
        self._stages.pop(batch, None)
        self._queries.add(batch.query)

    def expire(self, found: Old, now_ms: int) -> None:
        """Drops what was found to be too old, unless it has been touched since."""
        self.drop_untouched(found.batches, now_ms - self.retention_ms)
        busy = {batch.query for batch in self.begun}
        for query in found.queries:
            # One whose first publication begins just now has an owner, and no batch yet.
            if query in busy or not files.query_dir(self.root, query).is_dir():
                continue
            if not files.list_batches(self.root, query):
                with suppress(errors.ServiceNotAvailable):
                    self._discard(files.query_dir(self.root, query))
                    self._queries.discard(query)

    def drop_untouched(self, batches: Iterable[files.StagedBatch], limit_ms: int) -> int:
        """Drops those that have not been touched since `limit_ms`; returns how many."""
        dropped = 0
        for batch in batches:
            folder = files.batch_dir(self.root, batch)
            if not folder.is_dir() or files.touched_ms(folder) >= limit_ms or batch in self.begun:
                continue
            try:
                self.drop(batch, None)
            except errors.ServiceNotAvailable as error:
                details = fields(batch=batch, why=error.reason)
                log.warning("a batch that nobody publishes cannot be dropped", extra=details)
                continue
            dropped += 1
            log.warning("a batch was staged and not published: dropped", extra=fields(batch=batch))
        return dropped


class StagingRoom:
    """Looks at the disk once a second, and counts what was staged since."""

    def __init__(
        self,
        settings: Settings,
        look: Callable[[], int],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.look = look
        self.missing = 0
        """The bytes that must go before a refused frame fits; 0 when none was refused."""
        self._settings = settings
        self._monotonic_s = monotonic_s
        self._look_at = float("-inf")
        self._room = 0
        self._is_refusing = False

    def check(self, staged: int, size: int) -> None:
        """Raises NotAllowed above `staging_bytes_max`, ServiceNotAvailable where the disk lacks
        room. `staged`: the bytes of all stages."""
        limit = self._settings.staging_bytes_max
        if limit and staged + size > limit:
            raise errors.NotAllowed(
                f"{staged} bytes are staged, staging_bytes_max is {limit}",
                "publish or drop what is staged, or raise the setting",
            )
        now = self._monotonic_s()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._room = self.look()
        missing = staged + size - (self._room + staged) // 2
        if missing <= 0:
            self._note(None)
            return
        self.missing = max(self.missing, missing)
        why = (
            f"disk_full: {staged} bytes are staged, {max(self._room, 0)} are left below"
            f" {staging_ratio(self._settings)} % of the disk: {size} more could not be published"
        )
        self._note(why)
        raise errors.ServiceNotAvailable(
            why, "free space, or publish or drop what is staged; staging then goes on by itself"
        )

    def take(self, size: int) -> None:
        """Counts a frame that was staged."""
        self._room -= size + _BLOCK_BYTES

    def _note(self, why: str | None) -> None:
        if why is not None and not self._is_refusing:
            log.warning("no more is staged", extra=fields(why=why))
        elif why is None and self._is_refusing:
            log.info("staging has room again")
        self._is_refusing = why is not None


def parse_stage(header: Header, payload: bytes | None) -> StageRequest:
    """Raises BadRequest, MessageTooLarge."""
    if payload is None or len(payload) > PAYLOAD_BYTES_MAX:
        refuse_payload(payload)
    query, batch, stage, frame, records, size, crc, sizes = STAGE.values(header)
    if header.get("queue") is not None:
        raise errors.BadRequest("stage takes no field queue", "each record names its own queue")
    append = batch_of(payload, records, size, crc, sizes, any_queue=False)
    append.check_crc()
    return StageRequest(files.StagedBatch(query, batch), stage, frame, append, crc)


def parse_publish(
    header: Header, payload: bytes | None
) -> tuple[files.StagedBatch, tuple[files.StageSummary, ...], bool]:
    """The batch, its stages in the order in which they are published, and whether it is the last
    one of its query. Raises BadRequest."""
    asked = PUBLISH.parse(header)
    lines = (payload or b"").decode("ascii", "replace").split("\n")[:-1]
    if len(lines) != asked.stages:
        raise errors.BadRequest(
            f"the header says {asked.stages} stages, the payload has {len(lines)} lines",
            "one line for each: stage frames records bytes",
        )
    parts = tuple(_part(line) for line in lines)
    if len({part.stage for part in parts}) < len(parts):
        raise errors.BadRequest("a stage stands there twice", "name each once")
    return files.StagedBatch(asked.query, asked.batch), parts, asked.final


def parse_unstage(header: Header, payload: bytes | None) -> tuple[files.StagedBatch, str | None]:
    """The batch, and the stage where only one is meant. Raises BadRequest."""
    if payload is not None:
        raise errors.BadRequest("unstage is one frame, two came")
    asked = UNSTAGE.parse(header)
    return files.StagedBatch(asked.query, asked.batch), asked.stage


def _part(line: str) -> files.StageSummary:
    words = line.split(" ")
    if len(words) != 4 or not all(word.isdecimal() and len(word) < 19 for word in words[1:]):
        raise errors.BadRequest(f"{line[:80]!a} is no stage", "write: stage frames records bytes")
    return files.StageSummary(staging_id("stage", words[0]), *map(int, words[1:]))


class Idle(NamedTuple):
    """A batch whose publication has not begun, and when it was last written to."""

    touched_ms: int
    batch: files.StagedBatch
    bytes: int


def first_to_go(idle: Sequence[Idle], wanted: int) -> list[files.StagedBatch]:
    """The batches that were untouched for longest, until they have `wanted` bytes together."""
    chosen: list[files.StagedBatch] = []
    freed = 0
    for one in sorted(idle)[:DROPPED_AT_ONCE_MAX]:
        if freed >= wanted:
            break
        chosen.append(one.batch)
        freed += one.bytes
    return chosen


def room_left(root: Path, settings: Settings) -> int:
    """The bytes that the fullest file system of a store has left below the staging ratio."""
    places = (own_dir(root), root / COMMIT_LOG_DIR, root / CONSUME_QUEUE_DIR)
    ratio = staging_ratio(settings)
    return min(room_below(place, ratio) for place in places if place.is_dir())


def find_old(root: Path, limit_ms: int) -> Old:
    """The batches not touched since `limit_ms`, and the queries that ended before. Only reads."""
    old = Old([one.batch for one in find_idle(root, limit_ms)], [])
    for query in files.list_queries(root):
        if not files.list_batches(root, query):
            last = files.load_published(root, query)
            if last is None or (last.final and last.time_ms < limit_ms):
                old.queries.append(query)
    return old


def find_idle(root: Path, limit_ms: int) -> list[Idle]:
    """The batches without a journal that nobody has touched since `limit_ms`. Changes nothing."""
    found: list[Idle] = []
    for query in files.list_queries(root):
        for batch in files.list_batches(root, query):
            folder = files.batch_dir(root, batch)
            # The writer's loop may drop it at this moment.
            with suppress(FileNotFoundError):
                touched = files.touched_ms(folder)
                if touched < limit_ms and not files.journal_path(root, batch).exists():
                    found.append(Idle(touched, batch, files.staged_bytes(folder)))
    return found


def _first_without_unique_key(columns: RecordColumns) -> int | None:
    found = look_up(columns.data, columns.properties_start, columns.properties_length)
    has = found[UNIQUE_KEY.encode()].length > 0
    return None if has.all() else int(np.argmin(has))
