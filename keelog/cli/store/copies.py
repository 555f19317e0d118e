"""`keelog store backup`, `restore` and `export`: copies of what a store directory holds.

`export` writes messages as Parquet or as an SQLite database, without Spark.
"""

from pathlib import Path
from typing import Any

import click

from keelog.cli import failures
from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, progress_option, settings_options
from keelog.cli.output import Output, say
from keelog.cli.store import options
from keelog.pipeline.options import ExportOptions
from keelog.progress import CommandProgress
from keelog.restore import restore as restore_backup
from keelog.sqlite_export import Chosen, export_sqlite
from keelog.text import size_text
from node.runtime.settings import load_settings
from node.store.backup.backup import BackupReport
from node.store.backup.backup import backup as back_up
from node.store.query.filters import parse_tags
from protocol.errors import BadRequest

out_folder = click.argument("out", metavar="OUT", type=click.Path(path_type=Path))


@command()
@options.directory
@out_folder
@click.option("--prune", is_flag=True, help="Deletes what the store has deleted.")
@click.option("--link", is_flag=True, help="Hard links to full segments in place of copies.")
@settings_options
@progress_option
@output_options
def backup(
    path: Path,
    out: Path,
    prune: bool,
    link: bool,
    output: Output,
    pairs: tuple[str, ...],
    progress: CommandProgress,
) -> int:
    """Copies a store, running or stopped, into the folder OUT.

    The backup ends at a log offset, `to`, and has everything below it from `from` on. Into an
    earlier backup of the store only what is new is copied; a backup that was interrupted goes on.
    Each record that is copied is checked: ends with 5 when one is damaged, and with 7 when what was
    acknowledged before may be missing, as the node's page could not be believed.

    Example: keelog store backup ./store ./backup
    """
    with doing(f"cannot back up {path} into {out}"), progress.shown():
        report = back_up(
            path,
            out,
            load_settings(pairs),
            prune=prune,
            link=link,
            progress=progress.stage_meter(),
        )
    return _show_backup(report, f"{out}", output)


@command()
@out_folder
@options.directory
@progress_option
@output_options
def restore(out: Path, path: Path, output: Output, progress: CommandProgress) -> int:
    """Makes a store in DIR, new or empty, of the backup in OUT.

    Every record is checked, queues and index are made anew. Then `keelog serve DIR` starts. The
    store has an id of its own: it is not the store that was backed up.

    Example: keelog store restore ./backup ./restored
    """
    with doing(f"cannot restore {out} into {path}"), progress.shown():
        report = restore_backup(out, path, progress.stage_meter())
    return _show_backup(report, f"{path}", output)


def _show_backup(report: BackupReport, where: str, output: Output) -> int:
    for start, end in report.damaged:
        say(f"no whole record in [{start}, {end}): plan a repair with keelog store repair")
    if report.shortfall:
        say(f"acknowledged messages after {report.end} may be missing: {report.shortfall}")
    title = (
        f"{where} has the log from {report.start} to {report.end}, "
        f"{size_text(report.bytes)} copied in {report.files} files"
    )
    output.document(report.shape(), title=title)
    if not report.verified:
        return failures.DAMAGED
    return failures.PARTIAL if report.shortfall else failures.OK


@command()
@options.directory
@click.option("--parquet", "parquet", metavar="OUT", help="A folder, or a URL as s3://bucket/x.")
@click.option("--sqlite", "sqlite", type=click.Path(path_type=Path), metavar="FILE", help="A file.")
@click.option("--overwrite", is_flag=True, help="With --sqlite: replaces the file.")
@options.export_options
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
    asked = options.export_of(pairs, **chosen)
    with doing(f"cannot export {path}"), progress.shown():
        if sqlite is not None:
            wanted = _chosen(asked)
            with options.opened(path, pairs) as store:
                result = export_sqlite(store, sqlite, wanted, overwrite, progress.meter("exported"))
            progress.clear()
            line = f"{result.rows} messages and {result.keys} keys in {sqlite}"
            output.document(result._asdict(), title=line)
            return failures.DAMAGED if result.damaged else failures.OK
        if overwrite:
            raise BadRequest("--overwrite is for --sqlite", "remove the folder, or name a new one")
        assert parquet is not None
        exported = options.export_parquet(str(path), parquet, asked, progress)
        progress.clear()
        output.document(options.shown(exported), title=options.summary(exported))
        return options.exit_code(exported)


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
