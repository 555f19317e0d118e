"""Makes in memory the queue units and index entries that the log has and the files lack.

A stopped store may lack units: its owner was killed, or somebody removed `consumequeue/`. They are
made as a queue worker would. The walk over the log begins where units may be missing; it is skipped
if none is.

The index is the one after recovery. A broker that stopped cleanly has indexed everything. After a
crash it drops the files that its checkpoint does not vouch for, and enters records again from the
last record of the last kept file on; that record is then entered twice. The files of our own worker
count up to its checkpoint, and no record is entered twice.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.runtime.settings import Settings
from node.store.condition import Condition
from node.store.indexes import IndexFile
from node.store.log.reader import Damage, LogReader, columns_past_damage
from node.store.queues import DerivedUnits, Units
from protocol.derived.dispatch_request import DispatchRequests, key_batch
from protocol.derived.file_layouts import (
    INDEX_ENTRY,
    INDEX_HEADER,
    IndexGeometry,
    IndexHeader,
    KeyBatch,
)
from protocol.derived.index_build import IndexImage, fill_slots
from protocol.derived.queue_build import QueueEnd, UnitBatch, filler_units, plan_units, unit_array
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.names import next_index_file_name
from protocol.record.codec import Record

WINDOW_ENTRIES = 1 << 20
"""Entries read at once: 20 MiB of a file that need not be mapped."""

_GAP_UNITS_MAX = 1_000_000


class Covered(NamedTuple):
    """The extent of a queue's files: the next number, and the end of the last unit's record."""

    next_number: int
    log_end: int


NOT_COVERED = Covered(-1, -1)
"""For a queue without units on disk."""


class _UnitRows(NamedTuple):
    """Units of one queue from one window of the log."""

    number: NDArray[Any]
    physical_offset: NDArray[Any]
    size: NDArray[Any]
    tags_code: NDArray[Any]


def walk_start(
    log: LogReader, condition: Condition, covered: Mapping[Queue, Covered], recovery_start: int
) -> int:
    """The log offset below which no unit can be missing.

    `recovery_start`: where the walk to the log's end began. After a crash a broker dispatches all
    records from there on again.
    """
    if not any(queue.log_end > 0 for queue in covered.values()):
        return log.min_offset
    if condition.tails is not None:
        for queue, number in condition.tails.next_offset.items():
            if number > max(covered.get(queue, NOT_COVERED).next_number, 0):
                return log.min_offset
    if condition.queues_done is not None:
        return max(condition.queues_done, log.min_offset)
    if condition.is_clean:
        return max(log.min_offset, *(queue.log_end for queue in covered.values()))
    return max(recovery_start, log.min_offset)


def derive_units(
    log: LogReader,
    start: int,
    covered: Mapping[Queue, Covered],
    units_per_file: int,
    delay_levels_ms: tuple[int, ...],
    removed: Removed = NOTHING_REMOVED,
) -> dict[Queue, DerivedUnits]:
    """Walks the log from `start` and returns what each queue's files lack.

    Damaged records get fillers, which no pull takes. If retention deleted records of a queue before
    they were dispatched, the units here replace those in the queue's files.
    """
    log_start = log.min_offset
    rows: dict[Queue, list[_UnitRows]] = {}
    for item in columns_past_damage(log, start):
        if isinstance(item, Damage):
            continue
        requests = DispatchRequests(removed.dispatched(item), delay_levels_ms)
        columns = requests.columns
        for queue, some in requests.by_queue():
            number, offset = columns.queue_offset[some], columns.physical_offset[some]
            found = _UnitRows(number, offset, columns.size[some], requests.tags_code[some])
            rows.setdefault(queue, []).append(found)
    derived = {
        queue: _place_units(found, covered.get(queue, NOT_COVERED), units_per_file, log_start)
        for queue, found in sorted(rows.items())
    }
    return {queue: units for queue, units in derived.items() if len(units.units)}


def _place_units(
    parts: list[_UnitRows], covered: Covered, units_per_file: int, log_start: int
) -> DerivedUnits:
    """Places units by their numbers as a queue worker does, except where there is a gap."""
    rows = _UnitRows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    state = QueueEnd() if covered is NOT_COVERED else QueueEnd(*covered)
    units = unit_array(rows.physical_offset, rows.size, rows.tags_code)
    batch = UnitBatch(units, rows.number)
    plan = plan_units(state, units_per_file, batch)
    # As a queue worker: the log no longer has a record of any unit in the files.
    begins_anew = plan.has_gap and state.end is not None and state.physical_end <= log_start
    if begins_anew:
        plan = plan_units(QueueEnd(), units_per_file, batch)
    if plan.has_gap:
        state = QueueEnd() if begins_anew else state
        return _place_with_gaps(rows.number, units, state)._replace(replaces_files=begins_anew)
    return DerivedUnits(plan.start, plan.units, begins_anew)


def _place_with_gaps(number: NDArray[Any], units: Units, state: QueueEnd) -> DerivedUnits:
    """Puts fillers into the gaps of damaged records, so that all later units keep their numbers.

    Drops units that the files have, and units whose numbers do not rise.
    """
    ends = units["physical_offset"] + units["size"].astype(np.int64)
    begin = -1 if state.end is None else state.end - 1
    seen = np.maximum.accumulate(np.concatenate([[begin], number]))[:-1]
    new = (ends > state.physical_end) & (number > seen)
    number, units = number[new], units[new]
    first = int(number[0]) if state.end is None and len(number) else state.end or 0
    if not len(number):
        return DerivedUnits(first, units)
    position = number - first
    if position[-1] > 4 * len(position) + _GAP_UNITS_MAX:
        position = np.arange(len(position))
    placed = filler_units(int(position[-1]) + 1)
    placed[position] = units
    return DerivedUnits(first, placed)


class _IndexPlan(NamedTuple):
    """The files that stay; keys follow from log offset `start` on, without the first `skip`."""

    kept: list[IndexFile]
    start: int
    skip: int


def recovered_index(
    files: list[IndexFile],
    log: LogReader,
    condition: Condition,
    queued_end: int,
    geometry: IndexGeometry,
    settings: Settings,
) -> list[IndexFile]:
    """`files`: those on disk, oldest first; `queued_end`: the log offset where the queues end.

    `geometry`: of new files.
    """
    if condition.is_ours:
        plan = _plan_ours(files, log, condition)
    elif condition.is_clean:
        plan = _plan_clean(files, log, queued_end)
    else:
        plan = _plan_unclean(files, log, condition)
    if plan.start >= log.end:
        return plan.kept
    return _extend_files(plan, log, geometry, settings)


def _plan_clean(files: list[IndexFile], log: LogReader, queued_end: int) -> _IndexPlan:
    if not files:
        return _IndexPlan([], log.min_offset, 0)
    if queued_end <= log.min_offset:
        return _after_last(files, log)
    return _IndexPlan(files, max(queued_end, files[-1].header.end_physical_offset + 1), 0)


def _plan_unclean(files: list[IndexFile], log: LogReader, condition: Condition) -> _IndexPlan:
    limit = condition.checkpoint.index_msg_timestamp
    kept = [file for file in files if file.header.end_timestamp <= limit]
    if not kept:
        return _IndexPlan([], log.min_offset, 0)
    return _IndexPlan(kept, max(kept[-1].header.end_physical_offset, log.min_offset), 0)


def _plan_ours(files: list[IndexFile], log: LogReader, condition: Condition) -> _IndexPlan:
    done = condition.index_done
    if not files or done is None:
        return _IndexPlan([], log.min_offset, 0) if not files else _after_last(files, log)
    if condition.is_clean and done >= log.end:
        return _IndexPlan(files, log.end, 0)
    kept = _vouched_for(files, done, log)
    return _IndexPlan(kept, max(done, log.min_offset), 0)


def _after_last(files: list[IndexFile], log: LogReader) -> _IndexPlan:
    """Goes on with the last entered record; skips those of its keys that are entered."""
    header = files[-1].header
    if header.end_physical_offset < log.min_offset:
        return _IndexPlan(files, log.min_offset, 0)
    skip = 0
    for file in reversed(files):
        offsets = file.entries()["physical_offset"]
        same = offsets == header.end_physical_offset
        skip += int(same.sum())
        if len(same) and not same.all():
            break
    return _IndexPlan(files, header.end_physical_offset, skip)


def _vouched_entries(file: IndexFile, done: int) -> int:
    """The number of entries, from the first on, that are whole, in order, and below `done`.

    After them a power loss may have left anything, even good entries after zeros.
    """
    end, last = file.header.index_count, 0
    for start in range(1, end, WINDOW_ENTRIES):
        entries = file.entries(start, min(start + WINDOW_ENTRIES, end))
        offsets = entries["physical_offset"].astype(np.int64)
        good = (offsets < done) & (offsets >= np.concatenate([[last], offsets[:-1]]))
        good &= (offsets > 0) | (entries["key_hash"] != 0)
        if not good.all():
            return start - 1 + int(np.argmin(good))
        last = int(offsets[-1])
    return end - 1


def _vouched_for(files: list[IndexFile], done: int, log: LogReader) -> list[IndexFile]:
    """The files up to the first entry of a record at or above `done`; the last one is a copy.

    The rest of the last file, and its slots, may not have been synced.
    """
    kept: list[IndexFile] = []
    count = 0
    for file in files:
        vouched = _vouched_entries(file, done)
        if not vouched:
            break
        count = vouched
        kept.append(file)
        if count < file.header.index_count - 1:
            break
    if kept:
        kept[-1] = _cut_file(kept[-1], count, log)
    return kept


def _cut_file(file: IndexFile, count: int, log: LogReader) -> IndexFile:
    """A copy of a file with its first `count` entries; makes slots and header from them."""
    entries = file.entries(1, count + 1)
    header = file.header
    last = entries[-1]
    end_offset = int(last["physical_offset"])
    end_time = header.begin_timestamp + int(last["time_diff_s"]) * 1000
    if log.min_offset <= end_offset < log.end:
        record = log.peek(end_offset)
        end_time = record.head.store_timestamp if isinstance(record, Record) else end_time
    image = IndexImage(file.geometry)
    view = IndexFile.of_image(file.name, image)
    fill_slots(view.slots(), 1, entries["key_hash"])
    header = IndexHeader(
        begin_timestamp=header.begin_timestamp,
        end_timestamp=end_time,
        begin_physical_offset=header.begin_physical_offset,
        end_physical_offset=end_offset,
        slot_count=int(np.count_nonzero(view.slots())),
        index_count=count + 1,
    )
    _fill_image(image, header, entries)
    return view


def _fill_image(image: IndexImage, header: IndexHeader, entries: NDArray[Any]) -> None:
    """Puts header and entries into an image; the caller fills the slots."""
    position = image.geometry.entry_position(1)
    INDEX_ENTRY.view(image.data, position, len(entries))[:] = entries
    image.data[: INDEX_HEADER.size] = np.frombuffer(INDEX_HEADER.pack(header), np.uint8)
    image.header = header


def _key_batches(log: LogReader, start: int, skip: int, settings: Settings) -> Iterator[KeyBatch]:
    for item in columns_past_damage(log, start):
        if isinstance(item, Damage):
            continue
        requests = DispatchRequests(item, settings.delay_levels_ms)
        batch = key_batch(requests, settings.index_tags_enable)
        entered = min(skip, int((batch.physical_offset == start).sum())) if skip else 0
        skip = 0
        if len(batch.key_hash) > entered:
            yield batch.rows(entered, len(batch.key_hash))


def _extend_files(
    plan: _IndexPlan, log: LogReader, geometry: IndexGeometry, settings: Settings
) -> list[IndexFile]:
    files = list(plan.kept)
    image: IndexImage | None = None
    name = files[-1].name if files else None
    previous = files[-1].header if files else None
    for batch in _key_batches(log, plan.start, plan.skip, settings):
        if image is None and previous is not None and files:
            image = _resume_last(files)
        taken = 0
        while taken < len(batch.key_hash):
            if image is None or image.is_full:
                previous = image.header if image is not None else previous
                image = IndexImage(geometry, previous)
                name = next_index_file_name(int(batch.store_timestamp[taken]), name)
                files.append(IndexFile.of_image(name, image))
            taken += image.put(batch.rows(taken, len(batch.key_hash)))
    return files


def _resume_last(files: list[IndexFile]) -> IndexImage | None:
    """Replaces the last file by an image that takes more keys; None if it is full."""
    last = files[-1]
    header = last.header
    if header.index_count >= last.geometry.index_num:
        return None
    image = IndexImage(last.geometry)
    _fill_image(image, header, last.entries())
    files[-1] = IndexFile.of_image(last.name, image)
    files[-1].slots()[:] = last.slots()
    return image
