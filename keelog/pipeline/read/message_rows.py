"""Rows of the table `messages` from verified records: each asked column as one Arrow array.

At damage and at loss there is an error, nothing, or a row that reports it. Bodies are unpacked
where their producer compressed them: records without the bit of compression cost one look at the
column SYSFLAG; without a column for bodies nothing is unpacked at all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keelog.pipeline import errors, tables, task_spec
from keelog.pipeline.read import arrays
from protocol.addresses import without_credentials
from protocol.derived.dispatch_request import Pieces, look_up, split_ragged
from protocol.errors import BodyUnreadable, CodecMissing
from protocol.ids import IPV4_BYTES, IPV6_BYTES, PORT_BYTES, Host, offset_message_id
from protocol.kernel import loader
from protocol.record import codec, java_hash
from protocol.record.bodies import COMPRESSED
from protocol.record.columns import Ints, RecordColumns, numbers_at
from protocol.record.properties import KEY_SEPARATOR, decode_properties

_V4_BYTES = IPV4_BYTES + PORT_BYTES
_V6_BYTES = IPV6_BYTES + PORT_BYTES
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_ID_BYTES = _V4_BYTES + 8
KAFKA_LOG_APPEND_TIME = 1
"""Kafka's number for a timestamp that the broker gave."""
_INT_MAX = 2**31 - 1
PLAIN_BATCH_BYTES = 16 << 20
"""With more of unpacked bodies a batch ends, by one body at most later."""
_BODIES = frozenset(("body", "value"))


