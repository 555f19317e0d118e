"""Makes a store whole: restores a backup into a new directory, or repairs a damaged store.

A restored store is one of its own, as after a clean stop. All is built in `restore.building` within
the directory and moved to its place at the end, the log last; until then the directory is not a
store. A restore that was killed is run again, from the beginning. A repair goes from plan to check:
the log's part, then the derived files', under the store's lock.
"""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from keelog import text
from node.runtime import disk
from node.runtime.locks import StoreLock
from node.runtime.settings import Settings
from node.runtime.state_page import queue_slot, run_dir
from node.store import checkpoints
from node.store.backup import backup, folder
from node.store.condition import INDEX_WORKER, check_is_store
from node.store.repair.plan import REWRITE_CHECKPOINT, FileStep, Plan, derived_steps, plan_repair
from node.store.verify.verify import VerifyReport, verify
from node.writer.broker_checkpoint import BrokerCheckpoint
from node.writer.recovery import TailNotes
from node.writer.repair import move_strangers, repair_log, rewrite_checkpoint
from protocol import names
from protocol.errors import BackupRefused, BadRequest
from protocol.record.columns import RecordColumns
from workers.rebuild import rebuild_damaged, rebuild_locked

BUILDING_DIR = "restore.building"
_MOVED = {
    *(BUILDING_DIR, names.LOCK_FILE, names.CONFIG_DIR, names.KEELOG_DIR),
    *(names.CONSUME_QUEUE_DIR, names.INDEX_DIR, names.CHECKPOINT_FILE),
}


def restore(out: Path, root: Path, progress: backup.Advance | None = None) -> backup.BackupReport:
    """Restores the backup in `out` into `root`, which is new or empty.

    The report's `bytes` and `files` are those of the log in the store. Where records are damaged,
    queues and index are left to a repair. Raises BackupRefused for a folder without a whole
    backup, BadRequest for a directory that is not empty, StoreDamaged, OSError.
    """
    out, root = out.resolve(), root.resolve()
    manifest = folder.load_manifest(out)
    if manifest is None:
        raise BackupRefused(f"{out} holds no backup", "name the folder that a backup was made into")
    if not manifest.state:
        reason = f"the first backup into {out} was not finished"
        raise BackupRefused(reason, "run the backup again: it goes on where it ended")
    if root == out or root in out.parents or out in root.parents:
        raise BadRequest(f"{root} and the backup {out} lie in each other", "name another directory")
    _check_empty(root)
    building = root / BUILDING_DIR
    disk.make_durable_dir(building)
    lock = StoreLock.acquire(root)
    try:
        _clear(root)
        return _restore(out, manifest, building, progress or (lambda *_: None))
    finally:
        lock.release()


def _check_empty(root: Path) -> None:
    """Raises BadRequest unless `root` is new or empty, or holds nothing but a restore that broke
    off: the log is moved in last, so that is not a store yet."""
    if root.exists() and not root.is_dir():
        raise BadRequest(f"{root} is a file", "name a new directory")
    entries = {path.name for path in root.iterdir()} if root.exists() else set()
    others = entries - _MOVED if BUILDING_DIR in entries else entries
    if others:
        raise BadRequest(f"{root} is not empty: it holds {min(others)!a}", "name a new directory")


def _clear(root: Path) -> None:
    """Removes what a restore that broke off has left; the caller holds the lock."""
    _check_empty(root)
    for path in (root / name for name in sorted(_MOVED - {names.LOCK_FILE})):
        if path.is_dir():
            disk.remove_tree(path)
        else:
            disk.unlink(path, missing_ok=True)
    disk.make_durable_dir(root / BUILDING_DIR / names.COMMIT_LOG_DIR)


def _restore(
    out: Path, manifest: folder.BackupManifest, building: Path, advance: backup.Advance
) -> backup.BackupReport:
    known = folder.state_dir(out, manifest.state)
    files = _copy_log(out, building, manifest, advance)
    tails, damaged = _read_log(building, manifest, known, advance)
    store_id = checkpoints.new_store_id()
    epoch = _write_epochs(known, building, tails, store_id)
    files += _copy_small_files(known, building, store_id)
    if not damaged:
        _make_derived(building, manifest.sizes, epoch, tails, advance)
    _publish(building, store_id)
    start, end = manifest.start, manifest.end
    return backup.BackupReport(start, end, end - start, files, not damaged, damaged)


def _copy_log(
    out: Path, building: Path, manifest: folder.BackupManifest, advance: backup.Advance
) -> int:
    """Copies the segments, each of full length; returns how many."""
    step, whole = manifest.segment_bytes, manifest.end - manifest.start
    starts = range(manifest.start, manifest.end, step or 1)
    for start in starts:
        stop = min(start + step, manifest.end)
        source = os.open(folder.segment_path(out, start), os.O_RDONLY | os.O_CLOEXEC)
        try:
            target = disk.open_file(folder.segment_path(building, start), create=True, own=True)
            try:
                disk.allocate(target, step)
                for at in range(start, stop, backup.COPY_STEP_BYTES):
                    count = min(backup.COPY_STEP_BYTES, stop - at)
                    disk.copy_range(source, target, at - start, count)
                    advance("copy", at + count - manifest.start, whole)
                disk.sync_with_length(target)
            finally:
                os.close(target)
        finally:
            os.close(source)
    disk.sync_dir(building / names.COMMIT_LOG_DIR)
    return len(starts)


