"""Publishes staged batches, each exactly once: a small machine that the writer's loop turns.

A batch goes through four states. *Begin*: its stages are synced and verified, a journal says from
which durable log offset on its records may be found. *Append*: a chunk in each turn of the loop,
between the requests of others. *Flush*: the last chunk must be durable. *Record*: the ledger of its
query names it; only then are its requests answered. A writer that starts again finds the journal
and *resumes*: the log itself shows how far the batch had come.

`StagingService` is what the writer's loop calls, for the operations `stage`, `publish` and
`unstage` and for the turns of publications.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from node.runtime.disk import if_room
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.runtime.shortage import is_shortage
from node.serving.request_server import Received, Server
from node.store.staging_files import (
    BatchPosition,
    Journal,
    Published,
    StagedBatch,
    StageSummary,
    clear_problem,
    journal_path,
    list_batches,
    list_queries,
)
from node.writer.appender import AppendRequest
from node.writer.log.flush import JobThread
from node.writer.staging.jobs import (
    Begin,
    Forget,
    MakeRoom,
    RecordPublished,
    Resume,
    SaveCheckpoint,
    StagingJob,
    StagingNote,
    Sweep,
)
from node.writer.staging.reading import StagedRecords
from node.writer.staging.stages import (
    PublishRequest,
    Staging,
    parse_publish,
    parse_stage,
    parse_unstage,
)
from node.writer.store import WriterStore
from protocol.errors import MqError, NodeBusy, ServiceNotAvailable, StoreDamaged, UnknownOperation
from protocol.wire.frames import Header, answer, refusal, request_id

log = logging.getLogger("keelog.staging")

PUBLISH_BYTES_MAX = 256 * 1024
"""How much of a batch one turn of the loop appends; other requests wait for that long."""
PUBLICATIONS_MAX = 100
"""Batches that are published or wait for it."""
WAITERS_MAX = 64
"""Requests that wait for one publication."""
CHECKPOINT_BYTES = 16 * 1024 * 1024
"""The journal moves on each time that this much was appended, once it is flushed."""
RETRY_S = 1.0
"""How soon a full disk is tried again."""
SWEEP_EVERY_S = 60.0
ABANDONED_EVERY_S = 5.0
"""How soon abandoned batches are looked for again, after none was found."""

Append = Callable[[list[AppendRequest], float], None]


@dataclass(slots=True)
class Waiter:
    """A request that waits for the publication's end."""

    peer: bytes
    request_id: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The good answer to a request for a publication. `already`: it was recorded before."""

    already: bool
    records: int = 0
    bytes: int = 0


class StagingService:
    """Staging, as the writer's loop sees it. `append` writes records to the log and announces them.

    `flushed` returns the log offset below which all is durable.
    """

    def __init__(
        self, store: WriterStore, server: Server, append: Append, flushed: Callable[[], int]
    ) -> None:
        self._store = store
        self._server = server
        self._append = append
        record_bytes_max = store.log.request_bytes_max
        self._staging = Staging(
            store.root, store.settings, store.rules, store.topics, record_bytes_max
        )
        self.publisher = Publisher(store.root, self._staging, flushed, store.log.end)
        store.needed_from = self.publisher.needed_from
        store.retention.make_room = self.publisher.make_room

    def handle(self, received: Received, header: Header, operation: str) -> Header | None:
        """The answer; None for a publication, whose answer comes later. Raises MqError."""
        number = request_id(header)
        # Kept for longer than the socket's memory should be.
        payload = None if received.payload is None else bytes(received.payload)
        if operation == "stage":
            self._store.retention.check_room()
            staged = self._staging.put(parse_stage(header, payload))
            return answer(
                number,
                published=staged.published,
                frames=len(staged.stage.crcs),
                records=staged.stage.records,
                bytes=staged.stage.bytes,
            )
        if operation == "publish":
            request = parse_publish(header, payload)
            waiter = Waiter(received.peer, number)
            outcome = self.publisher.publish(request, waiter)
            return None if outcome is None else self._published(waiter, outcome)
        if operation == "unstage":
            return answer(number, dropped=self._staging.drop(*parse_unstage(header, payload)))
        raise UnknownOperation(f"the writer knows no operation {operation[:40]!a}")

    def step(self, now: float, stopping: bool) -> None:
        """One turn: takes the result of a job, begins the next, and appends a chunk."""
        # A clock that is set forward must not make batches older.
        time_ms = min(now_ms(), int(self._store.retention.clock.now_s() * 1000))
        self.publisher.turn(now, time_ms, self._answer)
        if stopping:
            return
        if self._store.retention.full is not None:
            self.publisher.pause(now)
            return
        bytes_max = self._store.log.request_bytes_max
        request = self.publisher.next_append(now, bytes_max, self._answer)
        if request is not None:
            self._append([request], now)
            self.publisher.appended(request, now, self._answer)

    def _answer(self, waiter: Waiter, outcome: Outcome | MqError) -> None:
        if isinstance(outcome, MqError):
            self._server.send(waiter.peer, refusal(waiter.request_id, outcome))
        else:
            self._server.send(waiter.peer, self._published(waiter, outcome))

    def _published(self, waiter: Waiter, outcome: Outcome) -> Header:
        return answer(
            waiter.request_id,
            already=outcome.already,
            records=outcome.records,
            bytes=outcome.bytes,
            epoch=self._store.epoch,
        )

    def close(self) -> None:
        """Ends the thread. Publications that have begun go on at the next start."""
        self.publisher.close(self._answer)


Answer = Callable[[Waiter, Outcome | MqError], None]


class PublicationState(Enum):
    """The states of a publication; the value is what it waits for."""

    WAITING = "its turn"
    BEGINNING = "its journal"
    RESUMING = "a look into the log"
    APPENDING = "the next turns"
    FLUSHING = "the disk"
    RECORDING = "the ledger"
    BLOCKED = "a request that repeats it"


@dataclass(slots=True)
class Publication:
    """One batch on its way."""

    batch: StagedBatch
    parts: tuple[StageSummary, ...] = ()
    final: bool = False
    state: PublicationState = PublicationState.WAITING
    begun: bool = False
    """Whether there is a journal: then it ends by itself, also after a restart."""
    source: StagedRecords | None = None
    end: int = 0
    """After its last record in the log."""
    noted: int = 0
    """The log offset at which `checkpoint`, the journal's next position, was taken."""
    checkpoint: BatchPosition | None = None
    retry_at: float = 0.0
    needed: int | None = None
    """The log offset from which on a restart looks for its records; None: not known yet."""
    error: MqError | None = None
    noticed: bool = False
    """Whether the error was written down for `status`."""
    waiters: list[Waiter] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """The answer to its waiters at the end."""
        records, size = sum(p.records for p in self.parts), sum(p.bytes for p in self.parts)
        return Outcome(False, records, size)

    def close(self) -> None:
        """Closes its open stage."""
        if self.source is not None:
            self.source.close()


