"""`keelog spark export`: messages as Parquet, by the tasks of Spark."""

from typing import TYPE_CHECKING, Any

import click

from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, settings_options
from keelog.cli.output import Output
from keelog.cli.spark.options import Asked, session_options
from keelog.cli.store.export_options import (
    exit_code,
    export_of,
    export_options,
    shown,
    store_argument,
    summary,
)
from keelog.pipeline.session import check_engine

if TYPE_CHECKING:
    from keelog.pipeline.jobs.export.write import NumberedPart, WriteOrder, Written


@command()
@store_argument
@click.option("--out", required=True, metavar="OUT", help="A folder, or a URL as s3://bucket/x.")
@export_options
@settings_options
@session_options
@output_options
def export(
    store: str, out: str, output: Output, asked: Asked, pairs: tuple[str, ...], **chosen: Any
) -> int:
    """Exports messages as Parquet, in folders by topic and date.

    A run adds what is new since the last one, and may be repeated after any end. Spark, pyarrow
    and DuckDB read the folder. With damaged places passed over the exit code is 5.

    Example: keelog spark export ./store --out ./parquet

    Example: keelog spark export ./store --out ./paid --topics orders --tags paid
    """
    wanted = export_of(pairs, **chosen)

    what = f"cannot export {store}"
    with doing(what):
        check_engine()
        from keelog.pipeline.jobs.export.folder import ExportFolder
        from keelog.pipeline.jobs.export.run import by_tasks, run_export

        # Spark starts when there is something to write, and not before.
        def engine(parts: list["NumberedPart"], order: "WriteOrder") -> list["Written"]:
            return asked.run(what, lambda session: by_tasks(session, parts, order))

        result = run_export(store, ExportFolder.at(out), wanted, engine)
    output.document(shown(result), title=summary(result))
    return exit_code(result)
