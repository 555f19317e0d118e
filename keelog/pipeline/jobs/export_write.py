"""What a task of an export does: the rows of its part into Parquet files, by topic and day.

Knows nothing of Spark: a plain loop over the parts exports too.
"""

import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from keelog.pipeline.errors import ExportUnwritable
from keelog.pipeline.jobs.export_folder import (
    ExportedFile,
    ExportFolder,
    LastExported,
    file_name,
    temporary_path,
)
from keelog.pipeline.read.arrays import arrow_schema
from keelog.pipeline.read.message_rows import passed_over_counted
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.tables import Column
from keelog.pipeline.task_spec import Part
from protocol.record.columns import Ints

ROW_GROUP_BYTES = 32 << 20
"""Rows of one topic and day are gathered to about this, as Arrow arrays, then written."""
GATHERED_BYTES_MAX = 192 << 20
"""With more gathered in all, the largest are written first."""
OPEN_FILES_MAX = 128
"""With more topics and days at once, the file longest unused is closed."""
NEEDED = ("topic", "storeTimestamp", "physicalOffset", "storeSize", "bodyCrc")
"""Columns that an export reads whether they are asked for or not."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows without a topic (damage) or without a day, as Hive and Spark name it."""
NAME_BYTES_MAX = 255
"""Of one folder: what Linux's file systems take."""
_DAY_US = 86_400_000_000
_NO_TIME = -(2**63)
_EPOCH = date(1970, 1, 1).toordinal()
_ONE_VALUE_EACH = frozenset(
    ("body", "rawBody", "msgId", "uniqKey", "physicalOffset", "queueOffset")
)
# Hive's list, which Spark and Arrow undo: they keep everything else.
_ESCAPED = {chr(code) for code in range(1, 32)} | set("\"#%'*/:=?\\\x7f{[]^")


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """What every task of one run gets. `columns` are those of the files.

    `by_topic`: folders by topic and day, and the topic is in no file; else by day alone.
    """

    folder: ExportFolder
    columns: tuple[Column, ...]
    version: int
    run: str
    file_bytes_max: int
    by_topic: bool = True


NumberedPart = tuple[int, Part]
"""A part, and before it its number among those of the run."""


class Written(NamedTuple):
    """What a task returns: its files, the last record in log order, by node, and how many damaged
    places it passed over."""

    files: list[ExportedFile]
    tails: dict[str, LastExported]
    damaged: int


def write_part(order: WriteOrder, numbered: NumberedPart) -> Written:
    """Writes the part's rows. Raises MqError: what reading raises, and ExportUnwritable."""
    number, part = numbered
    writer, node = PartWriter(order, number), part.task.store.node
    tails: dict[str, LastExported] = {}
    try:
        with passed_over_counted() as passed_over:
            for batch in read_part(part):
                writer.add(batch)
                tail = _tail(batch)
                if tail is not None:
                    tails[node] = max(tail, tails.get(node, tail))
        return Written(writer.close(), tails, passed_over.count)
    finally:
        writer.abandon()


def _tail(batch: pa.RecordBatch) -> LastExported | None:
    offset = batch.column("physicalOffset")
    if "damage" in batch.schema.names:
        offset = pc.if_else(pc.is_null(batch.column("damage")), offset, None)
    last = pc.max(offset).as_py()
    if last is None:
        return None
    row = pc.index(offset, last).as_py()
    times = batch.column("storeTimestamp").cast(pa.int64())
    return LastExported(
        last,
        batch.column("storeSize")[row].as_py(),
        (times[row].as_py() or 0) // 1000,
        batch.column("bodyCrc")[row].as_py(),
    )


