"""Publishes staged batches, each exactly once: a small machine that the writer's loop turns.

A batch goes through four steps. *Begin*: its stages are synced and verified, a journal says from
which durable log offset on its records may be found. *Append*: a chunk in each turn of the loop,
between the requests of others. *Flush*: the last chunk must be durable. *Record*: the ledger of its
query names it; only then are its requests answered. A writer that starts again finds the journal
and *resumes*: the log itself shows how far the batch had come. `Publisher._begin_job` takes the
steps; the work on the disk besides appending is in `jobs`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

from node.access.asking import PortAsker
from node.runtime.disk import if_room
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.runtime.shortage import is_shortage
from node.serving.request_server import Received, Server
from node.store import staging_files as files
from node.writer.appender import AppendRequest
from node.writer.log.flush import JobThread
from node.writer.requests import check_topics
from node.writer.staging import jobs, stages
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
Waiter = tuple[bytes, int]
"""A request that waits for the publication's end: its peer and its id."""
_START = files.BatchPosition(0, 0)


class Outcome(NamedTuple):
    """The good answer to a request for a publication. `already`: it was recorded before."""

    already: bool
    records: int = 0
    bytes: int = 0


class PublicationState(Enum):
    """The states of a publication: what it waits for."""

    WAITING = auto()
    """Its turn, then its journal."""
    RESUMING = auto()
    """A look into the log."""
    APPENDING = auto()
    FLUSHING = auto()
    """The disk, then the ledger."""
    BLOCKED = auto()
    """A request that repeats it."""


@dataclass(slots=True)
class Publication:
    """One batch on its way."""

    batch: files.StagedBatch
    parts: tuple[files.StageSummary, ...] = ()
    final: bool = False
    state: PublicationState = PublicationState.WAITING
    begun: bool = False
    """Whether there is a journal: then it ends by itself, also after a restart."""
    source: jobs.StagedRecords | None = None
    end: int = 0
    """After its last record in the log."""
    noted: int = 0
    """The log offset at which `checkpoint`, the journal's next position, was taken."""
    checkpoint: files.BatchPosition | None = None
    retry_at: float = 0.0
    needed: int | None = None
    """The log offset from which on a restart looks for its records; None: not known yet."""
    error: MqError | None = None
    noticed: bool = False
    """Whether the error was written down for `status`."""
    waiters: list[Waiter] = field(default_factory=list)

    def close(self) -> None:
        if self.source is not None:
            self.source.close()


