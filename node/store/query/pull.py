"""One pull: RocketMQ's `getMessage`, its request and result, statuses, limits, corrected offsets.

`plain_scan` is the broker's loop (DefaultMessageStore#getMessage) and handles every case.
Without a filter `_compiled_scan` returns the same where every record of the range can be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.log.reader import LogReader
from node.store.query.filters import SqlFilter, TagFilter
from node.store.query.verified_read import Payload, damaged_message, verified_bytes
from node.store.queues import NO_UNITS, QueueReader, Units
from protocol.derived.file_layouts import UNIT_BYTES, QueueUnit
from protocol.errors import StoreDamaged
from protocol.kernel import loader
from protocol.record.check import FitLimits, MessageUnits, PullBound, fitting_units

TOTAL_BYTES_MAX = 128 << 20
FILTERED_BYTES_MAX = 4 << 20
"""Records that one pull reads for a filter in SQL92, but always one record."""
TOTAL_BYTES_MIN = 100
ONE_BY_ONE_MAX = 2
"""Up to this number, units are faster one by one than compiled."""


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
        """The number of records."""
        return len(self.units)

    @property
    def physical_offsets(self) -> NDArray[np.int64]:
        """The log offset of each record."""
        return self.units["physical_offset"].astype(np.int64)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each record."""
        return self.units["size"].astype(np.int64)

    def packed_sizes(self) -> bytes:
        """The bytes of each record, four bytes each with the lowest first."""
        return self.units["size"].astype("<u4").tobytes()


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
            wanted = MessageUnits(queue.queue, units[rows], np.arange(first, following)[rows])
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
        limits = request.limits
        few = min(request.max_messages, max(limits.count_max, limits.cold_count_max)) + 1
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
    compiled, found = loader.active(), None
    if compiled is not None and request.tags is None and len(units) > ONE_BY_ONE_MAX:
        found = _compiled_scan(compiled, log, units, request)
    return found or plain_scan(log, units, request)


def _compiled_scan(
    compiled: loader.Kernel, log: LogReader, units: Units, request: PullRequest
) -> Scanned | None:
    """For pulls without a filter; None where the plain loop must decide."""
    memory_bytes = request.limits.memory_bytes
    hot_bytes = -1 if memory_bytes is None else memory_bytes
    bounds = FitLimits(log.min_offset, log.end, log.segment_bytes, hot_bytes, *_bounds(request))
    count = fitting_units(compiled, units, bounds)
    return Scanned(range(count), count, PullStatus.FOUND) if count > 0 else None


def total_max(request: PullRequest) -> int:
    """The bytes of records that a pull takes at most."""
    return min(max(request.total_bytes_max, TOTAL_BYTES_MIN), TOTAL_BYTES_MAX)


def _bounds(request: PullRequest) -> tuple[PullBound, PullBound]:
    """How much a pull takes of hot and of cold records."""
    limits, count_max, bytes_max = request.limits, request.max_messages, total_max(request)
    return (
        PullBound(min(limits.count_max, count_max), min(limits.bytes_max, bytes_max)),
        PullBound(min(limits.cold_count_max, count_max), min(limits.cold_bytes_max, bytes_max)),
    )


def plain_scan(log: LogReader, units: Units, request: PullRequest) -> Scanned:
    """The broker's loop over one file's units, one by one."""
    rows: list[int] = []
    total, skip_until, consumed = 0, -1, 0
    status = PullStatus.NO_MATCHED_MESSAGE
    tags, bytes_max, memory_bytes = request.tags, total_max(request), request.limits.memory_bytes
    hot, cold = _bounds(request)
    passes = None if tags is None else tags.takes_units(units).tolist()
    for row, (offset, size, _) in enumerate(units.tolist()):
        if rows:  # DefaultMessageStore#isTheBatchFull
            is_hot = memory_bytes is None or log.end - offset <= memory_bytes
            most = hot if is_hot else cold
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
            if not 0 <= offset < log.min_offset:
                # Retention removes nothing at the end: a broker skips this unit, but it is damage.
                status = PullStatus.FOUND if rows else PullStatus.MESSAGE_WAS_REMOVING
                return Scanned(rows, row, status, damaged=None if rows else row)
            step = log.segment_bytes or 1
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
