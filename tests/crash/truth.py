"""What a test knows of a log: every byte that was appended, and how much of it may not be lost."""

import os
from contextlib import suppress
from pathlib import Path

from protocol.ids import Queue
from protocol.names import offset_file_name
from protocol.record.codec import Filler, Record, decode


class Violation(AssertionError):
    """A promise of the store is broken. Says which image shows it."""


class Truth:
    """Grows with the writes to the log's files while a writer runs; cut when a recovery cut."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.data = bytearray()
        self.ends = [0]
        """Where a recovery may end the log: behind records and closed segments."""
        self.required = 0
        """All below was acknowledged as flushed, or could be read after a restart."""
        self.stored = 0
        """All below was acknowledged: it outlives a kill, if not a power loss."""
        self._queues: list[tuple[int, Queue, int]] = []

    def on_write(self, path: str, position: int, data: bytes) -> None:
        """For `SimDisk.on_write`: sees every write before it is made."""
        folder, _, name = path.rpartition("/")
        if not folder.endswith("commitlog"):
            return
        offset = int(name) + position
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self._parse()

    def _parse(self) -> None:
        while self.ends[-1] < len(self.data):
            start = self.ends[-1]
            stop = start - start % self.segment_bytes + self.segment_bytes
            found = decode(bytes(self.data[start:stop]).ljust(stop - start, b"\0"), 0, start)
            if isinstance(found, Filler):
                self.data.extend(bytes(max(0, start + found.size - len(self.data))))
                self.ends.append(start + found.size)
            elif isinstance(found, Record):
                queue = Queue(found.topic, found.head.queue_id)
                self._queues.append((start, queue, found.head.queue_offset))
                self.ends.append(start + found.size)
            else:
                raise Violation(f"the writer appended no record at {start}: {found}")

    def cut(self, end: int) -> None:
        """A recovered writer serves: what it kept may have been read, so it stays."""
        del self.data[end:]
        self.ends = [offset for offset in self.ends if offset <= end]
        self._queues = [row for row in self._queues if row[0] < end]
        self.required = self.stored = end

    def tails(self, end: int) -> dict[Queue, int]:
        """Each queue's next offset when the log ends at `end`."""
        return {queue: number + 1 for start, queue, number in self._queues if start < end}

    def has_record_beyond(self, end: int, root: Path) -> bool:
        """Whether a whole record stands on the disk behind the place where the log is cut."""
        content = log_bytes(root, self.segment_bytes)
        for start, stop in zip(self.ends, self.ends[1:], strict=False):
            if start > end and content[start:stop] == self.data[start:stop]:
                return True
        return False

    def check_no_store(self, required: int) -> None:
        """The whole store is gone. Raises Violation."""
        if required:
            raise Violation(f"lost: there is no store, {required} was promised")

    def check(self, root: Path, end: int, tails: dict[Queue, int], required: int) -> None:
        """Holds a recovered store against what was appended. Raises Violation."""
        if end < required:
            raise Violation(f"lost: the log ends at {end}, {required} was promised")
        if end not in self.ends:
            raise Violation(f"the log ends at {end}, where no record ended")
        content = log_bytes(root, self.segment_bytes)
        if content[:end] != self.data[:end]:
            at = next(i for i in range(end) if content[i : i + 1] != self.data[i : i + 1])
            raise Violation(f"other bytes than appended at {at}, below the log's end {end}")
        if content[end:].strip(b"\0"):
            raise Violation(f"bytes are left behind the log's end {end}")
        expected = self.tails(end)
        if {queue: n for queue, n in tails.items() if n} != expected:
            raise Violation(f"next queue offsets {tails}, the log below {end} says {expected}")


def log_bytes(root: Path, segment_bytes: int) -> bytes:
    """The whole log as its files hold it. Raises Violation for files a broker would not load."""
    folder = f"{root}/commitlog"
    parts: list[bytes] = []
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):  # noqa: PTH208  (runs for every image)
            descriptor = os.open(f"{folder}/{name}", os.O_RDONLY)
            try:
                data = os.read(descriptor, 2 * segment_bytes)
            finally:
                os.close(descriptor)
            if name != offset_file_name(len(parts) * segment_bytes) or len(data) != segment_bytes:
                raise Violation(f"{name} has {len(data)} bytes: no row of files of {segment_bytes}")
            parts.append(data)
    return b"".join(parts)