class Publisher:
    """All publications of a writer. Its own thread calls everything.

    `flushed` returns the log offset below which all is durable.
    """

    def __init__(self, root: Path, staging: Staging, flushed: Callable[[], int], end: int) -> None:
        self._root = root
        self._staging = staging
        self._flushed = flushed
        self._start_end = end
        self._publications: dict[StagedBatch, Publication] = {}
        self._thread: JobThread[StagingJob] = JobThread("staging")
        self._job: StagingJob | None = None
        self._sweep_at = 0.0
        self._room_is_wanted = False
        self._none_until = 0.0
        """Until then abandoned batches are not looked for again."""
        for query in list_queries(root):
            for batch in list_batches(root, query):
                if journal_path(root, batch).exists():
                    self._found(batch)

    def _found(self, batch: StagedBatch) -> None:
        log.info("a publication goes on", extra=fields(batch=batch))
        self._publications[batch] = Publication(batch, state=PublicationState.RESUMING, begun=True)
        self._staging.begun.add(batch)

    @property
    def fd(self) -> int:
        """Readable when a job has ended."""
        return self._thread.fd

    @property
    def is_active(self) -> bool:
        """Whether there is a publication, or a job under way."""
        return self._job is not None or bool(self._publications)

    @property
    def has_work(self) -> bool:
        """Whether there is a chunk to append now, so that the loop must not sleep."""
        active = self._active()
        return (
            active is not None
            and active.state is PublicationState.APPENDING
            and not active.retry_at
        )

    @property
    def waits_for_flush(self) -> bool:
        """Whether a flush is asked for now."""
        active = self._active()
        return active is not None and active.state is PublicationState.FLUSHING

    def needed_from(self, offset: int) -> int:
        """The first log offset that a restart may have to look at; at most `offset`.

        A publication that cannot go on does not keep the disk from being cleaned.
        """
        live = [
            one for one in self._publications.values() if one.state is not PublicationState.BLOCKED
        ]
        return min([offset, *(one.needed or 0 for one in live if one.begun)])

    def publish(self, request: PublishRequest, waiter: Waiter) -> Outcome | None:
        """Begins a publication, or joins the one of this batch: None, the answer comes later.

        Raises NodeBusy for one too many, StoreDamaged when the ledger of the query is damaged.
        """
        batch = request.batch
        if self._staging.is_published(batch):
            return Outcome(already=True)
        known = self._publications.get(batch)
        if known is None:
            for other in self._publications:
                if other.query == batch.query:
                    raise NodeBusy(f"{other} is being published", "publish them one by one")
            if len(self._publications) >= PUBLICATIONS_MAX:
                raise NodeBusy(f"{PUBLICATIONS_MAX} batches wait", "publish it again later")
            known = Publication(batch, request.parts, request.final)
            self._publications[batch] = known
            self._staging.begun.add(batch)
        if len(known.waiters) >= WAITERS_MAX:
            raise NodeBusy(f"{WAITERS_MAX} requests wait for {batch}", "publish it again later")
        known.waiters.append(waiter)
        if known.state is PublicationState.BLOCKED:
            known.state = (
                PublicationState.RESUMING if known.source is None else PublicationState.APPENDING
            )
        return None

    def make_room(self, now: float) -> bool:
        """Asks for abandoned batches to be dropped. False if none was found a moment ago."""
        self._room_is_wanted = now >= self._none_until
        return self._room_is_wanted

    # -- turns --------------------------------------------------------------------------------

    def turn(self, now: float, now_ms: int, answer: Answer) -> None:
        """Takes the result of a job that ended, and begins the next. It appends nothing."""
        done = self._thread.collect()
        if done is not None:
            self._job = None
            self._take(done, now, now_ms, answer)
        if self._job is not None:
            return
        active = self._active()
        if active is not None and now >= active.retry_at:
            active.retry_at = 0.0
            try:
                self._begin_job(active, now_ms)
            except MqError as error:
                self._block(active, error, answer)
        if self._job is None:
            self._begin_other_job(now, now_ms)

    def _begin_other_job(self, now: float, now_ms: int) -> None:
        for one in self._publications.values():
            if one.state is PublicationState.BLOCKED and not one.noticed:
                one.noticed = True
                why = f"{type(one.error).__name__}: {one.error}"
                self._start(StagingNote(self._root, one.batch, why=why))
                return
        staging, nobody = self._staging, StagedBatch("", 0)
        if self._room_is_wanted or (staging.room.missing and now >= self._none_until):
            limit_ms, begun = now_ms - staging.abandoned_ms, frozenset(staging.begun)
            look, missing = staging.room.look, staging.room.missing
            self._start(MakeRoom(self._root, nobody, None, look, missing, limit_ms, begun))
        elif now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY_S
            limit_ms = now_ms - staging.retention_ms
            self._start(Sweep(self._root, nobody, limit_ms=limit_ms))

    def _active(self) -> Publication | None:
        """The publication whose turn it is: the first that is not blocked."""
        for one in self._publications.values():
            if one.state is not PublicationState.BLOCKED:
                return one
        return None

    def _start(self, job: StagingJob) -> None:
        self._job = job
        self._thread.start(job)

    def _begin_job(self, active: Publication, now_ms: int) -> None:
        batch = active.batch
        match active.state:
            case PublicationState.WAITING:
                offset = active.needed = self._flushed()
                active.state, active.begun = PublicationState.BEGINNING, True
                self._start(Begin(self._root, batch, None, active.parts, active.final, offset))
            case PublicationState.RESUMING if self._staging.is_published(batch):
                self._start(Forget(self._root, batch))
            case PublicationState.RESUMING:
                self._start(Resume(self._root, batch, end=self._start_end))
            case PublicationState.FLUSHING if self._flushed() >= active.end:
                active.state = PublicationState.RECORDING
                self._record(active, now_ms)
            case PublicationState.RECORDING:
                self._record(active, now_ms)
            case PublicationState.APPENDING if (
                active.checkpoint and self._flushed() >= active.noted
            ):
                parts, position = active.parts, active.checkpoint
                journal = Journal(active.noted, position, active.final, parts)
                self._start(SaveCheckpoint(self._root, batch, journal=journal))
            case _:
                return

    def _record(self, active: Publication, now_ms: int) -> None:
        published = Published(active.batch.number, now_ms, active.final)
        self._start(RecordPublished(self._root, active.batch, published=published))

    def _take(self, done: StagingJob, now: float, now_ms: int, answer: Answer) -> None:
        """Takes a job's result. An error blocks the publication; a full disk is tried again."""
        if isinstance(done, Sweep):
            with if_room():
                self._staging.expire(done.old, now_ms)
            return
        if isinstance(done, MakeRoom):
            self._made_room(done, now)
            return
        active = self._publications.get(done.batch)
        if active is None or isinstance(done, StagingNote):
            return
        if done.error is not None:
            self._job_failed(active, done, now, answer)
            return
        match done:
            case Begin():
                active.end = done.offset
                self._append_from(active, BatchPosition(0, 0))
            case Resume() if done.journal is not None:
                active.parts, active.final = done.journal.parts, done.journal.final
                active.needed, active.end = done.journal.offset, self._start_end
                self._append_from(active, done.position)
            case SaveCheckpoint() if done.journal is not None:
                active.needed, active.checkpoint = done.journal.offset, None
            case RecordPublished() | Forget():
                self._staging.bytes -= done.freed
                self._end(active, active.outcome, answer)

    def _made_room(self, done: MakeRoom, now: float) -> None:
        """Drops the batches that were found; the next round removes them, and looks again."""
        self._room_is_wanted, self._staging.room.missing = False, 0
        if self._staging.drop_untouched(done.abandoned, done.limit_ms):
            self._room_is_wanted = True
        elif not done.is_enough:
            self._none_until = now + ABANDONED_EVERY_S
            if done.error is not None:
                details = fields(why=done.error, hint=done.error.hint)
                log.error("abandoned batches cannot be removed", extra=details)

    def _append_from(self, active: Publication, position: BatchPosition) -> None:
        active.source = StagedRecords(self._root, active.batch, active.parts, position)
        active.state = PublicationState.APPENDING
        active.noted, active.checkpoint = active.end, None
        if active.error is not None:
            active.error = None
            clear_problem(self._root, active.batch)

    def _job_failed(
        self, active: Publication, done: StagingJob, now: float, answer: Answer
    ) -> None:
        error = done.error
        assert error is not None
        if isinstance(error, ServiceNotAvailable):
            log.warning("a publication waits", extra=fields(batch=active.batch, why=error))
            active.retry_at = now + RETRY_S
            if isinstance(done, Begin):
                active.state = PublicationState.WAITING
        elif isinstance(done, SaveCheckpoint):
            active.checkpoint = None
        elif isinstance(done, Begin):
            self._end(active, error, answer)
        else:
            if isinstance(done, Resume):
                active.source = None
            self._block(active, error, answer)

    # -- appending ----------------------------------------------------------------------------

    def pause(self, now: float) -> None:
        """Puts appending off, as the disk has no room."""
        active = self._active()
        if active is not None:
            active.retry_at = now + RETRY_S

    def next_append(self, now: float, bytes_max: int, answer: Answer) -> AppendRequest | None:
        """The records that the loop appends now. Pass the request to `appended` afterwards."""
        active = self._active()
        if (
            active is None
            or active.state is not PublicationState.APPENDING
            or now < active.retry_at
        ):
            return None
        assert active.source is not None
        active.retry_at = 0.0
        before = active.source.position
        try:
            chunk = active.source.next_chunk(min(bytes_max, PUBLISH_BYTES_MAX))
        except (MqError, OSError) as error:
            active.close()
            active.source = StagedRecords(self._root, active.batch, active.parts, before)
            if is_shortage(error):
                active.retry_at = now + RETRY_S
            else:
                self._block(active, error, answer)
            return None
        if chunk is None:
            active.state = PublicationState.FLUSHING
            return None
        return AppendRequest(chunk.data, chunk.records)

    def appended(self, request: AppendRequest, now: float, answer: Answer) -> None:
        """Takes the outcome of the append that `next_append` returned."""
        active = self._active()
        assert active is not None
        assert active.source is not None
        if request.error is None:
            active.end = request.end
            if active.checkpoint is None and active.end >= active.noted + CHECKPOINT_BYTES:
                active.noted, active.checkpoint = active.end, active.source.position
            return
        active.close()
        part, record = active.source.position
        again = BatchPosition(part, record - request.count)
        active.source = StagedRecords(self._root, active.batch, active.parts, again)
        if isinstance(request.error, ServiceNotAvailable):
            active.retry_at = now + RETRY_S
        else:
            self._block(active, request.error, answer)

    # -- ends ---------------------------------------------------------------------------------

    def _block(self, active: Publication, error: MqError | OSError, answer: Answer) -> None:
        """It cannot go on, and nobody guesses: others go on, a repeated request tries again."""
        if isinstance(error, OSError):
            found = error.strerror or "unreadable"
            error = StoreDamaged(str(error.filename), 0, found, "see the disk")
        details = fields(batch=active.batch, why=error, hint=error.hint)
        log.error("a batch cannot be published", extra=details)
        active.state, active.error, active.noticed = PublicationState.BLOCKED, error, False
        self._notify(active, error, answer)

    def _end(self, active: Publication, outcome: Outcome | MqError, answer: Answer) -> None:
        active.close()
        del self._publications[active.batch]
        self._staging.begun.discard(active.batch)
        self._staging.forget(active.batch)
        self._staging.note_query(active.batch.query)
        if not isinstance(outcome, MqError):
            clear_problem(self._root, active.batch)
        self._notify(active, outcome, answer)

    def _notify(self, active: Publication, outcome: Outcome | MqError, answer: Answer) -> None:
        waiters, active.waiters = active.waiters, []
        for waiter in waiters:
            answer(waiter, outcome)

    def close(self, answer: Answer) -> None:
        """The writer stops: what has begun goes on at the next start. Waits for a running job."""
        error = ServiceNotAvailable("the node is stopping", "publish it again when it is back")
        for one in self._publications.values():
            self._notify(one, error, answer)
            one.close()
        self._thread.close()
