"""The command lines of soaks: what all of them take, and how a run ends."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from keelog.text import can_redraw, status_line


class Found(Protocol):
    """The figures of a run, a dataclass."""

    faults: list[str]


F = TypeVar("F", bound=Found)


@contextmanager
def phases(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows phases on a terminal, and nothing elsewhere."""
    if quiet or not can_redraw(sys.stderr):
        yield lambda _: None
        return
    with status_line() as (show, _):
        yield show


def soak_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with --seed, --store and --json, described by the first line of `doc`."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=1, help="what is done when follows from it (default 1)")
    add("--store", type=Path, help="an empty folder to work in, kept (default: temporary)")
    add("--json", action="store_true", help="one JSON document on stdout")
    return parser


def run_soak(
    options: argparse.Namespace,
    name: str,
    run: Callable[[Path], F],
    show: Callable[[F], object] = str,
) -> int:
    """Runs in the folder that was asked for, prints what was found, returns the exit code.

    `options.tell` reports progress meanwhile; `show` makes text for people.
    """
    folder = folder_of(options.store, name)
    with phases(options.json) as options.tell:
        found = run(folder)
    print(json.dumps(found, default=shape) if options.json else show(found))
    return leave(folder, options.store, bool(found.faults))


def shape(figures: Any) -> dict[str, Any]:
    """A dataclass for `json.dumps(..., default=shape)`. (`asdict` cannot copy a Counter.)"""
    return {field.name: getattr(figures, field.name) for field in fields(figures)}


def folder_of(given: Path | None, name: str) -> Path:
    """The folder of a run: the one that was asked for, or a temporary one."""
    folder = given or Path(tempfile.mkdtemp(prefix=f"keelog-{name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def leave(folder: Path, given: Path | None, faults: bool) -> int:
    """Removes a temporary folder, or keeps what shows faults; returns the exit code."""
    if faults:
        print(f"everything is kept in {folder}", file=sys.stderr)
    elif given is None:
        shutil.rmtree(folder, ignore_errors=True)
    return int(faults)
