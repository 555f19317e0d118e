"""Which rows of each queue are read, and how ranges of queues and log become partitions.

Rows begin and end at offsets, at a time, or with all there is. Nothing here looks at a store.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple

from keelog.pipeline.errors import BadOption, DataLoss, few
from protocol.errors import OffsetOutOfRange, UnknownTopic

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1


class QueueAt(NamedTuple):
    """A queue of a store; `node` is empty where JSON leaves it out."""

    topic: str
    node: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}" + (f" of {self.node}" if self.node else "")


@dataclass(frozen=True, slots=True)
class ReadBound:
    """One end: `earliest`, `latest`, `offsets` of each queue, or the first row at a time.

    A queue offset is the next row to read, so as an end it is exclusive. `time` is `time_ms` for
    all queues; of `times` each queue has its own, in `offsets`, in ms. `must_exist`: a queue
    without a row at or after its time is an error; otherwise its end is meant.
    """

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    offsets: Mapping[QueueAt, int] = field(default_factory=dict)
    time_ms: int = 0
    must_exist: bool = False


EARLIEST = ReadBound("earliest")
LATEST = ReadBound("latest")


class Extent(NamedTuple):
    """What a queue has, or what is read of it: offsets [`low`, `high`)."""

    queue: QueueAt
    low: int
    high: int


def bound_offsets(
    bound: ReadBound,
    name: str,
    extents: list[Extent],
    stores: int,
    find: Callable[[QueueAt, int], int],
) -> dict[QueueAt, int]:
    """The offset that a bound means for each queue; `name` is the option that it comes from.

    `find` returns the first offset of a queue at or after a time, and its end where there is none.
    Raises UnknownTopic, BadOption, OffsetOutOfRange.
    """
    if bound.kind == "earliest":
        return {extent.queue: extent.low for extent in extents}
    if bound.kind == "latest":
        return {extent.queue: extent.high for extent in extents}
    if bound.kind == "time":
        named = {extent.queue: bound.time_ms for extent in extents}
    else:
        named = _named(bound, name, extents, stores)
    if bound.kind == "offsets":
        answer: dict[QueueAt, int] = {}
        for queue, low, high in extents:
            ends = {EARLIEST_OFFSET: low, LATEST_OFFSET: high}
            answer[queue] = ends.get(named[queue], named[queue])
        return answer
    answer = {queue: find(queue, time_ms) for queue, time_ms in named.items()}
    late = [f"{queue} ({named[queue]})" for queue, _, high in extents if answer[queue] >= high]
    if bound.must_exist and late:
        raise OffsetOutOfRange(
            f"no message was stored at or after the starting time of {few(late)}",
            "an earlier time, or startingOffsetsByTimestampStrategy=latest",
        )
    return answer


def _named(bound: ReadBound, name: str, extents: list[Extent], stores: int) -> dict[QueueAt, int]:
    """What `bound` names for each queue that is read: it must name each of them, and no other."""
    given = dict(bound.offsets)
    answer: dict[QueueAt, int] = {}
    missing: list[str] = []
    for queue in (extent.queue for extent in extents):
        value = given.pop(queue, None)
        if value is None and stores == 1:
            value = given.pop(queue._replace(node=""), None)
        if value is None:
            missing.append(str(queue))
        else:
            answer[queue] = value
    if given:
        raise UnknownTopic(
            f"{name} names {few(given)}, which is not read",
            f"these are: {few(extent.queue for extent in extents)}",
        )
    if missing:
        raise BadOption(
            f"{name} does not say where {few(missing)} begins or ends",
            "each queue that is read, or fewer queues by assign",
        )
    return answer


def check_offsets(
    extent: Extent, start: int, end: int, fail_on_data_loss: bool
) -> tuple[int, int, str]:
    """[start, end) as it can be read, and what is lost of it, as text, empty for nothing.

    Raises OffsetOutOfRange, DataLoss.
    """
    queue, low, high = extent
    for what, offset in (("starting", start), ("ending", end)):
        if offset > high:
            raise OffsetOutOfRange(
                f"the {what} offset {offset} of {queue} is beyond its end, {high}",
                f"an offset from {low} to {high}",
            )
    if start > end:
        raise OffsetOutOfRange(
            f"{queue} would begin at {start} and end before that, at {end}", "them in order"
        )
    lost = min(low, end) - start
    if lost <= 0:
        return start, end, ""
    text = f"{queue}: {lost} messages, {start} to {min(low, end) - 1}, it begins at {low} now"
    if fail_on_data_loss:
        raise DataLoss(text, "failOnDataLoss=false, which begins with what is left")
    return min(low, end), end, text


class PartitionLimits(NamedTuple):
    """What the options say about partitions. Bytes are aimed at, records are kept."""

    bytes_max: int
    records_max: int | None = None
    partitions_min: int = 1


class Range(NamedTuple):
    """Rows [`start`, `end`) of something that has numbered rows, of about `row_bytes` each.

    `source` is its queue, or index file.
    """

    source: Any
    start: int
    end: int
    row_bytes: float

    @property
    def rows(self) -> int:
        return self.end - self.start


def plan_partitions(ranges: Sequence[Range], limits: PartitionLimits) -> list[list[Range]]:
    """Every row of every range in exactly one partition; no partition is empty.

    All ranges are cut into the same number of equal pieces, and the i-th pieces of all make the
    i-th partition: queues of one store grow side by side, so that each partition's records are
    near each other in the log. Where the ranges are too short for that, one is filled after the
    other.
    """
    total = sum(found.rows for found in ranges)
    if not total:
        return []
    size = sum(found.rows * found.row_bytes for found in ranges)
    pieces = max(ceil(size / limits.bytes_max), limits.partitions_min, 1)
    records_max = limits.records_max or total
    if records_max < total:
        # Each range may give a piece one row more than its share.
        pieces = max(pieces, ceil(total / max(records_max - len(ranges), 1)))
    pieces = min(pieces, total)
    parts = [_piece(ranges, piece, pieces) for piece in range(pieces)]
    if all(0 < sum(found.rows for found in part) <= records_max for part in parts):
        return parts
    return _fill(ranges, min(records_max, total // pieces))


def _piece(ranges: Sequence[Range], piece: int, pieces: int) -> list[Range]:
    cut = (
        found._replace(
            start=found.start + found.rows * piece // pieces,
            end=found.start + found.rows * (piece + 1) // pieces,
        )
        for found in ranges
    )
    return [found for found in cut if found.rows]


def _fill(ranges: Sequence[Range], records_max: int) -> list[list[Range]]:
    """Partitions of `records_max` rows, one range after the other."""
    parts: list[list[Range]] = []
    room = 0
    for found in ranges:
        start = found.start
        while start < found.end:
            if not room:
                parts.append([])
                room = records_max
            end = min(found.end, start + room)
            parts[-1].append(found._replace(start=start, end=end))
            room -= end - start
            start = end
    return parts


def log_borders(start: int, end: int, limits: PartitionLimits) -> list[int]:
    """Log offsets, strictly between `start` and `end`, near which to cut it into partitions."""
    size = end - start
    if size <= 0:
        return []
    pieces = min(max(ceil(size / limits.bytes_max), limits.partitions_min), size)
    return [start + size * piece // pieces for piece in range(1, pieces)]


def share(limits: PartitionLimits, part: int, whole: int) -> PartitionLimits:
    """The limits for one of several stores, which holds `part` of `whole` bytes or rows."""
    count = ceil(limits.partitions_min * part / whole) if whole else 1
    return limits._replace(partitions_min=max(count, 1))
