"""Plans how to fill each hole of a log: with markers of lost records, and a closing blank. Pure.

A unit gives the exact place of a lost record. A number that a queue lacks around a hole shows that
a record was there, but not where: its marker goes into the room that the units leave. The rest was
something else, a part of a transaction for instance, and gets markers without a queue.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from node.store.repair.steps import FillHole, Marker
from node.store.repair.units import Claim
from node.store.repair.walk import Gap, Hole
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import is_folder_name
from protocol.record.codec import FILLER_BYTES
from protocol.record.lost_marker import (
    GAP_MARKER_BYTES_MIN,
    LOST_PROPERTY_BYTES,
    gap_sizes,
    queue_marker_bytes_min,
)

_FIRST_BYTES = 160
"""The size of a marker that begins a segment: room for its topic, property and checksum."""


@dataclass(slots=True)
class _Room:
    """Bytes [start, end) of a hole that no unit names; `placed` are its markers, front first."""

    hole: Hole
    start: int
    end: int
    placed: list[Marker] = field(default_factory=list)

    @property
    def free_from(self) -> int:
        return self.placed[-1].offset + self.placed[-1].size if self.placed else self.start

    @property
    def free_to(self) -> int:
        """The end for records: the blank that closes a segment needs room after them."""
        return self.end - FILLER_BYTES if self.end == self.hole.segment_end else self.end


@dataclass(frozen=True, slots=True)
class Filling:
    """The steps that fill all holes, and the queue offsets without room for a marker: a broker's
    rebuild would renumber the units after those."""

    steps: list[FillHole]
    homeless: list[tuple[Queue, int]]


def fill_holes(holes: Sequence[Hole], claims: Sequence[Claim], gaps: Sequence[Gap]) -> Filling:
    """Plans every hole. Raises StoreDamaged for a hole that is too small for a record."""
    by_hole: dict[int, list[Claim]] = defaultdict(list)
    starts = [hole.start for hole in holes]
    for claim in claims:
        by_hole[starts[bisect_right(starts, claim.offset) - 1]].append(claim)
    rooms = {hole.start: list(_rooms(hole, by_hole[hole.start])) for hole in holes}
    every_room = [room for start in starts for room in rooms[start]]
    homeless: list[tuple[Queue, int]] = []
    # The gap with the least choice comes first: a gap may span several holes.
    for gap in sorted(gaps, key=lambda gap: (gap.high, gap.low)):
        homeless += _place_gap(gap, claims, every_room)
    steps = [_step(hole, by_hole[hole.start], rooms[hole.start]) for hole in holes]
    return Filling(steps, homeless)


def _rooms(hole: Hole, claims: Sequence[Claim]) -> Iterable[_Room]:
    position = hole.start
    for claim in claims:
        if claim.offset > position:
            yield _Room(hole, position, claim.offset)
        position = claim.end
    if position < hole.end:
        yield _Room(hole, position, hole.end)


def _place_gap(gap: Gap, claims: Sequence[Claim], rooms: list[_Room]) -> list[tuple[Queue, int]]:
    """Places the numbers of a gap that no unit names; returns those without room."""
    if not is_folder_name(gap.queue.topic):
        return []
    known = {claim.number: claim for claim in claims if claim.queue == gap.queue}
    least = queue_marker_bytes_min(gap.queue.topic, sealed=False)
    room = sum(max(one.free_to - one.free_from, 0) for one in rooms)
    if gap.stop - gap.first - len(known) > room // least:
        # More records than there was room for: this queue skips numbers for another reason.
        return []
    homeless: list[tuple[Queue, int]] = []
    low = gap.low
    for number in range(gap.first, gap.stop):
        if number in known:
            low = known[number].end
            continue
        above = [claim.offset for other, claim in known.items() if other > number]
        placed = _place(gap.queue, number, low, min([gap.high, *above]), rooms)
        if placed is None:
            homeless.append((gap.queue, number))
        else:
            low = placed.offset + placed.size
    return homeless


def _place(queue: Queue, number: int, low: int, high: int, rooms: list[_Room]) -> Marker | None:
    for with_checksum in (True, False):
        for room in rooms:
            sealed = with_checksum and room.hole.sealed
            at, size = room.free_from, queue_marker_bytes_min(queue.topic, sealed)
            if low <= at and room.end <= high and at + size <= room.free_to:
                marker = Marker(at, size, queue, number)
                room.placed.append(marker)
                return marker
    return None


def _step(hole: Hole, claims: Sequence[Claim], rooms: Sequence[_Room]) -> FillHole:
    markers = [Marker(claim.offset, claim.size, claim.queue, claim.number) for claim in claims]
    blank_at: int | None = None
    for room in rooms:
        if room.end < hole.segment_end:
            markers += _spread(room)
            continue
        placed = _widened(room)
        markers += placed
        blank_at = placed[-1].offset + placed[-1].size if placed else room.start
        if blank_at == hole.segment_start:
            # A segment begins with a record: brokers take its store time from there.
            markers.append(Marker(blank_at, min(_FIRST_BYTES, room.free_to - blank_at)))
            blank_at += markers[-1].size
    return FillHole(
        path=hole.path,
        segment_start=hole.segment_start,
        start=hole.start,
        end=hole.end,
        torn=hole.torn,
        store_timestamp=hole.store_timestamp,
        sealed=hole.sealed,
        markers=tuple(_without_slivers(hole, markers, blank_at)),
        blank_at=blank_at,
    )


def _spread(room: _Room) -> list[Marker]:
    """Markers for all of a room. The last placed one takes the rest; an empty room is unknown."""
    if room.placed:
        *others, last = _widened(room)
        return [*others, last._replace(size=room.end - last.offset)]
    sizes = gap_sizes(room.end - room.start)
    markers, position = [], room.start
    for size in sizes:
        markers.append(Marker(position, size))
        position += size
    return markers


def _widened(room: _Room) -> list[Marker]:
    """The markers of a room, each longer by the property that marks it, where there is room."""
    slack, position = room.free_to - room.free_from, room.start
    markers: list[Marker] = []
    for marker in room.placed:
        more = min(LOST_PROPERTY_BYTES, slack)
        slack -= more
        markers.append(marker._replace(offset=position, size=marker.size + more))
        position += marker.size + more
    return markers


def _without_slivers(hole: Hole, markers: list[Marker], blank_at: int | None) -> list[Marker]:
    """Adds bytes too few for a record to the marker before them, else to the one after them."""
    kept: list[Marker] = []
    start = hole.start
    for marker in sorted(markers, key=lambda marker: marker.offset):
        if marker.queue is None and marker.size < GAP_MARKER_BYTES_MIN:
            if kept:
                kept[-1] = kept[-1]._replace(size=kept[-1].size + marker.size)
            continue
        end = marker.offset + marker.size
        begin = kept[-1].offset + kept[-1].size if kept else start
        kept.append(marker._replace(offset=begin, size=end - begin))
    if not kept and blank_at is None:
        raise StoreDamaged(
            str(hole.path),
            hole.start,
            f"{hole.end - hole.start} damaged bytes are too few for any record",
            "restore a backup, or move what is left: keelog store dump",
        )
    return kept
