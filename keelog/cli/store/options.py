"""Options that commands on store directories share: the directory, its derived files, exports.

`keelog spark export`, `keelog store export` and `keelog export` have the options and the output of
exports in common.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keelog.cli.contexts import given_keys
from keelog.cli.failures import DAMAGED, OK, BadValue, doing, needing_pyarrow
from keelog.cli.messages.selectors import time
from keelog.cli.options import one_of, options, size
from keelog.cli.output import Output
from keelog.pipeline.node_keys import KEY, SERVER_KEY
from keelog.pipeline.options import SETTING_PREFIX, ExportOptions
from keelog.text import CommandProgress
from node.runtime.settings import load_settings
from node.store.opening import StoppedStore, open_store
from protocol.addresses import without_credentials

if TYPE_CHECKING:
    from keelog.pipeline.jobs.export import ExportResult


directory = click.argument("path", metavar="DIR", type=click.Path(readable=False, path_type=Path))
store_argument = click.argument(
    "store",
    metavar="STORE",
    # Tasks have working directories of their own.
    callback=lambda _ctx, _parameter, value: (
        value if "://" in value else str(Path(value).absolute())
    ),
)
"""The command gets `store: str`: a folder, or a URL that the source reads."""
derived_options = options(
    click.option("--queues", is_flag=True, help="Only consumequeue/, unless --index is there too."),
    click.option("--index", is_flag=True, help="Only index/, unless --queues is there too."),
)
"""Which derived files: both when neither option is given."""
export_options = options(
    click.option("--topics", metavar="A,B", help="Only these topics; default: every record."),
    click.option("--tags", metavar="'A || B'", help="Only messages with one of these tags."),
    click.option("--columns", metavar="A,B", help="Only these; docs/spark.md lists all."),
    click.option("--from", "from_ms", type=time, metavar="TIME", help="Stored from it on."),
    click.option("--to", "to_ms", type=time, metavar="TIME", help="Stored before it."),
    click.option(
        "--allow-loss", is_flag=True, help="Goes on when files were deleted that are not exported."
    ),
    one_of(
        "--on-corrupt",
        ["fail", "skip", "report"],
        "What damage in the log does; report makes a row of it.",
    ),
    click.option(
        "--max-file-bytes",
        "file_bytes_max",
        type=size,
        metavar="SIZE",
        default=512 << 20,
        show_default=True,
        help="A file that has as many is closed.",
    ),
    one_of("--by", ["topic", "date"], "Folders by topic and date, or by date alone."),
)
"""Which rows and columns, into what files; the command gets one `**chosen` for `export_of`."""


def opened(path: Path, pairs: Iterable[str]) -> StoppedStore:
    """The store, opened read-only; -X settings name sizes that cannot be found."""
    with doing(f"cannot open the store {path}"):
        return open_store(path, load_settings(pairs))


def key_options(key: str, server_key: str) -> dict[str, str]:
    """Keys for a node as options of the Spark source."""
    return {KEY: key, SERVER_KEY: server_key}


def given_key_options() -> dict[str, str]:
    """Those of --client-key and --server-key; empty without."""
    keys = given_keys(click.get_current_context())
    return {} if keys is None else key_options(*keys)


def source_options(pairs: tuple[str, ...]) -> dict[str, str]:
    """Settings as options of the Spark source."""
    named = (pair.partition("=")[::2] for pair in pairs)
    return {f"{SETTING_PREFIX}{name.removeprefix(SETTING_PREFIX)}": value for name, value in named}


def export_of(pairs: tuple[str, ...], by: str, allow_loss: bool, **chosen: Any) -> ExportOptions:
    """The export that a command line asks for. Raises BadValue for times in wrong order."""
    if None not in (chosen["from_ms"], chosen["to_ms"]) and chosen["from_ms"] > chosen["to_ms"]:
        raise BadValue("--from is later than --to: no message is stored in between", "swap them")
    source = source_options(pairs)
    if allow_loss:
        source["failOnDataLoss"] = "false"
    return ExportOptions(source=source, by_topic=by == "topic", **chosen)


def export_parquet(
    store: str, out: str, asked: ExportOptions, progress: CommandProgress
) -> "ExportResult":
    """Exports a folder or a node in this process. Raises MqError, also without pyarrow."""
    with needing_pyarrow():
        from keelog.pipeline.jobs.export import export_here
    return export_here(store, out, asked, progress=progress.meter("exported", "parts"))


def show_export(result: "ExportResult", output: Output) -> int:
    """Writes what an export did. Returns 5 when damaged places were passed over; rows of
    --on-corrupt report leave nothing out."""
    places = "place" if result.damaged == 1 else "places"
    damage = f"; {result.damaged} damaged {places} passed over" if result.damaged else ""
    title = (
        f"{result.rows} messages in {result.files} files, {result.bytes} bytes, in"
        f" {result.seconds:.1f} s; {result.rows_in_all} messages in all{damage}"
    )
    if not result.rows:
        all_files = f"{result.rows_in_all} messages in {result.files_in_all} files"
        title = f"nothing new: {all_files}{damage}"
    output.document({**result._asdict(), "out": without_credentials(result.out)}, title=title)
    return DAMAGED if result.damaged else OK
