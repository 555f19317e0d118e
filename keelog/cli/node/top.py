"""`keelog top`: a node on one screen, again and again.

The figures are the change in a node between two looks at its status: rates, times, shares of
processors. The screen is lines of text: figures in, no terminal needed.
"""

import itertools
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from keelog.cli.contexts import connect
from keelog.cli.failures import doing
from keelog.cli.options import command, node_option, one_of, output_options
from keelog.cli.output import Output, cut
from keelog.text import aligned, disk_text, duration_text, size_text, widths_of
from node.runtime.stats import SUM, Histogram
from node.supervisor.status import quantiles
from protocol.errors import MqError
from protocol.human_text import one_line

Fields = dict[str, Any]
Columns = Mapping[str, Callable[[Fields], str]]
"""Of a table: the text of each in a row."""

SORTS: Mapping[str, Callable[[Fields], Any]] = {
    "process": lambda _row: 0,
    "cpu": lambda row: -(row["cpu_percent"] or 0.0),
    "memory": lambda row: -(row["rss_bytes"] or 0),
    "lag": lambda row: -(row["lag_bytes"] or 0),
    "restarts": lambda row: -row["restarts"],
}
"""Sort orders of the table of processes; the first keeps the node's own order."""
_CSV = ("role", "index", "pid", "state", "cpu_percent", "rss_bytes", "restarts", "lag_bytes")
"""The columns of CSV: a row a process, with the numbers as they are."""
_TARGETS = {"queues": "queue", "index": "index"}
INTERVAL_S_MIN = 0.05
SCREEN_WAITS_S = 2.0
"""For an answer; meanwhile no key is heard."""
END = "q"
_HINT = "; s: by the next, q: end"
GROUPS_SHOWN_MAX = 10
"""Pairs of a group and a topic, the largest lag first."""


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
@one_of("--sort", list(SORTS), "What the processes are sorted by.")
@output_options
def top(node: str, once: bool, interval: float, sort: str, output: Output) -> None:
    """Shows what a node does: messages and bytes a second, times of requests, lag, processes.

    On a terminal one screen, on which s sorts by the next column and q ends; elsewhere the same
    as lines. Times (p50, p99) are those of the last interval.

    Example: keelog top

    Example: keelog top --once --sort cpu

    Example: keelog top --once --json
    """
    with doing(f"cannot ask the node at {node} for its status"), connect(node) as client:

        def look(timeout_s: float | None = None) -> Fields:
            return dict(client.status(timeout_s).raw)

        is_live = output.is_terminal and output.format == "table" and not once
        if is_live and os.environ.get("TERM") != "dumb":
            Screen(partial(look, SCREEN_WAITS_S), node, interval, sort).run()
            return
        for shown in _looks(look, interval, sort):
            if output.format == "table":
                output.text("\n".join([*lines(shown, sort), "", ""]))
                output.flush()
            else:
                rows = [{name: row[name] for name in _CSV} for row in shown["processes"]]
                output.document(shown, table=rows)
            if once:
                break


def _looks(look: Callable[[], Fields], interval: float, sort: str) -> Iterator[Fields]:
    """The figures of each interval, as long as they are asked for."""
    before, asked_at = look(), time.monotonic()
    while True:
        time.sleep(interval)
        after, now = look(), time.monotonic()
        yield figures(before, after, now - asked_at, sort)
        before, asked_at = after, now


def figures(before: Fields, after: Fields, seconds: float, sort: str = "process") -> Fields:
    """The later status, with what came between both.

    `rates`: messages and bytes that were appended, a second; `operations` and `processes`: of
    the interval; `dispatch_lag_bytes`: of the slowest worker of each kind.
    """
    earlier = {(row["role"], row["index"]): row for row in before["processes"]}
    rows = [
        {**row, "cpu_percent": _share(earlier.get((row["role"], row["index"])), row, seconds)}
        for row in after["processes"]
    ]
    return {
        **after,
        "interval_s": round(seconds, 3),
        "rates": rates(before, after, seconds),
        "operations": _operations(before, after, seconds),
        "dispatch_lag_bytes": {
            name: max((row["lag_bytes"] or 0 for row in rows if row["role"] == role), default=0)
            for name, role in _TARGETS.items()
        },
        "processes": sorted(rows, key=SORTS[sort]),
    }


def rates(before: Fields, after: Fields, seconds: float) -> dict[str, float]:
    """Growth between two replies, a second; 0 when the node was restarted between them."""
    grown = {
        f"{name}_per_s": after["log"][field] - before["log"][field]
        for name, field in (("records", "records"), ("appended_bytes", "appended"))
    }
    return {name: round(max(0, count) / seconds, 1) for name, count in grown.items()}


