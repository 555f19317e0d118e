"""Carries out a repair plan on the log and the files beside it. Queues and index are the workers'.

The caller holds the store's lock. Each step first copies to quarantine what it will overwrite, and
leaves a store on which a new plan leads to the same end: killed anywhere, it is simply run again.
"""

import os
from pathlib import Path

from node.runtime import disk
from node.runtime.settings import Settings
from node.runtime.store_paths import held_open, read_bounded
from node.store import checkpoints
from node.store.condition import read_checkpoint
from node.store.quarantine import keep_bytes, move_file
from node.store.repair import plan as repair_plan
from node.writer.broker_checkpoint import lowered_checkpoint
from node.writer.recovery import carry_out, examine
from protocol.derived.file_layouts import encode_checkpoint
from protocol.names import CHECKPOINT_FILE_BYTES
from protocol.record.codec import filler
from protocol.record.lost_marker import MarkerPlace, gap_marker, queue_marker

_COPY_BYTES = 1 << 20


def repair_log(root: Path, plan: repair_plan.LogPlan, settings: Settings) -> None:
    """Takes the log's steps, then ends the log as the next start would. Raises OSError,
    StoreDamaged."""
    for step in plan.steps:
        _take(root, step)
    if any(isinstance(step, repair_plan.CutLog) for step in plan.steps):
        found = examine(root, settings)
        if found.cut is not None:
            carry_out(found, settings.enabled_append_prop_crc)


def move_strangers(root: Path, found: list[repair_plan.Step]) -> None:
    """Takes files that belong to no store out of `config/`, `consumequeue/` and `index/`."""
    for step in found:
        if isinstance(step, repair_plan.FileStep) and step.action == repair_plan.MOVE_FILE:
            _move(root, step)


def rewrite_checkpoint(root: Path, step: repair_plan.FileStep, plan: repair_plan.LogPlan) -> None:
    """RocketMQ's checkpoint says no more than the log holds."""
    lowered = lowered_checkpoint(read_checkpoint(root), plan.end, plan.last_time)
    data = read_bounded(step.path, CHECKPOINT_FILE_BYTES)
    keep_bytes(root, plan.end, [(0, data)], _report("checkpoint", step.why))
    disk.write_atomically(step.path, encode_checkpoint(lowered))


def _take(root: Path, step: repair_plan.Step) -> None:
    match step:
        case repair_plan.FileStep(action=action) if action == repair_plan.MOVE_FILE:
            _move(root, step)
        case repair_plan.FileStep(action=action, path=path) if action == repair_plan.DELETE_FILE:
            disk.unlink(path)
            disk.sync_dir(path.parent)
        case repair_plan.SetLength():
            _set_length(root, step)
        case repair_plan.FillHole():
            _fill(root, step)
        case repair_plan.CutLog() if step.is_damage:
            _lower(root, step)
        case _:
            pass  # What a crash left goes in the end, by recovery itself.


def _report(kind: str, why: str) -> dict[str, object]:
    return {"kind": kind, "why": why, "by": "keelog store repair"}


def _move(root: Path, step: repair_plan.FileStep) -> None:
    path = step.path
    if path in (checkpoints.own_dir(root), checkpoints.own_dir(root) / checkpoints.QUARANTINE_DIR):
        # It is in the place of the quarantine folder, and goes into that folder.
        aside = path.with_name(f"{path.name}.aside")
        disk.rename(path, aside)
        disk.sync_dir(path.parent)
        path = aside
    move_file(root, step.offset, path, _report("moved", step.why))


def _set_length(root: Path, step: repair_plan.SetLength) -> None:
    with held_open(disk.open_file(step.path)) as descriptor:
        if step.size > step.wanted:
            pieces = (
                (step.offset + at, os.pread(descriptor, min(_COPY_BYTES, step.size - at), at))
                for at in range(step.wanted, step.size, _COPY_BYTES)
            )
            why = f"had {step.size} bytes instead of {step.wanted}"
            keep_bytes(root, step.offset + step.wanted, pieces, _report("excess", why))
            disk.set_length(descriptor, step.wanted)
        else:
            disk.allocate(descriptor, step.wanted)
        disk.sync_with_length(descriptor)


def _fill(root: Path, step: repair_plan.FillHole) -> None:
    """Markers first, then the blank; zeros after it, so that nothing there is found again."""
    base = step.segment_start
    with held_open(disk.open_file(step.path)) as descriptor:
        pieces = (
            (at, os.pread(descriptor, min(_COPY_BYTES, step.end - at), at - base))
            for at in range(step.start, step.end, _COPY_BYTES)
        )
        lost = [row for row in step.rows() if row["action"] == "mark_lost"]
        keep_bytes(
            root, step.start, pieces, {**_report(step.torn.kind, step.torn.why), "lost": lost}
        )
        for marker in step.markers:
            place = MarkerPlace(marker.offset, marker.size, step.store_timestamp, step.sealed)
            data = (
                gap_marker(place)
                if marker.queue is None
                else queue_marker(place, marker.queue, marker.queue_offset)
            )
            disk.write_all(descriptor, data, marker.offset - base)
        if step.blank_at is not None:
            blank = filler(step.end - step.blank_at)
            disk.write_all(descriptor, blank, step.blank_at - base)
            for at in range(step.blank_at + len(blank), step.end, _COPY_BYTES):
                disk.write_all(descriptor, bytes(min(_COPY_BYTES, step.end - at)), at - base)
        disk.sync(descriptor)


def _lower(root: Path, step: repair_plan.CutLog) -> None:
    """Nothing of ours names an offset above the new end any more: recovery then cuts there, and
    workers reconcile with it as with any epoch that ended."""
    epochs = checkpoints.load_epochs(root)
    if not epochs:
        return
    checkpoints.clear_clean(root)
    times = (step.last_record, step.store_timestamp)
    removed = checkpoints.load_removed(root)
    if removed.within(0, step.offset) is not removed:
        checkpoints.save_removed(root, removed.within(0, step.offset))
    checkpoints.save_tails(root, checkpoints.Tails(step.offset, dict(step.next_offset), *times))
    checkpoints.save_epochs(
        root, [line._replace(start=min(line.start, step.offset)) for line in epochs]
    )
    floor = checkpoints.Floor(root)
    floor.save(step.offset)
    floor.close()
