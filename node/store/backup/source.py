"""The store that is backed up, running or stopped: where its log ends for the backup.

The end is read before any segment is copied:

- a running Keelog node: what it has flushed, and at least what was appended before the backup
  began, for which the backup waits;
- a store at rest: where its log ends after the next start;
- a running broker: where whole records end. Only the broker knows what of them is flushed.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from node.runtime.settings import Settings
from node.runtime.state_page import LogPage, LogState
from node.store.backup.folder import DerivedSizes, Files, read_state, read_topics
from node.store.checkpoints import EpochLine, Tails, load_epochs, load_store_id, load_tails
from node.store.condition import Owner, check_is_store, find_owner
from node.store.file_cache import refuse
from node.store.file_sizes import found_file_bytes, found_geometry
from node.store.opening import StoppedStore
from protocol.errors import StoreDamaged

FLUSH_WAIT_S = 15.0
"""A node flushes every message within 10.5 s: see `flush_commit_log_thorough_interval`."""
LOOK_AGAIN_S = 5.0
"""How long a listing is repeated while a node makes or deletes segments."""
SETTLE_S = 0.1
"""Between the walk and the copy of a running broker's log: its last record is written by then."""
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class BackupSource:
    """What there is to copy: segments by first offset, and the log up to `end`."""

    root: Path
    store_id: str | None
    start: int
    end: int
    segment_bytes: int
    segments: dict[int, Path]
    sizes: DerivedSizes
    files: Files
    epochs: list[EpochLine]
    tails: Tails
    shortfall: str = ""
    """Why the log may have more that was acknowledged before; empty where it has not."""


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """An open segment: retention may unlink it, its bytes stay. `modified_ns`: before the copy."""

    start: int
    path: Path
    descriptor: int
    modified_ns: int


def read_source(root: Path, settings: Settings) -> BackupSource:
    """Looks at a store; changes nothing and takes no lock.

    Raises NotAStore, StorePermission, StoreDamaged.
    """
    check_is_store(root)
    owner = find_owner(root)
    appended = _log_state(root)
    files, epochs, tails = read_state(root), load_epochs(root), load_tails(root)
    is_ours = owner in (Owner.WRITER, Owner.SUPERVISOR)
    flushed = _wait_flushed(root, appended) if is_ours else AT_REST
    deadline = time.monotonic() + LOOK_AGAIN_S
    while True:
        try:
            found = _look(root, settings, flushed, tails)
        except (StoreDamaged, FileNotFoundError):
            if owner is Owner.NOBODY or time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_EVERY_S)
        else:
            time.sleep(SETTLE_S if owner is Owner.BROKER else 0)
            ours = [line for line in epochs if line.start <= found.end]
            return replace(found, files={**files, **found.files}, epochs=ours)


class Flushed(NamedTuple):
    """How far a running node of ours has flushed; None for any other store. `shortfall`: why that
    may be below what it had acknowledged."""

    end: int | None
    shortfall: str = ""


AT_REST = Flushed(None)


def _look(root: Path, settings: Settings, flushed: Flushed, tails: Tails | None) -> BackupSource:
    """But for the small files that were read before."""
    with StoppedStore(root, settings) as store:
        known = flushed.end
        end = store.tail.end if known is None else max(known, store.condition.floor)
        if store.log.segments.end < end:
            # The folder was listed while a segment was being made or deleted.
            raise StoreDamaged(str(root), end, "the log's segments end before", "try again")
        return BackupSource(
            root=root,
            store_id=load_store_id(root).value,
            start=store.log.min_offset,
            end=end,
            segment_bytes=store.log.segment_bytes,
            segments={one.start: one.path for one in store.log.segments.segments},
            sizes=_sizes(root, settings),
            files=read_topics(root),
            epochs=[],
            tails=tails if tails is not None else _queue_ends(store, end),
            shortfall=flushed.shortfall,
        )


def _log_state(root: Path) -> LogState | None:
    """The writer's page; None while there is none to believe."""
    try:
        with LogPage.open(root) as page:
            state = page.read()
    except FileNotFoundError:
        return None
    return state if state.epoch else None


def _wait_flushed(root: Path, before: LogState | None) -> Flushed:
    """Waits until what was appended before is flushed.

    A writer that does not flush in time, or cannot be asked, is not waited for: the backup then
    ends below, and says so.
    """
    deadline = time.monotonic() + FLUSH_WAIT_S
    flushed = 0
    while before is not None:
        now = _log_state(root)
        if now is None:
            break
        flushed = now.flushed
        if flushed >= before.appended:
            return Flushed(flushed)
        if time.monotonic() >= deadline:
            return Flushed(flushed, f"the node has not flushed its log in {FLUSH_WAIT_S:.0f} s")
        time.sleep(_LOOK_EVERY_S)
    why = "the state page of the running node cannot be believed here: it names another start"
    return Flushed(flushed, f"{why} of the machine, or the node is just starting")


def _sizes(root: Path, settings: Settings) -> DerivedSizes:
    geometry = found_geometry(root, settings.index_geometry)
    return DerivedSizes(
        found_file_bytes(root, settings.queue_file_bytes), geometry.slot_count, geometry.index_num
    )


def _queue_ends(store: StoppedStore, end: int) -> Tails:
    """The queues' ends by their own files: a broker's store has no snapshot of them.

    The log alone does not know the end of a queue whose messages retention has deleted.
    """
    ends = {}
    for queue in store.queues():
        reader = store.queue(queue.topic, queue.queue_id)
        if reader is not None:
            ends[queue] = reader.max_offset
    return Tails(end, ends)


@contextmanager
def hold_segments(source: BackupSource) -> Iterator[list[HeldSegment]]:
    """Opens the segments below the end, so that retention cannot take them away.

    Those that are gone already are left out, with all before them. Raises OSError, StorePermission.
    """
    held: list[HeldSegment] = []
    try:
        for start, path in sorted(source.segments.items()):
            if start >= source.end:
                break
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                release(held)
                continue
            except OSError as error:
                refuse(path, error)
            held.append(HeldSegment(start, path, descriptor, os.fstat(descriptor).st_mtime_ns))
        yield held
    finally:
        release(held)


def release(held: list[HeldSegment]) -> None:
    """Closes the segments, and forgets them."""
    while held:
        os.close(held.pop().descriptor)
