"""Whether the files of queues are still where they were, a bounded number of them with each look.

A file that somebody removes stays open, and a worker would go on in it, unseen by readers.
"""

from collections.abc import Mapping

from protocol.derived.queue_build import QueueEnd
from protocol.ids import Queue
from workers.queue_files import QueueBrokenError, QueueWriter

OPEN_LOOKS_MAX = 512
"""Queues whose open file is looked at, a microsecond each."""
FOLDER_LOOKS_MAX = 16
"""Queues whose folder is listed."""


class QueueWatch:
    """Of one worker's queues. Call `look` between turns, about once a second."""

    def __init__(self, files: QueueWriter) -> None:
        self._files = files
        self._root: tuple[int, int] | None = None
        self._listed_at = 0
        self._firsts: dict[Queue, int] = {}
        self._open = _Rotation(OPEN_LOOKS_MAX)
        self._folders = _Rotation(FOLDER_LOOKS_MAX)

    def begin(self) -> None:
        """From now on the files that are there are to stay."""
        status = self._files.root.stat()
        self._root, self._listed_at = (status.st_dev, status.st_ino), 0
        self.trimmed()

    def trimmed(self) -> None:
        """The worker may have deleted first files of queues."""
        self._firsts = {}

    def look(self, ends: Mapping[Queue, QueueEnd]) -> dict[Queue, str]:
        """Which of these queues have lost files, and what is missing."""
        try:
            return self._look(ends)
        except FileNotFoundError:
            if self._files.root.is_dir():
                return {}  # somebody removes files right now: the next look sees which are gone
            return dict.fromkeys(ends, f"{self._files.root} is gone")

    def _look(self, ends: Mapping[Queue, QueueEnd]) -> dict[Queue, str]:
        """Raises FileNotFoundError for what goes in this moment."""
        root = self._files.root
        status = root.stat()
        if (status.st_dev, status.st_ino) != self._root:
            return dict.fromkeys(ends, f"{root} is another folder")
        lost: dict[Queue, str] = {}
        if status.st_mtime_ns != self._listed_at:
            self._listed_at = status.st_mtime_ns
            topics = {entry.name for entry in root.iterdir()}
            for queue in ends:
                if queue.topic not in topics:
                    lost[queue] = f"{root / queue.topic} is gone"
        for queue in self._open.some(ends):
            if self._files.is_unlinked(queue, _last(ends[queue])):
                lost[queue] = "its last file is gone"
        for queue in self._folders.some(ends):
            if why := self._missing(queue, _last(ends[queue])):
                lost[queue] = why
        return lost

    def _missing(self, queue: Queue, last: int) -> str:
        try:
            bases = self._files.bases(queue)
            if not bases or not bases[0] <= last < bases[-1] + self._files.units_per_file:
                return "its last file is gone"
            if self._files.is_replaced(queue, last):
                return "its last file is another one"
        except QueueBrokenError as error:
            return error.why
        first = self._firsts.setdefault(queue, bases[0])
        return "its first file is gone" if bases[0] > first else ""


class _Rotation:
    """Goes round through the queues, some with each call."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._left: list[Queue] = []

    def some(self, ends: Mapping[Queue, QueueEnd]) -> list[Queue]:
        """The next ones that have units."""
        if not self._left:
            self._left = list(ends)
        some = [self._left.pop() for _ in range(min(self._count, len(self._left)))]
        return [queue for queue in some if queue in ends and ends[queue].end]


def _last(end: QueueEnd) -> int:
    assert end.end is not None
    return end.end - 1
