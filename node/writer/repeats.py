"""Appends that store a message once, however often it is sent with one unique key.

A request asks for it. Its messages that the window has already are taken out before the append, and
answered with the places of the first ones; the appender gets the others and does not know of it.

`KeyWindow` knows which unique keys the newest part of the log has. Reading the log, as it grows and
at a start again, is the only way in, so that a key is known whoever stored it, and after a kill as
before it.

`KeyTable` keeps the newest keys in bounded memory, as hashes with the log offsets of their records.
A hash names candidates only. The caller compares them with the records in the log, so that two keys
of one hash cost a read and nothing else.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.runtime.event_log import fields
from node.runtime.process import met_damage
from node.runtime.settings import Settings
from node.runtime.stored_times import Arrivals, Moment, clock_sets, moment
from node.store.file_cache import OpenFiles
from node.store.log.reader import Bounds, Damage, LogReader, columns_past_damage, whole_record
from node.store.log.segments import SegmentList, list_folder
from node.writer.appender import AppendRequest, RepeatedMessage
from protocol import errors
from protocol.derived import file_layouts
from protocol.derived.dispatch_request import DispatchRequests, index_keys
from protocol.derived.index_build import EMPTY_HEADER, put_keys
from protocol.derived.removed import Removed
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, SCHEDULE_TOPIC
from protocol.record.codec import Record, decode
from protocol.record.columns import RecordColumns
from protocol.record.java_hash import java_hash, java_text
from protocol.record.properties import REAL_QUEUE_ID, REAL_TOPIC, UNIQUE_KEY, decode_raw_properties

log = logging.getLogger("keelog.writer")

TABLE_PARTS = 4
"""A table forgets a part at a time: it holds its keys, and up to a quarter more."""
RECENT_KEYS_MAX = 4_096
"""New keys wait in a dict, 150 bytes each, until a part takes all of them at once."""
CHAIN_MAX = 256
"""Entries of one slot that a look-up follows, newest first, in each part."""
ONE_BY_ONE_MAX = 32
"""Up to here the plain look-up is the faster one."""

FEW_BYTES, FEW_RECORDS_MAX = 16 * 1024, 32
"""Up to here the log is read record by record."""
WINDOW_FILES_MAX = 4
_UNIQUE_KEY, _REAL_TOPIC = UNIQUE_KEY.encode(), REAL_TOPIC.encode()

FOLLOW_BYTES = 4 * 1024 * 1024
"""Log that one turn of the writer's loop reads for the window at most."""
FOLLOW_BUSY_BYTES = 1024 * 1024
"""As much more than came is read while messages come and much is unread, as after a start: senders
wait for it."""
CATCH_UP_BYTES = 16 * 1024 * 1024
"""Log that one request waits for. While more is unread, as after a start, requests that ask are
refused as busy."""
ASKED_RECORDS_MAX = 10_000
"""Messages of one request that asks: each repeated one is a row of the answer."""

Append = Callable[[list[AppendRequest], int], None]


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
        return file_layouts.fold_hash(java_hash(f"{self.topic}#{java_text(self.unique_key)}"))


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
        self._files = OpenFiles(WINDOW_FILES_MAX)
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
            except (errors.NotFound, errors.StoreDamaged):
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
        except errors.MqError as error:
            log.warning("keys of the log are left out", extra=fields(offset=self.at, why=error))
            self.at = end

    def _take_few(self, end: int) -> bool:
        records = self._reader.few(self.at, end, FEW_RECORDS_MAX, whole_record)
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
            rows, key_hash = unique_hashes(part)
            self._table.put_many(key_hash, part.physical_offset[rows])
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
        except errors.NotFound:
            return None
        except errors.StoreDamaged as damage:
            met_damage.note(damage)
            return None

    def close(self) -> None:
        self._files.close()


class AskedRow(NamedTuple):
    """A message of a request: where it lies in it, its queue, and its key."""

    start: int
    size: int
    topic: str
    queue_id: int
    key: MessageKey | None


