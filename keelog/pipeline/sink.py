"""A write to a running node: tasks encode rows and stage them, and the commit publishes them once.

From Arrow columns to records: a batch of rows becomes the bytes of an `append`. All of it is
columns: pyarrow joins the pieces of each record, numpy fills in the heads. Properties become what
is stored: name 0x01 value 0x02, each. The oracle in the tests is
`protocol.record.encode.encode_message`, row by row.

A task stages its rows under an id of its own, and the commit publishes the stages of the tasks that
succeeded: once for each query and batch. `DataFrameWriter` and `DataStreamWriter` differ in who
numbers the batches. A batch write is batch 0 of a query of its own, whose id the writer makes once:
it goes to tasks and commit with it.
"""

import logging
import os
import secrets
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource

from keelog.client.send.staging import StageClient, StagedPart, StageWriter
from keelog.pipeline.errors import BadMode, BadRow, naming_node
from keelog.pipeline.node_keys import NodeKeys
from keelog.pipeline.options import SinkOptions
from keelog.pipeline.read.arrays import flat_and_bounds, offsets_of
from protocol import errors, ids
from protocol.names import SHORT_TOPIC_CHARS_MAX, check_topic_for_send
from protocol.record import codec, encode, java_hash
from protocol.record import properties as stored
from protocol.record.columns import Bools, Ints

log = logging.getLogger("keelog.spark")

