"""`keelog export`: messages of a running node as SQLite, Parquet or CSV."""

import csv
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import keelog
from keelog.cli import shapes
from keelog.cli.contexts import complete_topics, connect, keys_of
from keelog.cli.failures import doing
from keelog.cli.messages.reading import BoundedReader, ConsumeChoice
from keelog.cli.messages.selectors import StartPoint, time
from keelog.cli.options import command, node_option, output_options, progress_option
from keelog.cli.output import Output, flat, say
from keelog.cli.store.options import export_of, export_parquet, key_options, show_export
from keelog.pipeline.errors import CorruptRecord, log
from keelog.pipeline.options import ExportOptions
from keelog.sqlite_export import SqliteResult, sqlite_file, whole_file
from keelog.text import CommandProgress
from protocol.errors import BadRequest, BodyUnreadable
from protocol.record.codec import Record

_FILE = click.Path(path_type=Path, dir_okay=False)


@command("export")
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--sqlite", type=_FILE, metavar="FILE", help="A file.")
@click.option("--parquet", metavar="OUT", help="A folder, or a URL as s3://bucket/x.")
@click.option("--csv", "csv_file", type=_FILE, metavar="FILE", help="A file.")
@click.option("--overwrite", is_flag=True, help="With --sqlite and --csv: replaces the file.")
@click.option("--tags", metavar="'A || B'", help="Only messages with one of these tags.")
@click.option("--from", "from_ms", type=time, metavar="TIME", help="Stored from it on.")
@click.option("--to", "to_ms", type=time, metavar="TIME", help="Stored before it.")
@shapes.on_damage_option
@node_option
@progress_option
@output_options
def export(
    topics: tuple[str, ...],
    sqlite: Path | None,
    parquet: str | None,
    csv_file: Path | None,
    node: str,
    output: Output,
    progress: CommandProgress,
    **options: Any,
) -> int:
    """Exports topics of a running node, as `keelog store export` does a directory.

    SQLite anew each time, with a table of keys. Parquet as `keelog spark export` writes it: in
    folders by topic and date, and each run adds what is new. CSV with the columns of `consume
    --format csv`. Bodies are plain; in SQLite and Parquet those that were compressed are there as
    stored, too. stderr names each damaged message; the exit code is 5 then.

    `keelog produce --parquet` and `--csv` send what was exported.

    Example: keelog export orders --sqlite ./orders.db --from -1d

    Example: keelog export orders --parquet ./orders
    """
    if [sqlite, parquet, csv_file].count(None) != 2:
        raise BadRequest(
            "say where to: --sqlite, --parquet or --csv, one of them", "--sqlite messages.db"
        )
    if parquet is not None and options["overwrite"]:
        raise BadRequest(
            "--overwrite is for --sqlite and --csv", "remove the folder, or name a new one"
        )
    topics = tuple(dict.fromkeys(topics))
    asked = export_of(
        (), "topic", False, topics=",".join(topics), tags=options["tags"],
        from_ms=options["from_ms"], to_ms=options["to_ms"], on_corrupt=options["on_damage"],
    )  # fmt: skip
    with (
        doing(f"cannot export {', '.join(topics)}"),
        connect(node) as client,
        progress.shown(),
    ):
        for topic in topics:
            client.offsets(topic)  # raises UnknownTopic before anything is written
        if parquet is not None:
            return _to_parquet(node, parquet, asked, output, progress)
        damage = shapes.DamagedPlaces(fails=asked.on_corrupt == "fail")
        records = _records(client, topics, asked, damage, progress)
        if sqlite is not None:
            return _to_sqlite(records, damage, sqlite, options["overwrite"], output)
        assert csv_file is not None
        return _to_csv(records, damage, csv_file, options["overwrite"], output)


def _records(
    client: keelog.Client,
    topics: tuple[str, ...],
    asked: ExportOptions,
    damage: shapes.DamagedPlaces,
    progress: CommandProgress,
) -> Iterator[Record]:
    """Topic after topic, each in the order of the log, up to its end as it is now."""
    first = StartPoint("start") if asked.from_ms is None else StartPoint("time", asked.from_ms)
    last = None if asked.to_ms is None else StartPoint("time", asked.to_ms)
    for topic in topics:
        wanted = ConsumeChoice(topic, (), asked.tags, first, last)
        reader = BoundedReader(client, wanted, damage, is_merged=True)
        for message in reader.read_to_end(progress.meter(f"{topic}: exported", "messages")):
            yield message.record
    progress.clear()


def _to_sqlite(
    records: Iterator[Record],
    damage: shapes.DamagedPlaces,
    out: Path,
    overwrite: bool,
    output: Output,
) -> int:
    def plain(record: Record) -> bytes | None:
        try:
            return record.body
        except BodyUnreadable as error:
            damage.pass_over(error, "its body is left out")
            return None

    with sqlite_file(out, overwrite, plain) as tables:
        tables.add(records)
    result = SqliteResult(str(out), tables.rows, tables.keys, len(damage.places))
    line = f"{result.rows} messages and {result.keys} keys in {out}"
    output.document(result._asdict(), title=line)
    return damage.end()


def _to_csv(
    records: Iterator[Record],
    damage: shapes.DamagedPlaces,
    out: Path,
    overwrite: bool,
    output: Output,
) -> int:
    rows, bodies = 0, shapes.Bodies(fails=damage.fails)
    with (
        whole_file(out, overwrite) as partial,
        partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        # Not as on a terminal: control characters stay what they are.
        writer = csv.writer(file)
        writer.writerow(shapes.MESSAGE_COLUMNS)
        for shape in map(bodies.shape, records):
            writer.writerow([flat(shape.get(name)) for name in shapes.MESSAGE_COLUMNS])
            rows += 1
    damaged = len(damage.places) + bodies.unreadable
    result = {"out": str(out), "rows": rows, "damaged": damaged}
    output.document(result, title=f"{rows} messages in {out}")
    return damage.end() or bodies.end()


def _to_parquet(
    node: str, out: str, asked: ExportOptions, output: Output, progress: CommandProgress
) -> int:
    key, server_key = keys_of(node)
    if key is not None and server_key is not None:
        asked = replace(asked, source={**asked.source, **key_options(key, server_key)})
    damage = _DamageLines()
    log.addHandler(damage)
    try:
        result = export_parquet(node, out, asked, progress)
    except CorruptRecord as error:
        raise CorruptRecord(error.reason, "--on-damage skip, which leaves it out") from None
    finally:
        log.removeHandler(damage)
    progress.clear()
    code = show_export(result, output)
    if damage.count > shapes.DAMAGED_SHOWN_MAX:
        say(f"{damage.count} damaged")
    return code


class _DamageLines(logging.Handler):
    """Prints what the export's log says of damage, and counts it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if self.count <= shapes.DAMAGED_SHOWN_MAX:
            say(record.getMessage())
