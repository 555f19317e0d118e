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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.derived import kernel_calls
from protocol.derived.file_layouts import TAGS_KEY_PREFIX, KeyBatch
from protocol.derived.queue_build import UnitBatch, unit_array
from protocol.ids import Queue
from protocol.kernel import loader
from protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX, is_folder_name
from protocol.record.codec import (
    DEFAULT_DELAY_LEVELS_MS,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    delivery_time,
)
from protocol.record.columns import (
    Bools,
    Bytes,
    Gather,
    Ints,
    RecordColumns,
    gather_ragged,
    group_topics,
)
from protocol.record.java_hash import hash_pieces, java_hash, java_text, powers_of_31
from protocol.record.properties import DELAY, NAME_END, PAIR_END, decode_properties

LMQ_PREFIX = "%LMQ%"
LMQ_QUEUE_ID = 0
LMQ_NAMES = "INNER_MULTI_DISPATCH"
LMQ_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"

_NAME_WORDS = {b"KEYS": ">u4", b"TAGS": ">u4", b"UNIQ_KEY": ">u8"}
_LMQ_SEPARATOR = ","
_LMQ_OFFSET = re.compile(r"[0-9]{1,18}")
_LMQ_NEEDLE = LMQ_OFFSETS.encode()


@dataclass(frozen=True, slots=True)
class Pieces:
    """Byte strings inside `DispatchRequests.flat`; a length of 0 means that there is none."""

    start: Ints
    length: Ints


