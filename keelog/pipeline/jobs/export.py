"""Exports messages as Parquet, by topic and day; each run adds what is new since the last one.

A run reads the parts of the store without what the manifest has.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from keelog.pipeline.errors import BadOption, ExportMismatch, naming_conditions
from keelog.pipeline.jobs import export_files
from keelog.pipeline.jobs.export_files import ExportFolder, ExportPosition, Manifest, Publish
from keelog.pipeline.jobs.publication import TEMPORARY
from keelog.pipeline.options import ExportOptions, parse_options
from keelog.pipeline.read.message_rows import on_loss
from keelog.pipeline.resolve import plan_parts
from keelog.pipeline.stores.planned_store import check_stores, task_files
from keelog.pipeline.tables import DAMAGE, MESSAGES, Column, ddl
from keelog.pipeline.task_spec import LogPart, Part, QueuePart, QueueSlice
from protocol.derived.file_layouts import QUEUE_UNIT
from protocol.record.codec import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TOPIC, DATE = "topic", "date"
Progress = Callable[[int, int], None]
"""Called with how many of how many parts are written."""
Engine = Callable[
    [list[export_files.NumberedPart], export_files.WriteOrder], Iterable[export_files.Written]
]


class ExportResult(NamedTuple):
    """What one run added. `version` is the manifest's; a run with nothing new keeps it.

    `damaged`: places that it passed over, with `on_corrupt="skip"`.
    """

    out: str
    version: int
    rows: int
    files: int
    bytes: int
    rows_in_all: int
    files_in_all: int
    seconds: float
    damaged: int = 0


class ExportPlan(NamedTuple):
    """The parts to write, and how far the export is when they are written.

    `columns` are those of the files; `selection` must be the same in the next run.
    """

    parts: list[Part]
    columns: tuple[Column, ...]
    selection: dict[str, Any]
    stores: dict[str, ExportPosition]


def export(
    spark: "SparkSession",
    path: str | Mapping[str, str],
    out: str,
    options: ExportOptions | None = None,
    publish: Publish | None = None,
) -> ExportResult:
    """Exports the store at `path` (or several: `{"name": "/path"}`) to `out`, by Spark's tasks.

    `out` is a folder that all executors see, or a URL for `pyarrow.fs`, where nothing is renamed
    (`publish="manifest"`) and readers take the files that the manifest names. Safe to run again
    after any end. Raises MqError.
    """
    engine = partial(by_tasks, spark)
    return run_export(path, ExportFolder(out, publish), options or ExportOptions(), engine)


def export_here(
    path: str | Mapping[str, str],
    out: str,
    options: ExportOptions | None = None,
    publish: Publish | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """The same in this process alone, without Spark."""

    def engine(
        parts: list[export_files.NumberedPart], order: export_files.WriteOrder
    ) -> Iterator[export_files.Written]:
        for numbered in parts:
            yield export_files.write_part(order, numbered)
            if progress is not None:
                progress(numbered[0] + 1, len(parts))

    return run_export(path, ExportFolder(out, publish), options or ExportOptions(), engine)


def run_export(
    path: str | Mapping[str, str], folder: ExportFolder, options: ExportOptions, engine: Engine
) -> ExportResult:
    """Plans, lets `engine` write the parts, publishes. Raises MqError."""
    began = time.monotonic()
    if options.file_bytes_max < 1:
        raise BadOption(f"file_bytes_max is {options.file_bytes_max}", "a size from 1 byte on")
    # What is known before the folder is made: bad options, a path without a store.
    _file_columns(options)
    check_stores(parse_options(_source_options(path, options, options.by_queues)).stores)
    with folder.locked():
        before = folder.clean()
        plan = plan_export(path, options, before)
        version = before.version + 1 if before else 1
        order = export_files.WriteOrder(
            folder,
            plan.columns,
            version,
            uuid.uuid4().hex[:12],
            options.file_bytes_max,
            options.by_topic,
        )
        if before is None and folder.how == "manifest":
            # From here on data without a manifest is somebody else's.
            folder.publish(_manifest(plan, {}, 0, ()))
        files: list[export_files.ExportedFile] = []
        tails: dict[str, export_files.LastExported] = {}
        damaged = 0
        parts = list(enumerate(plan.parts))
        for written in engine(parts, order) if parts else ():
            files += written.files
            damaged += written.damaged
            tails |= {node: max(at, tails.get(node, at)) for node, at in written.tails.items()}
        stores = {
            node: replace(at, tail=tails.get(node, at.tail)) for node, at in plan.stores.items()
        }
        if before is None or files or dict(before.stores) != stores:
            kept = before.files if before else ()
            before = _manifest(plan, stores, version, (*kept, *files))
            folder.publish(before)
        folder.remove_folder(TEMPORARY)
    every = before.files if before else ()
    return ExportResult(
        out=folder.out,
        version=before.version if before else 0,
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        rows_in_all=sum(file.rows for file in every),
        files_in_all=len(every),
        seconds=round(time.monotonic() - began, 3),
        damaged=damaged,
    )


def by_tasks(
    spark: "SparkSession", parts: list[export_files.NumberedPart], order: export_files.WriteOrder
) -> list[export_files.Written]:
    # Imported here: the same export without Spark needs no pyspark.
    from keelog.pipeline.session import run_tasks

    return run_tasks(spark, "export", partial(export_files.write_part, order), parts)


def read_export(spark: "SparkSession", out: str) -> "DataFrame":
    """The rows of the published version: the files that the manifest names, with their types.

    `spark.read.parquet(out)` gives the same rows, except while a run publishes, and except that
    Spark guesses the types of topics: names that are all numbers it takes for numbers.
    """
    manifest = ExportFolder(out).manifest()
    if manifest is None:
        raise BadOption(f"{out} holds no export", "the folder that was exported to")
    files = [f"{out.rstrip('/')}/{file.path}" for file in manifest.files]
    if not files:
        return spark.createDataFrame([], manifest.schema)
    return spark.read.schema(manifest.schema).option("basePath", out).parquet(*files)


def _manifest(
    plan: ExportPlan,
    stores: Mapping[str, ExportPosition],
    version: int,
    files: tuple[export_files.ExportedFile, ...],
) -> Manifest:
    folders = f"`{TOPIC}` STRING, `{DATE}` DATE" if plan.selection["by_topic"] else f"`{DATE}` DATE"
    schema = f"{ddl(plan.columns)}, {folders}"
    return Manifest(version, time.time_ns() // 1_000_000, schema, plan.selection, stores, files)


def plan_export(
    path: str | Mapping[str, str], options: ExportOptions, before: Manifest | None
) -> ExportPlan:
    """Raises what planning a read raises, and ExportMismatch, DataLoss."""
    by_queues = options.by_queues
    if before is not None:
        by_queues = before.selection["by"] == "queues"
        if options.by_queues and not by_queues:
            raise _mismatch("all of the log", "a choice of topics, tags or times")
    parsed = parse_options(_source_options(path, options, by_queues))
    columns = _file_columns(options)
    selection = {
        "by": "queues" if by_queues else "log",
        "topics": options.topics,
        "tags": options.tags,
        "columns": [column.name for column in columns],
        "from_ms": options.from_ms,
        "by_topic": options.by_topic,
    }
    if any(column.name == "body" for column in columns):
        selection["bodies"] = "plain"  # exports before had them as stored
    if before is not None and dict(before.selection) != selection:
        raise _mismatch(_words(dict(before.selection)), _words(selection))
    parts, kept = plan_parts(parsed), list[Part]()
    stores = dict(before.stores) if before is not None else {}
    # Each store has parts of one kind; a store without any stays where it is.
    for node in dict.fromkeys(part.task.store.node for part in parts):
        of_node = [part for part in parts if part.task.store.node == node]
        at = stores.get(node, ExportPosition())
        logs = [part for part in of_node if isinstance(part, LogPart)]
        queues = [part for part in of_node if isinstance(part, QueuePart)]
        with naming_conditions():
            _check_tail((logs or queues)[0], at)
        new, stores[node] = _remaining_log(logs, at) if logs else _remaining_queues(queues, at)
        kept += new
    return ExportPlan(kept, columns, selection, stores)


def _source_options(
    path: str | Mapping[str, str], options: ExportOptions, by_queues: bool
) -> dict[str, str]:
    given: dict[str, str | None] = {
        "subscribe": options.topics,
        "tags": options.tags,
        "startingTimestamp": None if options.from_ms is None else str(options.from_ms),
        "endingTimestamp": None if options.to_ms is None else str(options.to_ms),
        "onCorruptRecord": options.on_corrupt,
    }
    if by_queues and options.topics is None:
        given["subscribePattern"] = ".*"
    names = [column.name for column in _asked(options)]
    given["columns"] = ",".join(
        [*names, *(name for name in export_files.NEEDED if name not in names)]
    )
    if isinstance(path, str):
        given["path"] = path
    else:
        given["nodes"] = json.dumps(dict(path))
    return {**options.source, **{name: value for name, value in given.items() if value is not None}}


def _asked(options: ExportOptions) -> tuple[Column, ...]:
    if options.columns is None:
        return MESSAGES.columns
    return MESSAGES.choose([name.strip() for name in options.columns.split(",")])


def _file_columns(options: ExportOptions) -> tuple[Column, ...]:
    columns = tuple(
        column for column in _asked(options) if column.name != TOPIC or not options.by_topic
    )
    if not columns:
        raise BadOption(
            "topic alone is the name of a folder, and a file needs a column",
            "one column more, as queueOffset",
        )
    return (*columns, DAMAGE) if options.on_corrupt == "report" else columns


def _words(selection: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in selection.items() if value is not None)


def _mismatch(before: str, now: str) -> ExportMismatch:
    return ExportMismatch(
        f"the folder holds an export of {before}; this one is of {now}",
        "the same choice again, or a folder of its own",
    )


def _remaining_log(parts: list[LogPart], at: ExportPosition) -> tuple[list[Part], ExportPosition]:
    """The parts, cut where `at` ends, and how far the store is after them.

    Raises ExportMismatch, DataLoss.
    """
    start, end = parts[0].log.start, parts[0].log.end
    done = start if at.log_end is None else at.log_end
    if done > end:
        raise _was_cut(parts[0], f"its log ends at {end}, and {done} were exported")
    if done < start:
        on_loss(parts[0].task, f"log offsets {done} to {start - 1} were deleted unexported")
    kept: list[Part] = [
        replace(part, start=max(part.start, done)) for part in parts if part.end > done
    ]
    return kept, replace(at, log_end=end)


def _remaining_queues(
    parts: list[QueuePart], at: ExportPosition
) -> tuple[list[Part], ExportPosition]:
    """The same of queues."""
    low: dict[tuple[str, int], int] = {}
    high: dict[tuple[str, int], int] = {}
    for found in (one for part in parts for one in part.slices):
        queue = found.topic, found.queue_id
        low[queue] = min(found.start, low.get(queue, found.start))
        high[queue] = max(found.end, high.get(queue, 0))
    queues = {topic: dict(ends) for topic, ends in at.queues.items()}
    for (topic, queue_id), end in high.items():
        done = at.queue_end(topic, queue_id)
        if str(queue_id) in at.queues.get(topic, {}) and done < low[topic, queue_id]:
            lost = f"{topic}/{queue_id}: {done} to {low[topic, queue_id] - 1}"
            on_loss(parts[0].task, f"messages were deleted unexported: {lost}")
        queues.setdefault(topic, {})[str(queue_id)] = max(done, end)
    kept: list[Part] = []
    for part in parts:
        cut = tuple(
            cut_slice(found, at.queue_end(found.topic, found.queue_id)) for found in part.slices
        )
        rows = tuple(found for found in cut if found.start < found.end)
        if rows:
            kept.append(replace(part, slices=rows))
    return kept, replace(at, queues=queues)


def cut_slice(found: QueueSlice, start: int) -> QueueSlice:
    """The units of a slice from `start` on; none, when they all lie before it."""
    start = min(max(found.start, start), found.end)
    first = max(found.start, found.disk_end)
    skipped = max(start - first, 0) * QUEUE_UNIT.size
    return replace(found, start=start, derived=found.derived[skipped:])


def _was_cut(part: Part, why: str) -> ExportMismatch:
    return ExportMismatch(
        f"the store {part.task.store.root} is not the one that was exported, or it has lost its"
        f" end: {why}",
        "a new folder for a whole export of it",
    )


def _check_tail(part: LogPart | QueuePart, at: ExportPosition) -> None:
    """Raises ExportMismatch where the last exported record is another one now."""
    if at.tail is not None:
        offset = at.tail.physical_offset
        found = _record_at(part, offset)
        if found is not None and found != at.tail:
            raise _was_cut(part, f"another record stands at log offset {offset} now")


def _record_at(part: LogPart | QueuePart, offset: int) -> export_files.LastExported | None:
    """The record there; None where retention has removed it."""
    assert part.log is not None
    if offset < part.log.start:
        return None
    with closing(task_files(part.task.store)) as files:
        found = part.log.open(files).peek(offset) if offset < part.log.end else None
    if not isinstance(found, Record):
        return export_files.LastExported(offset, 0, 0, 0)
    head = found.head
    return export_files.LastExported(offset, head.total_size, head.store_timestamp, head.body_crc)
