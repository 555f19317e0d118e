"""`keelog store backup` and `keelog store restore`."""

from pathlib import Path

import click

from keelog.cli import failures
from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, progress_option, settings_options
from keelog.cli.output import Output, say
from keelog.cli.store.options import directory
from keelog.progress import CommandProgress
from keelog.restore import restore as restore_backup
from keelog.text import size_text
from node.runtime.settings import load_settings
from node.store.backup.backup import BackupReport
from node.store.backup.backup import backup as back_up

out_folder = click.argument("out", metavar="OUT", type=click.Path(path_type=Path))


@command()
@directory
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
    return _show(report, f"{out}", output)


@command()
@out_folder
@directory
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
    return _show(report, f"{path}", output)


def _show(report: BackupReport, where: str, output: Output) -> int:
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