class Publisher:
    """All stages and publications of a writer, for the loop's own thread.

    `append` writes records to the log and announces them. `flushed` returns the log offset below
    which all is durable.
    """

    def __init__(
        self, store: WriterStore, server: Server, append: Append, flushed: Callable[[], int]
    ) -> None:
        self._store = store
        self._server = server
        self._append = append
        self._flushed = flushed
        self._root = store.root
        self._record_bytes_max = store.log.request_bytes_max
        self._staging = stages.Staging(
            store.root, store.settings, store.rules, store.topics, self._record_bytes_max
        )
        self._start_end = store.log.end
        self._now, self._now_ms = 0.0, 0
        """The times of this turn."""
        self._publications: dict[files.StagedBatch, Publication] = {}
        self._thread: JobThread[jobs.StagingJob] = JobThread("staging")
        self.fd = self._thread.fd
        """Readable when a job has ended."""
        self._job: jobs.StagingJob | None = None
        self._sweep_at = 0.0
        self._room_is_wanted = False
        self._none_until = 0.0
        """Until then abandoned batches are not looked for again."""
        for query in files.list_queries(self._root):
            for batch in files.list_batches(self._root, query):
                if files.journal_path(self._root, batch).exists():
                    log.info("a publication goes on", extra=fields(batch=batch))
                    known = Publication(batch, state=PublicationState.RESUMING, begun=True)
                    self._publications[batch] = known
                    self._staging.begun.add(batch)
        self.is_active = bool(self._publications)
        """Whether there is a publication, or a job under way."""
        store.needed_from = self._needed_from
        store.retention.make_room = self._make_room

    @property
    def has_work(self) -> bool:
        """Whether there is a chunk to append now, so that the loop must not sleep."""
        active = self._active(PublicationState.APPENDING)
        return active is not None and not active.retry_at

    @property
    def waits_for_flush(self) -> bool:
        """Whether a flush is asked for now."""
        active = self._active(PublicationState.FLUSHING)
        return active is not None and self._flushed() < active.end

    def _needed_from(self, offset: int) -> int:
        """The first log offset that a restart may have to look at; at most `offset`.

        A publication that cannot go on does not keep the disk from being cleaned.
        """
        live = [
            one for one in self._publications.values() if one.state is not PublicationState.BLOCKED
        ]
        return min([offset, *(one.needed or 0 for one in live if one.begun)])

    def _make_room(self, now: float) -> bool:
        """Asks for abandoned batches to be dropped. False if none was found a moment ago."""
        self._room_is_wanted = now >= self._none_until
        return self._room_is_wanted

    # -- requests -----------------------------------------------------------------------------

    def handle(
        self, received: Received, header: Header, operation: str, asker: PortAsker | None = None
    ) -> Header | None:
        """The answer; None for a publication, whose answer comes later. Raises MqError.

        `asker`: who asks, where not everybody may do everything.
        """
        number = request_id(header)
        # Kept for longer than the socket's memory should be.
        payload = None if received.payload is None else bytes(received.payload)
        if operation == "stage":
            self._store.retention.check_room()
            request = stages.parse_stage(header, payload)
            if asker is not None:
                check_topics(asker, request.append, self._store.checker)
                self._staging.bind(request.batch.query, asker, begins=True)
            staged = self._staging.put(request)
            return answer(
                number,
                published=staged is None,
                frames=0 if staged is None else len(staged.crcs),
                records=0 if staged is None else staged.records,
                bytes=0 if staged is None else staged.bytes,
            )
        if operation == "publish":
            asked = stages.parse_publish(header, payload)
            if asker is not None:
                self._staging.bind(asked[0].query, asker, begins=True)
            return self._publish((received.peer, number), *asked)
        if operation == "unstage":
            batch, stage = stages.parse_unstage(header, payload)
            if asker is not None:
                self._staging.bind(batch.query, asker, begins=False)
            return answer(number, dropped=self._staging.drop(batch, stage))
        raise UnknownOperation(f"the writer knows no operation {operation[:40]!a}")

    def _publish(
        self,
        waiter: Waiter,
        batch: files.StagedBatch,
        parts: tuple[files.StageSummary, ...],
        final: bool,
    ) -> Header | None:
        """Begins a publication, or joins the one of this batch: None, the answer comes later.

        Raises NodeBusy for one too many, StoreDamaged when the ledger of the query is damaged.
        """
        if self._staging.is_published(batch):
            return self._published(waiter, Outcome(already=True))
        known = self._publications.get(batch)
        if known is None:
            for other in self._publications:
                if other.query == batch.query:
                    raise NodeBusy(f"{other} is being published", "publish them one by one")
            if len(self._publications) >= PUBLICATIONS_MAX:
                raise NodeBusy(f"{PUBLICATIONS_MAX} batches wait", "publish it again later")
            known = Publication(batch, parts, final)
            self._publications[batch] = known
            self._staging.begun.add(batch)
            self.is_active = True
        if len(known.waiters) >= WAITERS_MAX:
            raise NodeBusy(f"{WAITERS_MAX} requests wait for {batch}", "publish it again later")
        known.waiters.append(waiter)
        if known.state is PublicationState.BLOCKED:
            known.state = (
                PublicationState.RESUMING if known.source is None else PublicationState.APPENDING
            )
        return None

    def _published(self, waiter: Waiter, outcome: Outcome) -> Header:
        return answer(waiter[1], **outcome._asdict(), epoch=self._store.epoch)

    # -- turns --------------------------------------------------------------------------------

    def step(self, now: float, stopping: bool) -> None:
        """One turn: takes the result of a job, begins the next, and appends a chunk."""
        # A clock that is set forward must not make batches older.
        self._now_ms = min(now_ms(), int(self._store.retention.clock.now_s() * 1000))
        self._now = now
        if (done := self._thread.collect()) is not None:
            self._job = None
            done.end()
        if self._job is None:
            self._begin_job()
        if not stopping and (active := self._active()) is not None:
            if self._store.retention.full is not None:
                active.retry_at = now + RETRY_S
            elif active.state is PublicationState.APPENDING and now >= active.retry_at:
                self._append_chunk(active)
        self.is_active = self._job is not None or bool(self._publications)

    def _active(self, state: PublicationState | None = None) -> Publication | None:
        """The publication whose turn it is: the first that is not blocked. None unless it is in
        `state`, if that is given."""
        for one in self._publications.values():
            if one.state is not PublicationState.BLOCKED:
                return one if state in (None, one.state) else None
        return None

    def _begin_job(self) -> None:
        """Begins the job that the active publication waits for, else another one, if any is due.
        Appends have turns of their own."""
        active = self._active()
        if active is not None and self._now >= active.retry_at:
            active.retry_at = 0.0
            try:
                self._step(active)
            except MqError as error:
                self._block(active, error)
        if self._job is None:
            self._begin_other_job()

    def _step(self, active: Publication) -> None:
        root, batch = self._root, active.batch
        match active.state:
            case PublicationState.WAITING:
                offset = active.needed = self._flushed()
                active.begun = True
                journal = files.Journal(offset, _START, active.final, active.parts)
                self._start(
                    active,
                    partial(jobs.begin, root, batch, journal),
                    lambda _: self._append_from(active, offset, _START),
                    partial(self._end, active),
                )
            case PublicationState.RESUMING if self._staging.is_published(batch):
                forgetting = partial(jobs.forget_batch, root, batch)
                self._start(active, forgetting, partial(self._recorded, active))
            case PublicationState.RESUMING:
                resuming = partial(jobs.resume, root, batch, self._start_end)
                self._start(active, resuming, lambda found: self._resumed(active, *found))
            case PublicationState.FLUSHING if self._flushed() >= active.end:
                published = files.Published(batch.number, self._now_ms, active.final)
                recording = partial(jobs.record_published, root, batch, published)
                self._start(active, recording, partial(self._recorded, active))
            case PublicationState.APPENDING if (
                active.checkpoint and self._flushed() >= active.noted
            ):
                self._save_checkpoint(active, active.checkpoint)

    def _start(
        self,
        active: Publication,
        work: Callable[[], Any],
        then: Callable[[Any], None],
        failed: Callable[[MqError], None] | None = None,
    ) -> None:
        """A job of a publication. A shortage is waited for; another error blocks it, where no other
        end is given."""

        def fail(error: MqError) -> None:
            if isinstance(error, ServiceNotAvailable):
                log.warning("a publication waits", extra=fields(batch=active.batch, why=error))
                active.retry_at = self._now + RETRY_S
            elif failed is not None:
                failed(error)
            else:
                self._block(active, error)

        self._run(jobs.StagingJob(files.batch_dir(self._root, active.batch), work, then, fail))

    def _run(self, job: jobs.StagingJob) -> None:
        self._job = job
        self._thread.start(job)

    def _resumed(
        self, active: Publication, journal: files.Journal, position: files.BatchPosition
    ) -> None:
        active.parts, active.final = journal.parts, journal.final
        active.needed = journal.offset
        self._append_from(active, self._start_end, position)

    def _append_from(self, active: Publication, end: int, position: files.BatchPosition) -> None:
        """Goes on after `position`; the records before it are in the log below `end`."""
        self._seek(active, position)
        active.state = PublicationState.APPENDING
        active.end = active.noted = end
        active.checkpoint = None
        if active.error is not None:
            active.error = None
            files.clear_problem(self._root, active.batch)

    def _seek(self, active: Publication, position: files.BatchPosition) -> None:
        active.close()
        active.source = jobs.StagedRecords(self._root, active.batch, active.parts, position)

    def _save_checkpoint(self, active: Publication, position: files.BatchPosition) -> None:
        """Notes that all before a position is durable in the log: a restart begins there."""
        offset = active.noted

        def saved(_: object) -> None:
            active.needed, active.checkpoint = offset, None

        def failed(_: MqError) -> None:  # the older journal stays
            active.checkpoint = None

        journal = files.Journal(offset, position, active.final, active.parts)
        saving = partial(files.save_journal, self._root, active.batch, journal)
        self._start(active, saving, saved, failed)

    def _recorded(self, active: Publication, freed: int) -> None:
        self._staging.bytes -= freed
        records = sum(part.records for part in active.parts)
        self._end(active, Outcome(False, records, sum(part.bytes for part in active.parts)))

    # -- other jobs ---------------------------------------------------------------------------

    def _begin_other_job(self) -> None:
        staging, root, place = self._staging, self._root, files.staging_dir(self._root)
        for one in self._publications.values():
            if one.state is PublicationState.BLOCKED and not one.noticed:
                one.noticed = True
                why = f"{type(one.error).__name__}: {one.error}"
                self._run(jobs.StagingJob(place, partial(files.save_problem, root, one.batch, why)))
                return
        if self._room_is_wanted or (staging.room.missing and self._now >= self._none_until):
            limit_ms, missing = self._now_ms - staging.abandoned_ms, staging.room.missing
            begun, look = frozenset(staging.begun), staging.room.look
            work = partial(jobs.make_room, root, lambda: max(missing, -look()), limit_ms, begun)
            made = partial(self._made_room, limit_ms)
            self._run(jobs.StagingJob(place, work, made, self._no_room_made))
        elif self._now >= self._sweep_at:
            self._sweep_at = self._now + SWEEP_EVERY_S
            sweeping = partial(jobs.sweep, root, self._now_ms - staging.retention_ms)
            self._run(jobs.StagingJob(place, sweeping, self._expire))

    def _expire(self, old: stages.Old) -> None:
        with if_room():
            self._staging.expire(old, self._now_ms)

    def _made_room(self, limit_ms: int, found: list[files.StagedBatch] | None) -> None:
        """Drops the batches that were found; the next round removes them, and looks again."""
        self._room_is_wanted, self._staging.room.missing = False, 0
        if found is not None:
            if self._staging.drop_untouched(found, limit_ms):
                self._room_is_wanted = True
            else:
                self._none_until = self._now + ABANDONED_EVERY_S

    def _no_room_made(self, error: MqError) -> None:
        self._room_is_wanted, self._staging.room.missing = False, 0
        self._none_until = self._now + ABANDONED_EVERY_S
        details = fields(why=error, hint=error.hint)
        log.error("abandoned batches cannot be removed", extra=details)

    # -- appending ----------------------------------------------------------------------------

    def _append_chunk(self, active: Publication) -> None:
        assert active.source is not None
        active.retry_at = 0.0
        before = active.source.position
        try:
            data, count = active.source.next_chunk(min(self._record_bytes_max, PUBLISH_BYTES_MAX))
        except (MqError, OSError) as error:
            self._seek(active, before)
            self._put_off(active, error, is_shortage(error))
            return
        if not count:
            active.state = PublicationState.FLUSHING
            return
        request = AppendRequest(data, count)
        self._append([request], self._now)
        if request.error is not None:
            self._seek(active, before)
            self._put_off(active, request.error, isinstance(request.error, ServiceNotAvailable))
            return
        active.end = request.end
        if active.checkpoint is None and active.end >= active.noted + CHECKPOINT_BYTES:
            active.noted, active.checkpoint = active.end, active.source.position

    def _put_off(self, active: Publication, error: MqError | OSError, is_passing: bool) -> None:
        if is_passing:
            active.retry_at = self._now + RETRY_S
        else:
            self._block(active, error)

    # -- ends ---------------------------------------------------------------------------------

    def _block(self, active: Publication, error: MqError | OSError) -> None:
        """It cannot go on, and nobody guesses: others go on, a repeated request tries again."""
        if isinstance(error, OSError):
            found = error.strerror or "unreadable"
            error = StoreDamaged(str(error.filename), 0, found, "see the disk")
        details = fields(batch=active.batch, why=error, hint=error.hint)
        log.error("a batch cannot be published", extra=details)
        active.state, active.error, active.noticed = PublicationState.BLOCKED, error, False
        self._notify(active, error)

    def _end(self, active: Publication, outcome: Outcome | MqError) -> None:
        active.close()
        del self._publications[active.batch]
        self._staging.ended(active.batch)
        if not isinstance(outcome, MqError):
            files.clear_problem(self._root, active.batch)
        self._notify(active, outcome)

    def _notify(self, active: Publication, outcome: Outcome | MqError) -> None:
        waiters, active.waiters = active.waiters, []
        for peer, number in waiters:
            if isinstance(outcome, MqError):
                self._server.send(peer, refusal(number, outcome))
            else:
                self._server.send(peer, self._published((peer, number), outcome))

    def close(self) -> None:
        """The writer stops: what has begun goes on at the next start. Waits for a running job."""
        error = ServiceNotAvailable("the node is stopping", "publish it again when it is back")
        for one in self._publications.values():
            self._notify(one, error)
            one.close()
        self._thread.close()
