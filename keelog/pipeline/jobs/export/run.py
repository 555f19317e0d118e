"""Exports messages as Parquet, by topic and day; each run adds what is new since the last one."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from keelog.pipeline.errors import BadOption
from keelog.pipeline.jobs.export.folder import ExportFolder, Publish
from keelog.pipeline.jobs.export.manifest import (
    ExportedFile,
    ExportPosition,
    LastExported,
    Manifest,
)
from keelog.pipeline.jobs.export.options import ExportOptions
from keelog.pipeline.jobs.export.plan import (
    DATE,
    TOPIC,
    ExportPlan,
    check_source,
    plan_export,
    with_tails,
)
from keelog.pipeline.jobs.export.write import NumberedPart, WriteOrder, Written, write_part
from keelog.pipeline.jobs.publication import TEMPORARY
from keelog.pipeline.tables import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[int, int], None]
"""Told how many of how many parts are written."""
Engine = Callable[[list[NumberedPart], WriteOrder], Iterable[Written]]


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
    return run_export(path, ExportFolder.at(out, publish), options or ExportOptions(), engine)


def export_here(
    path: str | Mapping[str, str],
    out: str,
    options: ExportOptions | None = None,
    publish: Publish | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """The same in this process alone, without Spark."""

    def engine(parts: list[NumberedPart], order: WriteOrder) -> Iterator[Written]:
        for numbered in parts:
            yield write_part(order, numbered)
            if progress is not None:
                progress(numbered.number + 1, len(parts))

    return run_export(path, ExportFolder.at(out, publish), options or ExportOptions(), engine)


def run_export(
    path: str | Mapping[str, str], folder: ExportFolder, options: ExportOptions, engine: Engine
) -> ExportResult:
    """Plans, lets `engine` write the parts, publishes. Raises MqError."""
    began = time.monotonic()
    if options.file_bytes_max < 1:
        raise BadOption(f"file_bytes_max is {options.file_bytes_max}", "a size from 1 byte on")
    check_source(path, options)
    opened = folder.open()
    with opened.locked():
        before = opened.clean()
        plan = plan_export(path, options, before)
        version = before.version + 1 if before else 1
        order = WriteOrder(
            folder,
            plan.columns,
            version,
            uuid.uuid4().hex[:12],
            options.file_bytes_max,
            options.by_topic,
        )
        if before is None and folder.publish == "manifest":
            # From here on data without a manifest is somebody else's.
            opened.publish(_manifest(plan, {}, 0, ()))
        files: list[ExportedFile] = []
        tails: dict[str, LastExported] = {}
        damaged = 0
        parts = [NumberedPart(number, part) for number, part in enumerate(plan.parts)]
        for written in engine(parts, order) if parts else ():
            files += written.files
            damaged += written.damaged
            tails |= {node: max(at, tails.get(node, at)) for node, at in written.tails.items()}
        stores = with_tails(plan.stores, tails)
        if before is None or files or dict(before.stores) != stores:
            kept = before.files if before else ()
            before = _manifest(plan, stores, version, (*kept, *files))
            opened.publish(before)
        opened.remove_folder(TEMPORARY)
    return _result(folder.out, before, files, damaged, began)


def read_export(spark: "SparkSession", out: str) -> "DataFrame":
    """The rows of the published version: the files that the manifest names, with their types.

    `spark.read.parquet(out)` gives the same rows, except while a run publishes, and except that
    Spark guesses the types of topics: names that are all numbers it takes for numbers.
    """
    opened = ExportFolder.at(out).open()
    manifest = opened.manifest()
    if manifest is None:
        raise BadOption(f"{out} holds no export", "the folder that was exported to")
    files = [f"{out.rstrip('/')}/{file.path}" for file in manifest.files]
    if not files:
        return spark.createDataFrame([], manifest.schema)
    return spark.read.schema(manifest.schema).option("basePath", out).parquet(*files)


def by_tasks(spark: "SparkSession", parts: list[NumberedPart], order: WriteOrder) -> list[Written]:
    """The engine that has Spark's tasks write the parts."""
    # Imported here: the same export without Spark needs no pyspark.
    from keelog.pipeline.jobs.session_run import run_tasks

    return run_tasks(spark, "export", partial(write_part, order), parts)


def _manifest(
    plan: ExportPlan,
    stores: Mapping[str, ExportPosition],
    version: int,
    files: tuple[ExportedFile, ...],
) -> Manifest:
    folders = f"`{TOPIC}` STRING, `{DATE}` DATE" if plan.selection["by_topic"] else f"`{DATE}` DATE"
    schema = f"{ddl(plan.columns)}, {folders}"
    return Manifest(version, time.time_ns() // 1_000_000, schema, plan.selection, stores, files)


def _result(
    out: str, manifest: Manifest | None, files: list[ExportedFile], damaged: int, began: float
) -> ExportResult:
    every = manifest.files if manifest else ()
    return ExportResult(
        out=out,
        version=manifest.version if manifest else 0,
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        rows_in_all=sum(file.rows for file in every),
        files_in_all=len(every),
        seconds=round(time.monotonic() - began, 3),
        damaged=damaged,
    )