class MessageRows:
    """Some records of one store, in log order. Parts that several columns need are made once."""

    def __init__(
        self, columns: RecordColumns, node: str, plain: Mapping[int, bytes] | None = None
    ) -> None:
        """`plain`: by row, the bodies that are unpacked; the others are as they are stored."""
        self.columns = columns
        self.node = node
        self.plain = plain or {}

    def __len__(self) -> int:
        return len(self.columns)

    def batch(self, wanted: Sequence[tables.Column]) -> pa.RecordBatch:
        """One row a record, with these columns."""
        made = [MAKERS[column.name](self) for column in wanted]
        return pa.RecordBatch.from_arrays(made, schema=arrays.arrow_schema(wanted))

    @cached_property
    def topics(self) -> pa.BinaryArray:
        """The topics as bytes, known to be UTF-8."""
        columns = self.columns
        return arrays.pieces(columns.data, columns.topic_start, columns.topic_length)

    @property
    def bodies(self) -> pa.BinaryArray:
        """The bodies, those of `plain` unpacked."""
        columns, plain = self.columns, self.plain
        stored = arrays.pieces(columns.data, columns.body_start, columns.body_length)
        if not plain:
            return stored
        mask = np.zeros(len(self), np.bool_)
        mask[list(plain)] = True
        values = pa.array([plain[row] for row in sorted(plain)], pa.binary())
        return pc.replace_with_mask(stored, mask, values)

    @property
    def raw_bodies(self) -> pa.BinaryArray:
        """The bodies as stored where they are compressed, NULL at the others."""
        columns = self.columns
        packed = columns.sys_flag & COMPRESSED != 0
        stored = arrays.pieces(
            columns.data, columns.body_start[packed], columns.body_length[packed]
        )
        return arrays.spread(stored, packed) if len(stored) else pa.nulls(len(self), pa.binary())

    @cached_property
    def _found(self) -> dict[bytes, Pieces]:
        columns = self.columns
        return look_up(columns.data, columns.properties_start, columns.properties_length)

    def property_text(self, name: bytes) -> pa.StringArray:
        """TAGS, UNIQ_KEY or the whole KEYS, NULL where there is none."""
        data, found = self.columns.data, self._found[name]
        there = found.length > 0
        raw = arrays.pieces(data, found.start[there], found.length[there])
        return arrays.spread(arrays.texts(raw, java_hash.java_text), there)

    @property
    def keys(self) -> pa.ListArray:
        """The single keys of KEYS."""
        data, found = self.columns.data, self._found[b"KEYS"]
        rows = np.flatnonzero(found.length)
        joined = arrays.pieces(data, found.start[rows], found.length[rows])
        flat, ends = arrays.flat_and_ends(joined)
        if not (flat == ord(KEY_SEPARATOR)).any():
            offsets = arrays.offsets_of_counts(found.length > 0)
            return pa.ListArray.from_arrays(
                offsets, arrays.texts(joined, java_hash.java_text), type=arrays.TEXTS
            )
        row, start, length = split_ragged(flat, ends, ord(KEY_SEPARATOR))
        kept = length > 0
        values = arrays.texts(arrays.pieces(flat, start[kept], length[kept]), java_hash.java_text)
        offsets = arrays.offsets_of(rows[row[kept]], len(self))
        return pa.ListArray.from_arrays(offsets, values, type=arrays.TEXTS)

    @property
    def properties(self) -> pa.MapArray:
        """All properties; of a repeated name the last counts."""
        columns, compiled = self.columns, loader.kernel
        where = columns.properties_start, columns.properties_length
        found = None if compiled is None else compiled.pairs(columns.data, *where)
        if found is not None:
            (start, middle, end), counts = found
            names = arrays.pieces(columns.data, start, middle - start)
            values = arrays.pieces(columns.data, middle + 1, end - middle - 1)
            with suppress(pa.ArrowInvalid):
                # Names that are not UTF-8 may become one and the same text.
                texts_of = names.cast(pa.string()), values.cast(pa.string())
                return pa.MapArray.from_arrays(arrays.offsets_of_counts(counts), *texts_of)
        stored = arrays.pieces(columns.data, *where).to_pylist()
        plain = [list(decode_properties(item).items()) for item in stored]
        return pa.array(plain, arrays.PAIRS)

    @property
    def headers(self) -> pa.ListArray:
        """All properties; NULL for a message without any, as Kafka's source has it."""
        pairs = self.properties
        struct = pa.StructArray.from_arrays(
            [pairs.keys, pairs.items.cast(pa.binary())], fields=list(arrays.HEADERS.value_type)
        )
        none = np.diff(pairs.offsets.to_numpy()) == 0
        return pa.ListArray.from_arrays(
            pairs.offsets, struct, type=arrays.HEADERS, mask=pa.array(none)
        )

    def hosts(self, flag: int, position: Ints) -> pa.StringArray:
        """Addresses as text; `flag` is the bit of SYSFLAG that makes them IPv6."""
        columns = self.columns
        is_v6 = columns.sys_flag & flag != 0
        v4 = numbers_at(columns.data, position[~is_v6], ">i8")
        different, which = np.unique(v4, return_inverse=True)
        raw = [int(value).to_bytes(_V4_BYTES, "big", signed=True) for value in different]
        names = [str(_host(one)) for one in raw]
        index = np.zeros(len(self), np.int64)
        index[~is_v6] = which
        for row in np.flatnonzero(is_v6).tolist():
            start = int(position[row])
            index[row] = len(names)
            names.append(str(_host(columns.data[start : start + _V6_BYTES].tobytes())))
        return pa.array(names, pa.string()).take(pa.array(index))

    @property
    def store_host_at(self) -> Ints:
        """Where STOREHOST begins in the data."""
        is_v6 = self.columns.sys_flag & codec.BORN_HOST_V6 != 0
        shift = np.where(is_v6, _V6_BYTES - _V4_BYTES, 0)
        return self.columns.start + codec.SHORT_HEAD.offsets["store_ip"] + shift

    @property
    def message_ids(self) -> pa.StringArray:
        """Offset message ids: store host and log offset, in hex."""
        columns, at = self.columns, self.store_host_at
        raw = np.empty((len(self), _ID_BYTES), np.uint8)
        raw[:, :_V4_BYTES] = columns.data[at[:, None] + np.arange(_V4_BYTES)]
        raw[:, _V4_BYTES:] = (
            columns.physical_offset.astype(">i8").view(np.uint8).reshape(len(self), 8)
        )
        digits = np.empty((len(self), 2 * _ID_BYTES), np.uint8)
        digits[:, 0::2] = _HEX[raw >> 4]
        digits[:, 1::2] = _HEX[raw & 15]
        start = np.arange(len(self)) * (2 * _ID_BYTES)
        ids = arrays.pieces(digits.reshape(-1), start, np.full(len(self), 2 * _ID_BYTES))
        ids = ids.cast(pa.string())
        is_v6 = columns.sys_flag & codec.STORE_HOST_V6 != 0
        if not is_v6.any():
            return ids
        plain = ids.to_pylist()
        for row in np.flatnonzero(is_v6).tolist():
            host_at = int(at[row])
            host = _host(columns.data[host_at : host_at + _V6_BYTES].tobytes())
            plain[row] = offset_message_id(host, int(columns.physical_offset[row]))
        return pa.array(plain, pa.string())


