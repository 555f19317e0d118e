"""From Arrow columns to encoded records: a batch of rows becomes the bytes of an `append`.

All of it is columns: pyarrow joins the pieces of each record, numpy fills in the heads. Properties
become what is stored: name 0x01 value 0x02, each. The oracle in the tests is
`protocol.record.encode.encode_message`, row by row.
"""

import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keelog.pipeline.errors import BadRow
from keelog.pipeline.read.arrays import flat_and_bounds, offsets_of
from protocol.errors import MqError
from protocol.ids import unique_key
from protocol.names import SHORT_TOPIC_CHARS_MAX, check_topic_for_send
from protocol.record.codec import CRC_MASK, MAGIC_V1, MAGIC_V2, SHORT_HEAD
from protocol.record.columns import Bools, Ints
from protocol.record.encode import NOT_OFFERED
from protocol.record.java_hash import hash_pieces
from protocol.record.properties import (
    CRC32,
    EMPTY_CRC_PROPERTY,
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQUE_KEY,
    WAIT,
)

RESERVED = frozenset({TAGS, KEYS, UNIQUE_KEY, WAIT, CRC32, *NOT_OFFERED})
"""Properties that have a column of their own, or by which a broker would do more than store."""
_SEPARATORS = "[\x01\x02]"
Refuse = Callable[[Bools, str], None]
ROWS_MAX = 65_536
"""Rows that are encoded at once: a unique key counts up to this within a millisecond."""
_HEX4 = np.frombuffer("".join(f"{n:04X}" for n in range(ROWS_MAX)).encode(), np.uint8)
_KEY_BYTES = 32
_INT32_MAX = 2**31 - 1
_NO_DELAY = (
    "delayLevel asks for delayed delivery, which a batch of Spark does not have; use NULL or 0, or"
    " send it with keelog's client and delay_level="
)


