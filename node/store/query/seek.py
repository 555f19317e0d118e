"""A queue offset by store time, as RocketMQ finds it (ConsumeQueue#getOffsetInQueueByTime)."""

from contextlib import suppress
from enum import Enum

from node.runtime.damage import met_damage
from node.store.log.reader import LogReader
from node.store.query.record_of_unit import store_time
from node.store.queues.reader import FilePart, QueueReader
from protocol.errors import MessageDamaged

NEIGHBOURS_MAX = 64
"""Messages on each side of a damaged one that are looked at for its time."""


class Boundary(Enum):
    """Which message counts if no message has exactly the time, or several do."""

    LOWER = "lower"
    """The first at or after the time."""
    UPPER = "upper"
    """The last at or before the time."""


def offset_by_time(
    log: LogReader, queue: QueueReader | None, timestamp: int, boundary: Boundary = Boundary.LOWER
) -> int:
    """The queue offset, within [`min_offset`, `max_offset`]; 0 for a queue that does not exist.

    As in RocketMQ, the search does not follow equal times from one queue file into another.
    The time of a damaged message lies between those of its neighbours. Where that does not decide,
    it counts so that the result is never after a message that it should be at.
    """
    if queue is None:
        return 0
    search = _Search(log, queue, timestamp, boundary)
    part = search.choose_file()
    found = 0 if part is None else search.in_file(part)
    return min(max(found, queue.min_offset), queue.max_offset)


class _Search:
    def __init__(
        self, log: LogReader, queue: QueueReader, timestamp: int, boundary: Boundary
    ) -> None:
        self._log = log
        self._queue = queue
        self._timestamp = timestamp
        self._is_lower = boundary is Boundary.LOWER

    def _time(self, number: int) -> int:
        """The store time of a message, or one that compares in the same way; -1 without one."""
        unit = self._queue.unit(number)
        if unit is None:
            return -1
        try:
            return store_time(self._log, self._queue, number, unit)
        except MessageDamaged as damage:
            met_damage.note(damage)
            return self._time_of_damaged(number)

    def _time_of_damaged(self, number: int) -> int:
        wanted, is_lower = self._timestamp, self._is_lower
        low, high = self._queue.min_offset, self._queue.max_offset
        after = self._first_time(range(number + 1, min(number + 1 + NEIGHBOURS_MAX, high)))
        if after is not None and (after < wanted or (after == wanted and not is_lower)):
            return after
        before = self._first_time(range(number - 1, max(number - 1 - NEIGHBOURS_MAX, low - 1), -1))
        if before is not None and (before > wanted or (before == wanted and is_lower)):
            return before
        return wanted if is_lower else wanted + 1

    def _first_time(self, numbers: range) -> int | None:
        """That of the first message that can be read."""
        for number in numbers:
            unit = self._queue.unit(number)
            with suppress(MessageDamaged):
                if (
                    unit is not None
                    and (found := store_time(self._log, self._queue, number, unit)) >= 0
                ):
                    return found
        return None

    def choose_file(self) -> FilePart | None:
        """The file to search. An unknown time counts as -1; the last file's end is not read."""
        parts, timestamp = self._queue.file_parts(), self._timestamp
        if self._is_lower:
            for part in parts[:-1]:
                if self._known(part.end - 1) >= timestamp:
                    return part
            return parts[-1] if parts else None
        for part in reversed(parts):
            if self._known(part.first) <= timestamp:
                return part
        return None

    def _known(self, number: int) -> int:
        time = self._time(number)
        return time if time > 0 else -1

    def in_file(self, part: FilePart) -> int:
        """The broker's search in one file's units (binarySearchInQueueByTime)."""
        timestamp, is_lower = self._timestamp, self._is_lower
        floor, ceiling = max(part.first, self._queue.min_offset), part.end - 1
        if self._time(ceiling) < timestamp:
            return ceiling + 1 if is_lower else ceiling
        if self._time(floor) > timestamp:
            return part.first if is_lower else 0
        left = right = max(part.first - 1, 0)
        low, high = floor, ceiling
        while high >= low:
            # The broker halves positions within the file, so the middle counts from there.
            middle = part.first + (low - part.first + high - part.first) // 2
            unit = self._queue.unit(middle)
            if unit is None or 0 <= unit.physical_offset < self._log.min_offset:
                low, left = middle + 1, middle
                continue
            time = self._time(middle)
            if time < 0:
                return 0
            if time == timestamp:
                return self._outermost(middle, floor if is_lower else ceiling, timestamp)
            if time > timestamp:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        return right if is_lower else left

    def _outermost(self, number: int, bound: int, timestamp: int) -> int:
        """The last unit of equal time towards `bound`."""
        step = 1 if bound > number else -1
        while number != bound and self._time(number + step) == timestamp:
            number += step
        return number