def _operations(before: Fields, after: Fields, seconds: float) -> list[Fields]:
    """Requests a second and their times, of the interval alone. An older node reports none."""
    earlier = {row["op"]: row for row in before.get("operations", ())}
    rows = []
    for row in after.get("operations", ()):
        last = earlier.get(row["op"], {"requests": 0, "failed": 0, "buckets": []})
        times = _histogram(row["buckets"]).since(_histogram(last["buckets"]))
        # Counts begin anew where a page was replaced: that interval has no times.
        p50_ms, p99_ms = quantiles(times if min(times.buckets) >= 0 else _histogram([]))
        rows.append(
            {
                "op": row["op"],
                "per_s": round(max(0, row["requests"] - last["requests"]) / seconds, 1),
                "failed_per_s": round(max(0, row["failed"] - last["failed"]) / seconds, 1),
                "p50_ms": p50_ms,
                "p99_ms": p99_ms,
            }
        )
    return rows


def _histogram(buckets: list[int]) -> Histogram:
    return Histogram((*buckets, *(0,) * (SUM - len(buckets))), 0)


def _share(before: Fields | None, after: Fields, seconds: float) -> float | None:
    """Of one processor, in percent; null for a process that was not there all the time."""
    if before is None or before["pid"] != after["pid"]:
        return None
    if before["cpu_s"] is None or after["cpu_s"] is None:
        return None
    used_s = float(after["cpu_s"]) - float(before["cpu_s"])
    return round(max(0.0, used_s) / seconds * 100, 1)


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


def lines(shown: Fields, sort: str, hint: str = "") -> list[str]:
    """Returns state, rates and processes of the node, within 80 columns but for long names."""
    log, disk, rates, lag = (shown[name] for name in ("log", "disk", "rates", "dispatch_lag_bytes"))
    ready = "ready" if shown["ready"] else "not ready"
    found = [
        f"{shown['store']}: {ready}, {shown['mode']}, epoch {log['epoch']}",
        *([f"appends are refused, reads go on. {shown['cause']}"] if shown["cause"] else []),
        f"in     {rates['records_per_s']:,.0f} messages/s, "
        f"{rates['appended_bytes_per_s'] / 1e6:,.2f} MB/s",
        f"behind {size_text(log['appended'] - log['flushed'])} not flushed, queues "
        f"{size_text(lag['queues'])}, index {size_text(lag['index'])}",
        f"disk   {disk_text(disk)}",
        "",
    ]
    if shown["operations"]:
        found += [*_table(_OPERATION, shown["operations"]), ""]
    if rows := shown.get("groups", {}).get("rows"):  # an older node has none
        found += [*_table(_GROUP, rows[:GROUPS_SHOWN_MAX]), ""]
    found += [*_table(_PROCESS, shown["processes"]), f"sorted by {sort}{hint}"]
    return [one_line(line) for line in found]


def fitted(found: Sequence[str], columns: int, rows: int) -> list[str]:
    """As many lines as there is room for, none longer than the screen is wide."""
    shown = [cut(line, columns) for line in found]
    if len(shown) <= rows:
        return shown
    return [*shown[: rows - 1], f"… {len(shown) - rows + 1} more lines"]


_OPERATION: Columns = {
    "operation": lambda row: row["op"],
    "per s": lambda row: f"{row['per_s']:,.0f}",
    "failed": lambda row: f"{row['failed_per_s']:,.0f}",
    "p50 ms": lambda row: _time(row["p50_ms"]),
    "p99 ms": lambda row: _time(row["p99_ms"]),
}
_PROCESS: Columns = {
    "process": lambda row: f"{row['role']} {row['index']}",
    "pid": lambda row: "" if row["pid"] is None else str(row["pid"]),
    "state": lambda row: row["state"],
    "cpu": lambda row: "" if row["cpu_percent"] is None else f"{row['cpu_percent']:.0f}%",
    "memory": lambda row: size_text(row["rss_bytes"]),
    "restarts": lambda row: str(row["restarts"]),
    "lag": lambda row: size_text(row["lag_bytes"]),
    "up": lambda row: duration_text(row["uptime_s"]),
}
_GROUP: Columns = {
    "group": lambda row: row["group"],
    "topic": lambda row: row["topic"],
    "members": lambda row: str(row["members"]),
    "lag": lambda row: f"{row['lag']:,}",
    "in flight": lambda row: f"{row['in_flight']:,}",
    # Null where the message cannot be read, absent at a node of an earlier version.
    "oldest": lambda row: duration_text(row["lag_ms"] / 1000) if row.get("lag_ms") else "",
}


def _time(value_ms: float | None) -> str:
    return "" if value_ms is None else f"{value_ms:,.2f}"


def _table(columns: Columns, rows: Iterable[Fields]) -> list[str]:
    cells = [[*columns], *([text(row) for text in columns.values()] for row in rows)]
    widths = widths_of(cells)
    return [aligned(line, widths, numbers_from=1) for line in cells]