class AskedRequest(NamedTuple):
    """A request that asks, without what was stored before.

    `kept`: the rows that are left. `again`: rows that repeat another one of the request, each with
    that one, which alone is stored.
    """

    request: AppendRequest
    rows: list[AskedRow]
    kept: list[int]
    again: list[tuple[int, int]]

    def name_own_repeats(self) -> None:
        """After the append: a message that repeats another one of the request has its place."""
        request = self.request
        if not self.again or request.error is not None:
            return
        following = {(topic, queue_id): first for topic, queue_id, first, _ in request.queues}
        places: dict[int, RepeatedMessage] = {}
        physical = request.physical_offset
        for row in self.kept:
            one = self.rows[row]
            queue = one.topic, request.queues[0][1] if request.any_queue else one.queue_id
            time = request.store_timestamp
            places[row] = RepeatedMessage(queue[1], following[queue], physical, time)
            following[queue] += 1
            physical += one.size
        assert request.repeats is not None
        request.repeats.update((row, places[first]) for row, first in self.again)


class StoredOnce:
    """Stands before the appender. `append` is `Appender.append`."""

    def __init__(
        self,
        window: KeyWindow,
        append: Append,
        bounds: Callable[[], tuple[int, int]],
        removed: Callable[[], Removed],
        crc: bool,
    ) -> None:
        """`bounds`: the log's, as of now. `crc`: drafts get room for the checksum of the whole."""
        self._window = window
        self._append = append
        self._bounds = bounds
        self._removed = removed
        self._crc = crc
        self._was_far = False
        self._seen_end = bounds()[1]
        """The log's end in the last turn."""
        self.taken_out = 0
        """Messages that were not stored again."""

    @property
    def is_behind(self) -> bool:
        """Whether the window has not read the whole log."""
        return self._window.at < self._bounds()[1]

    def close(self) -> None:
        self._window.close()

    def turn(self, is_busy: bool = False) -> None:
        """Reads on, so that a request that asks finds little to read. `is_busy`: messages come."""
        is_far = self._is_far_behind()
        if is_far != self._was_far:
            unread = fields(unread_bytes=self._bounds()[1] - self._window.at)
            event = "the log is read for repeated keys" if is_far else "repeated keys are known"
            log.info(event, extra=unread)
            self._was_far = is_far
        start, end = self._bounds()
        # Less than what came would leave requests that ask refused for as long as others send.
        least = end - self._seen_end + FOLLOW_BUSY_BYTES
        self._seen_end = end
        bytes_max = min(least, FOLLOW_BYTES) if is_busy and is_far else FOLLOW_BYTES
        self._window.follow(start, end, bytes_max)

    def append(self, requests: list[AppendRequest], now_ms: int) -> None:
        """As `Appender.append`. A request that asks has `repeats`, which get the messages of it
        that were stored before."""
        run: list[AppendRequest] = []
        asked: list[AskedRequest] = []
        keys: set[MessageKey] | None = set()
        """Of the run, in which none asks for what another one stores; None where there is a request
        whose keys nobody has looked at."""
        for request in requests:
            rows = None if request.repeats is None else self._rows(request)
            if rows is None:
                run.append(request)
                keys = None
                continue
            own = {row.key for row in rows if row.key}
            if keys is None or not keys.isdisjoint(own):
                self._carry_out(run, asked, now_ms)
                run, asked, keys = [], [], set()
            if self._is_far_behind():
                request.error = errors.NodeBusy(
                    "the log is being read for repeated keys", "send it again in a moment"
                )
                continue
            self._catch_up()
            one = self._take_out(request, rows)
            if one.kept:
                run.append(request)
                asked.append(one)
                keys |= own
        self._carry_out(run, asked, now_ms)

    def _carry_out(self, run: list[AppendRequest], asked: list[AskedRequest], now_ms: int) -> None:
        if run:
            self._append(run, now_ms)
        for one in asked:
            one.name_own_repeats()

    def _catch_up(self) -> None:
        start, end = self._bounds()
        while self._window.at < end:
            self._window.follow(start, end, CATCH_UP_BYTES)

    def _is_far_behind(self) -> bool:
        return self._bounds()[1] - self._window.at > CATCH_UP_BYTES

    def _rows(self, request: AppendRequest) -> list[AskedRow] | None:
        """None for a request that the appender refuses: it says why."""
        if request.draft is not None:
            request.encode(self._crc)
        records = request.records
        rows: list[AskedRow] = []
        position = 0
        try:
            request.check_crc()
            while position < len(records):
                found = decode(records, position, sealed=False)
                if not isinstance(found, Record):
                    return None
                key, queue_id = MessageKey.of(found), found.head.queue_id
                rows.append(AskedRow(position, found.size, found.topic, queue_id, key))
                position += found.size
            request.check_sizes([row.size for row in rows])
        except errors.MqError:
            return None
        return rows

    def _take_out(self, request: AppendRequest, rows: list[AskedRow]) -> AskedRequest:
        """Takes the repeated messages out of the request, and names those in its `repeats` whose
        first one has a place by now."""
        repeats = request.repeats
        assert repeats is not None
        keyed = [(row, one.key) for row, one in enumerate(rows) if one.key is not None]
        found = self._window.stored([key for _, key in keyed], self._removed())
        firsts = {keyed[number][0]: record for number, record in found.items()}
        repeats.update((row, _repeated(record)) for row, record in firsts.items())
        own: dict[MessageKey, int] = {}
        again = [
            (row, own[key])
            for row, key in keyed
            if row not in firsts and own.setdefault(key, row) != row
        ]
        out = {*firsts, *(row for row, _ in again)}
        kept = [row for row in range(len(rows)) if row not in out]
        asked = AskedRequest(request, rows, kept, again)
        if not out:
            return asked
        self.taken_out += len(out)
        records = request.records
        request.count, request.crc, request.sizes = len(kept), None, b""
        if kept:
            ends = ((rows[row].start, rows[row].start + rows[row].size) for row in kept)
            request.records = b"".join([records[start:end] for start, end in ends])
        else:
            _answer_with(request, max(firsts.values(), key=lambda one: one.physical_offset))
        return asked


