"""One pull: RocketMQ's `getMessage`, its request and result, statuses, limits, corrected offsets.

`plain_scan` is the broker's loop (DefaultMessageStore#getMessage) and handles every case.
Without a filter the compiled scan returns the same where every record of the range can be read.
`record_of` reads one message, `verified_bytes` many; both verify that each record is that message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.file_cache import FileVanished, see_all_damage
from node.store.log.reader import LogReader
from node.store.query.filters import SqlFilter, TagFilter
from node.store.queues import NO_UNITS, QueueReader, Units
from protocol.derived.file_layouts import UNIT_BYTES, QueueUnit
from protocol.errors import MessageDamaged, NotFound, StoreDamaged
from protocol.kernel import loader
from protocol.record import check
from protocol.record.check import MessageUnits, PullBound, SealedRecord
from protocol.record.codec import Filler, Record, Torn

Payload = bytes | memoryview
TOTAL_BYTES_MAX = 128 << 20
FILTERED_BYTES_MAX = 4 << 20
"""Records that one pull reads for a filter in SQL92, but always one record."""
TOTAL_BYTES_MIN = 100
ONE_BY_ONE_MAX = 2
"""Up to this number, units are faster one by one than compiled."""
COMPILED_ABOVE = 4
"""Up to this number, records are faster one by one."""


class PullStatus(StrEnum):
    """RocketMQ's GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"


class TransferLimits(NamedTuple):
    """The limits of one pull's result (maxTransfer…OnMessageInMemory and …InDisk).

    A record counts as cold when it lies more than `memory_bytes` below the log's end; None: never.
    """

    count_max: int = 32
    bytes_max: int = 262_144
    cold_count_max: int = 8
    cold_bytes_max: int = 65_536
    memory_bytes: int | None = None


