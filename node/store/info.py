"""Describes a store directory in numbers: `keelog store info`."""

import os
from pathlib import Path
from typing import Any

from node.store.checkpoints import list_progress, load_epochs
from node.store.file_cache import refuse
from node.store.opening import StoppedStore
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR
from protocol.record.codec import Record

Shape = dict[str, Any]


def describe(store: StoppedStore) -> Shape:
    """Sizes are in bytes, offsets of the log. Raises StoreDamaged, StorePermission."""
    condition, log, stop = store.condition, store.log, store.tail.stop
    first = log.peek(log.min_offset) if log.min_offset < log.end else None
    names = store.index_folder.names()
    store.index_folder.open(names[-1:])
    geometry = store.index_folder.geometry
    return {
        "path": str(store.root),
        "last_owner": "keelog" if condition.is_ours else "rocketmq",
        "clean_shutdown": condition.is_clean,
        "commit_log": {
            "min_offset": log.min_offset,
            "max_offset": log.end,
            "segments": len(log.segments.segments),
            "segment_bytes": log.segment_bytes,
            "oldest_ms": first.head.store_timestamp if isinstance(first, Record) else None,
            "torn_tail": {"offset": stop.position, "kind": stop.kind, "why": stop.why}
            if stop is not None and stop.kind != "end"
            else None,
        },
        "queues": {
            "topics": len(store.topics()),
            "count": len(store.queues()),
            "file_bytes": store.queue_file_bytes,
        },
        "index": {
            "files": len(names),
            "slots": geometry.slot_count,
            "entries_max": geometry.index_num - 1,
        },
        "checkpoint": condition.checkpoint._asdict(),
        "keelog": _own(store) if condition.is_ours else None,
        "disk_bytes": {
            name: _disk_bytes(store.root / name)
            for name in (COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR)
        },
    }


def _own(store: StoppedStore) -> Shape:
    epochs = load_epochs(store.root)
    return {
        "epoch": epochs[-1].epoch if epochs else 0,
        "floor": store.condition.floor,
        "tails_at": store.condition.tails.at if store.condition.tails is not None else None,
        "progress": {
            worker: progress.offset for worker, progress in list_progress(store.root).items()
        },
    }


def _disk_bytes(folder: Path) -> int:
    """The disk space of the files below a folder; holes take none."""
    total = 0
    try:
        for parent, _, names in os.walk(folder):
            total += sum((Path(parent) / name).stat().st_blocks for name in names)
    except OSError as error:
        refuse(folder, error)
    return total * 512
