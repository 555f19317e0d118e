"""`keelog spark rebuild`."""

from typing import Any, Literal

import click

from keelog.cli.options import command, output_options, settings_options
from keelog.cli.output import Output
from keelog.cli.spark.options import Asked, session_options
from keelog.cli.store.export_options import store_argument
from keelog.cli.store.options import derived_options
from node.runtime.settings import load_settings


@command()
@store_argument
@derived_options
@click.option(
    "--plan",
    type=click.Choice(["inplace", "shuffle"]),
    default="inplace",
    show_default=True,
    help="How units come into files: by writes at their places, or sorted and whole.",
)
@click.option(
    "--out",
    metavar="OUT",
    help="Writes into this new folder, or to a URL as s3://bucket/x; the store is only read.",
)
@session_options
@settings_options
@output_options
def rebuild(
    store: str,
    queues: bool,
    index: bool,
    plan: Literal["inplace", "shuffle"],
    out: str | None,
    asked: Asked,
    output: Output,
    pairs: tuple[str, ...],
) -> None:
    """Makes queue and index files anew from the log, as a Spark job.

    The files are those that `keelog store rebuild` makes, byte for byte. Takes the store's lock
    first (6 when somebody holds it); the old files stay until the new ones are whole.

    Example: keelog spark rebuild ./store

    Example: keelog spark rebuild /mnt/store --master spark://host:7077 --out /mnt/derived

    Example: keelog spark rebuild s3://bucket/store --plan shuffle --out s3://bucket/derived
    """
    settings = load_settings(pairs)

    def check() -> None:
        from keelog.pipeline.jobs.rebuild.run import check_rebuild

        check_rebuild(store, plan, out)

    def job(spark: Any) -> dict[str, object]:
        from keelog.pipeline.jobs.rebuild.run import rebuild as rebuild_store

        return rebuild_store(
            spark,
            store,
            queues=queues or not index,
            index=index or not queues,
            plan=plan,
            out=out,
            settings=settings,
        ).shape()

    output.document(asked.run(f"cannot rebuild the store {store}", job, check))
