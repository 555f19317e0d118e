"""Records that consumers will pull next, read in one look: small pulls cost a slice each.

A pull of 32 messages costs more to find and to verify than to send. So the second of two pulls in
a row reads what follows too. The rest of it is kept under the offset at which the consumer will go
on; a pull anywhere else reads the files. No sockets, no clock.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from node.reader.answers import Answer, look_again, pull
from node.reader.requests import Pull
from node.store.file_cache import FileVanished
from node.store.opening import RunningStore
from node.store.query.pull import PulledRecords, PullRequest, PullStatus, TransferLimits, total_max
from node.store.query.verified_read import Payload
from node.store.queues import QueueReader
from protocol.errors import MqError
from protocol.ids import Queue

AHEAD_MESSAGES = 1_024
AHEAD_BYTES = 256 * 1024
"""Of one look; a pull that takes more than a quarter of it gains nothing."""
SHARE = 4
KEPT_BYTES_MAX = 8 * 1024 * 1024
"""Of all that is kept: beyond it, what was read first is dropped."""
PLACES_MAX = 4_096
"""Consumers that are remembered, with or without records."""
_LIMITS = TransferLimits(AHEAD_MESSAGES, AHEAD_BYTES, AHEAD_MESSAGES, AHEAD_BYTES)
EndOf = Callable[[Queue], int | None]
_Place = tuple[Queue, int]


@dataclass(slots=True)
class _Records:
    """Records of one queue, back to back. Those before `row` were taken.

    `reader`: the store replaces a queue's reader when what was read may no longer hold.
    """

    reader: QueueReader
    payload: memoryview
    ends: list[int]
    """Where each record ends in `payload`, after a 0."""
    sizes: bytes
    places: list[int]
    row: int = 0

    def stop(self, count_max: int, bytes_max: int) -> int:
        """The row after the last one of a pull with these limits."""
        stop = min(self.row + count_max, len(self.places))
        room = self.ends[self.row] + bytes_max
        if self.ends[stop] > room:
            stop = max(self.row + 1, bisect_right(self.ends, room, self.row, stop) - 1)
        return stop

    def ends_within(self, count_max: int, bytes_max: int) -> bool:
        """True if its end might cut the pull short."""
        return self.stop(count_max, bytes_max) == len(self.places)


class ReadAhead:
    """The records that are kept for the consumers of a store, by queue and offset."""

    def __init__(self) -> None:
        self._kept: dict[_Place, _Records | None] = {}
        """None: a pull ended here, and nothing was read beyond it yet."""
        self._bytes = 0

    def note(self, wanted: Pull, found: PulledRecords) -> None:
        """A pull was answered from the files: the next one may read ahead."""
        if (
            found.count
            and wanted.request.tags is None
            and len(found.payload) * SHARE <= AHEAD_BYTES
            and found.count * SHARE <= AHEAD_MESSAGES
            and found.max_offset - found.next_begin_offset > found.count
        ):
            self._keep((wanted.queue, found.next_begin_offset), None)

    def answer(self, store: RunningStore, wanted: Pull, end_of: EndOf) -> Answer | None:
        """The answer to a pull; None if the files must give it. `end_of`: as the tail knows."""
        place = wanted.queue, wanted.offset
        if place not in self._kept:
            return None
        records = self._kept.pop(place)
        self._bytes -= 0 if records is None else len(records.payload)
        request, reader = wanted.request, store.queue(*wanted.queue)
        if request.tags is not None or reader is None or wanted.offset < reader.min_offset:
            return None
        count_max = min(request.limits.count_max, request.max_messages)
        bytes_max = min(request.limits.bytes_max, total_max(request))
        if (
            records is None
            or records.reader is not reader
            or records.ends_within(count_max, bytes_max)
        ):
            records = _read(store, wanted)
            if records is None or records.ends_within(count_max, bytes_max):
                return None
        if _is_cold(store, records.places[records.row], request):
            return None
        return self._take(records, records.stop(count_max, bytes_max), wanted, end_of)

    def _take(self, records: _Records, stop: int, wanted: Pull, end_of: EndOf) -> Answer:
        row, ends = records.row, records.ends
        following = wanted.offset + stop - row
        fields = {
            "status": PullStatus.FOUND.value,
            "next_begin_offset": following,
            "min_offset": records.reader.min_offset,
            "max_offset": max(records.reader.max_offset, end_of(wanted.queue) or 0),
            "count": stop - row,
            "sizes": records.sizes[row * 4 : stop * 4],
        }
        payload = records.payload[ends[row] : ends[stop]]
        records.row = stop
        self._keep((wanted.queue, following), records)
        return Answer(fields, payload)

    def _keep(self, place: _Place, records: _Records | None) -> None:
        kept = self._kept
        self._drop(place)
        kept[place] = records
        self._bytes += 0 if records is None else len(records.payload)
        while self._bytes > KEPT_BYTES_MAX or len(kept) > PLACES_MAX:
            self._drop(next(iter(kept)))

    def _drop(self, place: _Place) -> None:
        records = self._kept.pop(place, None)
        self._bytes -= 0 if records is None else len(records.payload)


def _is_cold(store: RunningStore, offset: int, request: PullRequest) -> bool:
    """True if a record at this log offset has limits of its own: its pull reads the files."""
    limits = request.limits
    return limits.memory_bytes is not None and store.log.end - offset > limits.memory_bytes


def _read(store: RunningStore, wanted: Pull) -> _Records | None:
    """Reads a pull's records and what follows; None if the pull has to read by itself."""
    request = replace(
        wanted.request, max_messages=AHEAD_MESSAGES, total_bytes_max=AHEAD_BYTES, limits=_LIMITS
    )
    try:
        found = look_again(store, lambda: pull(store, replace(wanted, request=request)))
        reader = store.queue(*wanted.queue)
    except (MqError, FileVanished):
        return None  # the pull by itself meets this too, and says so
    numbers = found.queue_offsets
    if reader is None or not found.count or found.status is not PullStatus.FOUND:
        return None
    if int(numbers[-1]) - wanted.offset != found.count - 1:
        return None  # some units name no record
    return _Records(
        reader,
        _view(found.payload),
        [0, *found.sizes.cumsum().tolist()],
        found.packed_sizes(),
        found.physical_offsets.tolist(),
    )


def _view(payload: Payload) -> memoryview:
    return payload if isinstance(payload, memoryview) else memoryview(payload)
