"""What dispatch hands to the builders of queues and index: RocketMQ's DispatchRequest, columnar.

A record may name queues besides its own: RocketMQ's multi-dispatch (LMQ). A broker with enableLmq
and enableMultiDispatch writes INNER_MULTI_DISPATCH, names of queues, and INNER_MULTI_QUEUE_OFFSET,
the record's offset in each, into a record. Each name that begins with %LMQ% is a topic of one
queue, 0 (RocketMQ: ConsumeQueue#multiDispatchLmqQueue).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.derived.file_layouts import QUEUE_UNIT, TAGS_KEY_PREFIX, KeyBatch
from protocol.derived.queue_build import UnitBatch, unit_array
from protocol.ids import Queue
from protocol.kernel import loader
from protocol.kernel.loader import Kernel, address, int_column
from protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX, is_folder_name
from protocol.record.codec import (
    DEFAULT_DELAY_LEVELS_MS,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    unit_tags_code,
)
from protocol.record.columns import Bools, Bytes, Ints, RecordColumns, group_topics
from protocol.record.java_hash import hash_pieces
from protocol.record.properties import NAME_END, PAIR_END, decode_properties, decode_raw_properties

LMQ_PREFIX = "%LMQ%"
LMQ_QUEUE_ID = 0
LMQ_NAMES = "INNER_MULTI_DISPATCH"
LMQ_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"

_NAMES = _KEYS, _TAGS, _UNIQUE_KEY = b"KEYS", b"TAGS", b"UNIQ_KEY"
_LMQ_SEPARATOR = ","
_LMQ_OFFSET = re.compile(r"[0-9]{1,18}")
_LMQ_NEEDLE = LMQ_OFFSETS.encode()
_WANTED = (
    *("topic_start", "topic_length", "queue_id", "sys_flag", "properties_start"),
    *("properties_length", "store_timestamp", "physical_offset", "size", "queue_offset"),
)
"""The columns that the kernel reads, as enum wanted."""
_KEYS_A_RECORD = 4
"""For how many index keys there is room at first: UNIQ_KEY, two keys, TAGS."""
_NOT_HERE = -2


class Pieces(NamedTuple):
    """Byte strings inside a buffer; a length of 0 means that there is none."""

    start: Ints
    length: Ints


class DispatchRequests:
    """One row a record, in log order (RocketMQ: DispatchRequest).

    `topic_id` indexes `topics`. All that is not in `columns` is computed at its first use.
    """

    def __init__(
        self, columns: RecordColumns, delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS
    ) -> None:
        self.columns = columns
        self.delay_levels_ms = delay_levels_ms

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def _topics(self) -> tuple[list[str], Ints]:
        return group_topics(self.columns)

    @property
    def topics(self) -> list[str]:
        """The topics in order of appearance."""
        return self._topics[0]

    @property
    def topic_id(self) -> Ints:
        """Each record's place among them."""
        return self._topics[1]

    @cached_property
    def found(self) -> dict[bytes, Pieces]:
        """The values of KEYS, TAGS and UNIQ_KEY, as pieces of `columns.data`."""
        columns = self.columns
        return look_up(columns.data, columns.properties_start, columns.properties_length)

    @cached_property
    def _scheduled(self) -> dict[int, int | None]:
        """The code of each record of the schedule topic, by row."""
        if SCHEDULE_TOPIC not in self.topics:
            return {}
        rows = np.flatnonzero(self.topic_id == self.topics.index(SCHEDULE_TOPIC)).tolist()
        record = self.columns.record
        return {row: unit_tags_code(record(row), self.delay_levels_ms) for row in rows}

    @cached_property
    def tags_code(self) -> Ints:
        """The hash of TAGS, or when a delayed message is due."""
        tags, codes = self.found[_TAGS], np.zeros(len(self), np.int64)
        tagged = np.flatnonzero(tags.length)
        codes[tagged] = hash_pieces(self.columns.data, tags.start[tagged], tags.length[tagged])
        for row, code in self._scheduled.items():
            codes[row] = code or 0
        return codes

    @property
    def success(self) -> Bools:
        """False for a delayed message whose delay is not a number."""
        success = np.ones(len(self), np.bool_)
        success[[row for row, code in self._scheduled.items() if code is None]] = False
        return success

    @property
    def is_queued(self) -> Bools:
        """Whether the record gets a queue unit: no transaction, or a committed one."""
        kind = self.columns.sys_flag & TRANSACTION_MASK
        queued: Bools = self.success & ((kind == 0) | (kind == TRANSACTION_COMMIT))
        return queued

    @property
    def is_indexed(self) -> Bools:
        """Whether the record's keys are indexed: all but rolled-back ones."""
        kind = self.columns.sys_flag & TRANSACTION_MASK
        indexed: Bools = self.success & (kind != TRANSACTION_ROLLBACK)
        return indexed

    def by_queue(self) -> Iterator[tuple[Queue, Ints]]:
        """The rows that get a unit, queue by queue, in log order of each."""
        rows, columns = np.flatnonzero(self.is_queued), self.columns
        if not len(rows):
            return
        key = (self.topic_id[rows] << 32) + columns.queue_id[rows]
        order = np.argsort(key, kind="stable")
        cuts = np.flatnonzero(np.diff(key[order])) + 1
        for some in np.split(rows[order], cuts):
            first = int(some[0])
            yield Queue(self.topics[int(self.topic_id[first])], int(columns.queue_id[first])), some

    def units(self, rows: Ints) -> NDArray[Any]:
        """The queue units of some of the records."""
        columns = self.columns
        return unit_array(columns.physical_offset[rows], columns.size[rows], self.tags_code[rows])