def _read_log(
    building: Path, manifest: folder.BackupManifest, known: Path, advance: backup.Advance
) -> tuple[checkpoints.Tails, tuple[backup.Stretch, ...]]:
    """Checks every record; returns the queues' ends, and the stretches without whole records.

    A queue without a record in the log ends where it ended in the store, unless its topic was
    removed. `known`: the store's small files in the backup.
    """
    tails, removed = checkpoints.load_tails(known), checkpoints.load_removed(known)
    ends = {} if tails is None else removed.next_offsets(tails.at, tails.next_offset)
    notes, last_record, last_time = TailNotes(ends, removed), 0, 0
    damaged: list[backup.Stretch] = []
    with backup.log_of(building, manifest.start, manifest.end) as reader:
        for item in backup.checked(reader, manifest.start, manifest.end):
            if not isinstance(item, RecordColumns):
                damaged.append(item)
                continue
            notes.add(item)
            last_record = int(item.physical_offset[-1])
            last_time = max(last_time, int(item.store_timestamp.max()))
            advance("check", item.end - manifest.start, manifest.end - manifest.start)
    notes.settle()
    return checkpoints.Tails(manifest.end, ends, last_record, last_time), tuple(damaged)


def _write_epochs(known: Path, building: Path, tails: checkpoints.Tails, store_id: str) -> int:
    """Writes the notes that keep a start from cutting the log, sealed with the new id.

    The restore counts as an epoch that appended nothing; returns it.
    """
    own = checkpoints.own_dir(building)
    disk.make_durable_dir(own)
    # The next files get the id that `epochs` has: the folder has no lock.
    disk.write_atomically(own / checkpoints.EPOCHS_FILE, checkpoints.seal("", store_id))
    lines = [line for line in checkpoints.load_epochs(known) if line.start <= tails.at]
    epoch = max((line.epoch for line in lines), default=0) + 1
    lines.append(checkpoints.EpochLine(epoch, tails.at, after_clean=True))
    checkpoints.save_epochs(building, lines)
    checkpoints.save_tails(building, tails)
    floor = checkpoints.Floor(building)
    floor.save(tails.at)
    floor.close()
    return epoch


def _copy_small_files(known: Path, building: Path, store_id: str) -> int:
    """Copies `config/` and the durable notes, those that have an id with the new one."""
    own = checkpoints.own_dir(known)
    written = (own / checkpoints.EPOCHS_FILE, own / checkpoints.TAILS_FILE)
    found = sorted(path for path in known.rglob("*") if path.is_file() and path not in written)
    for path in found:
        place = building / path.relative_to(known)
        sealed = checkpoints.load_sealed(path) if own in path.parents else None
        data = path.read_bytes() if sealed is None else checkpoints.seal(sealed.text, store_id)
        disk.make_durable_dir(place.parent)
        disk.write_atomically(place, data)
    return len(found) + len(written)


def _make_derived(
    building: Path,
    sizes: folder.DerivedSizes,
    epoch: int,
    tails: checkpoints.Tails,
    advance: backup.Advance,
) -> None:
    """Makes queues and index of the log, and leaves the marks of a clean stop."""
    settings = Settings(**asdict(sizes))
    rebuild_locked(building, True, True, settings, advance)
    checkpoint = BrokerCheckpoint(building, settings)
    checkpoint.save_clean(tails.store_timestamp, tails.last_record, tails.at)
    checkpoint.close()
    for slot in (queue_slot(0, 1), INDEX_WORKER):
        checkpoints.save_progress(building, slot, checkpoints.WorkerCheckpoint(epoch, tails.at))
    checkpoints.mark_clean(building, epoch, tails.at)


def _publish(building: Path, store_id: str) -> None:
    """Moves everything to its place, the log last."""
    root = building.parent
    if run_dir(building).exists():
        disk.remove_tree(run_dir(building))
    checkpoints.save_lock_id(root, store_id)
    disk.sync_dir(building)
    others = sorted(path.name for path in building.iterdir() if path.name != names.COMMIT_LOG_DIR)
    for name in (*others, names.COMMIT_LOG_DIR):
        disk.rename(building / name, root / name)
        disk.sync_dir(root)
    disk.remove_dir(building)
    disk.sync_dir(root)


class Repaired(NamedTuple):
    """The steps that were taken, and what `verify` says of the store now."""

    plan: Plan
    report: VerifyReport


def repair(root: Path, settings: Settings, progress: text.Advance | None = None) -> Repaired:
    """Plans, and does it; `progress` gets bytes of the log.

    Raises StoreLocked, NotAStore, StorePermission, StoreDamaged for what cannot be mended, OSError.
    Killed in the middle it is run again, with the same end.
    """
    check_is_store(root, strict=False)
    root = root.resolve()
    lock = StoreLock.acquire(root)
    try:
        plan = plan_repair(root, settings, progress)
        if not plan.rows():
            return Repaired(plan, verify(root, settings=settings))
        repair_log(root, plan.log, settings)
        derived = derived_steps(root, verify(root, True, progress, settings))
        plan = replace(plan, derived=derived)
        move_strangers(root, derived)
        rebuild_damaged(root, derived, settings)
        for step in derived:
            if isinstance(step, FileStep) and step.action == REWRITE_CHECKPOINT:
                rewrite_checkpoint(root, step, plan.log)
        return Repaired(plan, verify(root, True, progress, settings))
    finally:
        lock.release()
