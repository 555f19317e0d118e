"""The work of publications on the disk besides appending, one job at a time in their own thread.

Every job may be done again from its begin after a kill.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from node.runtime import disk
from node.runtime.shortage import refusal_for
from node.store.rebuilding import remove_unfinished
from node.store.staging_files import (
    BatchPosition,
    Journal,
    Published,
    StagedBatch,
    StageSummary,
    batch_dir,
    frames_of,
    journal_path,
    load_journal,
    query_dir,
    read_frame,
    save_journal,
    save_problem,
    save_published,
    stage_path,
    staged_bytes,
    staging_dir,
    sweep,
)
from node.writer.staging.reading import check_part, position_in_log
from node.writer.staging.stages import Old, find_idle, find_old, first_to_go
from protocol.errors import MqError, StoreDamaged

_START = BatchPosition(0, 0)


@dataclass(slots=True)
class StagingJob:
    """Runs once. It raises nothing: `error` is set if it failed.

    A sync that failed is an error of the one publication: the log is not touched here.
    """

    root: Path
    batch: StagedBatch
    error: MqError | None = None

    def run(self) -> None:
        """Does the work."""
        try:
            self.work()
        except MqError as error:
            self.error = error
        except OSError as error:
            where = str(error.filename or batch_dir(self.root, self.batch))
            if error.errno in disk.PASSING:
                self.error = refusal_for(error, where)
            else:
                self.error = StoreDamaged(where, 0, error.strerror or "it failed", "see the disk")

    def work(self) -> None:
        """The work. Raises MqError, OSError."""
        raise NotImplementedError


@dataclass(slots=True)
class Begin(StagingJob):
    """Makes the stages durable and verifies them, then notes that the publication begins."""

    parts: tuple[StageSummary, ...] = ()
    final: bool = False
    offset: int = 0

    def work(self) -> None:
        """Raises NotFound, StoreDamaged, OSError; nothing has begun then."""
        for part in self.parts:
            path = stage_path(self.root, self.batch, part.stage)
            frames = frames_of(path)
            check_part(path, part, frames)
            descriptor = disk.open_file(path)
            try:
                disk.sync_with_length(descriptor)
                for frame in frames:
                    read_frame(descriptor, path, frame)
            finally:
                os.close(descriptor)
        folder = batch_dir(self.root, self.batch)
        disk.make_dir(folder)
        # Every name before the journal's: a journal without its stages could never be resumed.
        above = staging_dir(self.root)
        for place in (folder, folder.parent, above, above.parent):
            disk.sync_dir(place)
        journal = Journal(self.offset, _START, self.final, self.parts)
        save_journal(self.root, self.batch, journal)


@dataclass(slots=True)
class Resume(StagingJob):
    """Finds out how far a publication had come before the writer ended; `end` is the log's."""

    end: int = 0
    journal: Journal | None = None
    position: BatchPosition = _START

    def work(self) -> None:
        """Raises StoreDamaged, NotFound: nobody may guess."""
        self.journal = load_journal(self.root, self.batch)
        self.position = position_in_log(self.root, self.batch, self.journal, self.end)


@dataclass(slots=True)
class SaveCheckpoint(StagingJob):
    """Notes that all before a position is durable in the log: a restart begins there."""

    journal: Journal | None = None

    def work(self) -> None:
        """Raises OSError; the older journal stays then."""
        assert self.journal is not None
        save_journal(self.root, self.batch, self.journal)


@dataclass(slots=True)
class RecordPublished(StagingJob):
    """Remembers the batch as published, durably, then removes journal and stages."""

    published: Published = field(default_factory=lambda: Published(0, 0, False))
    freed: int = 0

    def work(self) -> None:
        """Raises OSError; it is published all the same, and the next start records it."""
        disk.make_durable_dir(query_dir(self.root, self.batch.query))
        save_published(self.root, self.batch.query, self.published)
        self.freed = forget_batch(self.root, self.batch)


@dataclass(slots=True)
class Forget(StagingJob):
    """Removes what is left of a batch that is recorded."""

    freed: int = 0

    def work(self) -> None:
        """Raises OSError."""
        self.freed = forget_batch(self.root, self.batch)


def forget_batch(root: Path, batch: StagedBatch) -> int:
    """Removes journal and stages, those of failed tasks too; returns the bytes of the stages."""
    folder = batch_dir(root, batch)
    if not folder.is_dir():
        return 0
    size = staged_bytes(folder)
    disk.unlink(journal_path(root, batch), missing_ok=True)
    disk.remove_tree(folder)
    return size


@dataclass(slots=True)
class StagingNote(StagingJob):
    """Leaves a note for status."""

    why: str = ""

    def work(self) -> None:
        """Raises OSError."""
        save_problem(self.root, self.batch, self.why)


@dataclass(slots=True)
class Sweep(StagingJob):
    """Empties the trash, and looks for what nobody asks for any more."""

    limit_ms: int = 0
    old: Old = field(default_factory=lambda: Old([], []))

    def work(self) -> None:
        """Raises OSError, StoreDamaged."""
        sweep(self.root)
        self.old = find_old(self.root, self.limit_ms)


@dataclass(slots=True)
class MakeRoom(StagingJob):
    """Empties the trash, and removes what a killed rebuild has left in the store. Where that is not
    enough it looks for abandoned batches, the oldest first.

    `look` returns how many bytes the disk has left; `missing` more are needed for a refused frame.
    """

    look: Callable[[], int] = lambda: 0
    missing: int = 0
    limit_ms: int = 0
    begun: frozenset[StagedBatch] = frozenset()
    is_enough: bool = False
    abandoned: list[StagedBatch] = field(default_factory=list)

    def work(self) -> None:
        """Raises OSError."""
        sweep(self.root)
        remove_unfinished(self.root)
        wanted = max(self.missing, -self.look())
        self.is_enough = wanted <= 0
        if not self.is_enough:
            idle = find_idle(self.root, self.limit_ms)
            self.abandoned = first_to_go([i for i in idle if i.batch not in self.begun], wanted)
