"""What fills the disk: the age of the oldest message, and which segment goes next, and when.

For status and metrics. `node/writer/retention.py` deletes, by the rules that are forecast here.
"""

import os
from pathlib import Path
from typing import Any

from node.runtime.disk_use import forced_ratio, next_delete_s, room_below
from node.runtime.settings import Settings
from node.runtime.state_page import LogState
from protocol.names import COMMIT_LOG_DIR, offset_file_name, parse_offset_file_name
from protocol.wire.frames import PAYLOAD_BYTES_MAX

_HOUR_S = 3600


def retention(root: Path, settings: Settings, log: LogState) -> dict[str, Any]:
    """The oldest message, and what makes the first segment go; nulls where nothing does.

    `at_ms` is the earliest: a topic of a longer retention, or a worker with a lag, keeps a segment.
    """
    try:
        following = _next(root, settings)
    except FileNotFoundError:
        following = None  # the segment goes just now, or somebody has removed the directory
    return {"oldest_ms": oldest_ms(root, log), "next": following}


def oldest_ms(root: Path, log: LogState) -> int | None:
    """The store time of the log's first record, in ms since 1970; None for an empty log, or while
    its first record cannot be read."""
    # Imported here: it brings numpy, for which a start must not wait.
    from protocol.record.codec import Record, decode

    if log.readable <= log.min_offset or not log.segment_bytes:
        return None
    position = log.min_offset % log.segment_bytes
    path = root / COMMIT_LOG_DIR / offset_file_name(log.min_offset - position)
    try:
        with path.open("rb", buffering=0) as file:
            size = int.from_bytes(os.pread(file.fileno(), 4, position), "big")
            data = os.pread(file.fileno(), min(size, PAYLOAD_BYTES_MAX), position)
    except OSError:
        return None  # retention has just removed it, or writer and readers report a bad disk
    found = decode(data, 0, log.min_offset)
    return found.head.store_timestamp if isinstance(found, Record) else None


def _next(root: Path, settings: Settings) -> dict[str, Any] | None:
    """The first segment, unless it is the last one too, which always stays."""
    with os.scandir(root / COMMIT_LOG_DIR) as entries:
        found = {
            start: entry
            for entry in entries
            if (start := parse_offset_file_name(entry.name)) is not None
        }
        if len(found) < 2:
            return None
        start, last = min(found), max(found)
        state = found[start].stat()
    over = settings.retention_bytes
    return {
        "start": start,
        "end": start + state.st_size,
        "at_ms": 1000 * expiry_s(state.st_mtime, settings),
        "growth_bytes": max(0, start + over - last - state.st_size) if over else None,
        "disk_bytes": max(0, room_below(root, forced_ratio(settings)))
        if settings.clean_file_forcibly_enable
        else None,
    }


def expiry_s(written_s: float, settings: Settings) -> int:
    """When a segment goes by its age: in the first hour of `delete_when` after
    `file_reserved_time`, unless the disk is full earlier."""
    return next_delete_s(int(written_s) + settings.file_reserved_time * _HOUR_S, settings)
