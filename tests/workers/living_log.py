"""A log that grows, is cut and begins new epochs under the hand of a test, without a writer."""

import hashlib
import random
import zlib
from pathlib import Path

from node.runtime.settings import Settings
from node.runtime.state_page import RUNNING, STOPPING, LogPage
from node.store.checkpoints import EpochLine, Floor, load_epochs, save_epochs
from node.store.identity.places import create_store
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, offset_file_name
from protocol.record.codec import SHORT_HEAD, filler
from protocol.record.encode import NewMessage, message_properties, pack_record
from protocol.record.properties import CRC_PROPERTY_BYTES, EMPTY_CRC_PROPERTY, crc_property

SEGMENT_BYTES = 16 * 1024
SETTINGS = Settings(mapped_file_size_consume_queue=200, max_hash_slot_num=7, max_index_num=40)
SETTING_OPTIONS = (
    *("-X", "mapped_file_size_consume_queue=200"),
    *("-X", "max_hash_slot_num=7", "-X", "max_index_num=40"),
)
FIRST_TIME = 1_700_000_000_000
TOPICS = ("orders", "payments", "audit_log")


class LivingLog:
    """Segments, epochs and state page of a store. One record is about 150 bytes."""

    def __init__(
        self, root: Path, segment_bytes: int = SEGMENT_BYTES, seed: int = 1, sealed: bool = False
    ) -> None:
        self.root = root
        self.sealed = sealed
        self.end = 0
        self.min_offset = 0
        self.flushed = 0
        self.segment_bytes = segment_bytes
        self.next_offset: dict[Queue, int] = {}
        self.starts: list[int] = []
        self._history: list[tuple[int, Queue]] = []
        self._random = random.Random(seed)
        self._time = FIRST_TIME
        create_store(root)
        self._page = LogPage.create(root)
        self.epoch = 0
        self.begin_epoch()

    def begin_epoch(self, cut_at: int | None = None) -> None:
        """As a restarted writer: the log may lose its tail, the epoch rises, the page follows."""
        if cut_at is not None:
            self._cut(cut_at)
        self.epoch += 1
        save_epochs(self.root, [*load_epochs(self.root), EpochLine(self.epoch, self.end)])
        self.flushed = min(self.flushed, self.end)
        self._page.begin_epoch(
            self.epoch,
            epoch_start=self.end,
            min_offset=self.min_offset,
            appended=self.end,
            committed=self.end,
            flushed=self.flushed,
            readable=self.end,
            state=RUNNING,
            segment_bytes=self.segment_bytes,
        )

    def grow(self, count: int, flush: bool = True) -> None:
        """Appends records of random queues, keys and tags, and publishes them at the end."""
        for _ in range(count):
            self.append(self._any_message())
        self.publish(flush)

    def append(self, message: NewMessage) -> int:
        """Writes one record; answers its log offset."""
        properties = message_properties(message) + (EMPTY_CRC_PROPERTY if self.sealed else b"")
        record = bytearray(pack_record(message, properties))
        left = self.segment_bytes - self.end % self.segment_bytes
        if len(record) + 8 > left:
            self._write(filler(left)[:8])
            self.end += left
        queue = Queue(message.topic, message.queue_id)
        offset = self.next_offset.get(queue, 0)
        self._time += self._random.choice([0, 1, 700])
        for name, value in (
            ("queue_offset", offset),
            ("physical_offset", self.end),
            ("store_timestamp", self._time),
        ):
            at = SHORT_HEAD.offsets[name]
            record[at : at + 8] = value.to_bytes(8, "big")
        if self.sealed:
            record[-CRC_PROPERTY_BYTES:] = crc_property(zlib.crc32(record[:-CRC_PROPERTY_BYTES]))
        self._write(record)
        self._history.append((self.end, queue))
        self.starts.append(self.end)
        self.next_offset[queue] = offset + 1
        self.end += len(record)
        return self.starts[-1]

    def publish(self, flush: bool = True) -> None:
        """Makes what was written readable, and durable if asked."""
        if flush:
            self.flushed = self.end
            floor = Floor(self.root)
            floor.save(self.flushed)
            floor.close()
        self._page.publish(appended=self.end, readable=self.end, flushed=self.flushed)

    def end_in_order(self) -> None:
        """As a writer that stops and waits for the workers."""
        self._page.publish(state=STOPPING)

    def close(self) -> None:
        self._page.close()

    def _any_message(self) -> NewMessage:
        rnd = self._random
        return NewMessage(
            topic=rnd.choice(TOPICS),
            queue_id=rnd.choice([0, 0, 0, 1, 2]),
            body=bytes(rnd.randrange(40)),
            tags=rnd.choice(["", "A", "B"]),
            keys=tuple(f"k{rnd.randrange(20)}" for _ in range(rnd.randrange(3))),
            unique_key=f"U{rnd.randrange(10**6)}" if rnd.random() < 0.5 else "",
        )

    def _write(self, data: bytes | bytearray) -> None:
        start = self.end - self.end % self.segment_bytes
        path = self.root / COMMIT_LOG_DIR / offset_file_name(start)
        if not path.exists():
            path.write_bytes(bytes(self.segment_bytes))
        with path.open("r+b") as file:
            file.seek(self.end - start)
            file.write(data)

    def _cut(self, offset: int) -> None:
        """Takes the log back to a record's start; zeros behind it, later segments gone."""
        for path in sorted((self.root / COMMIT_LOG_DIR).iterdir()):
            start = int(path.name)
            if start >= offset and start:
                path.unlink()
            elif start + self.segment_bytes > offset:
                data = path.read_bytes()[: offset - start]
                path.write_bytes(data.ljust(self.segment_bytes, b"\0"))
        self.end = offset
        self.starts = [start for start in self.starts if start < offset]
        for start, queue in reversed(self._history):
            if start >= offset:
                self.next_offset[queue] -= 1
        self._history = [entry for entry in self._history if entry[0] < offset]


def derived(
    root: Path, folders: tuple[str, ...] = (CONSUME_QUEUE_DIR, INDEX_DIR)
) -> dict[str, str]:
    """Every derived file's name and hash."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }
