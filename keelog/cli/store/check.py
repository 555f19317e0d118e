"""`keelog store info`, `verify`, `rebuild` and `repair`: check a store directory and mend it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from keelog.cli import failures
from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, progress_option, settings_options
from keelog.cli.output import Output, say
from keelog.cli.shapes import Shape
from keelog.cli.store.options import derived_options, directory, opened
from keelog.progress import CommandProgress
from keelog.repair import repair as repair_store
from node.runtime.settings import load_settings
from node.store.info import describe
from node.store.repair.plan import Plan, plan_repair
from node.store.verify.verify import verify as verify_store
from workers.rebuild import rebuild as rebuild_store


@command()
@directory
@settings_options
@output_options
def info(path: Path, output: Output, pairs: tuple[str, ...]) -> None:
    """What a store holds: offsets, file sizes, checkpoint, last owner, clean or not.

    Example: keelog store info ./store
    """
    with opened(path, pairs) as store, doing(f"cannot describe the store {path}"):
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


@command()
@directory
@click.option("--deep", is_flag=True, help="Every checksum, unit and entry; reads everything.")
@settings_options
@progress_option
@output_options
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
        output.rows(_finding_row(finding, str(store)) for finding in shape["findings"])
        for command, kinds in _commands(shape["findings"]).items():
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


def _finding_row(finding: Shape, store: str) -> Shape:
    """A finding for people: the place in a word, and how many in a row."""
    queue = f"{finding['topic']}/{finding['queue_id']}"
    file = finding["file"].removeprefix(str(Path(store).resolve())).removeprefix(store)
    return {
        "severity": finding["severity"],
        "kind": finding["kind"],
        "place": queue if finding["queue_id"] is not None else file.removeprefix("/"),
        "offset": finding["offset"],
        "detail": finding["detail"],
    }


def _commands(findings: Sequence[Shape]) -> dict[str, list[str]]:
    """What fixes the findings: each command, and the kinds that it is for."""
    commands: dict[str, list[str]] = {}
    for finding in findings:
        kinds = commands.setdefault(finding["try"], [])
        if finding["kind"] not in kinds:
            kinds.append(finding["kind"])
    return commands


@command()
@directory
@derived_options
@settings_options
@progress_option
@output_options
def rebuild(path: Path, queues: bool, index: bool, output: Output, **options: Any) -> None:
    """Throws queue and index files away and makes them anew from the log.

    Takes the store's lock first: ends with 6 when a node or broker holds it.

    Example: keelog store rebuild ./store --index
    """
    progress: CommandProgress = options["progress"]
    with doing(f"cannot rebuild the store {path}"), progress.shown():
        report = rebuild_store(
            path,
            queues=queues or not index,
            index=index or not queues,
            settings=load_settings(options["pairs"]),
            progress=progress.stage_meter(),
        )
    output.document({**asdict(report), "seconds": round(report.seconds, 3)})


@command()
@directory
@click.option("--apply", is_flag=True, help="Does it. Without it nothing is changed.")
@settings_options
@progress_option
@output_options
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
