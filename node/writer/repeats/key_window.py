"""Which unique keys the newest part of the log has: it is read as it grows, and at a start again.

Reading the log is the only way in, so that a key is known whoever stored it, and after a kill as
before it.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from node.runtime.event_log import fields
from node.runtime.process import met_damage
from node.runtime.stored_times import Arrivals, Moment, clock_sets, moment
from node.store.file_cache import OpenFiles
from node.store.log.reader import Bounds, Damage, LogReader, columns_past_damage
from node.store.log.segments import SegmentList, list_folder
from node.writer.repeats.key_table import KeyTable
from protocol.derived.dispatch_request import DispatchRequests, index_keys
from protocol.derived.index_entry import fold_hash
from protocol.derived.removed import Removed
from protocol.errors import MqError, NotFound, StoreDamaged
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR
from protocol.record.codec import Record
from protocol.record.columns import RecordColumns
from protocol.record.java_hash import java_hash, java_text
from protocol.record.properties import REAL_TOPIC, UNIQUE_KEY, decode_raw_properties

log = logging.getLogger("keelog.writer")

FEW_BYTES, FEW_RECORDS_MAX = 16 * 1024, 32
"""Up to here the log is read record by record."""
FILES_MAX = 4
_UNIQUE_KEY, _REAL_TOPIC = UNIQUE_KEY.encode(), REAL_TOPIC.encode()


class MessageKey(NamedTuple):
    """The identity of a message. `real_topic`: of one that waits in a system's topic."""

    topic: str
    unique_key: bytes
    real_topic: bytes

    @classmethod
    def of(cls, record: Record) -> "MessageKey | None":
        """None without a unique key."""
        pairs = decode_raw_properties(record.properties_raw)
        key = pairs.get(_UNIQUE_KEY)
        return cls(record.topic, key, pairs.get(_REAL_TOPIC, b"")) if key else None

    @property
    def hash(self) -> int:
        """As `unique_hashes`."""
        return fold_hash(java_hash(f"{self.topic}#{java_text(self.unique_key)}"))


class UniqueHashes(NamedTuple):
    """The rows that have a unique key, in order, and the hash of topic and key: that of the index,
    at least 0."""

    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    key_hash: np.ndarray[tuple[int], np.dtype[np.int32]]


def unique_hashes(columns: RecordColumns) -> UniqueHashes:
    """The hashes of the unique keys of many records."""
    requests = DispatchRequests(columns)
    keys = index_keys(requests, with_tags=False)
    # Of each record the unique key comes first, then the others.
    first = np.ones(len(keys.row), np.bool_)
    np.not_equal(keys.row[1:], keys.row[:-1], out=first[1:])
    first &= requests.unique_key.length[keys.row] > 0
    return UniqueHashes(keys.row[first], keys.key_hash[first])


class KeyWindow:
    """The unique keys of the log's records of the last `window_ms`, but `keys_max` at least of the
    newest, and somewhat more. Not thread-safe: the writer's one thread calls it."""

    def __init__(
        self,
        root: Path,
        window_ms: int,
        keys_max: int,
        log: Bounds,
        last_store_ms: int,
        now: Callable[[], Moment] = moment,
    ) -> None:
        """`log`: its bounds, of which nothing is read but heads of segments; `last_store_ms`: the
        store time of its last record."""
        self.window_ms = window_ms
        self._now = now
        at = now()
        sets = clock_sets(root, at)
        self._arrivals = Arrivals(window_ms, at, sets)
        self._table = KeyTable(keys_max)
        self._files = OpenFiles(FILES_MAX)
        folder = root / COMMIT_LOG_DIR
        segments = SegmentList(folder, list_folder(folder, begin=log.start), self._files)
        self._reader = LogReader(segments, log)
        since_ms = at.steady_ms - window_ms
        forward_ms = sum(max(0, one.by_ms) for one in sets if one.steady_ms >= since_ms)
        # Store times never fall: what lies a window before the last one is older than a window,
        # unless somebody set the clock forward in between.
        self.at = self._begin(max(at.wall_ms, last_store_ms) - window_ms - forward_ms)
        """The log offset that it has read up to."""

    def _begin(self, since_ms: int) -> int:
        """The last segment that begins before the window, or where the log begins."""
        bounds = self._reader.bounds
        for segment in reversed(self._reader.segments.segments):
            if not bounds.start < segment.start < bounds.end:
                continue
            try:
                record = self._reader.record_at(segment.start)
            except (NotFound, StoreDamaged):
                continue
            if record.head.store_timestamp < since_ms:
                return segment.start
        return min(bounds.start, bounds.end)

    def follow(self, min_offset: int, end: int, bytes_max: int) -> None:
        """Reads on, up to the log's `end`, `bytes_max` at most and a window more.

        What cannot be read is left out: its messages count as not stored.
        """
        self._arrivals.look(end, self._now())
        if self.at >= end:
            return
        bounds, segments = self._reader.bounds, self._reader.segments
        bounds.end = end
        try:
            if end > segments.end or min_offset > bounds.start:
                segments.refresh(min_offset)
            bounds.start = min_offset
            self.at = max(self.at, min_offset)
            if not (end - self.at <= FEW_BYTES and self._take_few(end)):
                self._take_columns(min(end, self.at + bytes_max))
        except MqError as error:
            log.warning("keys of the log are left out", extra=fields(offset=self.at, why=error))
            self.at = end

    def _take_few(self, end: int) -> bool:
        records = self._reader.few(self.at, end, FEW_RECORDS_MAX)
        if records is None:
            return False
        for record in records:
            key = MessageKey.of(record)
            if key is not None:
                self._table.put(key.hash, record.physical_offset)
        self.at = end
        return True

    def _take_columns(self, stop: int) -> None:
        reader = self._reader
        for part in columns_past_damage(reader, self.at, stop, verify=False):
            if isinstance(part, Damage):
                met_damage.note_place(part.where, part.torn.position, part.torn.why)
                self.at = part.resumed_at
                continue
            found = unique_hashes(part)
            self._table.put_many(found.key_hash, part.physical_offset[found.rows])
            self.at = int(part.physical_offset[-1] + part.size[-1])
        if reader.stopped is not None:
            log.warning("keys of the log are left out", extra=fields(offset=self.at))
            self.at = reader.end
        elif self.at < stop:
            self.at = reader.segment_at(self.at).end  # a filler is all that is left of it

    def stored(self, keys: Sequence[MessageKey], removed: Removed) -> dict[int, Record]:
        """By row, the first record of each key that the window has and nobody has removed."""
        found: dict[int, Record] = {}
        now = self._now()
        for row, offset in self._table.find([key.hash for key in keys]):
            if row in found:
                continue
            record = self._record_at(offset)
            if record is None:
                continue
            age_ms = self._arrivals.age_ms(offset, record.head.store_timestamp, now)
            if age_ms > self.window_ms:
                continue
            queue = Queue(record.topic, record.head.queue_id)
            if MessageKey.of(record) == keys[row] and not removed.hides(queue, offset):
                found[row] = record
        return found

    def _record_at(self, offset: int) -> Record | None:
        try:
            return self._reader.look_up(offset)
        except NotFound:
            return None
        except StoreDamaged as damage:
            met_damage.note(damage)
            return None

    def close(self) -> None:
        """Closes its files."""
        self._files.close()