def _host(raw: bytes) -> Host:
    return Host(raw[:-PORT_BYTES], int.from_bytes(raw[-PORT_BYTES:], "big", signed=True))


Maker = Callable[[MessageRows], Any]


def _number(name: str, width: str) -> Maker:
    return lambda rows: arrays.numbers(getattr(rows.columns, name), width)


MAKERS: dict[str, Maker] = {
    "topic": lambda rows: rows.topics.cast(pa.string()),
    "queueId": _number("queue_id", "int32"),
    "queueOffset": _number("queue_offset", "int64"),
    "body": lambda rows: rows.bodies,
    "rawBody": lambda rows: rows.raw_bodies,
    "tags": lambda rows: rows.property_text(b"TAGS"),
    "keys": lambda rows: rows.keys,
    "uniqKey": lambda rows: rows.property_text(b"UNIQ_KEY"),
    "properties": lambda rows: rows.properties,
    "flag": _number("flag", "int32"),
    "sysFlag": _number("sys_flag", "int32"),
    "bornTimestamp": lambda rows: arrays.times(rows.columns.born_timestamp),
    "bornHost": lambda rows: rows.hosts(
        codec.BORN_HOST_V6, rows.columns.start + codec.SHORT_HEAD.offsets["born_ip"]
    ),
    "storeTimestamp": lambda rows: arrays.times(rows.columns.store_timestamp),
    "storeHost": lambda rows: rows.hosts(codec.STORE_HOST_V6, rows.store_host_at),
    "reconsumeTimes": _number("reconsume_times", "int32"),
    "preparedTransactionOffset": _number("prepared_transaction_offset", "int64"),
    "bodyCrc": _number("body_crc", "int32"),
    "msgId": lambda rows: rows.message_ids,
    "physicalOffset": _number("physical_offset", "int64"),
    "storeSize": _number("size", "int32"),
    "node": lambda rows: pa.repeat(rows.node, len(rows)),
    "damage": lambda rows: pa.nulls(len(rows), pa.string()),
    "key": lambda rows: rows.property_text(b"KEYS").cast(pa.binary()),
    "value": lambda rows: rows.bodies,
    "partition": _number("queue_id", "int32"),
    "offset": _number("queue_offset", "int64"),
    "timestamp": lambda rows: arrays.times(rows.columns.store_timestamp),
    "timestampType": lambda rows: pa.repeat(
        pa.scalar(KAFKA_LOG_APPEND_TIME, pa.int32()), len(rows)
    ),
    "headers": lambda rows: rows.headers,
}
"""How each column is made; a test holds it against the table."""


class DamagedPlace(NamedTuple):
    """Bytes that form no record; topic, queue and offset are known where a queue unit led there."""

    where: str
    physical_offset: int
    size: int
    why: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None

    def __str__(self) -> str:
        text = f"{self.where}, offset {self.physical_offset}: {self.why}"
        if self.topic is None:
            return text
        return f"{text} (message {self.queue_offset} of {self.topic}/{self.queue_id})"