class RowEncoder:
    """Encodes the rows of one task, in their order. Errors name the partition and the row.

    `crc` and `max_message_bytes` are what the node asks of records, see the operation `routes`;
    `write_queues` returns how many queues a topic has.
    """

    def __init__(
        self,
        places: Mapping[str, int],
        topic: str | None,
        partition: int,
        crc: bool,
        max_message_bytes: int,
        write_queues: Callable[[str], int],
    ) -> None:
        self._places = places
        self._topic = topic
        self._partition = partition
        self._crc = crc
        self._max_message_bytes = max_message_bytes
        self._write_queues = write_queues
        self._queues: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._keys = KeyMaker()
        self.rows = 0
        """So many were encoded."""

    def encode(self, batch: pa.RecordBatch) -> tuple[memoryview, Ints]:
        """Records back to back, and where each ends. At most ROWS_MAX rows, one at least.

        Raises BadRow.
        """
        rows = batch.num_rows
        body = self._column(batch, "body", pa.binary())
        assert body is not None
        self._refuse(~_valid(body), "body is NULL", batch)
        body_bytes = _lengths(body)
        over = body_bytes > self._max_message_bytes
        allowed = f"{self._max_message_bytes} bytes are allowed"
        self._refuse(over, f"the body is too large: {allowed}", batch)
        delays = self._integers(batch, "delayLevel", -_INT32_MAX - 1)
        self._refuse(delays != 0, _NO_DELAY, batch)
        names, topic_of = self._topics(batch)
        head = np.zeros(rows, SHORT_HEAD.dtype)
        head["queue_id"] = self._queue_ids(batch, names, topic_of)
        head["flag"] = self._integers(batch, "flag", -_INT32_MAX - 1)
        head["born_timestamp"] = self._born(batch)
        widths = [1 if len(name) <= SHORT_TOPIC_CHARS_MAX else 2 for name in names]
        magic = [MAGIC_V1 if width == 1 else MAGIC_V2 for width in widths]
        head["magic"] = np.array(magic, np.uint32)[topic_of]
        head["body_crc"] = _crcs(body)
        head["body_length"] = body_bytes
        properties = encoded_properties(
            self._strings(batch),
            self._keys.take(rows),
            self._crc,
            lambda bad, why: self._refuse(bad, why, batch),
        )
        lengths = _lengths(properties)
        over = lengths > PROPERTIES_BYTES_MAX
        allowed = f"{PROPERTIES_BYTES_MAX} bytes are allowed"
        self._refuse(over, f"the properties are too large: {allowed}", batch)
        topics = [
            len(name).to_bytes(width, "big") + name.encode()
            for name, width in zip(names, widths, strict=True)
        ]
        topics = pa.array(topics, pa.binary()).take(pa.array(topic_of))
        head["total_size"] = SHORT_HEAD.size + body_bytes + _lengths(topics) + 2 + lengths
        size = fixed_width(lengths.astype(">i2"))
        joined = pc.binary_join_element_wise(fixed_width(head), body, topics, size, properties, b"")
        self.rows += rows
        ends = np.frombuffer(joined.buffers()[1], np.int32)[: rows + 1].astype(np.int64)
        return memoryview(joined.buffers()[2])[: ends[-1]], ends[1:]

    def _column(self, batch: pa.RecordBatch, name: str, kind: pa.DataType | None) -> Any:
        place = self._places.get(name)
        if place is None:
            return None
        column = batch.column(place)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return column if kind is None or column.type == kind else column.cast(kind)

    def _strings(self, batch: pa.RecordBatch) -> dict[str, Any]:
        found = {
            "tags": self._column(batch, "tags", pa.string()),
            "keys": self._column(batch, "keys", None),
            "properties": self._column(batch, "properties", None),
        }
        return {name: column for name, column in found.items() if column is not None}

    def _integers(self, batch: pa.RecordBatch, name: str, low: int) -> Ints:
        """0 for NULL and without the column."""
        column = self._column(batch, name, pa.int64())
        if column is None:
            return np.zeros(batch.num_rows, np.int64)
        values = pc.fill_null(column, 0).to_numpy()
        bad = (values < low) | (values > _INT32_MAX)
        self._refuse(bad, f"{name} is outside [{low}, {_INT32_MAX}]", batch)
        return np.asarray(values, np.int64)

    def _born(self, batch: pa.RecordBatch) -> Ints:
        column = self._column(batch, "bornTimestamp", None)
        now = int(time.time() * 1000)
        if column is None:
            return np.full(batch.num_rows, now)
        micros = column.cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
        return np.asarray(pc.fill_null(micros, now * 1000).to_numpy() // 1000, np.int64)

    def _topics(self, batch: pa.RecordBatch) -> tuple[list[str], Ints]:
        """The topics, and which of them each row has."""
        if self._topic is not None:
            return [self._topic], np.zeros(batch.num_rows, np.int64)
        column = self._column(batch, "topic", pa.string())
        self._refuse(~_valid(column), "topic is NULL", batch)
        encoded = column.dictionary_encode()
        topic_of = encoded.indices.to_numpy().astype(np.int64)
        names: list[str] = encoded.dictionary.to_pylist()
        for number, name in enumerate(names):
            try:
                check_topic_for_send(name)
            except MqError as error:
                self._refuse(topic_of == number, f"{error.reason}; {error.hint}", batch)
        return names, topic_of

    def _queue_ids(self, batch: pa.RecordBatch, names: list[str], topic_of: Ints) -> Ints:
        for name in names:
            if name not in self._queues:
                self._queues[name] = self._write_queues(name)
        queues = np.array([self._queues[name] for name in names], np.int64)[topic_of]
        given = self._column(batch, "queueId", pa.int64())
        named = np.zeros(batch.num_rows, np.bool_) if given is None else _valid(given)
        found = np.zeros(batch.num_rows, np.int64)
        if given is not None:
            found = np.array(pc.fill_null(given, 0).to_numpy(), np.int64)
            bad = named & ((found < 0) | (found >= queues))
            self._refuse(bad, "queueId is no queue of the topic", batch, queues)
        keys = self._column(batch, "shardingKey", pa.string())
        sharded = np.zeros(batch.num_rows, np.bool_) if keys is None else _valid(keys) & ~named
        if sharded.any():
            flat, bounds = flat_and_bounds(pc.fill_null(keys, "").cast(pa.binary()))
            hashes = hash_pieces(flat, bounds[:-1], np.diff(bounds)).astype(np.int64)
            found = np.where(sharded, np.abs(hashes) % queues, found)
        left = ~named & ~sharded
        for number, name in enumerate(names):
            rows = np.flatnonzero(left & (topic_of == number))
            if not len(rows):
                continue
            turn = self._turns.get(name)
            if turn is None:
                turn = secrets.randbelow(self._queues[name])
            found[rows] = (turn + np.arange(len(rows))) % self._queues[name]
            self._turns[name] = (turn + len(rows)) % self._queues[name]
        return found

    def _refuse(
        self, bad: Bools, why: str, batch: pa.RecordBatch, queues: Ints | None = None
    ) -> None:
        """Raises BadRow for the first row that is bad."""
        if not bad.any():
            return
        row = int(np.argmax(bad))
        if queues is not None:
            why = f"{why}, which has {queues[row]}"
        values = []
        for name, place in self._places.items():
            text = repr(batch.column(place)[row].as_py())
            values.append(f"{name}={text if len(text) <= 80 else text[:80] + '…'}")
        raise BadRow(
            f"partition {self._partition}, row {self.rows + row}: {why} ({', '.join(values)})",
            "filter such rows out before the write, or mend them",
        )


class KeyMaker:
    """UNIQ_KEYs as RocketMQ's clients make them, many at once; no two of one maker are equal."""

    def __init__(self) -> None:
        self._start = unique_key(secrets.token_bytes(4), secrets.randbits(16),
                                 secrets.randbits(32), 0, 0)[:-12]  # fmt: skip
        self._last_ms = 0

    def take(self, count: int) -> pa.Array:
        """So many keys, at most ROWS_MAX."""
        now = time.localtime()
        month = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
        self._last_ms = max(self._last_ms + 1, int((time.time() - month) * 1000) & 0xFFFFFFFF)
        keys = np.empty((count, _KEY_BYTES), np.uint8)
        start = f"{self._start}{self._last_ms & 0xFFFFFFFF:08X}".encode()
        keys[:, : len(start)] = np.frombuffer(start, np.uint8)
        keys[:, len(start) :] = _HEX4.reshape(-1, 4)[:count]
        return fixed_width(keys)


def encoded_properties(
    columns: Mapping[str, Any], unique_keys: pa.Array, crc: bool, refuse: Refuse
) -> pa.Array:
    """TAGS, KEYS, UNIQ_KEY, the user's own, and room for the checksum where `crc` asks for it.

    `columns` has those of tags, keys and properties that there are. `refuse(bad, why)` raises for
    the first row that is bad.
    """
    pieces: list[Any] = []
    if "tags" in columns:
        tags = columns["tags"]
        refuse(_has(tags), "tags hold 0x01 or 0x02, which separate properties")
        pieces.append(_pair(TAGS, tags.cast(pa.binary())))
    if "keys" in columns:
        keys = _joined_keys(columns["keys"], refuse)
        refuse(_has(keys), "keys hold 0x01 or 0x02, which separate properties")
        pieces.append(_pair(KEYS, keys.cast(pa.binary())))
    pieces.append(_pair(UNIQUE_KEY, unique_keys))
    if "properties" in columns:
        pieces.append(_own(columns["properties"], refuse))
    tail = EMPTY_CRC_PROPERTY if crc else b""
    return pc.binary_join_element_wise(*pieces, pa.scalar(tail, pa.binary()), b"")


def _pair(name: str, values: Any) -> Any:
    """`name 0x01 value 0x02`; nothing where the value is NULL or empty."""
    start, end = pa.scalar(f"{name}\x01".encode(), pa.binary()), pa.scalar(b"\x02", pa.binary())
    pairs = pc.binary_join_element_wise(start, values, end, b"")
    return _where(pc.greater(pc.binary_length(values), 0), pairs)


def _where(wanted: Any, values: Any) -> Any:
    return pc.if_else(pc.fill_null(wanted, False), values, pa.scalar(b"", pa.binary()))


def _has(texts: Any, pattern: str = _SEPARATORS) -> Bools:
    return _bools(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


def _joined_keys(keys: Any, refuse: Refuse) -> Any:
    """The keys of each row with one space between."""
    if not pa.types.is_list(keys.type) and not pa.types.is_large_list(keys.type):
        single = pc.replace_substring_regex(keys.cast(pa.string()), " +", " ")
        return pc.utf8_trim(single, " ")
    flat, row = pc.list_flatten(keys).cast(pa.string()), pc.list_parent_indices(keys).to_numpy()
    bad = ~_valid(flat)
    bad |= _has(flat, "^$| ")
    refuse(_rows(bad, row, len(keys)), "one of the keys is NULL, empty, or holds a space")
    return pc.binary_join(keys.cast(pa.list_(pa.string())), " ")


def _own(properties: Any, refuse: Refuse) -> Any:
    """The user's own properties of each row, in the order of the map."""
    count = len(properties)
    lists = _entries(properties)
    row = pc.list_parent_indices(lists).to_numpy()
    entries = pc.list_flatten(lists)
    names, values = entries.field(0).cast(pa.string()), entries.field(1).cast(pa.string())
    refuse(_rows(_has(names, "^$"), row, count), "a property has no name")
    refuse(_rows(_has(values, "^$"), row, count), "a property has an empty value")
    bad = _has(names) | _has(values)
    refuse(_rows(bad, row, count), "properties hold 0x01 or 0x02, which separate them")
    reserved = _bools(pc.is_in(names, pa.array(sorted(RESERVED))))
    refuse(
        _rows(reserved, row, count),
        f"properties name one that is reserved ({', '.join(sorted(RESERVED))}); TAGS and KEYS have "
        "columns of their own",
    )
    pairs = pc.binary_join_element_wise(
        names.cast(pa.binary()), pa.scalar(b"\x01", pa.binary()), values.cast(pa.binary()),
        pa.scalar(b"\x02", pa.binary()), b"",
    )  # fmt: skip
    pairs = _where(values.is_valid(), pairs)
    return pc.binary_join(pa.ListArray.from_arrays(offsets_of(row, count), pairs), b"")


def _entries(properties: Any) -> Any:
    """A map as a list of pairs; NULL stays NULL."""
    pair = pa.struct([("key", properties.type.key_type), ("value", properties.type.item_type)])
    return properties.cast(pa.list_(pair))


def _rows(bad: Bools, row: Any, count: int) -> Bools:
    """Which rows have a bad item."""
    found = np.zeros(count, np.bool_)
    found[row[bad]] = True
    return found


def fixed_width(rows: np.ndarray[Any, Any]) -> pa.BinaryArray:
    """Each row's bytes as one item, without a copy."""
    count = len(rows)
    width = rows.nbytes // max(count, 1)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


def _valid(column: Any) -> Bools:
    return _bools(column.is_valid())


def _bools(found: Any) -> Bools:
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _lengths(column: Any) -> Ints:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0).to_numpy(), np.int64)


def _crcs(body: Any) -> Ints:
    flat, bounds = flat_and_bounds(body)
    view, crc32 = flat.data, zlib.crc32
    found = [crc32(view[a:b]) for a, b in pairwise(bounds.tolist())]
    return np.array(found, np.int64) & CRC_MASK
