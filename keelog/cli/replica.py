"""`keelog replica`: promotes, demotes and rewinds the store of a replica."""

from pathlib import Path

import click

from keelog.cli.failures import doing
from keelog.cli.options import CliGroup, output_options, store_options
from keelog.cli.output import Output
from keelog.cli.store.options import directory
from keelog.replication.roles import demote as demote_store
from keelog.replication.roles import promote as promote_store
from keelog.replication.roles import rewind as rewind_store
from keelog.text import time_text
from node.runtime.addresses import parse_follow
from node.runtime.settings import load_settings


@click.group("replica", cls=CliGroup)
def replica() -> None:
    """Promotes, demotes and rewinds the store of a replica.

    Example: keelog replica promote ./copy
    """


@replica.command("promote")
@directory
@click.option("--force", is_flag=True, help="Although the master still runs.")
@store_options
def promote(path: Path, force: bool, output: Output, pairs: tuple[str, ...]) -> None:
    """Makes a master of a replica, whose node has stopped.

    It says how much of the master's log is missing, as far as that is known. It refuses when the
    log ends below what was acknowledged to the master, and while the master runs.

    Example: keelog replica promote ./copy
    """
    with doing(f"cannot promote {path}"):
        done = promote_store(path, load_settings(pairs), force)
    title = (
        f"{done.store} is a master from log offset {done.offset} on, epoch {done.epoch}; it lacks"
        f" {done.lacks_bytes} bytes that its master had when it was heard last; "
        + (
            f"delayed messages that it delivered after {time_text(done.progress_ms)} come again"
            if done.progress_ms
            else "which delayed messages it delivered was not heard"
        )
    )
    output.document(done._asdict(), table=[done._asdict()], title=title)


@replica.command("demote")
@directory
@click.option("--follow", required=True, metavar="HOST:PORT", help="The master that it follows.")
@output_options
def demote(path: Path, follow: str, output: Output) -> None:
    """Makes a replica of a master, whose node has stopped.

    Nothing is cut: the next start compares the end of the log with the new master's.

    Example: keelog replica demote ./store --follow 192.0.2.8:10912
    """
    with doing(f"cannot demote {path}"):
        parse_follow(follow)
        done = demote_store(path, follow)
    title = f"{path} is a replica now: keelog serve {path} --follow {follow}"
    output.document(done._asdict(), table=[done._asdict()], title=title)


@replica.command("rewind")
@directory
@click.option("--to", "offset", required=True, type=click.IntRange(0), metavar="OFFSET",
              help="The log offset of the first record that goes.")  # fmt: skip
@click.option("--apply", is_flag=True, help="Does it. Without it nothing is changed.")
@store_options
def rewind(path: Path, offset: int, apply: bool, output: Output, pairs: tuple[str, ...]) -> None:
    """Shows what a cut of the log at OFFSET takes away, and does it with --apply.

    All that is cut is kept in keelog/quarantine/. Queues and index follow at the next start.

    Example: keelog replica rewind ./store --to 73400320

    Example: keelog replica rewind ./store --to 73400320 --apply
    """
    with doing(f"cannot rewind {path}"):
        done = rewind_store(path, offset, load_settings(pairs), apply)
    said = "cut" if done.applied else "would be cut"
    title = f"{done.records} messages in {done.bytes} bytes {said} from offset {done.offset} on"
    if done.offset < done.acknowledged:
        title += f"; {done.acknowledged} was acknowledged to a master"
    output.document(done._asdict(), table=[done._asdict()], title=title)
