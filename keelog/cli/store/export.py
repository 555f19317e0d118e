"""`keelog store export`: messages as Parquet or as an SQLite database, without Spark."""

from pathlib import Path
from typing import Any

import click

from keelog.cli import failures
from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, progress_option, settings_options
from keelog.cli.output import Output
from keelog.cli.store.export_options import (
    exit_code,
    export_of,
    export_options,
    export_parquet,
    shown,
    summary,
)
from keelog.cli.store.options import directory, opened
from keelog.pipeline.options import ExportOptions
from keelog.progress import CommandProgress
from keelog.sqlite_export import Chosen, export_sqlite
from node.store.query.filters import parse_tags
from protocol.errors import BadRequest


@command()
@directory
@click.option("--parquet", "parquet", metavar="OUT", help="A folder, or a URL as s3://bucket/x.")
@click.option("--sqlite", "sqlite", type=click.Path(path_type=Path), metavar="FILE", help="A file.")
@click.option("--overwrite", is_flag=True, help="With --sqlite: replaces the file.")
@export_options
@settings_options
@progress_option
@output_options
def export(
    path: Path,
    parquet: str | None,
    sqlite: Path | None,
    output: Output,
    pairs: tuple[str, ...],
    progress: CommandProgress,
    **chosen: Any,
) -> int:
    """Exports messages, offline and without Spark.

    Parquet as `keelog spark export` writes it: in folders by topic and date, and each run adds
    what is new. SQLite anew each time, with a table of keys. Bodies are plain; those that were
    compressed are there as stored, too. Damage ends it, unless --on-corrupt says otherwise; with
    places passed over the exit code is 5.

    Example: keelog store export ./store --parquet ./out

    Example: keelog store export ./store --sqlite ./messages.db --topics orders
    """
    if (parquet is None) == (sqlite is None):
        raise BadRequest("say where to: --parquet or --sqlite, one of them", "--sqlite messages.db")
    overwrite = chosen.pop("overwrite")
    asked = export_of(pairs, **chosen)
    with doing(f"cannot export {path}"), progress.shown():
        if sqlite is not None:
            wanted = _chosen(asked)
            with opened(path, pairs) as store:
                result = export_sqlite(store, sqlite, wanted, overwrite, progress.meter("exported"))
            progress.clear()
            line = f"{result.rows} messages and {result.keys} keys in {sqlite}"
            output.document(result._asdict(), title=line)
            return failures.DAMAGED if result.damaged else failures.OK
        if overwrite:
            raise BadRequest("--overwrite is for --sqlite", "remove the folder, or name a new one")
        assert parquet is not None
        return _to_parquet(path, parquet, asked, output, progress)


def _to_parquet(
    path: Path, out: str, asked: ExportOptions, output: Output, progress: CommandProgress
) -> int:
    result = export_parquet(str(path), out, asked, progress)
    progress.clear()
    output.document(shown(result), title=summary(result))
    return exit_code(result)


def _chosen(asked: ExportOptions) -> Chosen:
    """The choice for SQLite. Raises BadRequest for options that are Parquet's."""
    of_parquet = asked.columns, asked.by_topic, asked.file_bytes_max, asked.on_corrupt == "report"
    if of_parquet != (None, True, ExportOptions().file_bytes_max, False):
        raise BadRequest(
            "--columns, --by, --max-file-bytes and --on-corrupt report are for --parquet",
            "without them: SQLite gets all columns in one file",
        )
    topics = asked.topics.split(",") if asked.topics is not None else None
    return Chosen(
        topics=None if topics is None else frozenset(name.strip() for name in topics),
        tags=parse_tags(asked.tags),
        from_ms=asked.from_ms,
        to_ms=asked.to_ms,
        skips_damage=asked.on_corrupt == "skip",
    )
