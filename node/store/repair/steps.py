"""The steps of a repair plan and their lines in a report: what to do, and where."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from protocol.ids import Queue
from protocol.record.codec import Torn

Row = dict[str, Any]
"""One line of the plan: action, file, offset, bytes, topic, queue_id, queue_offset, detail."""


def _row(action: str, file: Path, offset: int, size: int, detail: str, **more: Any) -> Row:
    blank: Row = {"topic": None, "queue_id": None, "queue_offset": None}
    head: Row = {"action": action, "file": str(file), "offset": offset, "bytes": size}
    return {**head, **blank, **more, "detail": detail}


MOVE_FILE, DELETE_FILE, REWRITE_CHECKPOINT = "move_file", "delete_file", "rewrite_checkpoint"
REBUILD_QUEUES, REBUILD_INDEX = "rebuild_queues", "rebuild_index"


@dataclass(frozen=True, slots=True)
class FileStep:
    """A step for a whole file or folder. `offset`: the log offset of a segment, 0 for others.

    MOVE_FILE moves it to quarantine. DELETE_FILE deletes an empty one, as RocketMQ does.
    REWRITE_CHECKPOINT lowers RocketMQ's checkpoint to what there is. REBUILD_QUEUES and
    REBUILD_INDEX make a folder anew from the log.
    """

    action: str
    path: Path
    why: str
    offset: int = 0
    size: int = 0

    def rows(self) -> list[Row]:
        return [_row(self.action, self.path, self.offset, self.size, self.why)]


@dataclass(frozen=True, slots=True)
class SetLength:
    """Gives a segment the length of the others: adds zeros, or moves surplus to quarantine."""

    path: Path
    offset: int
    size: int
    wanted: int

    def rows(self) -> list[Row]:
        detail = f"has {self.size} bytes, gets {self.wanted}, as the others have"
        changed = abs(self.wanted - self.size)
        at = self.offset + min(self.size, self.wanted)
        return [_row("set_length", self.path, at, changed, detail)]


class Marker(NamedTuple):
    """A record of `size` bytes in the place of a lost one; `queue` is None if unknown."""

    offset: int
    size: int
    queue: Queue | None = None
    queue_offset: int = 0


@dataclass(frozen=True, slots=True)
class FillHole:
    """Replaces damaged bytes [start, end) of one segment with markers, and from `blank_at` on with
    the blank that closes the segment."""

    path: Path
    segment_start: int
    start: int
    end: int
    torn: Torn
    store_timestamp: int
    sealed: bool
    markers: tuple[Marker, ...]
    blank_at: int | None

    def rows(self) -> list[Row]:
        """As lines of the plan: one for each marker, one for the blank."""
        rows = [self._marker_row(marker) for marker in self.markers]
        if self.blank_at is not None:
            detail = f"{self.torn.why}: the blank that closes the segment is written anew"
            size = self.end - self.blank_at
            rows.append(_row("write_blank", self.path, self.blank_at, size, detail))
        return rows

    def _marker_row(self, marker: Marker) -> Row:
        if marker.queue is None:
            detail = f"{self.torn.why}; what it was is not known"
            return _row("mark_lost", self.path, marker.offset, marker.size, detail)
        return _row(
            "mark_lost",
            self.path,
            marker.offset,
            marker.size,
            self.torn.why,
            topic=marker.queue.topic,
            queue_id=marker.queue.queue_id,
            queue_offset=marker.queue_offset,
        )


@dataclass(frozen=True, slots=True)
class CutLog:
    """Cuts the log at `offset`. `durable`: what was safely on the disk. At or above it the next
    start cuts by itself; for a cut below it the repair first lowers floor, tails and epochs.

    `unvouched`: the messages known above the cut, if nothing shows what was durable.
    """

    path: Path
    offset: int
    torn: Torn
    durable: int
    next_offset: dict[Queue, int] = field(default_factory=dict)
    last_record: int = 0
    store_timestamp: int = 0
    unvouched: int = 0

    @property
    def is_damage(self) -> bool:
        """True if the cut takes more than a crash may."""
        return self.offset < self.durable

    def rows(self) -> list[Row]:
        if not self.is_damage:
            detail = f"{self.torn.why}; the next start does this by itself"
            if self.unvouched:
                detail += f"; {self.unvouched} messages behind it may have been acknowledged:"
                detail += " no keelog/floor tells what was durable"
            return [_row("cut_tail", self.path, self.offset, 0, detail)]
        detail = (
            f"{self.torn.why}; no record can be proved behind it,"
            f" though the log was durable up to {self.durable}"
        )
        return [_row("cut_log", self.path, self.offset, self.durable - self.offset, detail)]


Step = FileStep | SetLength | FillHole | CutLog