@dataclass(frozen=True, slots=True)
class GroupedUnits:
    """Units, queue by queue, as the kernel makes them: `count[i]` of queue i from `place[i]` on.

    `queue_offset` and `end` are of each unit's record; `is_run` is true for a queue whose
    offsets follow each other.
    """

    units: NDArray[Any]
    queue_offset: Ints
    end: Ints
    place: Ints
    count: Ints
    is_run: Bools


def queue_units(
    kernel: Kernel, requests: DispatchRequests, numbers: NDArray[np.int32], wanted: Bools
) -> GroupedUnits | None:
    """The units of the queues that are `wanted`, one item of it a queue.

    `numbers`: that of each record's queue, -1 for none. Returns None where text is left to Python
    (a delay in digits that are not ASCII).
    """
    queues = len(wanted)
    held = numbers[numbers >= 0]
    room = np.where(wanted, np.bincount(held, minlength=queues), 0)
    ends = np.cumsum(room)
    place = np.where(wanted, ends - room, -1)
    total = int(ends[-1]) if queues else 0
    units, (offset, end) = np.empty(total, QUEUE_UNIT.dtype), np.empty((2, total), np.int64)
    count, is_run = np.empty(queues, np.int64), np.empty(queues, np.bool_)
    levels = np.array(requests.delay_levels_ms, np.int64)
    _kept, source = _columns_for_kernel(requests.columns)
    done = kernel.call(
        *("queue_units", *source, levels, len(levels), numbers, queues, place, total),
        *(units, offset, end, count, is_run),
    )
    return GroupedUnits(units, offset, end, place, count, is_run) if _is_here(done) else None


def _columns_for_kernel(
    columns: RecordColumns,
) -> tuple[list[Ints], tuple[Bytes, int, int, NDArray[np.uint64]]]:
    """The columns that C reads, to be kept meanwhile; the buffer, its length, the rows, and the
    addresses of those columns."""
    rows = len(columns)
    kept = [int_column(getattr(columns, name), rows) for name in _WANTED]
    places = np.array([address(column) for column in kept], np.uint64)
    return kept, (columns.data, len(columns.data), rows, places)


def _is_here(answer: int) -> bool:
    """Whether the kernel did it. Raises IndexError."""
    if answer < 0 and answer != _NOT_HERE:
        raise IndexError("a record lies outside the buffer")
    return bool(answer >= 0)


def look_up(data: Bytes, start: Ints, length: Ints) -> dict[bytes, Pieces]:
    """Finds the values of KEYS, TAGS and UNIQ_KEY in each row's properties; the last of a name
    wins."""
    compiled = loader.kernel
    if compiled is not None:
        found = compiled.find_properties(data, start, length)
    else:
        found = np.zeros((2 * len(_NAMES), len(start)), np.int64)
        for row, (at, size) in enumerate(zip(start.tolist(), length.tolist(), strict=True)):
            for pair in bytes(data.data[at : at + size]).split(bytes([PAIR_END])):
                name, _, value = pair.partition(bytes([NAME_END]))
                if value and name in _NAMES:
                    number = 2 * _NAMES.index(name)
                    found[number, row], found[number + 1, row] = at + len(name) + 1, len(value)
                at += len(pair) + 1
    return {name: Pieces(found[2 * i], found[2 * i + 1]) for i, name in enumerate(_NAMES)}


def split_ragged(flat: Bytes, ends: Ints, separator: int) -> tuple[Ints, Ints, Ints]:
    """Splits every ragged row at `separator`, as `bytes.split` does.

    `ends` are the rows' ends in `flat`. Returns (row, start, length) of each piece, in order.
    """
    cuts = np.flatnonzero(flat == separator)
    row_of_cut = np.searchsorted(ends, cuts, "right")
    count = len(cuts) + len(ends)
    at_cut = np.arange(len(cuts)) + row_of_cut
    at_end = np.arange(len(ends)) + np.searchsorted(cuts, ends, "left")
    piece_end = np.empty(count, np.int64)
    piece_end[at_cut] = cuts
    piece_end[at_end] = ends
    piece_start = np.zeros(count, np.int64)
    piece_start[at_cut + 1] = cuts + 1
    piece_start[at_end[:-1] + 1] = ends[:-1]
    row = np.zeros(count, np.int64)
    row[at_end[:-1] + 1] = 1
    return np.cumsum(row), piece_start, piece_end - piece_start


