"""From the files of a store to the log's end and every queue's next offset.

One walk, for clean and unclean stops: a clean stop only changes where it starts. `examine` reads
and decides; it changes nothing, so a store that must be refused stays as it is. `carry_out` then
writes what was decided.
"""

import errno
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from node.store import disk
from node.store.own_files import (
    QUARANTINE_DIR,
    EpochLine,
    Tails,
    load_epochs,
    load_floor,
    load_tails,
    own_dir,
    save_epochs,
)
from node.store.settings import Settings
from node.store.store import DeadStore, Store, open_store
from protocol.columns import Columns
from protocol.dispatch_request import dispatch_requests
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, offset_file_name, parse_offset_file_name
from protocol.record import FILLER_BYTES, Filler, Torn, decode

log = logging.getLogger("keelog.recovery")

_COPY_BYTES = 1024 * 1024


@dataclass(slots=True)
class Recovery:
    """What was found. `cut` says why bytes from `end` on must go; None: nothing is there."""

    root: Path
    segment_bytes: int
    min_offset: int
    end: int
    floor: int
    tails: dict[Queue, int]
    epochs: list[EpochLine]
    last_store_timestamp: int = 0
    last_record_offset: int = 0
    cut: Torn | None = None

    @property
    def epoch(self) -> int:
        """The epoch that begins with this start."""
        return self.epochs[-1].epoch + 1 if self.epochs else 1


def examine(root: Path, settings: Settings) -> Recovery:
    """Walks the log above what the snapshot of the queues' ends vouches for. Changes nothing.

    Raises StoreDamaged for damage below the durable floor, and for files that cannot be a log.
    """
    floor, epochs = load_floor(root), load_epochs(root)
    if not segment_bases(root):
        return Recovery(root, settings.mapped_file_size_commit_log, 0, 0, floor, {}, epochs)
    with open_store(root, settings) as store:
        tails = _known_tails(store)
        found = Recovery(
            root,
            store.log.segment_bytes,
            store.log.min_offset,
            tails.at,
            floor,
            tails.next_offset,
            epochs,
            last_store_timestamp=tails.store_timestamp,
            last_record_offset=tails.last_record,
        )
        _walk(store, found)
    torn = found.cut
    if torn is not None and found.end < floor:
        raise StoreDamaged(
            str(root / COMMIT_LOG_DIR),
            found.end,
            f"{torn.why}; everything below {floor} was durable, so this is damage and no torn tail",
            f"keelog store verify {root} --deep",
        )
    return found


def segment_bases(root: Path) -> list[int]:
    """The first offsets of the segments that are there."""
    directory = root / COMMIT_LOG_DIR
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return sorted(base for name in names if (base := parse_offset_file_name(name)) is not None)


def _known_tails(store: Store) -> Tails:
    """Every queue's next offset, and the log offset above which to walk.

    From our snapshot; where there is none (a Java broker was the owner), or where retention went
    past it, from the queues' last units, with what the log has above them.
    """
    tails = load_tails(store.root)
    if tails is not None and tails.at >= store.log.min_offset:
        return tails
    ends = dict(tails.next_offset) if tails is not None else {}
    for queue in store.queues():
        reader = store.queue(queue.topic, queue.queue_id)
        if reader is not None:
            ends[queue] = max(ends.get(queue, 0), reader.max_offset)
    last_segment = segment_bases(store.root)[-1]
    walk_from = max(last_segment - store.log.segment_bytes, store.log.min_offset)
    return Tails(walk_from, ends)


def _walk(store: DeadStore, found: Recovery) -> None:
    for columns in store.log.columns(found.end):
        if len(columns):
            note_tails(found.tails, columns)
            found.last_store_timestamp = max(
                found.last_store_timestamp, int(columns.store_timestamp.max())
            )
            found.last_record_offset = int(columns.physical_offset[-1])
    stopped = store.log.stopped
    if stopped is None:
        stopped = store.tail.stop
        found.end = store.log.end
        found.end += _filler_bytes(found)
    else:
        found.end = stopped.position
    if (stopped is not None and stopped.kind != "end") or _has_bytes(found):
        found.cut = stopped or Torn(found.end, "cut", "what stands here is no whole record")


def _filler_bytes(found: Recovery) -> int:
    """A filler without a segment behind it counts: the log goes on in the next segment."""
    base = found.end - found.end % found.segment_bytes
    path = found.root / COMMIT_LOG_DIR / offset_file_name(base)
    if base == found.end or not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(found.end - base)
        stands = decode(file.read(FILLER_BYTES), 0)
    left = base + found.segment_bytes - found.end
    return left if isinstance(stands, Filler) and stands.size == left else 0


def note_tails(tails: dict[Queue, int], columns: Columns) -> None:
    """Moves each queue's next offset behind its last record in `columns`."""
    requests = dispatch_requests(columns)
    rows = np.flatnonzero(requests.is_queued)
    key = requests.topic_id[rows] * (1 << 32) + columns.queue_id[rows]
    _, last = np.unique(key[::-1], return_index=True)
    for row in rows[len(rows) - 1 - last].tolist():
        queue = Queue(requests.topics[requests.topic_id[row]], int(columns.queue_id[row]))
        tails[queue] = int(columns.queue_offset[row]) + 1