class PassedOver:
    """How many damaged places a task left out."""

    count = 0


_passed_over = ContextVar[PassedOver | None]("passed_over", default=None)


@contextmanager
def passed_over_counted() -> Iterator[PassedOver]:
    """Counts what is passed over by what is read within, in this thread."""
    found = PassedOver()
    before = _passed_over.set(found)
    try:
        yield found
    finally:
        _passed_over.reset(before)


def on_damage(task: task_spec.Task, place: DamagedPlace) -> Iterator[pa.RecordBatch]:
    """As `onCorruptRecord` says: raises CorruptRecord, or gives nothing, or one row."""
    if task.on_corrupt == "fail":
        raise errors.CorruptRecord(
            str(place),
            "onCorruptRecord=skip or report to read on behind it, and keelog store verify to see"
            " all damage",
        )
    if task.on_corrupt == "skip":
        errors.log.warning("damage is passed over: %s", place)
        passed_over = _passed_over.get()
        if passed_over is not None:
            passed_over.count += 1
        return
    known = {
        "topic": place.topic,
        "queueId": place.queue_id,
        "queueOffset": place.queue_offset,
        "partition": place.queue_id,
        "offset": place.queue_offset,
        "physicalOffset": place.physical_offset,
        "storeSize": min(place.size, _INT_MAX),
        "node": task.store.node,
        tables.DAMAGE.name: without_credentials(f"{place.where}: {place.why}"),
    }
    schema = arrays.arrow_schema(task.columns)
    values = [pa.array([known.get(field.name)], field.type) for field in schema]
    yield pa.RecordBatch.from_arrays(values, schema=schema)


def on_loss(task: task_spec.Task, what: str) -> None:
    """Raises DataLoss, or with `failOnDataLoss=false` leaves a warning in the task's log."""
    if task.fail_on_data_loss:
        raise errors.DataLoss(
            what,
            "load() again to plan with what is there now, or failOnDataLoss=false to read what is"
            " left",
        )
    errors.log.warning("messages are lost: %s", what)


def message_batches(task: task_spec.Task, columns: RecordColumns) -> Iterator[pa.RecordBatch]:
    """The records as rows; several batches where bodies become large.

    A body that cannot be unpacked is damage, as `onCorruptRecord` says. Raises CorruptRecord,
    CodecMissing.
    """
    packed = columns.sys_flag & COMPRESSED != 0
    if _BODIES.isdisjoint(column.name for column in task.columns) or not packed.any():
        yield _batch(task, columns, {})
        return
    start, size, plain = 0, 0, dict[int, bytes]()
    for row in np.flatnonzero(packed).tolist():
        record = columns.record(row)
        try:
            body = record.body
        except CodecMissing as error:
            hint = error.hint.partition(";")[0]
            raise CodecMissing.worded(
                "KEELOG_CODEC_MISSING", error.reason, f"{hint}, or the column rawBody"
            ) from None
        except BodyUnreadable as error:
            if row > start:
                yield _batch(task, columns.take(slice(start, row)), plain)
            head = record.head
            yield from on_damage(
                task,
                DamagedPlace(
                    error.where, error.offset, head.total_size, error.found, record.topic,
                    head.queue_id, head.queue_offset,
                ),
            )  # fmt: skip
            start, size, plain = row + 1, 0, {}
            continue
        plain[row - start] = body
        size += len(body)
        if size >= PLAIN_BATCH_BYTES:
            yield _batch(task, columns.take(slice(start, row + 1)), plain)
            start, size, plain = row + 1, 0, {}
    if start < len(columns):
        yield _batch(task, columns.take(slice(start, None)), plain)


def _batch(task: task_spec.Task, columns: RecordColumns, plain: dict[int, bytes]) -> pa.RecordBatch:
    return MessageRows(columns, task.store.node, plain).batch(task.columns)
