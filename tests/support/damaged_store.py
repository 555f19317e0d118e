"""Small whole stores for tests of repair: what is in them, and hands that damage them."""

from pathlib import Path

from node.store.opening import open_store
from node.store.verify.verify import verify
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, offset_file_name
from protocol.record.codec import TRANSACTION_ROLLBACK, Record
from protocol.record.lost_marker import LOST_TOPIC
from tests.workers.living_log import SETTINGS, LivingLog
from workers.rebuild import rebuild

SEGMENT_BYTES = 2048


class Whole:
    """A store before it is damaged: its records in log order, and where the log ends."""

    def __init__(self, root: Path, records: tuple[Record, ...], end: int) -> None:
        self.root = root
        self.records = records
        self.end = end

    def segment(self, offset: int) -> Path:
        """The segment file that holds a log offset."""
        base = offset - offset % SEGMENT_BYTES
        return self.root / COMMIT_LOG_DIR / offset_file_name(base)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrites bytes at a log offset, within one segment."""
        with self.segment(offset).open("r+b") as file:
            file.seek(offset % SEGMENT_BYTES)
            file.write(data)

    def byte(self, offset: int) -> int:
        """The byte at a log offset."""
        with self.segment(offset).open("rb") as file:
            file.seek(offset % SEGMENT_BYTES)
            return file.read(1)[0]

    def flip(self, offset: int, bit: int = 0) -> None:
        """Changes one bit at a log offset."""
        self.patch(offset, bytes([self.byte(offset) ^ 1 << bit]))


def make_store(root: Path, count: int = 60, sealed: bool = True, seed: int = 1) -> Whole:
    """A store of ours that ended in order: `count` records in several segments, some queues."""
    log = LivingLog(root, SEGMENT_BYTES, seed, sealed)
    log.grow(count)
    log.close()
    rebuild(root, settings=SETTINGS)
    assert verify(root, deep=True, settings=SETTINGS).ok
    return Whole(root, tuple(read_records(root)), log.end)


def read_records(root: Path) -> list[Record]:
    """Every record, verified, in log order."""
    with open_store(root, SETTINGS) as store:
        found = [
            columns.record(row)
            for columns in store.log.columns(store.log.min_offset)
            for row in range(len(columns))
        ]
        assert store.log.stopped is None, store.log.stopped
        return found


def queue_of(record: Record) -> Queue:
    """The queue that a record says it is in."""
    return Queue(record.topic, record.head.queue_id)


def is_of_no_queue(record: Record) -> bool:
    """Whether it is a marker for bytes of unknown origin."""
    return LOST_TOPIC.startswith(record.topic) and record.head.sys_flag == TRANSACTION_ROLLBACK
