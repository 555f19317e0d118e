"""Text for people: quantities, lines of a table, and progress on stderr, never on stdout.

Of progress a terminal gets one line that moves, drawn by rich. A file or a pipe gets plain lines.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from protocol import human_text

if TYPE_CHECKING:
    from rich.progress import Progress

GAP_CHARS = 2
_GAP = " " * GAP_CHARS
Advance = Callable[[int, int], None]
"""Called with the amount that is done, and the whole."""

LINE_EVERY_S = 5.0
REDRAW_EVERY_S = 0.2
_ETA_FROM_S = 1.0
_BAR_COLUMNS = 24


def counted(count: int, what: str) -> str:
    """Returns a count with its word: `1 message`, `2,000 messages`."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def size_text(count: int | None) -> str:
    """Returns bytes as `3.4 MiB`, and nothing for what is not known."""
    return "" if count is None else human_text.size_text(count, decimals=1)


def disk_text(disk: Mapping[str, Any]) -> str:
    """The disk of a status: what is free, used, and what so full a disk costs."""
    text = f"{size_text(disk['free_bytes'])} free, {disk['used_ratio']:.1%} used"
    shortage = disk.get("shortage")  # a node of an earlier version does not say
    return f"{text}. {shortage}" if shortage else text


def duration_text(seconds: float) -> str:
    """Returns a duration as `12 s`, `3 m 20 s`, `2 h 5 m` or `4 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    hours = whole // 3600
    return f"{hours} h {whole % 3600 // 60} m" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def time_text(ms: int) -> str:
    """Returns a time in ms since 1970 as `2026-11-23T20:15:03Z`."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ms_text(ms: float | None) -> str:
    """Returns milliseconds with three digits that count; `-` for none."""
    if ms is None:
        return "-"
    return f"{human_text.number_text(ms)} ms"


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned(cells: Sequence[str], widths: Sequence[int], numbers_from: int | None = None) -> str:
    """Returns one line of a table; from the column `numbers_from` on cells end at the right."""
    first = len(cells) if numbers_from is None else numbers_from
    return _GAP.join(
        cell.ljust(width) if column < first else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def can_redraw(stream: TextIO) -> bool:
    """Returns whether a line can be written over, as on most terminals."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Prints one line at once, on stderr by default."""
    print(human_text.printable(text), file=stream or sys.stderr, flush=True)


@contextmanager
def status_line() -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Shows the phases of a load or a soak test in one line that moves below the others: yields
    what shows a phase, and what prints a line that stays.

    Elsewhere than on a terminal each phase is a plain line.
    """
    if not can_redraw(sys.stderr):
        yield print_line, print_line
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield (
            lambda text: bar.update(task, description=text),
            lambda text: bar.console.print(text, highlight=False),
        )


class CommandProgress:
    """Shows how far one command is.

    `with progress.shown(): work(progress.meter("checked"))`: after the block the line is gone.
    """

    def __init__(
        self,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._clock = clock
        self._redraws = can_redraw(self._stream)
        self._shown_at = clock()
        self._bar: Progress | None = None

    def silence(self) -> None:
        """Shows nothing from here on."""
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
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def meter(self, what: str, unit: str = "bytes") -> Advance:
        """For one walk, which begins now: `checked 34% (1.2 of 3.4 GiB), about 12 s left`."""
        began = self._clock()
        every = REDRAW_EVERY_S if self._redraws else LINE_EVERY_S

        def advance(done: int, total: int) -> None:
            now = self._clock()
            if self._quiet or now - self._shown_at < every:
                return
            self._shown_at = now
            line = progress_line(what, done, total, unit, now - began)
            if self._redraws:
                self._draw(line, done, max(total, done, 1))
            else:
                print_line(line, self._stream)

        return advance

    def stage_meter(self) -> Callable[[str, int, int], None]:
        """For work whose stages have names: `queues: done 34% (1.2 of 3.4 GiB)`."""
        walks: dict[str, Advance] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in walks:
                walks[stage] = self.meter(f"{stage}: done")
            walks[stage](done, total)

        return advance

    def _draw(self, line: str, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = _started_bar(self._stream)
        task = self._bar.task_ids[0]
        self._bar.update(task, description=line, completed=done, total=total, refresh=True)


def _started_bar(stream: TextIO) -> "Progress":
    """A bar without colours, drawn when it is updated; it replaces neither stdout nor stderr."""
    # Imported here: it costs 80 ms, and only a person at a terminal gains by it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(
        BarColumn(_BAR_COLUMNS), TextColumn("{task.description}"),
        console=Console(file=stream, no_color=True), transient=True, auto_refresh=False,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    bar.add_task("")
    bar.start()
    # rich has hidden the cursor; a command that is killed would leave it so.
    bar.console.show_cursor()
    return bar


def progress_line(what: str, done: int, total: int, unit: str, elapsed_s: float) -> str:
    """The share, the amount, and the time left at the same pace."""
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
