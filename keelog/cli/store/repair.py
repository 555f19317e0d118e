"""`keelog store repair`."""

from pathlib import Path

import click

from keelog.cli import failures
from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, progress_option, settings_options
from keelog.cli.output import Output, say
from keelog.cli.store.options import directory
from keelog.progress import CommandProgress
from keelog.repair import repair as repair_store
from node.runtime.settings import load_settings
from node.store.repair.plan import Plan, plan_repair


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
        _show(plan, False, output)
        return failures.OK if plan.ok else failures.DAMAGED
    with doing(f"cannot repair the store {path}"), progress.shown():
        done = repair_store(path, settings, progress.meter("checked"))
    _show(done.plan, True, output)
    for finding in done.report.findings:
        say(f"left ({finding.severity}): {finding.kind}: {finding.said}")
    return failures.OK if done.report.ok else failures.DAMAGED


def _show(plan: Plan, applied: bool, output: Output) -> None:
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
