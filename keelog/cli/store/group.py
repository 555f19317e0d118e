"""`keelog store …` and `keelog replica …`: commands on a store directory, without a node.

`export` writes messages as Parquet or as an SQLite database, without Spark. The commands that
print what is in a store are in `look.py`.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from keelog.cli import failures
from keelog.cli.failures import doing
from keelog.cli.options import (
    CliGroup,
    output_options,
    progress_option,
    store_options,
    walk_options,
)
from keelog.cli.output import Output, say
from keelog.cli.shapes import Shape
from keelog.cli.store import look, options
from keelog.pipeline.options import ExportOptions
from keelog.replication import roles
from keelog.restore import repair as repair_store
from keelog.restore import restore as restore_backup
from keelog.sqlite_export import chosen_by, export_sqlite
from keelog.text import CommandProgress, size_text, time_text
from node.runtime.addresses import parse_follow
from node.runtime.settings import load_settings
from node.store.backup.backup import BackupReport
from node.store.backup.backup import backup as back_up
from node.store.info import describe
from node.store.repair.plan import Plan, plan_repair
from node.store.verify.verify import verify as verify_store
from protocol.errors import BadRequest
from workers.rebuild import rebuild as rebuild_store

out_folder = click.argument("out", metavar="OUT", type=click.Path(path_type=Path))


@click.group(cls=CliGroup)
def store() -> None:
    """Reads, checks, copies and repairs a store directory; needs no node.

    Works on a directory that a RocketMQ broker wrote, too. A store is changed by `repair --apply`
    and `rebuild` alone.

    Example: keelog store dump ./store --limit 10
    """


for shown in (look.dump, look.get, look.find, look.seek):
    store.add_command(shown)


@store.command()
@options.directory
@store_options
def info(path: Path, output: Output, pairs: tuple[str, ...]) -> None:
    """What a store holds: offsets, file sizes, checkpoint, last owner, clean or not.

    Example: keelog store info ./store
    """
    with options.opened(path, pairs) as store, doing(f"cannot describe the store {path}"):
        document = describe(store)
    output.document(document, _fields(document))


def _fields(document: Shape, prefix: str = "") -> list[Shape]:
    """One row a number, for people: `commit_log.min_offset`, …"""
    rows: list[Shape] = []
    for name, value in document.items():
        if isinstance(value, dict):
            rows += _fields(value, f"{prefix}{name}.")
        else:
            rows.append({"field": prefix + name, "value": value})
    return rows


@store.command()
@options.directory
@click.option("--deep", is_flag=True, help="Every checksum, unit and entry; reads everything.")
@walk_options
def verify(
    path: Path, deep: bool, output: Output, pairs: tuple[str, ...], progress: CommandProgress
) -> int:
    """Checks a store, read-only. Ends with 5 when there is damage.

    Without --deep it is quick: it looks at names, lengths and places of files and records, and
    reads no record, unit or entry. A warning is about something that the next start fixes, as a
    torn tail after a crash or deleted queue files.

    Example: keelog store verify ./store --deep
    """
    with doing(f"cannot check the store {path}"), progress.shown():
        report = verify_store(path, deep, progress.meter("checked"), load_settings(pairs))
    return show_findings(report.shape(), output, path)


def show_findings(shape: Shape, output: Output, store: Path | str) -> int:
    """Writes what a check found; returns the exit code."""
    if output.format == "table":
        output.text(f"{_verdict(shape)}\n")
        rows = (one | {"place": _place(one, str(store))} for one in shape["findings"])
        output.rows(rows, ("severity", "kind", "place", "offset", "detail"))
        commands: dict[str, dict[str, None]] = {}
        for finding in shape["findings"]:
            commands.setdefault(finding["try"], {})[finding["kind"]] = None
        for command, kinds in commands.items():
            output.text(f"try: {command}  ({', '.join(kinds)})\n")
        output.flush()
    else:
        output.document(shape, shape["findings"] or [{"ok": shape["ok"]}])
    return failures.OK if shape["ok"] else failures.DAMAGED


def _verdict(shape: Shape) -> str:
    """What was read, and what was found, in a line."""
    severities = [finding["severity"] for finding in shape["findings"]]
    counts = [(severities.count(kind), kind) for kind in ("error", "warning")]
    found = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for count, kind in counts if count)
    if not all(shape["read"].values()):
        unread = " and ".join([", ".join([*shape["read"]][:-1]), [*shape["read"]][-1]])
        return (
            f"quick check: {found or 'nothing found'}; {unread} were not read (--deep reads them)"
        )
    figures = (
        f"{shape['commit_log']['records']} records, {shape['queues']['units']} units,"
        f" {shape['index']['entries']} index entries"
    )
    verdict = "no damage" if shape["ok"] else "DAMAGE"
    return f"{verdict}: {figures}{'; ' * bool(found)}{found}"


def _place(finding: Shape, store: str) -> str:
    """The queue or the file of a finding, in a word."""
    if finding["queue_id"] is not None:
        return f"{finding['topic']}/{finding['queue_id']}"
    file: str = finding["file"].removeprefix(str(Path(store).resolve())).removeprefix(store)
    return file.removeprefix("/")


@store.command()
@options.directory
@options.derived_options
@walk_options
def rebuild(path: Path, queues: bool, index: bool, output: Output, **given: Any) -> None:
    """Throws queue and index files away and makes them anew from the log.

    Takes the store's lock first: ends with 6 when a node or broker holds it.

    Example: keelog store rebuild ./store --index
    """
    progress: CommandProgress = given["progress"]
    with doing(f"cannot rebuild the store {path}"), progress.shown():
        report = rebuild_store(
            path,
            queues=queues or not index,
            index=index or not queues,
            settings=load_settings(given["pairs"]),
            progress=progress.stage_meter(),
        )
    output.document({**asdict(report), "seconds": round(report.seconds, 3)})


@store.command()
@options.directory
@click.option("--apply", is_flag=True, help="Does it. Without it nothing is changed.")
@walk_options
def repair(
    path: Path, apply: bool, output: Output, pairs: tuple[str, ...], progress: CommandProgress
) -> int:
    """Shows what would mend a damaged store, and does it with --apply.

    Without --apply it ends with 5 when there is damage. With it the store's lock is taken first
    (6 when somebody holds it), all that is cut or overwritten is kept in keelog/quarantine/, and
    the store is checked after it: 5 when damage is left.

    Example: keelog store repair ./store

    Example: keelog store repair ./store --apply
    """
    settings = load_settings(pairs)
    if not apply:
        with doing(f"cannot plan a repair of {path}"), progress.shown():
            plan = plan_repair(path, settings, progress.meter("checked"))
        _show_plan(plan, False, output)
        return failures.OK if plan.ok else failures.DAMAGED
    with doing(f"cannot repair the store {path}"), progress.shown():
        done = repair_store(path, settings, progress.meter("checked"))
    _show_plan(done.plan, True, output)
    for finding in done.report.findings:
        say(f"left ({finding.severity}): {finding.kind}: {finding.said}")
    return failures.OK if done.report.ok else failures.DAMAGED


def _show_plan(plan: Plan, applied: bool, output: Output) -> None:
    shape = plan.shape(applied)
    lost = shape["lost"]
    title = (
        f"{len(shape['steps'])} steps {'taken' if applied else 'planned'}; lost:"
        f" {lost['messages']} messages, {lost['unknown_bytes']} bytes of unknown records"
    )
    if output.format == "table" and not shape["steps"]:
        output.text("nothing to repair\n" if plan.ok else f"{title}\n")
        return
    output.document(shape, shape["steps"] or [{"ok": plan.ok}], title)


@store.command()
@options.directory
@out_folder
@click.option("--prune", is_flag=True, help="Deletes what the store has deleted.")
@click.option("--link", is_flag=True, help="Hard links to full segments in place of copies.")
@walk_options
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
            path, out, load_settings(pairs), prune=prune, link=link, progress=progress.stage_meter()
        )
    return _show_backup(report, f"{out}", output)


@store.command()
@out_folder
@options.directory
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
    return _show_backup(report, f"{path}", output)


def _show_backup(report: BackupReport, where: str, output: Output) -> int:
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


@store.command()
@options.directory
@click.option("--parquet", "parquet", metavar="OUT", help="A folder, or a URL as s3://bucket/x.")
@click.option("--sqlite", "sqlite", type=click.Path(path_type=Path), metavar="FILE", help="A file.")
@click.option("--overwrite", is_flag=True, help="With --sqlite: replaces the file.")
@options.export_options
@walk_options
def export(
    path: Path,
    parquet: str | None,
    sqlite: Path | None,
    output: Output,
    pairs: tuple[str, ...],
    progress: CommandProgress,
    **chosen: Any,
) -> int:
    """Exports messages, offline and without Spark.

    Parquet as `keelog spark export` writes it: in folders by topic and date, and each run adds
    what is new. SQLite anew each time, with a table of keys. Bodies are plain; those that were
    compressed are there as stored, too. Damage ends it, unless --on-corrupt says otherwise; with
    places passed over the exit code is 5.

    Example: keelog store export ./store --parquet ./out

    Example: keelog store export ./store --sqlite ./messages.db --topics orders
    """
    if (parquet is None) == (sqlite is None):
        raise BadRequest("say where to: --parquet or --sqlite, one of them", "--sqlite messages.db")
    overwrite = chosen.pop("overwrite")
    asked = options.export_of(pairs, **chosen)
    with doing(f"cannot export {path}"), progress.shown():
        if sqlite is not None:
            skips, usual = asked.on_corrupt == "skip", ExportOptions().file_bytes_max
            of_parquet = asked.columns, asked.by_topic, asked.file_bytes_max
            if asked.on_corrupt == "report" or of_parquet != (None, True, usual):
                raise BadRequest(
                    "--columns, --by, --max-file-bytes and --on-corrupt report are for --parquet",
                    "without them: SQLite gets all columns in one file",
                )
            takes, advance = chosen_by(asked), progress.meter("exported")
            with options.opened(path, pairs) as store:
                result = export_sqlite(store, sqlite, takes, skips, overwrite, advance)
            progress.clear()
            line = f"{result.rows} messages and {result.keys} keys in {sqlite}"
            output.document(result._asdict(), title=line)
            return failures.DAMAGED if result.damaged else failures.OK
        if overwrite:
            raise BadRequest("--overwrite is for --sqlite", "remove the folder, or name a new one")
        assert parquet is not None
        exported = options.export_parquet(str(path), parquet, asked, progress)
        progress.clear()
        return options.show_export(exported, output)


@click.group("replica", cls=CliGroup)
def replica() -> None:
    """Promotes, demotes and rewinds the store of a replica.

    Example: keelog replica promote ./copy
    """


@replica.command("promote")
@options.directory
@click.option("--force", is_flag=True, help="Although the master still runs.")
@store_options
def promote(path: Path, force: bool, output: Output, pairs: tuple[str, ...]) -> None:
    """Makes a master of a replica, whose node has stopped.

    It says how much of the master's log is missing, as far as that is known. It refuses when the
    log ends below what was acknowledged to the master, and while the master runs.

    Example: keelog replica promote ./copy
    """
    with doing(f"cannot promote {path}"):
        done = roles.promote(path, load_settings(pairs), force)
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
@options.directory
@click.option("--follow", required=True, metavar="HOST:PORT", help="The master that it follows.")
@output_options
def demote(path: Path, follow: str, output: Output) -> None:
    """Makes a replica of a master, whose node has stopped.

    Nothing is cut: the next start compares the end of the log with the new master's.

    Example: keelog replica demote ./store --follow 192.0.2.8:10912
    """
    with doing(f"cannot demote {path}"):
        parse_follow(follow)
        done = roles.demote(path, follow)
    title = f"{path} is a replica now: keelog serve {path} --follow {follow}"
    output.document(done._asdict(), table=[done._asdict()], title=title)


@replica.command("rewind")
@options.directory
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
        done = roles.rewind(path, offset, load_settings(pairs), apply)
    said = "cut" if done.applied else "would be cut"
    title = f"{done.records} messages in {done.bytes} bytes {said} from offset {done.offset} on"
    if done.offset < done.acknowledged:
        title += f"; {done.acknowledged} was acknowledged to a master"
    output.document(done._asdict(), table=[done._asdict()], title=title)
