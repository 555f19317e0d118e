"""How ranges of queues and of the log become partitions: pure functions."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple


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