class DispatchRequests:
    """One row a record, in log order (RocketMQ: DispatchRequest).

    `topic_id` indexes `topics`. `keys`, `tags` and `unique_key` are pieces of `flat`, which holds
    the properties, and maybe more. All that is not in `columns` is computed at its first use.
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
    def _found(self) -> tuple[Bytes, dict[bytes, Pieces]]:
        columns = self.columns
        return look_up(columns.data, columns.properties_start, columns.properties_length)

    @property
    def flat(self) -> Bytes:
        """What the pieces are pieces of."""
        return self._found[0]

    @property
    def keys(self) -> Pieces:
        """KEYS."""
        return self._found[1][b"KEYS"]

    @property
    def tags(self) -> Pieces:
        """TAGS."""
        return self._found[1][b"TAGS"]

    @property
    def unique_key(self) -> Pieces:
        """UNIQ_KEY."""
        return self._found[1][b"UNIQ_KEY"]

    @cached_property
    def _codes(self) -> tuple[Ints, Bools]:
        return _codes_of(self)

    @property
    def tags_code(self) -> Ints:
        """The hash of TAGS, or when a delayed message is due."""
        return self._codes[0]

    @property
    def success(self) -> Bools:
        """False for a delayed message whose delay is not a number."""
        return self._codes[1]

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

    def units(self, rows: Ints) -> NDArray[Any]:
        """The queue units of some of the records."""
        columns = self.columns
        return unit_array(columns.physical_offset[rows], columns.size[rows], self.tags_code[rows])


def _codes_of(requests: DispatchRequests) -> tuple[Ints, Bools]:
    columns, topics, tags = requests.columns, requests.topics, requests.tags
    codes = np.zeros(len(columns), np.int64)
    tagged = np.flatnonzero(tags.length)
    codes[tagged] = hash_pieces(requests.flat, tags.start[tagged], tags.length[tagged])
    success = np.ones(len(columns), np.bool_)
    if SCHEDULE_TOPIC in topics:
        for row in np.flatnonzero(requests.topic_id == topics.index(SCHEDULE_TOPIC)).tolist():
            raw = columns.piece(columns.properties_start, columns.properties_length, row)
            delay = decode_properties(raw).get(DELAY)
            if delay is None:
                continue
            code = delivery_time(
                delay, int(columns.store_timestamp[row]), requests.delay_levels_ms, int(codes[row])
            )
            success[row] = code is not None
            codes[row] = code or 0
    return codes, success


def look_up(data: Bytes, start: Ints, length: Ints) -> tuple[Bytes, dict[bytes, Pieces]]:
    """Finds the values of KEYS, TAGS and UNIQ_KEY in each row's properties.

    Returns the bytes that the places are in, and the places by name; see `find_properties`.
    """
    compiled = loader.active()
    if compiled is None:
        flat, ends = gather_ragged(data, start, length)
        return flat, find_properties(flat, ends)
    found = compiled.find_properties(data, start, length)
    names = enumerate((b"KEYS", b"TAGS", b"UNIQ_KEY"))
    return data, {name: Pieces(found[2 * i], found[2 * i + 1]) for i, name in names}


def find_properties(flat: Bytes, ends: Ints) -> dict[bytes, Pieces]:
    """Finds the values of KEYS, TAGS and UNIQ_KEY in each row; the last of a name wins."""
    rows = len(ends)
    found = {
        name: Pieces(np.zeros(rows, np.int64), np.zeros(rows, np.int64)) for name in _NAME_WORDS
    }
    if not len(flat):
        return found
    pairs = split_properties(flat, ends)
    at = Gather(np.concatenate([flat, np.zeros(8, np.uint8)]))
    for name, kind in _NAME_WORDS.items():
        those = np.flatnonzero(pairs.middle - pairs.start == len(name))
        word = at(pairs.start[those], kind)
        those = those[word == np.int64(int.from_bytes(name, "big"))]
        found[name].start[pairs.row[those]] = pairs.middle[those] + 1
        found[name].length[pairs.row[those]] = (pairs.end - pairs.middle - 1)[those]
    return found


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


@dataclass(frozen=True, slots=True)
class PropertyPairs:
    """The properties that have a name and a value, in order: `row`, then positions in the text.

    A name is [`start`, `middle`), its value [`middle` + 1, `end`).
    """

    row: Ints
    start: Ints
    middle: Ints
    end: Ints


def split_properties(flat: Bytes, ends: Ints) -> PropertyPairs:
    """The pairs of joined properties; `ends` are the ends of each record's in `flat`."""
    row, start, size = split_ragged(flat, ends, PAIR_END)
    name_ends = np.flatnonzero(flat == NAME_END)
    if not len(name_ends):
        none = np.empty(0, np.int64)
        return PropertyPairs(none, none, none, none)
    which = np.minimum(np.searchsorted(name_ends, start), len(name_ends) - 1)
    middle = name_ends[which]
    whole = np.flatnonzero((middle > start) & (middle < start + size - 1))
    return PropertyPairs(row[whole], start[whole], middle[whole], (start + size)[whole])


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """One row an index entry, in the order in which the entries are made."""

    row: Ints
    key_hash: NDArray[np.int32]


def index_keys(requests: DispatchRequests, with_tags: bool = True) -> IndexKeys:
    """The entries of each record: UNIQ_KEY, then each of KEYS, then (5.4 and later) TAGS."""
    compiled = loader.active()
    found = None
    if compiled is not None:
        found = kernel_calls.index_keys(compiled, requests.columns, with_tags)
    return index_keys_numpy(requests, with_tags) if found is None else IndexKeys(*found)


def key_batch(requests: DispatchRequests, with_tags: bool = True) -> KeyBatch:
    """The same keys, with what their entries hold of the records."""
    keys, columns = index_keys(requests, with_tags), requests.columns
    offsets, times = columns.physical_offset[keys.row], columns.store_timestamp[keys.row]
    return KeyBatch(keys.key_hash, offsets, times)


