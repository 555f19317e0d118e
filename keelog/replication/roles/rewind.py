"""Cuts a log at the offset of a record, after all that is cut was copied to quarantine.

For a replica whose master lost its end, and for an old master that has what the new one never got:
afterwards it can follow. Killed anywhere it is run again, with the same end.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from keelog.replication.roles.promotion import stopped_store
from node.runtime import disk
from node.runtime.run_files import read_follow_state, write_follow_state
from node.runtime.settings import Settings
from node.store.checkpoints import (
    TAILS_FILE,
    Floor,
    clear_clean,
    load_epochs,
    load_removed,
    load_tails,
    own_dir,
    save_epochs,
    save_removed,
)
from node.store.condition import read_checkpoint
from node.store.file_cache import OpenFiles
from node.store.identity.roles import load_role, save_role
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import SegmentList, list_folder
from node.store.quarantine import keep_bytes
from node.writer.log.tail import LogEnd, drop_segments_behind, zero_behind
from node.writer.recovery import carry_out, examine
from protocol.derived.file_layouts import encode_checkpoint
from protocol.errors import BadRequest
from protocol.names import CHECKPOINT_FILE, COMMIT_LOG_DIR
from protocol.record.codec import Filler, Record

_COPY_BYTES = 1 << 20


class Rewind(NamedTuple):
    """What a rewind cuts, or has cut. `kept_in`: the folder in quarantine, once it was applied."""

    store: str
    applied: bool
    offset: int
    end: int
    bytes: int
    records: int
    acknowledged: int
    """Up to here a master knew the log to be on this disk; the rewind may go below it."""
    kept_in: str = ""


def rewind(root: Path, offset: int, settings: Settings, apply: bool = False) -> Rewind:
    """Plans the cut, and does it with `apply`.

    Raises BadRequest for an offset at which no record begins, StoreLocked, StoreDamaged, OSError.
    """
    with stopped_store(root) as place:
        return rewind_held(place, offset, settings, apply)


def rewind_held(place: Path, offset: int, settings: Settings, apply: bool) -> Rewind:
    """As `rewind`, of a store whose lock is held."""
    found = examine(place, settings)
    if not found.min_offset <= offset <= found.end:
        raise BadRequest(
            f"offset {offset} is outside of the log, [{found.min_offset}, {found.end}]",
            "name the begin of a record: keelog store dump DIR shows them",
        )
    records = _records_from(place, offset, found.end)
    role = load_role(place)
    acknowledged = 0 if role is None else role.acknowledged
    plan = Rewind(str(place), apply, offset, found.end, found.end - offset, records, acknowledged)
    if not apply or offset == found.end:
        return plan
    if found.cut is not None:
        # What a kill left of a record goes to quarantine too, by itself.
        carry_out(found, settings.enabled_append_prop_crc)
    kept = _carry_out(place, plan, found.segment_bytes)
    return plan._replace(kept_in=str(kept))


def _records_from(root: Path, offset: int, end: int) -> int:
    """How many records are cut. Raises BadRequest where none begins at `offset`."""
    files = OpenFiles()
    try:
        listing = list_folder(root / COMMIT_LOG_DIR)
        segments = SegmentList(root / COMMIT_LOG_DIR, listing, files)
        reader = LogReader(segments, Bounds(segments.start, end))
        if offset < end and not isinstance(reader.peek(offset), Record | Filler):
            raise BadRequest(
                f"no record begins at offset {offset}", "keelog store dump DIR shows where they do"
            )
        return sum(len(columns) for columns in reader.columns(offset, end))
    finally:
        files.close()


def _carry_out(root: Path, plan: Rewind, segment_bytes: int) -> Path:
    """Copies, lowers all that names the log above the cut, then cuts."""
    end = LogEnd(root, plan.offset, segment_bytes)
    report = {
        "kind": "rewound",
        "why": "keelog replica rewind",
        "cut_at": plan.offset,
        "end_before": plan.end,
        "records": plan.records,
    }
    kept = keep_bytes(root, plan.offset, _pieces(end, plan.end), report)
    _lower(root, plan.offset)
    _lower_checkpoint(root, end)
    drop_segments_behind(end)
    zero_behind(end)
    return kept


def _pieces(end: LogEnd, stop: int) -> Iterator[tuple[int, bytes]]:
    """All bytes of the log from the cut on."""
    at = end.offset
    while at < stop:
        base = at - at % end.segment_bytes
        size = min(_COPY_BYTES, stop - at, base + end.segment_bytes - at)
        descriptor = os.open(end.path(base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield at, os.pread(descriptor, size, at - base)
        finally:
            os.close(descriptor)
        at += size


def _lower(root: Path, offset: int) -> None:
    """Nothing of ours names an offset above the cut any more: workers then reconcile with it as
    with any epoch that ended."""
    clear_clean(root)
    removed = load_removed(root)
    if removed.within(0, offset) is not removed:
        save_removed(root, removed.within(0, offset))
    tails = load_tails(root)
    if tails is not None and tails.at > offset:
        disk.unlink(own_dir(root) / TAILS_FILE)
        disk.sync_dir(own_dir(root))
    lines = [line._replace(start=min(line.start, offset)) for line in load_epochs(root)]
    if lines:
        save_epochs(root, lines)
    floor = Floor(root)
    floor.save(offset)
    floor.close()
    _lower_acknowledged(root, offset)


def _lower_acknowledged(root: Path, offset: int) -> None:
    """A promotion goes by what was acknowledged, as both of its notes say, and by what the log had
    when the master's topics were taken over."""
    role, state = load_role(root), read_follow_state(root)
    if role is not None and role.acknowledged > offset:
        save_role(root, role._replace(acknowledged=offset))
    if max(state.acknowledged, state.topics_end) > offset:
        acknowledged, topics_end = min(state.acknowledged, offset), min(state.topics_end, offset)
        write_follow_state(root, state._replace(acknowledged=acknowledged, topics_end=topics_end))


def _lower_checkpoint(root: Path, end: LogEnd) -> None:
    """RocketMQ's checkpoint says no more than the log holds; a broker then looks for itself."""
    found, last_ms = read_checkpoint(root), _last_time(end)
    offsets = {
        name: 0
        for name in ("confirm_physical_offset", "logics_physical_offset")
        if getattr(found, name) > end.offset
    }
    times = {
        name: min(getattr(found, name), last_ms)
        for name in ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp")
    }
    path = root / CHECKPOINT_FILE
    if path.exists():
        disk.write_atomically(path, encode_checkpoint(found._replace(**offsets, **times)))


def _last_time(end: LogEnd) -> int:
    """The store time of the last record before the cut, of the segment that it is in; else 0."""
    files = OpenFiles()
    try:
        segments = SegmentList(end.folder, list_folder(end.folder), files)
        begin = max(end.offset - 1 - (end.offset - 1) % end.segment_bytes, segments.start)
        reader = LogReader(segments, Bounds(segments.start, end.offset))
        times = [int(found.store_timestamp[-1]) for found in reader.columns(begin, end.offset)]
        return times[-1] if times else 0
    finally:
        files.close()
