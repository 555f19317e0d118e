"""`keelog top`: a node on one screen, again and again."""

import itertools
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

import keelog
from keelog.cli.failures import OK, doing
from keelog.cli.node.top_figures import SORTS, figures
from keelog.cli.node.top_lines import fitted, lines
from keelog.cli.options import command, node_option, output_options
from keelog.cli.output import Output
from protocol.errors import MqError
from protocol.human_text import one_line

Fields = dict[str, Any]

INTERVAL_S_MIN = 0.05
SCREEN_WAITS_S = 2.0
"""For an answer; meanwhile no key is heard."""
END = "q"
_HINT = "; s: by the next, q: end"


@command("top")
@node_option
@click.option("--once", is_flag=True, help="Ends after the first look.")
@click.option(
    "--interval",
    type=click.FloatRange(INTERVAL_S_MIN),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="From one look to the next.",
)
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default=next(iter(SORTS)),
    show_default=True,
    help="What the processes are sorted by.",
)
@output_options
def top(node: str, once: bool, interval: float, sort: str, output: Output) -> int:
    """Shows what a node does: messages and bytes a second, times of requests, lag, processes.

    On a terminal one screen, on which s sorts by the next column and q ends; elsewhere the same
    as lines. Times (p50, p99) are those of the last interval.

    Example: keelog top

    Example: keelog top --once --sort cpu

    Example: keelog top --once --json
    """
    with doing(f"cannot ask the node at {node} for its status"), keelog.connect(node) as client:

        def look(timeout_s: float | None = None) -> Fields:
            return dict(client.status(timeout_s).raw)

        is_live = output.is_terminal and output.format == "table" and not once
        if is_live and os.environ.get("TERM") != "dumb":
            Screen(partial(look, SCREEN_WAITS_S), node, interval, sort).run()
            return OK
        for shown in _looks(look, interval, sort):
            if output.format == "table":
                output.text("\n".join([*lines(shown, sort), "", ""]))
                output.flush()
            else:
                output.document(shown, table=_rows(shown))
            if once:
                break
    return OK


def _looks(look: Callable[[], Fields], interval: float, sort: str) -> Iterator[Fields]:
    """The figures of each interval, as long as they are asked for."""
    before, asked_at = look(), time.monotonic()
    while True:
        time.sleep(interval)
        after, now = look(), time.monotonic()
        yield figures(before, after, now - asked_at, sort)
        before, asked_at = after, now


def _rows(shown: Fields) -> list[Fields]:
    """For CSV: a row a process, with the numbers as they are."""
    names = ("role", "index", "pid", "state", "cpu_percent", "rss_bytes", "restarts", "lag_bytes")
    return [{name: row[name] for name in names} for row in shown["processes"]]


class Screen:
    """The live view. A node that does not answer for a while is said, and asked again."""

    def __init__(self, look: Callable[[], Fields], node: str, interval: float, sort: str) -> None:
        self._look = look
        self._node = node
        self._interval = interval
        self._sorts = itertools.cycle(SORTS)
        self._sort = next(name for name in self._sorts if name == sort)
        self._before: tuple[Fields, float] | None = None
        self._after: tuple[Fields, float] | None = None
        self._trouble = ""

    def run(self) -> None:
        """Runs until q is pressed. Raises MqError when the node cannot be asked at all."""
        # Imported here: who prints lines does without.
        from rich.live import Live
        from rich.text import Text

        self._after = self._look(), time.monotonic()
        with keys() as pressed, Live(screen=True, auto_refresh=False) as live:
            due = time.monotonic() + min(self._interval, 0.5)
            while True:
                key = pressed(max(0.0, due - time.monotonic()))
                if key == END:
                    return
                if key == "s":
                    self._sort = next(self._sorts)
                if time.monotonic() >= due:
                    self._ask()
                    due = time.monotonic() + self._interval
                size = shutil.get_terminal_size()
                text = "\n".join(fitted(self._lines(), size.columns, size.lines))
                live.update(Text(text, no_wrap=True), refresh=True)

    def _ask(self) -> None:
        try:
            found = self._look(), time.monotonic()
        except MqError as error:
            if not error.retriable:
                raise
            self._trouble = one_line(f"no answer from {self._node}: {error.reason}")
            return
        self._trouble = ""
        self._before, self._after = self._after, found

    def _lines(self) -> list[str]:
        trouble = [self._trouble] if self._trouble else []
        if self._before is None or self._after is None:
            return [*trouble, "…"]
        (before, then), (after, now) = self._before, self._after
        return [*trouble, *lines(figures(before, after, now - then, self._sort), self._sort, _HINT)]


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Yields a function that waits up to a number of seconds for a key; "" when none came.

    Where stdin is not a terminal no key ever comes.
    """
    if not sys.stdin.isatty():

        def none(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield none
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        # A terminal that is gone has no more keys: that is the end too.
        return os.read(descriptor, 1).decode("ascii", "replace") or END if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
