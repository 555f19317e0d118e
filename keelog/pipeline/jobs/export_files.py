"""What an export writes: Parquet files by topic and day, and the manifest that names them.

One JSON file, replaced as a whole, says what an export holds and how far it is. Readers that want
all of a version and nothing else take the files that it names. Where files can be renamed, tasks
write below `_temporary/`, and their files move to their places; elsewhere tasks write files where
they stay (publication.py).

Nothing here knows of Spark: a plain loop over the parts exports too.
"""

import json
import os
import re
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from keelog.pipeline import tables, task_spec
from keelog.pipeline.errors import BadOption, ExportMismatch, ExportUnwritable
from keelog.pipeline.jobs.publication import TEMPORARY, TEMPORARY_SUFFIX, OutFolder, try_lock
from keelog.pipeline.read import message_rows, parts
from keelog.pipeline.read.arrays import arrow_schema
from protocol.errors import StoreLocked
from protocol.record.columns import Ints

MANIFEST = "_keelog_manifest.json"
NEXT_MANIFEST = "_keelog_manifest.next.json"
"""The manifest to be, while its files are moved to their places."""
FORMAT = "keelog-export"
FORMAT_VERSION = 1
Publish = Literal["rename", "manifest"]
_OURS = re.compile(r"part-(\d{6,})-\d{5}-\d{4}-[0-9a-f]{12}-[0-9a-f]{12}\.parquet")
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


class ExportedFile(NamedTuple):
    """One Parquet file; `path` is relative to the export, offsets are log offsets in bytes."""

    path: str
    rows: int
    bytes: int
    first_offset: int
    last_offset: int
    version: int = 0


class LastExported(NamedTuple):
    """The last record that was exported: a store that has another one there is another store."""

    physical_offset: int
    size: int
    store_timestamp: int
    body_crc: int