IN_MEMORY = TransferLimits()
"""RocketMQ's defaults, for a store that is in memory."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The messages that a pull takes, and its limits.

    `exact`: compares the text of tags too; a broker compares hashes and leaves the text to its
    client. An SqlFilter needs `exact`.
    `filter_bytes_max`: the bytes of units that one pull scans.
    """

    max_messages: int = 32
    total_bytes_max: int = TOTAL_BYTES_MAX
    limits: TransferLimits = IN_MEMORY
    tags: TagFilter | SqlFilter | None = None
    exact: bool = False
    filter_bytes_max: int = 16_000
    files_max: int = 1
    total: int = field(init=False)
    """The bytes of records that it takes at most; `hot` and `cold` bound each kind of them."""
    hot: PullBound = field(init=False)
    cold: PullBound = field(init=False)

    def __post_init__(self) -> None:
        limits, count_max = self.limits, self.max_messages
        total = min(max(self.total_bytes_max, TOTAL_BYTES_MIN), TOTAL_BYTES_MAX)
        hot = PullBound(min(limits.count_max, count_max), min(limits.bytes_max, total))
        cold = PullBound(min(limits.cold_count_max, count_max), min(limits.cold_bytes_max, total))
        for name, value in (("total", total), ("hot", hot), ("cold", cold)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """The result of a pull: the unit of each record taken, and the queue offset of it.

    `payload`: the records back to back, as stored, each of them verified.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    units: Units
    queue_offsets: NDArray[np.int64]
    payload: Payload

    @property
    def count(self) -> int:
        return len(self.units)

    @property
    def physical_offsets(self) -> NDArray[np.int64]:
        """The log offset of each record."""
        return self.units["physical_offset"].astype(np.int64)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each record."""
        return self.units["size"].astype(np.int64)


class Scanned(NamedTuple):
    """The result of a scan of one file's units: the rows taken, and the number consumed.

    `damaged`: the row of a unit that names no place in the log, if no row was taken before it.
    """

    rows: Sequence[int]
    consumed: int
    status: PullStatus
    damaged: int | None = None


def get_message(
    log: LogReader, queue: QueueReader | None, offset: int, request: PullRequest
) -> PulledRecords:
    """Pulls from `queue` (None: it does not exist) at queue offset `offset`.

    Raises MessageDamaged if the first message to take is damaged: its record, or its unit, which
    then names no record or another one. A later damaged message ends the result before it.
    """
    if queue is None:
        return nothing(PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return nothing(PullStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return nothing(PullStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return nothing(PullStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return nothing(PullStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    return _scan_files(log, queue, offset, request)


def nothing(status: PullStatus, following: int, low: int, high: int) -> PulledRecords:
    """A result without records, from a queue that holds [`low`, `high`)."""
    return PulledRecords(status, following, low, high, NO_UNITS, np.empty(0, np.int64), b"")


def _scan_files(
    log: LogReader, queue: QueueReader, offset: int, request: PullRequest
) -> PulledRecords:
    low, high = queue.min_offset, queue.max_offset
    # A unit is looked at while the bytes of units before it are below the limit.
    limit = -(-max(request.filter_bytes_max, request.max_messages * UNIT_BYTES) // UNIT_BYTES)
    following, status = offset, PullStatus.NO_MATCHED_MESSAGE
    for _ in range(request.files_max):
        part = queue.file_of(following)
        if part is None:
            step = queue.file_units
            following += step - following % step
            return nothing(PullStatus.OFFSET_FOUND_NULL, following, low, high)
        count = min(part.end, high, offset + limit) - following
        units, found = _scan_file(log, queue, following, count, request)
        first, following = following, following + found.consumed
        status = found.status if found.consumed else status
        if found.damaged is not None:
            unit = QueueUnit(*units[found.damaged].tolist())
            raise damaged_message(log, queue, first + found.damaged, unit)
        if found.rows:
            # As a slice, where the scan took all: that copies nothing.
            rows: slice | NDArray[np.int64] = slice(0, found.consumed)
            if len(found.rows) < found.consumed:
                rows = np.array(found.rows, np.int64)
            wanted = MessageUnits(queue.files.queue, units[rows], np.arange(first, following)[rows])
            payload, good = verified_bytes(log, wanted)
            if good < len(found.rows):
                # The next pull meets the damaged record first.
                wanted, following = wanted.before(good), _damaged_at(log, queue, wanted, good)
            return PulledRecords(status, following, low, high, wanted.units, wanted.number, payload)
        if not found.consumed or following >= high:
            break
    return nothing(status, following, low, high)


def _damaged_at(log: LogReader, queue: QueueReader, wanted: MessageUnits, row: int) -> int:
    """The queue offset of a damaged record. Raises MessageDamaged if it is the first wanted."""
    number = int(wanted.number[row])
    if not row:
        raise damaged_message(log, queue, number, QueueUnit(*wanted.units[row].tolist()))
    return number


def _scan_file(
    log: LogReader, queue: QueueReader, start: int, count: int, request: PullRequest
) -> tuple[Units, Scanned]:
    """Scans `count` units from number `start` on; returns the units that it read too."""
    if count <= 0:
        return NO_UNITS, Scanned([], 0, PullStatus.NO_MATCHED_MESSAGE)
    if request.tags is None:
        # Without a filter the result is full long before the limit of the scan.
        few = max(request.hot.records, request.cold.records) + 1
        if few < count:
            units = queue.units(start, few)
            found = _scan(log, units, request)
            if found.consumed < few:
                return units, found
    units = queue.units(start, count)
    if isinstance(request.tags, SqlFilter):
        before = np.cumsum(units["size"].astype(np.int64)) - units["size"]
        units = units[: max(1, int(np.count_nonzero(before < FILTERED_BYTES_MAX)))]
    return units, _scan(log, units, request)


def _scan(log: LogReader, units: Units, request: PullRequest) -> Scanned:
    """Scans compiled where that is faster; the plain loop does the rest."""
    if request.tags is None and len(units) > ONE_BY_ONE_MAX:
        compiled, memory_bytes = loader.kernel, request.limits.memory_bytes
        if compiled is not None:
            hot_bytes = -1 if memory_bytes is None else memory_bytes
            place = log.min_offset, log.end, log.segment_bytes, hot_bytes
            bounds = check.FitLimits(*place, request.hot, request.cold)
            count = check.fitting_units(compiled, units, bounds)
            if count > 0:
                return Scanned(range(count), count, PullStatus.FOUND)
    return plain_scan(log, units, request)


def plain_scan(log: LogReader, units: Units, request: PullRequest) -> Scanned:
    """The broker's loop over one file's units, one by one."""
    rows: list[int] = []
    total, skip_until, consumed = 0, -1, 0
    status = PullStatus.NO_MATCHED_MESSAGE
    tags, bytes_max, memory_bytes = request.tags, request.total, request.limits.memory_bytes
    bounds, step = log.bounds, log.segments.segment_bytes or 1
    passes = None if tags is None else tags.takes_units(units).tolist()
    for row, (offset, size, _) in enumerate(units.tolist()):
        if rows:  # DefaultMessageStore#isTheBatchFull
            is_hot = memory_bytes is None or bounds.end - offset <= memory_bytes
            most = request.hot if is_hot else request.cold
            if len(rows) >= most.records or total + size > most.bytes:
                break
        if total >= bytes_max:
            break
        consumed = row + 1
        if 0 <= offset < skip_until:
            continue
        if passes is not None and not passes[row]:
            status = status if rows else PullStatus.NO_MATCHED_MESSAGE
            continue
        if not log.holds(offset, size):
            if not 0 <= offset < bounds.start:
                # Retention removes nothing at the end: a broker skips this unit, but it is damage.
                status = PullStatus.FOUND if rows else PullStatus.MESSAGE_WAS_REMOVING
                return Scanned(rows, row, status, damaged=None if rows else row)
            skip_until = offset + step - offset % step
            status = status if rows else PullStatus.MESSAGE_WAS_REMOVING
            continue
        if tags is not None and request.exact and not _text_fits(log, tags, offset, size):
            continue
        rows.append(row)
        total += size
        status = PullStatus.FOUND
        skip_until = -1
    return Scanned(rows, consumed, status)


def _text_fits(log: LogReader, tags: TagFilter | SqlFilter, offset: int, size: int) -> bool:
    try:
        return tags.takes_record(log.raw(offset, size))
    except StoreDamaged:
        return True  # the read of the record reports the damage


def record_of(log: LogReader, queue: QueueReader, number: int, unit: QueueUnit) -> Record:
    """The record that `unit` names, which is unit `number` of the queue.

    Raises MessageDamaged if the record is damaged, or is not this message; NotFound if it lies
    before the log's begin.
    """
    if 0 <= unit.physical_offset < log.min_offset:
        raise NotFound(
            f"message {number} of queue {queue.queue.queue_id} of {queue.queue.topic} was deleted",
            f"the log begins at offset {log.min_offset}",
        )
    if log.holds(unit.physical_offset, unit.size):
        found = _peek_or_damage(log, unit.physical_offset)
        wanted = (queue.queue, number, unit.size)
        if isinstance(found, Record) and (*SealedRecord.of(found)[:2], found.size) == wanted:
            return found
    raise damaged_message(log, queue, number, unit)


def store_time(log: LogReader, queue: QueueReader, number: int, unit: QueueUnit) -> int:
    """STORETIMESTAMP of a message; -1 if its record lies before the log's begin.

    A broker reads this field alone (pickupStoreTimestamp); here the whole record is verified.
    Raises MessageDamaged.
    """
    if 0 <= unit.physical_offset < log.min_offset:
        return -1
    return record_of(log, queue, number, unit).head.store_timestamp


def verified_bytes(log: LogReader, messages: MessageUnits) -> tuple[Payload, int]:
    """The records before the first damaged one, back to back, and their number.

    All must be within the log. Raises StoreDamaged if the segment of the first record cannot be
    opened; a later such record counts as damaged.
    """
    compiled = loader.kernel if len(messages.units) > COMPILED_ABOVE else None
    if compiled is not None:
        return _copied_bytes(compiled, log, messages)
    offsets, sizes = messages.units["physical_offset"].tolist(), messages.units["size"].tolist()
    payload, count = log.payload(offsets, sizes)
    rows = zip(messages.number.tolist()[:count], offsets, sizes, strict=False)
    good = check.first_unfit(payload, messages.queue, rows)
    return (payload if good == count else payload[: sum(sizes[:good])]), good


def _copied_bytes(
    compiled: loader.Kernel, log: LogReader, messages: MessageUnits
) -> tuple[Payload, int]:
    """With the kernel, which copies and verifies a record in one pass, segment by segment."""
    units = messages.units
    rows, size = len(units), check.unit_bytes(compiled, units)
    out, segment = log.buffers.take(size), None
    done = filled = 0
    while done < rows:
        place = int(units[done]["physical_offset"])
        if segment is not None and segment.start <= place < segment.end:
            break  # the record there is not the message
        try:
            segment = log.segment_at(place)
            data = np.frombuffer(segment.view(), np.uint8)
        except StoreDamaged:
            if not done:
                raise
            break
        part = messages.after(done) if done else messages
        done += check.copy_messages(compiled, data, segment.start, part, out[filled:])
        filled = size if done == rows else check.unit_bytes(compiled, units[:done])
    return out.data[:filled], done


def damaged_message(
    log: LogReader, queue: QueueReader, number: int, unit: QueueUnit
) -> MessageDamaged:
    """The error of a damaged message: record or unit, where, and how to go on after it."""
    where, offset, found = _what_is_wrong(log, queue, number, unit)
    topic, queue_id = queue.queue
    return MessageDamaged(
        where,
        offset,
        f"{found} (message {number} of queue {queue_id} of {topic})",
        f"{see_all_damage(Path(where))}; go on after it at queue offset {number + 1}:"
        f" keelog consume {topic} --queue {queue_id} -o {number + 1}",
        number,
        number + 1,
    )


def _peek_or_damage(log: LogReader, place: int) -> Record | Filler | Torn | StoreDamaged:
    """As `log.peek`, but returns the error of a damaged segment; raises for one that is gone."""
    try:
        return log.peek(place)
    except FileVanished:
        raise
    except StoreDamaged as damage:
        return damage


def _what_is_wrong(
    log: LogReader, queue: QueueReader, number: int, unit: QueueUnit
) -> tuple[str, int, str]:
    """File, offset and reason. If there is a whole record, the unit must be wrong."""
    file, position = queue.files.place(number)
    place, size = unit.physical_offset, unit.size
    says = f"the queue unit names {size} bytes at log offset {place}"
    if not log.holds(place, size):
        return str(file), position, f"{says}, outside [{log.min_offset}, {log.end})"
    match _peek_or_damage(log, place):
        case StoreDamaged() as damage:
            return damage.where, damage.offset, damage.found
        case Torn(why=why):
            return str(log.segment_at(place).path), place, why
        case Filler():
            return str(file), position, f"{says}, where the segment ends"
        case Record() as found:
            is_like = f"a record of {found.size} bytes of queue {found.head.queue_id} of"
            other = f"{is_like} {found.topic}, number {found.head.queue_offset}"
            return str(file), position, f"{says}, where {other} stands"
