"""How far a long command is, and how long it will take: on stderr, never on stdout.

On a terminal one line that is written over; otherwise a plain line each five seconds.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import click

from keelog.text import duration_text, size_text

Function = TypeVar("Function", bound=Callable[..., Any])
Tell = Callable[[int, int], None]
"""Called with what is done, and all there is."""

LINE_EVERY_S = 5.0
REDRAW_EVERY_S = 0.2
_ETA_FROM_S = 1.0
_BAR_SIGNS = 24
_CLEAR = "\r\x1b[K"


def progress_option(function: Function) -> Function:
    """Adds --no-progress; the command gets `progress: Progress`."""

    def convert(_ctx: click.Context, _parameter: click.Parameter, quiet: bool) -> CommandProgress:
        return CommandProgress(quiet)

    return click.option(
        "--no-progress",
        "progress",
        is_flag=True,
        callback=convert,
        help="Does not say on stderr how far it is.",
    )(function)


class CommandProgress:
    """Shows how far one command is.

    `with progress.shown(): work(progress.teller("checked"))`: after the block the line is gone.
    """

    def __init__(
        self,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet = quiet
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._redraws = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._told = clock()
        self._drawn = False

    def silence(self) -> None:
        """Tells nothing from here on."""
        self._quiet = True

    @contextmanager
    def shown(self) -> Iterator["CommandProgress"]:
        """Clears the line after the block, also when it ends with an error."""
        try:
            yield self
        finally:
            self.clear()

    def clear(self) -> None:
        """Takes the line away, so that something else may be written."""
        if self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._drawn = False

    def teller(self, what: str, unit: str = "bytes") -> Tell:
        """For one walk, which begins now: `checked 34% (1.2 of 3.4 GiB), about 12 s left`."""
        began = self._clock()

        def tell(done: int, total: int) -> None:
            now = self._clock()
            every = REDRAW_EVERY_S if self._redraws else LINE_EVERY_S
            if self._quiet or now - self._told < every:
                return
            self._told = now
            self._show(what, done, total, unit, now - began)

        return tell

    def _show(self, what: str, done: int, total: int, unit: str, elapsed_s: float) -> None:
        line = progress_line(what, done, total, unit, elapsed_s)
        if self._redraws:
            filled = _BAR_SIGNS * done // max(total, done, 1)
            bar = "#" * filled + "." * (_BAR_SIGNS - filled)
            self._stream.write(f"{_CLEAR}[{bar}] {line}")
            self._drawn = True
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


def progress_line(what: str, done: int, total: int, unit: str, elapsed_s: float) -> str:
    """How far, how much, and how long yet at the pace so far."""
    share = 100 * done // max(total, done, 1)
    amount = (
        f"{size_text(done)} of {size_text(total)}"
        if unit == "bytes"
        else f"{done:,} of {total:,} {unit}"
    )
    line = f"{what} {share}% ({amount})"
    if done <= 0 or elapsed_s < _ETA_FROM_S:
        return line
    return f"{line}, about {duration_text((total - done) * elapsed_s / done)} left"