class IndexKeys(NamedTuple):
    """One row an index entry, in the order in which the entries are made."""

    row: Ints
    key_hash: NDArray[np.int32]


def index_keys(requests: DispatchRequests, with_tags: bool = True) -> IndexKeys:
    """The entries of each record: UNIQ_KEY, then each of KEYS, then (5.4 and later) TAGS."""
    compiled = loader.kernel
    if compiled is not None:
        found = compiled_index_keys(compiled, requests.columns, with_tags)
        if found is not None:
            return found
    columns, rows, texts = requests.columns, list[int](), list[bytes]()
    for row in np.flatnonzero(requests.is_indexed).tolist():
        raw = columns.piece(columns.properties_start, columns.properties_length, row)
        pairs = decode_raw_properties(raw)
        own = [
            key for key in (pairs.get(_UNIQUE_KEY, b""), *pairs.get(_KEYS, b"").split(b" ")) if key
        ]
        if with_tags and _TAGS in pairs:
            own.append(TAGS_KEY_PREFIX.encode() + pairs[_TAGS])
        topic = requests.topics[int(requests.topic_id[row])].encode()
        texts += [b"%s#%s" % (topic, key) for key in own]
        rows += [row] * len(own)
    length = np.array([len(text) for text in texts], np.int64)
    flat = np.frombuffer(b"".join(texts), np.uint8)
    hashes = np.abs(hash_pieces(flat, np.cumsum(length) - length, length))
    hashes[hashes < 0] = 0  # of -2^31
    return IndexKeys(np.array(rows, np.int64), hashes)


def compiled_index_keys(
    kernel: Kernel, columns: RecordColumns, with_tags: bool
) -> IndexKeys | None:
    """As `index_keys`; None where text is left to Python."""
    room = _KEYS_A_RECORD * len(columns)
    _kept, source = _columns_for_kernel(columns)
    while True:
        row, key_hash = np.empty(room, np.int64), np.empty(room, np.int32)
        found = kernel.call("index_keys", *source, int(with_tags), room, row, key_hash)
        if not _is_here(found):
            return None
        if found <= room:
            return IndexKeys(row[:found], key_hash[:found])
        room = found


def key_batch(requests: DispatchRequests, with_tags: bool = True) -> KeyBatch:
    """The same keys, with what their entries hold of the records."""
    keys, columns = index_keys(requests, with_tags), requests.columns
    offsets, times = columns.physical_offset[keys.row], columns.store_timestamp[keys.row]
    return KeyBatch(keys.key_hash, offsets, times)


def plain_index_keys(topic: str, unique_key: str, keys: Sequence[str], tags: str) -> list[str]:
    """The texts that one record is indexed under, in order: the oracle for `index_keys`."""
    texts = [f"{topic}#{key}" for key in ((unique_key,) if unique_key else ())]
    texts += [f"{topic}#{key}" for key in keys]
    return texts + ([f"{topic}#{TAGS_KEY_PREFIX}{tags}"] if tags else [])


def is_lmq(topic: str) -> bool:
    """Whether a topic is a light queue, whose units name records of other topics."""
    return topic.startswith(LMQ_PREFIX)


def lmq_offsets(topic: str, properties: Mapping[str, str]) -> dict[str, int]:
    """The light queues that a record of `topic` is in, and its queue offset in each.

    Empty where a broker gives none: for topics of the system and of retries, for properties that
    do not agree, and for names that cannot be folders (RocketMQ: MultiDispatchUtils).
    """
    if topic == SCHEDULE_TOPIC or topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)):
        return {}
    names, offsets = _split(properties.get(LMQ_NAMES, "")), _split(properties.get(LMQ_OFFSETS, ""))
    if len(names) != len(offsets):
        return {}
    return {
        name: int(offset)
        for name, offset in zip(names, offsets, strict=True)
        if is_lmq(name) and is_folder_name(name) and _LMQ_OFFSET.fullmatch(offset)
    }


def _split(text: str) -> list[str]:
    """As Java's String#split: without the empty parts at the end."""
    return text.rstrip(_LMQ_SEPARATOR).split(_LMQ_SEPARATOR)


def lmq_batches(requests: DispatchRequests) -> Iterator[tuple[Queue, UnitBatch]]:
    """The units of light queues that a window's records call for, in log order of each queue."""
    columns = requests.columns
    if columns.data.tobytes().find(_LMQ_NEEDLE) < 0:
        return
    found: dict[Queue, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(requests.is_queued).tolist():
        raw = columns.piece(columns.properties_start, columns.properties_length, row)
        if _LMQ_NEEDLE not in raw:
            continue
        topic = requests.topics[int(requests.topic_id[row])]
        for name, offset in lmq_offsets(topic, decode_properties(raw)).items():
            found.setdefault(Queue(name, LMQ_QUEUE_ID), []).append((row, offset))
    for queue, places in found.items():
        rows, offsets = np.array(places, np.int64).T
        yield queue, UnitBatch(requests.units(rows), offsets)
