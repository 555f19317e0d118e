"""Which rows of each queue are read, and how ranges of queues and log become partitions.

Rows begin and end at offsets, at a time, or with all there is. Of several options for one side the
first of these counts, as in Spark's Kafka source: a time for all queues, a time for each, offsets.
Nothing here looks at a store.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple

from keelog.pipeline.errors import BadOption, DataLoss, few
from keelog.pipeline.option_values import Options, json_object, milliseconds, one_of
from protocol.errors import OffsetOutOfRange, UnknownTopic

BOUNDS = tuple(
    f"{side}{what}"
    for side in ("starting", "ending")
    for what in ("Offsets", "Timestamp", "OffsetsByTimestamp")
)
STRATEGY = "startingOffsetsByTimestampStrategy"

Use = Literal["batch", "stream", "any"]
"""What options are for; `any` while Spark has not said which: what either takes is taken."""

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
    """What a queue has: offsets [`low`, `high`)."""

    queue: QueueAt
    low: int
    high: int


def starting_bound(options: Options, use: Use) -> ReadBound:
    """Batches begin at the earliest row by default, streams after the latest."""
    default = LATEST if use == "stream" else EARLIEST
    forbidden = LATEST if use == "batch" else None
    return _bound(options, "starting", default, forbidden)


def ending_bound(options: Options) -> ReadBound:
    """All that there is, by default."""
    return _bound(options, "ending", LATEST, EARLIEST)


def _bound(
    options: Options, side: str, default: ReadBound, forbidden: ReadBound | None
) -> ReadBound:
    time_ms = milliseconds(options, f"{side}Timestamp")
    # Queues that are named one by one are expected to have a message each.
    asked = one_of(options, STRATEGY, ("error", "latest", ""), "")
    if time_ms is not None:
        return ReadBound(
            "time", time_ms=time_ms, must_exist=side == "starting" and asked == "error"
        )
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in options:
        must_exist = side == "starting" and asked != "latest"
        times = _of_queues(name, json_object(options, name), "1700000000000", 0)
        return ReadBound("times", times, must_exist=must_exist)
    name = f"{side}Offsets"
    word = options.get(name.lower(), default.kind).strip().lower()
    if forbidden is not None and word == forbidden.kind:
        raise BadOption(f"{name} cannot be {word}: there would be no row", f"{default.kind}, JSON")
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    return _parse_offsets(name, json_object(options, name), forbidden)


def _parse_offsets(
    name: str, value: Mapping[str, Any], forbidden: ReadBound | None = None
) -> ReadBound:
    """`{"topic": {"0": 23}}`, or with several stores `{"topic": {"node": {"0": 23}}}`.

    -2 means the earliest and -1 the latest offset, as in Kafka's, unless it is
    `forbidden`. Raises BadOption.
    """
    offsets = _of_queues(name, value, "23", EARLIEST_OFFSET)
    never = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}.get(
        forbidden.kind if forbidden is not None else ""
    )
    for queue, offset in offsets.items():
        if offset == never:
            raise BadOption(
                f"{name} has {offset} for {queue}: there would be no row", "another offset"
            )
    return ReadBound("offsets", offsets)


def _of_queues(name: str, value: Mapping[str, Any], example: str, least: int) -> dict[QueueAt, int]:
    answer: dict[QueueAt, int] = {}
    for queue, number in _leaves(value):
        if queue is None or type(number) is not int or number < least:
            raise BadOption(
                f"{name} has another form",
                f'{{"topic": {{"0": {example}}}}}, with several stores'
                f' {{"topic": {{"node": {{"0": {example}}}}}}}',
            )
        answer[queue] = number
    return answer


def _leaves(value: Mapping[str, Any]) -> Iterable[tuple[QueueAt | None, Any]]:
    for topic, inner in value.items():
        if not isinstance(inner, dict):
            yield None, inner
            continue
        for key, leaf in inner.items():
            if isinstance(leaf, dict):
                yield from ((_queue_at(topic, key, number), at) for number, at in leaf.items())
            else:
                yield _queue_at(topic, "", key), leaf


def _queue_at(topic: str, node: str, number: str) -> QueueAt | None:
    is_number = number.isascii() and number.isdigit()
    return QueueAt(topic, node, int(number)) if is_number else None


def offsets_for(
    bound: ReadBound, name: str, extents: list[Extent], stores: int
) -> dict[QueueAt, int]:
    """The offset that `bound`, of kind `offsets`, says for each queue; -2 and -1 are replaced.

    It must name each queue that is read, and no other. Raises UnknownTopic, BadOption.
    """
    named = named_values(bound, name, extents, stores)
    answer: dict[QueueAt, int] = {}
    for queue, low, high in extents:
        ends = {EARLIEST_OFFSET: low, LATEST_OFFSET: high}
        answer[queue] = ends.get(named[queue], named[queue])
    return answer


def named_values(
    bound: ReadBound, name: str, extents: list[Extent], stores: int
) -> dict[QueueAt, int]:
    """What `bound` names for each queue that is read. Raises UnknownTopic, BadOption."""
    given = dict(bound.offsets)
    answer: dict[QueueAt, int] = {}
    missing: list[str] = []
    for extent in extents:
        short = extent.queue._replace(node="")
        value = given.pop(extent.queue, None)
        if value is None and stores == 1:
            value = given.pop(short, None)
        if value is None:
            missing.append(str(extent.queue))
            continue
        answer[extent.queue] = value
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


def offsets_at_times(
    bound: ReadBound,
    name: str,
    extents: list[Extent],
    stores: int,
    find: Callable[[QueueAt, int], int],
) -> dict[QueueAt, int]:
    """The first offset at or after each queue's time, for bounds of kind `time` and `times`.

    `find` returns it for one queue, and the end of the queue where there is none. Raises
    UnknownTopic, BadOption, OffsetOutOfRange.
    """
    if bound.kind == "times":
        times = named_values(bound, name, extents, stores)
    else:
        times = {extent.queue: bound.time_ms for extent in extents}
    answer = {queue: find(queue, time_ms) for queue, time_ms in times.items()}
    late = [f"{queue} ({times[queue]})" for queue, _, high in extents if answer[queue] >= high]
    if bound.must_exist and late:
        raise OffsetOutOfRange(
            f"no message was stored at or after the starting time of {few(late)}",
            "an earlier time, or startingOffsetsByTimestampStrategy=latest",
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


def check_beginnings(extents: Iterable[Extent], offsets: Mapping[QueueAt, int]) -> None:
    """Raises OffsetOutOfRange for the beginning of a stream after the end of its queue."""
    for queue, low, high in extents:
        if offsets[queue] > high:
            raise OffsetOutOfRange(
                f"the starting offset {offsets[queue]} of {queue} is beyond its end, {high}",
                f"an offset from {low} to {high}, or -1 for the latest",
            )


class PartitionLimits(NamedTuple):
    """What the options say about partitions. Bytes are aimed at, records are kept."""

    bytes_max: int
    records_max: int | None = None
    partitions_min: int = 1


class Range(NamedTuple):
    """Rows [`start`, `end`) of something that has numbered rows, of about `row_bytes` each.

    `source` is the place of its queue, or index file, in a list of the caller's.
    """

    source: int
    start: int
    end: int
    row_bytes: float

    @property
    def rows(self) -> int:
        """How many rows."""
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
