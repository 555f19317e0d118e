"""What a publication does on the disk besides appending, one job at a time in a thread of its own.

Every job may be done again from its begin after a kill.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from node.staging import Old, find_old
from node.staging_read import check_part, position_in_log
from node.store import disk
from node.store.staging_files import (
    Batch,
    Journal,
    Part,
    Position,
    Published,
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
    staging_dir,
    sweep,
)
from protocol.errors import MqError, ServiceNotAvailable, StoreDamaged

_START = Position(0, 0)


@dataclass(slots=True)
class Job:
    """Runs once; `error` tells why it could not, and nothing is raised.

    A sync that failed is an error of the one publication: the log is not touched here.
    """

    root: Path
    batch: Batch
    error: MqError | None = None

    def run(self) -> None:
        """Does the work."""
        try:
            self.work()
        except MqError as error:
            self.error = error
        except OSError as error:
            where = str(error.filename or batch_dir(self.root, self.batch))
            if error.errno in disk.DISK_FULL:
                self.error = ServiceNotAvailable(
                    f"disk_full: no room for {where}", "free space; the publication then goes on"
                )
            else:
                self.error = StoreDamaged(where, 0, error.strerror or "it failed", "see the disk")

    def work(self) -> None:
        """The work. Raises MqError, OSError."""
        raise NotImplementedError


@dataclass(slots=True)
class Begin(Job):
    """Makes the stages durable and verifies them, then notes that the publication begins."""

    parts: tuple[Part, ...] = ()
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
class Resume(Job):
    """Finds out how far a publication had come before the writer ended; `end` is the log's."""

    end: int = 0
    journal: Journal | None = None
    position: Position = _START

    def work(self) -> None:
        """Raises StoreDamaged, NotFound: nobody may guess."""
        self.journal = load_journal(self.root, self.batch)
        self.position = position_in_log(self.root, self.batch, self.journal, self.end)


@dataclass(slots=True)
class Checkpoint(Job):
    """Notes that what stands before a position is durable in the log: a restart begins there."""

    journal: Journal | None = None

    def work(self) -> None:
        """Raises OSError; the older journal stands then."""
        assert self.journal is not None
        save_journal(self.root, self.batch, self.journal)


@dataclass(slots=True)
class Record(Job):
    """Remembers the batch as published, durably, then removes journal and stages."""

    published: Published = field(default_factory=lambda: Published(0, 0, False))

    def work(self) -> None:
        """Raises OSError; it is published all the same, and the next start records it."""
        disk.make_durable_dir(query_dir(self.root, self.batch.query))
        save_published(self.root, self.batch.query, self.published)
        Forget(self.root, self.batch).work()


@dataclass(slots=True)
class Forget(Job):
    """Removes what is left of a batch that is recorded."""

    def work(self) -> None:
        """Raises OSError."""
        folder = batch_dir(self.root, self.batch)
        if folder.is_dir():
            disk.unlink(journal_path(self.root, self.batch), missing_ok=True)
            disk.remove_tree(folder)


@dataclass(slots=True)
class Problem(Job):
    """Leaves a note for status."""

    why: str = ""

    def work(self) -> None:
        """Raises OSError."""
        save_problem(self.root, self.batch, self.why)


@dataclass(slots=True)
class Sweep(Job):
    """Looks for what nobody asks for any more, and empties the trash."""

    limit_ms: int = 0
    old: Old = field(default_factory=lambda: Old([], []))

    def work(self) -> None:
        """Raises OSError, StoreDamaged."""
        sweep(self.root)
        self.old = find_old(self.root, self.limit_ms)