FRAME_BYTES = 512 * 1024
"""A frame is that large, or one record: the node checks one at a time, between other requests."""
DROP_STAGE_S_MAX = 5.0
"""So long a task that was refused tries to drop what it has staged."""
NEW_TOPIC_QUEUES = 8
"""What a node gives a topic that a message makes."""
RESERVED = frozenset(
    {stored.TAGS, stored.KEYS, stored.UNIQUE_KEY, stored.WAIT, stored.CRC32, *encode.NOT_OFFERED}
)
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
        head = np.zeros(rows, codec.SHORT_HEAD.dtype)
        head["queue_id"] = self._queue_ids(batch, names, topic_of)
        head["flag"] = self._integers(batch, "flag", -_INT32_MAX - 1)
        head["born_timestamp"] = self._born(batch)
        widths = [1 if len(name) <= SHORT_TOPIC_CHARS_MAX else 2 for name in names]
        magic = [codec.MAGIC_V1 if width == 1 else codec.MAGIC_V2 for width in widths]
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
        over = lengths > stored.PROPERTIES_BYTES_MAX
        allowed = f"{stored.PROPERTIES_BYTES_MAX} bytes are allowed"
        self._refuse(over, f"the properties are too large: {allowed}", batch)
        topics = [
            len(name).to_bytes(width, "big") + name.encode()
            for name, width in zip(names, widths, strict=True)
        ]
        topics = pa.array(topics, pa.binary()).take(pa.array(topic_of))
        head["total_size"] = codec.SHORT_HEAD.size + body_bytes + _lengths(topics) + 2 + lengths
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
        kinds = {"tags": pa.string(), "keys": None, "properties": None}
        names = [name for name in kinds if name in self._places]
        return {name: self._column(batch, name, kinds[name]) for name in names}

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
            except errors.MqError as error:
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
            hashes = java_hash.hash_pieces(flat, bounds[:-1], np.diff(bounds)).astype(np.int64)
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
        self._start = ids.unique_key(secrets.token_bytes(4), secrets.randbits(16),
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
        pieces.append(_pair(stored.TAGS, tags.cast(pa.binary())))
    if "keys" in columns:
        keys = _joined_keys(columns["keys"], refuse)
        refuse(_has(keys), "keys hold 0x01 or 0x02, which separate properties")
        pieces.append(_pair(stored.KEYS, keys.cast(pa.binary())))
    pieces.append(_pair(stored.UNIQUE_KEY, unique_keys))
    if "properties" in columns:
        pieces.append(_own(columns["properties"], refuse))
    tail = stored.EMPTY_CRC_PROPERTY if crc else b""
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
    return np.array(found, np.int64) & codec.CRC_MASK


@dataclass
class TaskCommit(datasource.WriterCommitMessage):
    """What a task reports to the commit; no part: nothing was to be staged."""

    query: str
    batch: int
    part: StagedPart | None


@cache
def _client(_pid: int, node: str, timeout_s: float, keys: NodeKeys | None) -> StageClient:
    """By process: Python workers of Spark are used again, and some are forks of others."""
    with naming_node(node):
        return StageClient(node, timeout_s, None if keys is None else keys.read())


def _client_of(options: SinkOptions) -> StageClient:
    """This process's connection to the node. Raises NotConnected, NotAllowed, BadKeyFile."""
    return _client(os.getpid(), options.node, options.timeout_s, options.keys)


def stage_rows(
    options: SinkOptions,
    query: str,
    batch: int,
    partition: int,
    attempt: int,
    batches: Iterable[pa.RecordBatch],
) -> TaskCommit:
    """Stages all rows of a task. Raises BadRow, NotConnected, BusyError, RefusedError."""
    client = _client_of(options)
    stage = f"{partition}-{attempt}-{secrets.token_hex(8)}"

    def queues(topic: str) -> int:
        try:
            return client.write_queues(topic)
        except errors.UnknownTopic:
            return NEW_TOPIC_QUEUES

    with naming_node(options.node):
        writer, routes = client.stage(query, batch, stage), client.routes
        encoder = RowEncoder(
            options.places, options.topic, partition, routes.crc, routes.max_message_bytes, queues
        )
        try:
            for rows in batches:
                for start in range(0, rows.num_rows, ROWS_MAX):
                    if not writer.published:
                        _put(writer, *encoder.encode(rows.slice(start, ROWS_MAX)))
            return TaskCommit(query, batch, writer.finish())
        except (errors.ServiceNotAvailable, errors.RequestTimeout):
            # Spark repeats the task under another stage, which needs the room of this one.
            with suppress(errors.MqError):
                client.unstage(query, batch, stage, DROP_STAGE_S_MAX)
            raise


def _put(writer: StageWriter, data: memoryview, ends: Ints) -> None:
    """Frames of whole records; `ends` is where each ends."""
    first = start = 0
    while first < len(ends):
        last = max(int(ends.searchsorted(start + FRAME_BYTES, "right")), first + 1)
        end = int(ends[last - 1])
        writer.put(data[start:end], last - first)
        first, start = last, end


def _publish(
    options: SinkOptions, query: str, batch: int, staged: Sequence[TaskCommit], final: bool
) -> None:
    """Publishes what the tasks staged, in the order of the partitions.

    Raises NotConnected, BusyError, RefusedError: it may be done again.
    """
    parts = [one.part for one in staged if one.part is not None]
    with naming_node(options.node):
        outcome = _client_of(options).publish(
            query, batch, parts, final=final, timeout=options.publish_timeout_s
        )
    if outcome.already:
        log.warning("batch %d of query %s was published before: nothing was done", batch, query)


def _drop(options: SinkOptions, query: str, batch: int) -> None:
    """Drops what was staged and is not published.

    Never raises: an error here would take the place of the one that ended the batch, and the node
    drops what nobody publishes by itself.
    """
    try:
        _client_of(options).unstage(query, batch)
    except errors.MqError as error:
        log.warning("batch %d of query %s stays staged for a while: %s", batch, query, error)


class KeelogWriter(datasource.DataSourceArrowWriter):
    """`df.write.format("keelog")`: all rows, or none, whatever is retried."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._query = f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task. Raises BadRow, NotConnected, BusyError, RefusedError."""
        return stage_rows(self._options, self._query, 0, *_task(), iterator)

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks have succeeded."""
        _publish(self._options, self._query, 0, _commits(messages), final=True)

    def abort(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        """On the driver; called after a failed commit too, and then changes nothing published."""
        _drop(self._options, self._query, 0)


class KeelogStreamWriter(datasource.DataSourceStreamArrowWriter):
    """`df.writeStream.format("keelog")`: each micro-batch once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task, as KeelogWriter's."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise BadMode(
                "a stream was written without Spark's ids of query and batch", "Spark 4.2"
            )
        return stage_rows(self._options, query, int(batch), *_task(), iterator)

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver. A batch that was published before a crash is not published again."""
        commits = _commits(messages)
        for one in commits[:1]:
            _publish(self._options, one.query, batchId, commits, final=False)

    def abort(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, as KeelogWriter's."""
        for one in _commits(messages)[:1]:
            _drop(self._options, one.query, batchId)


def _task() -> tuple[int, int]:
    """Partition and attempt of the task that runs here."""
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())


def _commits(messages: list[datasource.WriterCommitMessage | None]) -> list[TaskCommit]:
    """A task that was lost reports nothing."""
    return [message for message in messages if isinstance(message, TaskCommit)]
