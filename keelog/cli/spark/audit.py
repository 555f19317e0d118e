"""`keelog spark audit`."""

from pathlib import Path
from typing import Any

import click

from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, settings_options
from keelog.cli.output import Output
from keelog.cli.spark.options import Asked, session_options
from keelog.cli.store.check import show_findings
from keelog.cli.store.export_options import store_argument
from keelog.pipeline.stores.access import check_can_make
from node.runtime.settings import load_settings


@command()
@store_argument
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Also writes findings.parquet and report.json into this folder.",
)
@session_options
@settings_options
@output_options
def audit(
    store: str, folder: Path | None, asked: Asked, output: Output, pairs: tuple[str, ...]
) -> int:
    """Holds log, queues and index against each other, as a Spark job. Ends with 5 at damage.

    Finds what `keelog store verify --deep` finds, read-only, in as many tasks as there are cores.
    Each finding names its place and a command that mends it.

    Example: keelog spark audit ./store --report ./audit
    """
    settings = load_settings(pairs)

    def check() -> None:
        from keelog.pipeline.jobs.audit import check_audit

        check_audit(store)
        if folder is not None:
            with doing(f"cannot write {folder}"):
                check_can_make(folder)

    def job(spark: Any) -> dict[str, Any]:
        from keelog.pipeline.jobs.audit import audit as audit_store
        from keelog.pipeline.jobs.audit import write_report

        result = audit_store(spark, store, settings)
        if folder is not None:
            write_report(result, folder)
        return result.shape()

    found = asked.run(f"cannot audit the store {store}", job, check)
    return show_findings(found, output, store)