class _OpenFile:
    """A Parquet file that grows, and the rows that are not in it yet."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.gathered_bytes = 0
        self.rows = 0
        self.first_offset = 2**63 - 1
        self.last_offset = -1
        self.path = ""
        self.stream: Any = None
        self.parquet: Any = None

    def gather(self, batch: pa.RecordBatch) -> None:
        low_high = pc.min_max(batch.column("physicalOffset"))
        self.first_offset = min(self.first_offset, low_high["min"].as_py())
        self.last_offset = max(self.last_offset, low_high["max"].as_py())
        self.batches.append(batch)
        self.gathered_bytes += batch.nbytes
        self.rows += len(batch)


class PartWriter:
    """The files of one task. `close` says which they are; after an error call `abandon`."""

    def __init__(self, order: WriteOrder, number: int) -> None:
        self._order = order
        self._number = number
        self._attempt = uuid.uuid4().hex[:12]
        self._schema = arrow_schema(order.columns)
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._done: list[ExportedFile] = []
        self._started = 0
        self._row_group_bytes = min(ROW_GROUP_BYTES, order.file_bytes_max)

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of any topics and days, with the columns of NEEDED among theirs."""
        for folder, rows in by_partition(batch, self._order.by_topic):
            file = self._open.get(folder) or self._open.setdefault(folder, _OpenFile())
            self._open.move_to_end(folder)
            file.gather(rows)
            if file.gathered_bytes >= self._row_group_bytes:
                self._write(folder, file)
                if file.stream.tell() >= self._order.file_bytes_max:
                    self._finish(folder)
        while sum(file.gathered_bytes for file in self._open.values()) > GATHERED_BYTES_MAX:
            folder, file = max(self._open.items(), key=lambda item: item[1].gathered_bytes)
            self._write(folder, file)
        while len(self._open) > OPEN_FILES_MAX:
            self._finish(next(iter(self._open)))

    def close(self) -> list[ExportedFile]:
        """Everything written and durable."""
        for folder in list(self._open):
            self._finish(folder)
        return self._done

    def abandon(self) -> None:
        """Closes what is open, whatever becomes of it."""
        for file in self._open.values():
            with suppress(OSError, pa.ArrowException):
                if file.parquet is not None:
                    file.parquet.close()
                    file.stream.close()
        self._open.clear()

    def _write(self, folder: str, file: _OpenFile) -> None:
        with self._order.folder.naming():
            if file.parquet is None:
                self._start(folder, file)
            rows = pa.Table.from_batches(file.batches).select(self._schema.names)
            file.parquet.write_table(rows.combine_chunks(), row_group_size=max(rows.num_rows, 1))
        file.batches, file.gathered_bytes = [], 0

    def _start(self, folder: str, file: _OpenFile) -> None:
        name = file_name(
            self._order.version, self._number, self._started, self._order.run, self._attempt
        )
        self._started += 1
        file.path = f"{folder}/{name}"
        file.stream = self._order.folder.create(self._written_to(file.path))
        file.parquet = pq.ParquetWriter(
            file.stream,
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in self._schema.names if name not in _ONE_VALUE_EACH],
        )

    def _finish(self, folder: str) -> None:
        file = self._open[folder]
        if file.batches:
            self._write(folder, file)
        with self._order.folder.naming():
            file.parquet.close()
            size = file.stream.tell()
            file.stream.close()
            self._order.folder.sync_file(self._written_to(file.path))
        del self._open[folder]
        offsets = file.first_offset, file.last_offset
        self._done.append(ExportedFile(file.path, file.rows, size, *offsets, self._order.version))

    def _written_to(self, path: str) -> str:
        return temporary_path(path) if self._order.folder.how == "rename" else path


def by_partition(batch: pa.RecordBatch, by_topic: bool) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch's rows by folder, each in the batch's order."""
    topics = pc.dictionary_encode(batch.column("topic"), null_encoding="encode")
    codes = topics.indices.to_numpy() if by_topic else np.zeros(len(batch), np.int32)
    times = pc.fill_null(batch.column("storeTimestamp").cast(pa.int64()), _NO_TIME)
    days = np.asarray(times.to_numpy()) // _DAY_US
    order = np.lexsort((days, codes))
    changes = (np.diff(codes[order]) != 0) | (np.diff(days[order]) != 0)
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), len(order)]
    for start, end in pairwise(borders):
        first: int = order[start]
        folder = date_folder(int(days[first]))
        if by_topic:
            folder = f"{topic_folder(topics.dictionary[int(codes[first])].as_py())}/{folder}"
        rows: Ints = order[start:end]
        yield folder, batch if len(rows) == len(batch) else batch.take(pa.array(rows))


def topic_folder(topic: str | None) -> str:
    """`topic=…`, escaped as Hive and Spark do. Raises ExportUnwritable for what no name can be."""
    name = f"topic={escape(topic) if topic else NULL_PARTITION}"
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ExportUnwritable(
            f"the folder of topic {topic} would have a longer name than {NAME_BYTES_MAX} bytes",
            "folders by date alone (--by date), which leaves topics in the files, or other topics",
        )
    return name


def date_folder(day: int | None) -> str:
    """`date=YYYY-MM-DD`; `day` counts from 1970-01-01, in UTC."""
    ordinal = 0 if day is None else day + _EPOCH
    is_date = 1 <= ordinal <= date.max.toordinal()
    return f"date={date.fromordinal(ordinal).isoformat() if is_date else NULL_PARTITION}"


def escape(text: str) -> str:
    """A value as a folder's name."""
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED else sign for sign in text)
