"""`keelog/run/recovered`: where the queues of messages that wait ended when the writer began.

The process that delivers them lowers its progress to the ends, once for each start of the writer,
before new messages can have taken the offsets of lost ones. `keelog/run/lowered` is the epoch
for which it has done so. No disk has to keep either: without them it lowers once more.
"""

import json
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.regular_file import read_bounded
from node.runtime.state_page import run_dir

_ENDS, _LOWERED = "recovered", "lowered"
_BYTES_MAX = 64 * 1024


class RecoveredEnds(NamedTuple):
    """By topic, the end of each queue; `log_end` is that of the log."""

    epoch: int
    log_end: int
    queues: dict[str, dict[str, int]]

    def end_of(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's next message."""
        return self.queues.get(topic, {}).get(str(queue_id), 0)

    def not_above(self, before: "RecoveredEnds") -> "RecoveredEnds":
        """The lesser of each end."""
        lesser = {
            topic: {
                queue: min(end, before.end_of(topic, int(queue))) for queue, end in ends.items()
            }
            for topic, ends in self.queues.items()
        }
        return RecoveredEnds(self.epoch, min(self.log_end, before.log_end), lesser)


def write_ends(root: Path, ends: RecoveredEnds) -> None:
    """For the writer, before it takes messages. Earlier ends that nobody has heeded still hold.

    Raises OSError.
    """
    before = _read_ends(root)
    if before is not None and before.epoch != _lowered(root):
        ends = ends.not_above(before)
    disk.replace_unsynced(run_dir(root) / _ENDS, json.dumps(ends._asdict()).encode())


def ends_to_heed(root: Path) -> RecoveredEnds | None:
    """The ends above which no progress may be; None where it was lowered to them already."""
    ends = _read_ends(root)
    return None if ends is None or ends.epoch == _lowered(root) else ends


def note_lowered(root: Path, epoch: int) -> None:
    """What was saved is not above the ends of this epoch. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _LOWERED, str(epoch).encode())


def _read_ends(root: Path) -> RecoveredEnds | None:
    try:
        found = json.loads(read_bounded(run_dir(root) / _ENDS, _BYTES_MAX))
        queues = {
            str(topic): {str(queue): int(end) for queue, end in ends.items()}
            for topic, ends in found["queues"].items()
        }
        return RecoveredEnds(int(found["epoch"]), int(found["log_end"]), queues)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _lowered(root: Path) -> int:
    try:
        return int(read_bounded(run_dir(root) / _LOWERED, _BYTES_MAX))
    except (OSError, ValueError):
        return 0
