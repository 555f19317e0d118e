"""`keelog spark stats`: figures of a store as tables, as JSON, and as a page with pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, settings_options
from keelog.cli.output import Output, say
from keelog.cli.spark.options import Asked, session_options
from keelog.cli.store.export_options import source_options, store_argument
from keelog.pipeline.options import parse_options
from keelog.pipeline.stores.access import check_can_write
from protocol.addresses import without_credentials

if TYPE_CHECKING:
    from keelog.pipeline.jobs.stats import Figures


@command()
@store_argument
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="An HTML page.")
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How many topics, tags and keys are named.",
)
@click.option("--topics", metavar="A,B", help="Only these topics.")
@settings_options
@session_options
@output_options
def stats(
    store: str, report: Path | None, output: Output, asked: Asked, pairs: tuple[str, ...],
    **chosen: Any,
) -> None:  # fmt: skip
    """Counts messages, bytes, rates, sizes, tags, keys and skew, by topic and over time.

    --report writes a page with pictures that needs nothing else.

    Example: keelog spark stats ./store --report stats.html
    """
    options = {"path": store, **source_options(pairs)}
    if chosen["topics"] is not None:
        options["subscribe"] = chosen["topics"]

    def check() -> None:
        from keelog.pipeline.resolve import check_read

        check_read(parse_options(options))
        if report is not None:
            with doing(f"cannot write {report}"):
                check_can_write(report)

    def job(session: Any) -> "Figures":
        from keelog.pipeline.jobs.stats import COLUMNS, collect_figures

        reader = session.read.format("keelog").options(**options, columns=COLUMNS)
        return collect_figures(reader.load(), chosen["top"])

    figures = asked.run(f"cannot count what is in {store}", job, check)
    if report is not None:
        from keelog.pipeline.jobs.stats_report import render

        with doing(f"cannot write {report}"):
            report.write_text(
                render(figures, f"Keelog store {without_credentials(store)}"), encoding="utf-8"
            )
    if output.format == "table":
        show_tables(figures, output)
    else:
        output.document(figures.document(), figures.topics)
    if report is not None:
        say(f"the report is {report}")


def show_tables(figures: "Figures", output: Output) -> None:
    """Topics, tags, keys and the fullest queues, one table below the other."""
    from keelog.pipeline.report_page import topic_rows

    totals = figures.totals
    title = f"{totals['messages']} messages in {totals['queues']} queues of"
    output.document({}, topic_rows(figures.topics), f"{title} {totals['topics']} topics")
    queues = sorted(figures.queues, key=lambda row: -row["evenness"])[: len(figures.topics)]
    tables = {
        "tags with the most messages": figures.tags,
        "keys with the most messages": figures.keys,
        "queues with the most over an even share": [
            row | {"evenness": round(row["evenness"], 2)} for row in queues
        ],
    }
    for title, rows in tables.items():
        if rows:
            output.document({}, rows, f"\n{title}")