def _has_bytes(found: Recovery) -> bool:
    """Whether anything but zeros stands at or behind the end."""
    return any(True for _ in _bytes_behind(found.root, found.end, found.segment_bytes))


def _bytes_behind(root: Path, end: int, segment_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """(segment base, position, bytes) of what is not zero at or behind `end`, by MiB at most."""
    for base in segment_bases(root):
        if base + segment_bytes <= end:
            continue
        descriptor = os.open(
            root / COMMIT_LOG_DIR / offset_file_name(base), os.O_RDONLY | os.O_CLOEXEC
        )
        try:
            for position, stop in _extents(descriptor, max(end - base, 0), segment_bytes):
                for start in range(position, stop, _COPY_BYTES):
                    chunk = os.pread(descriptor, min(_COPY_BYTES, stop - start), start)
                    data = np.flatnonzero(np.frombuffer(chunk, np.uint8))
                    if len(data):
                        yield base, start, chunk[: int(data[-1]) + 1]
        finally:
            os.close(descriptor)


def _extents(descriptor: int, position: int, stop: int) -> list[tuple[int, int]]:
    """Where a file has data. All are found before any is read: reading ahead makes holes data."""
    found: list[tuple[int, int]] = []
    while position < stop:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        hole = os.lseek(descriptor, position, os.SEEK_HOLE)
        found.append((position, min(hole, stop)))
        position = hole
    return found


def carry_out(found: Recovery) -> int:
    """Cuts what must go (a copy goes to quarantine), flushes the tail, begins a new epoch.

    Answers the epoch. When it returns, everything below `found.end` is durable.
    """
    if found.cut is not None:
        _quarantine(found)
        _zero_behind(found)
    _drop_segments_behind(found)
    _make_tail_durable(found)
    epoch = found.epoch
    lines = [*found.epochs, EpochLine(epoch, found.end)]
    kept = [line for line, end in pairwise(lines) if end.start >= found.min_offset]
    save_epochs(found.root, [*kept, lines[-1]])
    return epoch


def _quarantine(found: Recovery) -> None:
    assert found.cut is not None
    folder = own_dir(found.root) / QUARANTINE_DIR / str(found.end)
    number = 0
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{found.end}.{number}")
    disk.make_dir(folder, exist_ok=False)
    total = 0
    for base, position, chunk in _bytes_behind(found.root, found.end, found.segment_bytes):
        disk.write_synced(folder / offset_file_name(base + position), chunk)
        total += len(chunk)
    report = {
        "cut_at": found.end,
        "kind": found.cut.kind,
        "why": found.cut.why,
        "floor": found.floor,
        "bytes": total,
        "epoch": found.epoch,
    }
    disk.write_atomically(folder / "report.json", json.dumps(report, indent=1).encode() + b"\n")
    disk.sync_dir(folder.parent)
    log.warning("log cut at %d (%s); %d bytes kept in %s", found.end, found.cut.why, total, folder)


def _zero_behind(found: Recovery) -> None:
    """So that no stale record revives when the log grows up to it."""
    for base, position, chunk in _bytes_behind(found.root, found.end, found.segment_bytes):
        path = found.root / COMMIT_LOG_DIR / offset_file_name(base)
        descriptor = disk.open_file(path)
        try:
            disk.write_all(descriptor, bytes(len(chunk)), position)
            disk.sync(descriptor)
        finally:
            os.close(descriptor)


def _drop_segments_behind(found: Recovery) -> None:
    """Segments wholly behind the end: prepared ones that were never used, or cut ones."""
    directory = found.root / COMMIT_LOG_DIR
    behind = [base for base in segment_bases(found.root) if base >= found.end and base > 0]
    for base in behind:
        disk.unlink(directory / offset_file_name(base))
    if behind:
        disk.sync_dir(directory)


def _make_tail_durable(found: Recovery) -> None:
    """Rewrites and syncs what stands above the floor: after a failed flush the page cache may hold
    clean pages that the disk never got, and a second sync alone would lie."""
    directory = found.root / COMMIT_LOG_DIR
    rewrite_from = max(found.floor, found.min_offset) if found.floor else found.end
    for base in segment_bases(found.root):
        if base + found.segment_bytes <= found.floor:
            continue
        descriptor = disk.open_file(directory / offset_file_name(base))
        try:
            position = max(rewrite_from - base, 0)
            stop = min(found.end - base, found.segment_bytes)
            while position < stop:
                chunk = os.pread(descriptor, min(_COPY_BYTES, stop - position), position)
                disk.write_all(descriptor, chunk, position)
                position += len(chunk)
            disk.sync(descriptor)
        finally:
            os.close(descriptor)
    if directory.is_dir():
        disk.sync_dir(directory)