class KeyTable:
    """The newest `keys_max` keys, and up to a quarter more."""

    def __init__(self, keys_max: int) -> None:
        self._part_keys = -(-keys_max // TABLE_PARTS)
        self._parts: deque[TablePart] = deque([TablePart(self._part_keys)], maxlen=TABLE_PARTS + 1)
        self._recent: dict[int, list[int]] = {}
        self._recent_rows: list[tuple[int, int]] = []

    def put(self, key_hash: int, physical_offset: int) -> None:
        """Enters one key. Log offsets rise from call to call."""
        self._recent.setdefault(key_hash, []).append(physical_offset)
        self._recent_rows.append((key_hash, physical_offset))
        if len(self._recent_rows) >= RECENT_KEYS_MAX:
            self._settle()

    def put_many(self, key_hash: NDArray[np.int32], physical_offset: NDArray[np.int64]) -> None:
        """Enters many, in order."""
        self._settle()
        times = np.zeros(len(key_hash), np.int64)
        batch = file_layouts.KeyBatch(key_hash, physical_offset, times)
        done = self._parts[-1].put(batch)
        while done < len(key_hash):
            self._parts.append(TablePart(self._part_keys))
            done += self._parts[-1].put(batch.rows(done, len(key_hash)))

    def _settle(self) -> None:
        if self._recent_rows:
            rows = np.array(self._recent_rows, np.int64)
            self._recent, self._recent_rows = {}, []
            self.put_many(rows[:, 0].astype(np.int32), rows[:, 1])

    def find(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """The entries that have one of these hashes, which are not negative: the number of the hash
        and the log offset, by which they are sorted."""
        found = [
            (row, offset)
            for row, key_hash in enumerate(hashes)
            for offset in self._recent.get(key_hash, ())[-CHAIN_MAX:]
        ]
        for part in self._parts:
            found += part.find(hashes)
        found.sort(key=itemgetter(1))
        return found


class TablePart:
    """Keys in the order in which they came, chained by slot, as in an index file."""

    def __init__(self, keys: int) -> None:
        self._geometry = file_layouts.IndexGeometry(slot_count=2 * keys, index_num=keys + 1)
        self._header = EMPTY_HEADER
        self._slots = np.zeros(
            self._geometry.slot_count, file_layouts.INDEX_SLOT.dtype["newest_entry"]
        )
        self._entries = np.zeros(self._geometry.index_num, file_layouts.INDEX_ENTRY.dtype)

    def put(self, batch: file_layouts.KeyBatch) -> int:
        """Enters keys until the part is full; returns how many."""
        done = put_keys(self._header, self._geometry, self._slots, batch)
        self._entries[done.first_entry : done.first_entry + done.taken] = done.entries
        self._header = done.header
        return done.taken

    def find(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        if len(hashes) > ONE_BY_ONE_MAX:
            return self.find_many(np.array(hashes, np.int64))
        return self.find_few(hashes)

    def find_few(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """As `find`, hash by hash: the oracle for `find_many`."""
        found = []
        for row, key_hash in enumerate(hashes):
            number = int(self._slots[key_hash % self._geometry.slot_count])
            for _ in range(CHAIN_MAX):
                if not number:
                    break
                own, offset, _, number = self._entries[number].item()
                if own == key_hash:
                    found.append((row, offset))
        return found

    def find_many(self, hashes: NDArray[np.int64]) -> list[tuple[int, int]]:
        """As `find`, one entry of each chain at a time."""
        found: list[tuple[int, int]] = []
        rows = np.arange(len(hashes))
        numbers = self._slots[hashes % self._geometry.slot_count].astype(np.int64)
        for _ in range(CHAIN_MAX):
            there = numbers > 0
            rows, numbers = rows[there], numbers[there]
            if not len(rows):
                break
            entries = self._entries[numbers]
            same = entries["key_hash"] == hashes[rows]
            offsets = entries["physical_offset"][same].tolist()
            found += zip(rows[same].tolist(), offsets, strict=True)
            numbers = entries["prev"].astype(np.int64)
        return found


def unique_hashes(columns: RecordColumns) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The rows that have a unique key, in order, and the hash of topic and key: that of the index,
    at least 0."""
    requests = DispatchRequests(columns)
    keys = index_keys(requests, with_tags=False)
    # Of each record the unique key comes first, then the others.
    first = np.ones(len(keys.row), np.bool_)
    np.not_equal(keys.row[1:], keys.row[:-1], out=first[1:])
    first &= requests.found[_UNIQUE_KEY].length[keys.row] > 0
    return keys.row[first], keys.key_hash[first]


def _repeated(record: Record) -> RepeatedMessage:
    head = record.head
    queue_id = head.queue_id
    if record.topic == SCHEDULE_TOPIC:
        # Its sender knows the queue that it goes to when it is due.
        queue_id = int(record.properties.get(REAL_QUEUE_ID, queue_id))
    return RepeatedMessage(queue_id, head.queue_offset, head.physical_offset, head.store_timestamp)


def _answer_with(request: AppendRequest, last: Record) -> None:
    """The outcome of a request of which nothing is left: the place of the last of its messages.

    Its records become that one, so that a wait for the disk is one for its end.
    """
    head = last.head
    request.records, request.physical_offset = last.raw, head.physical_offset
    request.store_timestamp = head.store_timestamp
    request.queues = ((last.topic, head.queue_id, head.queue_offset, 1),)


def check_asked(count: int, settings: Settings, is_timer: bool = False) -> None:
    """Raises BadRequest for a request that may not ask. `is_timer`: it is one of `deliver_ms` or
    `delay_ms`, which can be taken back, so that its key may come again."""
    if not settings.idempotent_window:
        raise errors.BadRequest(
            "once: this node does not look for repeated keys",
            "set store.idempotent_window to a number of seconds",
        )
    if is_timer:
        raise errors.BadRequest("once with deliver_ms or delay_ms", "leave one of them out")
    if count > ASKED_RECORDS_MAX:
        raise errors.BadRequest(
            f"{count} messages with once, {ASKED_RECORDS_MAX} are allowed", "send smaller batches"
        )
