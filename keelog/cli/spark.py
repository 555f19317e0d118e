"""`keelog spark …`: the Spark jobs, with --master and --conf for the session that they ask for.

`export` writes messages as Parquet, by the tasks of Spark. `stats` shows figures of a store as
tables, as JSON, and as a page with pictures.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from keelog.cli.failures import doing
from keelog.cli.options import (
    CliGroup,
    keys_option,
    one_of,
    output_options,
    settings_options,
    store_options,
)
from keelog.cli.options import options as several
from keelog.cli.output import Output, say
from keelog.cli.store import options
from keelog.cli.store.group import show_findings
from keelog.pipeline.options import parse_options
from keelog.pipeline.session import check_engine, check_pyspark
from keelog.pipeline.stores.access import check_can_make, check_can_write
from node.runtime.settings import load_settings
from protocol.addresses import without_credentials

if TYPE_CHECKING:
    from keelog.pipeline.jobs.export_files import NumberedPart, WriteOrder, Written
    from keelog.pipeline.jobs.stats import Figures


RunJob = Callable[[Callable[[Any], Any]], Any]
"""Calls a job with a session and returns its result."""


@click.group(cls=CliGroup)
def spark() -> None:
    """Runs a Spark job on a store directory, here or on a cluster; needs no node.

    Each takes --master, and --conf for Spark's own settings. Under spark-submit both are those
    of spark-submit.

    Example: keelog spark audit ./store
    """


@dataclass(frozen=True, slots=True)
class Asked:
    """The master that runs the job, and Spark's settings for it."""

    master: str
    conf: dict[str, str]

    @contextmanager
    def running(self, what: str) -> Iterator[RunJob]:
        """Runs jobs in the block, whose errors say that `what` failed.

        Spark takes ten seconds to start: the block does its checks before that. Raises MqError:
        JavaMissing, IncompatiblePyspark, EngineFailed, or the job's own.
        """
        with doing(what):
            check_pyspark()
            # Imported here: it needs pyspark, which was just checked.
            from keelog.pipeline.session import run_job

            yield lambda job: run_job(job, self.master, self.conf, say)


def _remember(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    pairs = [value.partition("=") for value in values]
    wrong = next((name for name, sign, _ in pairs if not (name and sign)), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} is no NAME=VALUE", ctx, parameter)
    ctx.params["_conf"] = [(name, value) for name, _, value in pairs]


session_options = several(
    click.option(
        "--master",
        "asked",
        default="local[*]",
        show_default=True,
        metavar="URL",
        callback=lambda ctx, _parameter, value: Asked(value, dict(ctx.params.pop("_conf", ()))),
        help="Where it runs: local[2], spark://HOST:7077, yarn.",
    ),
    click.option(
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="Changes a setting of Spark, as --conf spark.driver.memory=2g.",
    ),
)
"""The command gets `asked: Asked`."""


@spark.command()
@options.store_argument
@options.derived_options
@one_of(
    "--plan",
    ["inplace", "shuffle"],
    "How units come into files: by writes at their places, or sorted and whole.",
)
@click.option(
    "--out",
    metavar="OUT",
    help="Writes into this new folder, or to a URL as s3://bucket/x; the store is only read.",
)
@session_options
@store_options
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
    queues, index = queues or not index, index or not queues
    with asked.running(f"cannot rebuild the store {store}") as run:
        from keelog.pipeline.jobs import rebuild as jobs

        jobs.check_rebuild(store, plan, out)
        report = run(
            lambda session: jobs.rebuild(
                session, store, queues=queues, index=index, plan=plan, out=out, settings=settings
            )
        )
    output.document(report.shape())


@spark.command()
@options.store_argument
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Also writes findings.parquet and report.json into this folder.",
)
@session_options
@store_options
def audit(
    store: str, folder: Path | None, asked: Asked, output: Output, pairs: tuple[str, ...]
) -> int:
    """Holds log, queues and index against each other, as a Spark job. Ends with 5 at damage.

    Finds what `keelog store verify --deep` finds, read-only, in as many tasks as there are cores.
    Each finding names its place and a command that mends it.

    Example: keelog spark audit ./store --report ./audit
    """
    settings = load_settings(pairs)
    with asked.running(f"cannot audit the store {store}") as run:
        from keelog.pipeline.jobs import audit as jobs

        jobs.check_audit(store)
        if folder is not None:
            with doing(f"cannot write {folder}"):
                check_can_make(folder)

        def job(session: Any) -> dict[str, Any]:
            result = jobs.audit(session, store, settings)
            if folder is not None:
                jobs.write_report(result, folder)
            return result.shape()

        found = run(job)
    return show_findings(found, output, store)


@spark.command()
@options.store_argument
@click.option("--out", required=True, metavar="OUT", help="A folder, or a URL as s3://bucket/x.")
@options.export_options
@keys_option
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
    wanted = options.export_of(pairs, **chosen)
    wanted = replace(wanted, source={**wanted.source, **options.given_key_options()})
    what = f"cannot export {store}"
    with doing(what):
        check_engine()
        from keelog.pipeline.jobs.export import by_tasks, run_export
        from keelog.pipeline.jobs.export_files import ExportFolder

        # Spark starts when there is something to write, and not before.
        def engine(parts: list["NumberedPart"], order: "WriteOrder") -> list["Written"]:
            with asked.running(what) as run:
                written: list[Written] = run(lambda session: by_tasks(session, parts, order))
            return written

        result = run_export(store, ExportFolder(out), wanted, engine)
    return options.show_export(result, output)


@spark.command()
@options.store_argument
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="An HTML page.")
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How many topics, tags and keys are named.",
)
@click.option("--topics", metavar="A,B", help="Only these topics.")
@keys_option
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
    source = {"path": store, **options.source_options(pairs), **options.given_key_options()}
    if chosen["topics"] is not None:
        source["subscribe"] = chosen["topics"]

    with asked.running(f"cannot count what is in {store}") as run:
        from keelog.pipeline.jobs.stats import COLUMNS, collect_figures
        from keelog.pipeline.resolve import check_read

        check_read(parse_options(source))
        if report is not None:
            with doing(f"cannot write {report}"):
                check_can_write(report)

        def job(session: Any) -> "Figures":
            reader = session.read.format("keelog").options(**source, columns=COLUMNS)
            return collect_figures(reader.load(), chosen["top"])

        figures = run(job)
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
    from keelog.pipeline.report import topic_rows

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
