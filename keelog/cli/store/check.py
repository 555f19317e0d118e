"""`keelog store info`, `verify` and `rebuild`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from keelog.cli import failures
from keelog.cli.failures import doing
from keelog.cli.options import command, output_options, progress_option, settings_options
from keelog.cli.output import Output
from keelog.cli.shapes import Shape
from keelog.cli.store.options import derived_options, directory, opened
from keelog.progress import CommandProgress
from node.runtime.settings import load_settings
from node.store.info import describe
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

    What the next start mends anyway (a torn tail after a crash, deleted queue files) is a
    warning.

    Example: keelog store verify ./store --deep
    """
    with doing(f"cannot check the store {path}"), progress.shown():
        report = verify_store(path, deep, progress.meter("checked"), load_settings(pairs))
    return show_findings(report.shape(), output)


def show_findings(shape: Shape, output: Output) -> int:
    """Writes what a check found; returns the exit code."""
    title = (
        f"{'no damage' if shape['ok'] else 'DAMAGE'}: {shape['commit_log']['records']} records,"
        f" {shape['queues']['units']} units, {shape['index']['entries']} index entries"
    )
    output.document(shape, shape["findings"] or [{"ok": shape["ok"]}], title)
    return failures.OK if shape["ok"] else failures.DAMAGED


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


def _fields(document: Shape, prefix: str = "") -> list[Shape]:
    """One row a number, for people: `commit_log.min_offset`, …"""
    rows: list[Shape] = []
    for name, value in document.items():
        if isinstance(value, dict):
            rows += _fields(value, f"{prefix}{name}.")
        else:
            rows.append({"field": prefix + name, "value": value})
    return rows
