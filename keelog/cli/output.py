"""Rows and documents on stdout, as a table, JSON, JSON lines or CSV.

Rows are written as they come. A closed pipe raises BrokenPipeError, which ends the command
quietly with 0. Control characters of the data are escaped. Rows of a table fit the terminal, or 120
columns elsewhere: longer cells are cut. Heads are bold on a terminal alone.
"""

import base64
import csv
import io
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import click
import msgspec

from keelog.text import GAP_CHARS, aligned
from protocol.human_text import one_line, printable

FORMATS = ("table", "json", "jsonl", "csv")
Row = Mapping[str, Any]

_TABLE_ROWS_AT_ONCE = 500
"""Widths are found for this many rows, so that a long table needs no more memory than that."""
_COLUMNS_ELSEWHERE = 120
_CELL_CHARS_MIN = 6
"""A cell is not cut below this, however narrow the terminal is: the last columns are left out."""
_LIVE_WIDTH = 10
NO_COLOR = "NO_COLOR"
"""Set and not empty, it forbids colours and bold (no-color.org); `--no-color` sets it."""
_DELETE = b"\x7f"
_encoder = msgspec.json.Encoder()


class Output:
    """Writes a command's data."""

    def __init__(self, chosen: str | None = None, stream: BinaryIO | None = None) -> None:
        self._given = stream
        self.format = chosen or ("table" if self.is_terminal else "jsonl")
        self.wide = False
        """Nothing of a table is cut or left out."""

    @property
    def stream(self) -> BinaryIO:
        """Bytes to stdout, looked up when used."""
        return self._given if self._given is not None else sys.stdout.buffer

    @property
    def is_terminal(self) -> bool:
        """Whether a person watches stdout."""
        return self._given is None and sys.stdout.isatty()

    def rows(self, rows: Iterable[Row], columns: Sequence[str] = (), live: bool = False) -> int:
        """Writes the rows in order and returns how many there were.

        `columns` are those of a table or CSV (JSON always has all); without them the first row's
        keys. `live` shows each row at once, whatever the format.
        """
        count = 0

        def counted() -> Iterator[Row]:
            nonlocal count
            for row in rows:
                count += 1
                yield row

        match self.format:
            case "json":
                self._write_json(counted())
            case "jsonl":
                self._write_lines(counted(), live)
            case "csv":
                self._write_csv(counted(), columns, live)
            case _:
                self._write_table(counted(), columns, live)
        self.stream.flush()
        return count

    def document(self, document: Row, table: Iterable[Row] = (), title: str = "") -> None:
        """Writes one object; as a table or CSV, the rows of `table` (or its own fields)."""
        if self.format == "json":
            self.text(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
        elif self.format == "jsonl":
            self._write_lines([document], live=False)
        else:
            rows = list(table) or [
                {"field": name, "value": flat(document[name])} for name in document
            ]
            if title and self.format == "table":
                self.text(title + "\n")
            self.rows(rows)
        self.stream.flush()

    def text(self, text: str) -> None:
        """Writes text as it is, without columns."""
        self.stream.write(printable(text).encode("utf-8", "backslashreplace"))

    def raw(self, data: bytes) -> None:
        """Writes bytes as they are, control characters too (`consume -f`)."""
        self.stream.write(data)

    def flush(self) -> None:
        self.stream.flush()

    def _write_json(self, rows: Iterable[Row]) -> None:
        separator = "[\n"
        for row in rows:
            self.text(separator + json.dumps(row, ensure_ascii=False))
            separator = ",\n"
        self.text("[]\n" if separator == "[\n" else "\n]\n")

    def _write_lines(self, rows: Iterable[Row], live: bool) -> None:
        for row in rows:
            line = _encoded(row)
            if line.isascii() and _DELETE not in line:
                self.stream.write(line)  # the usual case: JSON has escaped what is below U+0020
            else:
                self.text(line.decode())
            if live:
                self.stream.flush()

    def _write_csv(self, rows: Iterator[Row], columns: Sequence[str], live: bool) -> None:
        first = next(rows, None)
        columns = columns or list(first or ())
        if columns:
            self.text(_csv_line(columns))
        for row in itertools.chain([first] if first is not None else [], rows):
            self.text(_csv_line([flat(row.get(name)) for name in columns]))
            if live:
                self.stream.flush()

    def _write_table(self, rows: Iterator[Row], columns: Sequence[str], live: bool) -> None:
        size = 1 if live else _TABLE_ROWS_AT_ONCE
        is_plain = os.environ.get(NO_COLOR) or os.environ.get("TERM") == "dumb"
        is_fancy = self.is_terminal and not self.wide and not live and not is_plain
        natural: dict[str, int] = {}
        while chunk := list(itertools.islice(rows, size)):
            names = columns or list(chunk[0])
            heads = [one_line(name) for name in names]
            cells = [[_cell(row, name) for name in names] for row in chunk]
            is_first = not natural
            for position, name in enumerate(heads):
                longest = max([len(name), *(len(row[position]) for row in cells)])
                least = _LIVE_WIDTH if live else 0
                natural[name] = max(natural.get(name, least), longest)
            widths = [natural[name] for name in heads]
            if not self.wide:
                # COLUMNS, the terminal's width, or 120.
                room = shutil.get_terminal_size(fallback=(_COLUMNS_ELSEWHERE, 0)).columns
                widths = fitted(widths, room)
            lines = [
                [cut(cell, width) for cell, width in zip(row, widths, strict=False)]
                for row in [heads, *cells]
            ]
            if is_fancy and is_first and len(chunk) < size:
                self.raw(_rich_table(lines[0], lines[1:]).encode("utf-8", "backslashreplace"))
                return
            for line in lines if is_first else lines[1:]:
                self.text(aligned(line, widths) + "\n")
            self.stream.flush()


def fitted(widths: Sequence[int], columns: int) -> list[int]:
    """The widths with which a row fits: the longest columns are cut, the others stay whole.

    The last columns are left out where not even cut ones have room.
    """
    count = len(widths)
    while count > 1 and sum(min(width, _CELL_CHARS_MIN) for width in widths[:count]) > (
        columns - GAP_CHARS * (count - 1)
    ):
        count -= 1
    kept = list(widths[:count])
    room = columns - GAP_CHARS * (count - 1)
    longest = min(max(kept, default=0), room)
    kept = [min(width, longest) for width in kept]
    while sum(kept) > room and longest > _CELL_CHARS_MIN:
        longest -= 1
        kept = [min(width, longest) for width in kept]
    return kept


def cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def say(text: str) -> None:
    """Writes a line on stderr, beside the data."""
    click.echo(printable(text), err=True)


def _encoded(row: Row) -> bytes:
    try:
        return b"%b\n" % _encoder.encode(row)
    except UnicodeEncodeError:  # half a surrogate pair, as in the name of a file that is not UTF-8
        return b"%b\n" % json.dumps(row, separators=(",", ":")).encode()


def _csv_line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def flat(value: object) -> str:
    """A value as text: nothing for none, JSON for what has parts."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def _cell(row: Row, name: str) -> str:
    """A value as `flat`, without control characters. A body that is not text shows its size."""
    if name == "body" and name not in row and "body_b64" in row:
        return f"<{len(base64.b64decode(row['body_b64']))} bytes>"
    return one_line(flat(row.get(name)))


def _rich_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # Imported here: it costs 34 ms, and only a person at a terminal gains by it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, name in enumerate(names):
        numeric = all(row[position].lstrip("-").isdigit() for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get()
