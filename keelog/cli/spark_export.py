"""`keelog spark export`: messages as Parquet, by the tasks of Spark."""

from typing import TYPE_CHECKING, Any

import click

from keelog.cli.export_options import export_options, store_argument, summary, told_by
from keelog.cli.options import command, output_options, settings_options
from keelog.cli.output import Output
from keelog.cli.spark_options import Asked, session_options

if TYPE_CHECKING:
    from pipeline.jobs.export import ExportResult


@command()
@store_argument
@click.option("--out", required=True, metavar="OUT", help="A folder, or a URL as s3://bucket/x.")
@export_options
@settings_options
@session_options
@output_options
def export(
    store: str, out: str, output: Output, asked: Asked, pairs: tuple[str, ...], **chosen: Any
) -> None:
    """Exports messages as Parquet, in folders by topic and date.

    A run adds what is new since the last one, and may be repeated after any end. Spark, pyarrow
    and DuckDB read the folder.

    Example: keelog spark export ./store --out ./parquet

    Example: keelog spark export ./store --out ./paid --topics orders --tags paid
    """
    told = told_by(pairs, **chosen)

    def job(session: Any) -> "ExportResult":
        from pipeline.jobs.export import export as run

        return run(session, store, out, told)

    result = asked.run(f"cannot export {store}", job)
    output.document(result._asdict(), title=summary(result))
