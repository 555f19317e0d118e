"""The work of publications on the disk besides appending, one job at a time in their own thread.

Every job may be done again from its begin after a kill.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from node.runtime import disk
from node.runtime.shortage import refusal_for
from node.store import staging_files as files
from node.store.checkpoints import remove_unfinished
from node.writer.staging.reading import check_part, position_in_log
from node.writer.staging.stages import find_idle, first_to_go
from protocol.errors import MqError, StoreDamaged

Result = TypeVar("Result")


class StagingJob(Generic[Result]):
    """`work` for the thread; then the loop calls `end`, and that `then` or `failed`.

    A sync that failed is an error of the one publication: the log is not touched here. `place` is
    named by errors that name no file.
    """

    def __init__(
        self,
        place: Path,
        work: Callable[[], Result],
        then: Callable[[Result], None],
        failed: Callable[[MqError], None],
    ) -> None:
        self._place = place
        self._work = work
        self._then = then
        self._failed = failed
        self._outcome: Result | MqError

    def run(self) -> None:
        """Does the work. Raises nothing of the disk, and none of our errors."""
        try:
            self._outcome = self._work()
        except MqError as error:
            self._outcome = error
        except OSError as error:
            where = str(error.filename or self._place)
            if error.errno in disk.PASSING:
                self._outcome = refusal_for(error, where)
            else:
                found = error.strerror or "it failed"
                self._outcome = StoreDamaged(where, 0, found, "see the disk")

    def end(self) -> None:
        """Hands the outcome over."""
        if isinstance(self._outcome, MqError):
            self._failed(self._outcome)
        else:
            self._then(self._outcome)


def begin(root: Path, batch: files.StagedBatch, journal: files.Journal) -> None:
    """Makes the stages durable and verifies them, then notes that the publication begins.

    Raises NotFound, StoreDamaged, OSError; nothing has begun then.
    """
    for part in journal.parts:
        path = files.stage_path(root, batch, part.stage)
        frames = files.frames_of(path)
        check_part(path, part, frames)
        descriptor = disk.open_file(path)
        try:
            disk.sync_with_length(descriptor)
            for frame in frames:
                files.read_frame(descriptor, path, frame)
        finally:
            os.close(descriptor)
    folder = files.batch_dir(root, batch)
    disk.make_dir(folder)
    # Every name before the journal's: a journal without its stages could never be resumed.
    above = files.staging_dir(root)
    for place in (folder, folder.parent, above, above.parent):
        disk.sync_dir(place)
    files.save_journal(root, batch, journal)


def resume(
    root: Path, batch: files.StagedBatch, end: int
) -> tuple[files.Journal, files.BatchPosition]:
    """How far a publication had come before the writer ended; `end` is the log's.

    Raises StoreDamaged, NotFound: nobody may guess.
    """
    journal = files.load_journal(root, batch)
    return journal, position_in_log(root, batch, journal, end)


def record_published(root: Path, batch: files.StagedBatch, published: files.Published) -> int:
    """Remembers the batch as published, durably, then forgets it; returns the freed bytes.

    Raises OSError; it is published all the same, and the next start records it.
    """
    disk.make_durable_dir(files.query_dir(root, batch.query))
    files.save_published(root, batch.query, published)
    return forget_batch(root, batch)


def forget_batch(root: Path, batch: files.StagedBatch) -> int:
    """Removes journal and stages, those of failed tasks too; returns the bytes of the stages."""
    folder = files.batch_dir(root, batch)
    if not folder.is_dir():
        return 0
    size = files.staged_bytes(folder)
    disk.unlink(files.journal_path(root, batch), missing_ok=True)
    disk.remove_tree(folder)
    return size


def make_room(
    root: Path,
    wanted: Callable[[], int],
    limit_ms: int,
    begun: frozenset[files.StagedBatch],
) -> list[files.StagedBatch] | None:
    """Empties the trash, and removes what a killed rebuild has left in the store. If that is
    enough it returns None; else the abandoned batches that are to go, the oldest first.

    `wanted` returns how many bytes the disk lacks. Raises OSError.
    """
    files.sweep(root)
    remove_unfinished(root)
    missing = wanted()
    if missing <= 0:
        return None
    idle = find_idle(root, limit_ms)
    return first_to_go([one for one in idle if one.batch not in begun], missing)
