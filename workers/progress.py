"""Up to where a worker's files can be vouched for: its progress, held against the epochs.

A progress is true of the log as it was in its epoch. Where that epoch ended, the log may have been
cut and have grown again; so the smaller of the two counts, and never the log's present end.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from node.runtime import disk
from node.runtime.state_page import queue_slot, run_dir, shard_of_slot
from node.runtime.store_paths import QUEUES_FILE_BYTES_MAX, read_bounded
from node.store import checkpoints
from protocol.ids import Queue


def vouched_offset(root: Path, slot: str) -> int | None:
    """The log offset below which the slot's files are right; None when nothing is known."""
    progress = checkpoints.load_progress(root, slot)
    return None if progress is None else _reconciled(checkpoints.load_epochs(root), progress)


def _reconciled(epochs: list[checkpoints.EpochLine], progress: checkpoints.WorkerCheckpoint) -> int:
    end = checkpoints.epoch_end(epochs, progress.epoch)
    return progress.offset if end is None else min(progress.offset, end)


def took_over_in_order(root: Path) -> bool:
    """Whether our writer runs, or ran last, and the owner before it had stopped in order."""
    epochs, owner = checkpoints.load_epochs(root), checkpoints.load_owner(root)
    return bool(epochs) and epochs[-1].after_clean and epochs[-1].epoch == owner


def vouched_for_shard(root: Path, shard: int, shard_count: int) -> int | None:
    """As `vouched_offset` for one queue worker, whatever number of them ran before.

    Half a set of another number vouches for nothing, and its queues lie: those that it has are
    further than those that it never got. Then 0: everything is placed once more.
    While progress of another number of workers is left, queues may have been dropped down to the
    least of all: a worker of the new number starts there, and may have been stopped again.
    """
    by_count = _by_count(checkpoints.list_progress(root))
    if set(by_count) == {shard_count}:
        return vouched_offset(root, queue_slot(shard, shard_count))
    if not by_count:
        return None
    if not any(len(found) == count for count, found in by_count.items()):
        return 0
    epochs = checkpoints.load_epochs(root)
    return min(
        _reconciled(epochs, progress) for found in by_count.values() for progress in found.values()
    )


def retire_other_counts(root: Path, shard_count: int) -> bool:
    """Removes the progress of another number of workers, once all of this number have theirs.

    Returns whether none is left.
    """
    by_count = _by_count(checkpoints.list_progress(root))
    others = [count for count in by_count if count != shard_count]
    if not others:
        return True
    if len(by_count.get(shard_count, {})) < shard_count:
        return False
    for count in others:
        for shard in by_count[count]:
            checkpoints.remove_progress(root, queue_slot(shard, count))
            disk.unlink(_unfinished_path(root, queue_slot(shard, count)), missing_ok=True)
    return True


def _unfinished_path(root: Path, slot: str) -> Path:
    return run_dir(root) / f"{slot}.rebuilding"


def save_unfinished(root: Path, slot: str, queues: Iterable[Queue]) -> None:
    """Notes which queues a worker is rebuilding; none removes the note."""
    path = _unfinished_path(root, slot)
    names = sorted(queues)
    if names:
        disk.write_atomically(path, json.dumps(names).encode())
    else:
        disk.unlink(path, missing_ok=True)


def load_unfinished(root: Path) -> set[Queue]:
    """The queues that some worker, of whatever number, had not finished rebuilding."""
    found: set[Queue] = set()
    for path in run_dir(root).glob("queue-*.rebuilding"):
        data = read_bounded(path, QUEUES_FILE_BYTES_MAX)
        found |= {Queue(topic, queue_id) for topic, queue_id in json.loads(data)}
    return found


def _by_count(
    progress: dict[str, checkpoints.WorkerCheckpoint],
) -> dict[int, dict[int, checkpoints.WorkerCheckpoint]]:
    """Progress of queue workers, by their number and then by shard."""
    found: dict[int, dict[int, checkpoints.WorkerCheckpoint]] = {}
    for slot, value in progress.items():
        place = shard_of_slot(slot)
        if place is not None and place[0] < place[1]:
            found.setdefault(place[1], {})[place[0]] = value
    return found
