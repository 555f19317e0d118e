"""What a load or a soak test does, on stderr for people who wait."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from protocol.printable import printable


class StatusLine(NamedTuple):
    """`phase` says what goes on; `line` prints a line that stays."""

    phase: Callable[[str], None]
    line: Callable[[str], None]


@contextmanager
def status_line() -> Iterator[StatusLine]:
    """Shows phases in one line that moves below the others; elsewhere each is a plain line."""
    if not sys.stderr.isatty():
        yield StatusLine(print_line, print_line)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield StatusLine(
            lambda text: bar.update(task, description=text),
            lambda text: bar.console.print(text, highlight=False),
        )


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows phases on a terminal, and nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with status_line() as shown:
        yield shown.phase


def print_line(text: str) -> None:
    """Prints one line on stderr at once, for people who follow a log."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()