def index_keys_numpy(requests: DispatchRequests, with_tags: bool = True) -> IndexKeys:
    """As `index_keys`."""
    rows = np.flatnonzero(requests.is_indexed)
    parts: list[tuple[Ints, Ints, Ints, int]] = []
    unique = rows[requests.unique_key.length[rows] > 0]
    parts.append((unique, requests.unique_key.start[unique], requests.unique_key.length[unique], 0))
    parts.append((*_single_keys(requests, rows), 1))
    if with_tags:
        tagged = rows[requests.tags.length[rows] > 0]
        parts.append((tagged, requests.tags.start[tagged], requests.tags.length[tagged], 2))
    row = np.concatenate([part[0] for part in parts])
    start = np.concatenate([part[1] for part in parts])
    length = np.concatenate([part[2] for part in parts])
    order = np.concatenate([np.full(len(part[0]), part[3]) for part in parts])
    prefixes = [
        [f"{topic}#{tail}" for tail in ("", "", TAGS_KEY_PREFIX)] for topic in requests.topics
    ]
    table = np.array([[java_hash(text) for text in row_] for row_ in prefixes] or [[0, 0, 0]])
    hashes = _joined_hash(table[requests.topic_id[row], order], requests.flat, start, length)
    in_order = np.lexsort((order, row))
    return IndexKeys(row[in_order], hashes[in_order])


def _single_keys(requests: DispatchRequests, rows: Ints) -> tuple[Ints, Ints, Ints]:
    keyed = rows[requests.keys.length[rows] > 0]
    start, length = requests.keys.start[keyed], requests.keys.length[keyed]
    flat, ends = gather_ragged(requests.flat, start, length)
    if not len(flat):
        return keyed, start, length
    row, piece_start, piece_length = split_ragged(flat, ends, 0x20)
    kept = piece_length > 0
    row, piece_start, piece_length = row[kept], piece_start[kept], piece_length[kept]
    # Back from positions in the joined KEYS to positions in the joined properties.
    piece_start = piece_start - (ends - length)[row] + start[row]
    return keyed[row], piece_start, piece_length


def _joined_hash(prefix: Ints, flat: Bytes, start: Ints, length: Ints) -> NDArray[np.int32]:
    """|Java hash of prefix + piece|, from the prefix's hash and the piece; 0 for -2^31."""
    if not len(start):
        return np.empty(0, np.int32)
    hashes, units = _hashes_and_units(flat, start, length)
    tail = hashes.view(np.uint32)
    power = powers_of_31(int(units.max()) + 1)[units]
    joined = (prefix.astype(np.uint32) * power + tail).view(np.int32)
    return np.where(joined == -(2**31), 0, np.abs(joined)).astype(np.int32)


def _hashes_and_units(flat: Bytes, start: Ints, length: Ints) -> tuple[NDArray[np.int32], Ints]:
    """Java hash and UTF-16 code units of each piece; ASCII pieces have as many as bytes."""
    compiled = loader.active()
    if compiled is None:
        return hash_pieces(flat, start, length), _utf16_length(flat, start, length)
    hashes, not_ascii = compiled.java_hash(flat, start, length)
    for row in np.flatnonzero(not_ascii):
        hashes[row] = java_hash(_text(flat, start, length, row))
    return hashes, _count_units(not_ascii, flat, start, length)


def _utf16_length(flat: Bytes, start: Ints, length: Ints) -> Ints:
    chars, ends = gather_ragged(flat, start, length)
    wide = np.zeros(len(chars) + 1, np.int64)
    np.cumsum(chars >= 0x80, out=wide[1:])
    return _count_units(wide[ends] - wide[ends - length], flat, start, length)


def _count_units(not_ascii: NDArray[Any], flat: Bytes, start: Ints, length: Ints) -> Ints:
    """As many as bytes, but where `not_ascii` is not 0."""
    units = length.copy()
    for row in np.flatnonzero(not_ascii):
        units[row] = len(_text(flat, start, length, row).encode("utf-16-be")) // 2
    return units


def _text(flat: Bytes, start: Ints, length: Ints, row: Any) -> str:
    return java_text(flat[start[row] : start[row] + length[row]].tobytes())


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
