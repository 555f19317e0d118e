"""Mistakes that a store must not make, made on purpose: the generator has to find each.

They are planted by replacing functions of the product from outside; it knows nothing of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import node.writer.log.commit_log
import node.writer.loop
import node.writer.recovery
from node.runtime import disk
from node.runtime.settings import Settings
from node.writer.log.commit_log import CommitLog, FlushJob
from node.writer.loop import Writer
from tests.crash.histories import History, Totals, run_history
from tests.crash.truth import Violation

Patch = pytest.MonkeyPatch


class Found(NamedTuple):
    """When a bug was found, and as what."""

    images: int
    histories: int
    violation: str


def ack_before_flush(patch: Patch) -> None:
    """SYNC_FLUSH answers as soon as the bytes are written."""
    patch.setattr(node.writer.loop, "WAIT_FLUSHED", "never")
    never = property(lambda _self: False, lambda _self, _value: None)
    patch.setattr(Writer, "_is_sync", never, raising=False)


def body_crc_only(patch: Patch) -> None:
    """RocketMQ's default: no checksum over the whole record, so torn properties pass."""

    def without_crc(_self: History, settings: Settings) -> Settings:
        return replace(settings, enabled_append_prop_crc=False)

    patch.setattr(History, "adjust", without_crc)


def retry_fsync_after_error(patch: Patch) -> None:
    """A second sync says that all is well; the pages were marked clean by the first."""

    def run(self: FlushJob) -> None:
        for descriptor in self.descriptors:
            try:
                disk.sync(descriptor)
            except OSError:
                disk.sync(descriptor)

    patch.setattr(FlushJob, "run", run)


def recovery_trusts_page_cache(patch: Patch) -> None:
    """After a failed flush the tail is synced once more, and not written again."""
    genuine = node.writer.recovery.make_tail_durable

    def without_rewriting(end: Any, _rewrite_from: int, sync_from: int) -> None:
        genuine(end, end.offset, sync_from)

    patch.setattr(node.writer.recovery, "make_tail_durable", without_rewriting)


class _NoFolderSync:
    """The storage seam, which syncs files and forgets folders."""

    def __init__(self) -> None:
        self._folders: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(disk, name)

    @contextmanager
    def open_dir(self, path: Path) -> Iterator[int]:
        with disk.open_dir(path) as folder:
            self._folders.add(folder)
            yield folder
            self._folders.discard(folder)

    def sync_with_length(self, descriptor: int) -> None:
        if descriptor not in self._folders:
            disk.sync_with_length(descriptor)


def no_folder_sync_for_new_segment(patch: Patch) -> None:
    """A new segment's name is not made durable."""
    patch.setattr(node.writer.log.commit_log, "disk", _NoFolderSync())


def roll_without_flushing_old(patch: Patch) -> None:
    """Only the newest segment is synced."""
    genuine = CommitLog.flush_job

    def newest_only(self: CommitLog) -> FlushJob:
        job = genuine(self)
        return replace(job, descriptors=job.descriptors[-1:])

    patch.setattr(CommitLog, "flush_job", newest_only)


def tail_not_zeroed(patch: Patch) -> None:
    """What stands behind the cut stays: it revives when the log grows up to it."""
    patch.setattr(node.writer.recovery, "zero_behind", lambda _end: None)


PLANTED: dict[str, Callable[[Patch], None]] = {
    "ack before flush": ack_before_flush,
    "body CRC only": body_crc_only,
    "retry fsync after EIO": retry_fsync_after_error,
    "recovery trusts the page cache": recovery_trusts_page_cache,
    "no folder sync for a new segment": no_folder_sync_for_new_segment,
    "roll without flushing the old segment": roll_without_flushing_old,
    "tail not zeroed": tail_not_zeroed,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The product has this bug."""
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[name](patch)
        yield


def hunt(name: str, folder: Path, histories_max: int) -> Found | None:
    """Plays histories from seed 0 on until the bug shows; None when it does not."""
    totals = Totals()
    with planted(name):
        for seed in range(histories_max):
            try:
                run_history(seed, folder, totals)
            except Violation as violation:
                return Found(totals.images, seed + 1, str(violation))
    return None