@dataclass(frozen=True, slots=True)
class ExportPosition:
    """How far one store is exported.

    `log_end`: every record below this log offset, when everything is exported. `queues`: by topic
    and queue id the offset below which everything is, when queues are chosen.
    """

    log_end: int | None = None
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    tail: LastExported | None = None

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Where a queue goes on; 0 for one that is new."""
        return self.queues.get(topic, {}).get(str(queue_id), 0)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of an export. `selection` is the same in every run of it."""

    version: int
    updated_at: int
    schema: str
    selection: Mapping[str, Any]
    stores: Mapping[str, ExportPosition]
    files: tuple[ExportedFile, ...]

    def to_json(self) -> bytes:
        """Returns the file's bytes, with the format's name first."""
        document = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        document["stores"] = {
            node: asdict(at) | {"tail": at.tail._asdict() if at.tail else None}
            for node, at in sorted(self.stores.items())
        }
        document["files"] = [file._asdict() for file in self.files]
        return json.dumps(document, ensure_ascii=False, indent=1).encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Raises ExportMismatch unless it is a manifest of this format version."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT or found["format_version"] != FORMAT_VERSION:
            raise ExportMismatch(
                f"{where} is of format {found['format']} {found['format_version']}, not {FORMAT}"
                f" {FORMAT_VERSION}",
                "the release of Keelog that wrote it, or another folder",
            )
        stores = {
            node: ExportPosition(
                at["log_end"], at["queues"], LastExported(**at["tail"]) if at["tail"] else None
            )
            for node, at in found["stores"].items()
        }
        files = tuple(ExportedFile(**file) for file in found["files"])
        of_run = {name: found[name] for name in ("version", "updated_at", "schema", "selection")}
        return Manifest(**of_run, stores=stores, files=files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportMismatch(
            f"{where} is no manifest of an export: {error!r}", "another folder, or remove this one"
        ) from None


class ExportFolder(OutFolder):
    """Where an export is: a path, or a URL that `pyarrow.fs` knows.

    Methods raise ExportUnwritable for what the file system refuses.
    """

    def __init__(self, out: str, publish: Publish | None = None) -> None:
        """`publish` is found when it is not given: local folders can rename. Raises BadOption."""
        if not out or "\0" in out:
            raise BadOption(f"{out!r} is no path", "a folder to export into")
        scheme = urlsplit(out).scheme
        # Tasks have a working directory of their own.
        self.out = out if scheme else str(Path(out).absolute())
        self.how = publish or ("rename" if scheme in ("", "file") else "manifest")

    def open_client(self) -> tuple[Any, str]:
        if not urlsplit(self.out).scheme:
            return fs.LocalFileSystem(), self.out
        try:
            return cast(tuple[Any, str], fs.FileSystem.from_uri(self.out))
        except (pa.ArrowException, ValueError) as error:
            raise BadOption(
                f"{self.out} names no place to write to: {error}",
                "a path, or a URL as s3://bucket/folder",
            ) from None

    def refusal(self, path: str, error: Exception) -> ExportUnwritable:
        return ExportUnwritable(
            f"{self.out} cannot be written: {error}",
            "df -h, and the folder's owner and permissions",
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder and holds it against other exports of this machine.

        Object stores know no locks: there it is the caller's to run one at a time. Raises
        StoreLocked.
        """
        with self.naming():
            self.system.create_dir(self.root, recursive=True)
            handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY) if self.syncs else None
        if handle is None:
            yield
            return
        try:
            if not try_lock(handle):
                raise StoreLocked.worded(
                    "KEELOG_EXPORT_BUSY",
                    f"another export writes to {self.out}",
                    "again when it has ended",
                )
            yield
        finally:
            os.close(handle)

    def manifest(self, name: str = MANIFEST) -> Manifest | None:
        """The manifest, or None where none is. Raises ExportMismatch."""
        data = self.read(name)
        return None if data is None else parse_manifest(data, self.place(name))

    def clean(self) -> Manifest | None:
        """Finishes a publication that was begun, removes what else a dead run left.

        The manifest as it is then. Raises ExportMismatch for a folder with anything of others.
        """
        begun = self.manifest(NEXT_MANIFEST)
        if begun is not None:
            self._carry_out(begun)
        manifest = self.manifest()
        if manifest is None:
            self._check_empty()
        else:
            # A run of the next version that died before its manifest has left files.
            named = {file.path for file in manifest.files}
            for path, _ in self.files():
                found = _OURS.fullmatch(path.rpartition("/")[2])
                if found and int(found[1]) == manifest.version + 1 and path not in named:
                    self.remove_file(path)
        self.remove_folder(TEMPORARY)
        return manifest

    def publish(self, manifest: Manifest) -> None:
        """Makes the files of this version, and with them the manifest, what readers see."""
        if self.how == "manifest":
            self.put(MANIFEST, manifest.to_json())
            return
        self.put(NEXT_MANIFEST, manifest.to_json())
        self._carry_out(manifest)

    def _carry_out(self, manifest: Manifest) -> None:
        """Moves what is not moved yet; then the next manifest is the manifest."""
        moves = [
            (temporary_path(file.path), file.path, file.bytes)
            for file in manifest.files
            if file.version == manifest.version
        ]
        odd = self.move_in(moves, NEXT_MANIFEST, MANIFEST)
        if odd:
            raise ExportMismatch(
                f"{odd} is missing, or has another length than {NEXT_MANIFEST} says",
                "another folder: this one was changed by somebody else",
            )

    def _check_empty(self) -> None:
        """A first run that died leaves these names and no others."""
        left = {TEMPORARY, f"{NEXT_MANIFEST}{TEMPORARY_SUFFIX}", f"{MANIFEST}{TEMPORARY_SUFFIX}"}
        for found in sorted(self.names() - left):
            raise ExportMismatch(
                f"{self.out} has no {MANIFEST} and is not empty: it holds {found}",
                "a new folder",
            )


def file_name(version: int, part: int, number: int, run: str, attempt: str) -> str:
    """The name of a data file: no two attempts of any run have the same."""
    return f"part-{version:06d}-{part:05d}-{number:04d}-{run}-{attempt}.parquet"


def temporary_path(path: str) -> str:
    """Where a file is written before it is moved to its place."""
    return f"{TEMPORARY}/{path.rpartition('/')[2]}{TEMPORARY_SUFFIX}"


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """What every task of one run gets. `columns` are those of the files.

    `by_topic`: folders by topic and day, and the topic is in no file; else by day alone.
    """

    folder: ExportFolder
    columns: tuple[tables.Column, ...]
    version: int
    run: str
    file_bytes_max: int
    by_topic: bool = True


NumberedPart = tuple[int, task_spec.Part]
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
        with message_rows.passed_over_counted() as passed_over:
            for batch in parts.read_part(part):
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
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED else sign for sign in text)
