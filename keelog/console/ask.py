"""The request that a page gets, and the replies that it may make."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from keelog.console.addresses import Links
from keelog.console.node_link import NodeLink, State
from keelog.console.viewers import Viewer
from protocol.errors import BadRequest

JSONL, CSV = "jsonl", "csv"
QUERY_FIELDS_MAX = 32
VALUE_CHARS_MAX = 4_000
"""Of a field in an address."""
_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A table program would carry out a cell that begins so."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for a page. `path` has the parts of its address, `query` its fields."""

    node: NodeLink
    viewer: Viewer
    links: Links
    path: Mapping[str, Any]
    query: Mapping[str, str]
    here: str
    """The path itself, without the base of all links."""
    now_ms: int
    root: Path | None = None
    """The store, where it is on this machine and of this user."""
    is_part: bool = False
    """Whether a page that is open asks anew: it keeps its frame."""
    form: Mapping[str, str] = field(default_factory=dict)
    """The fields that were sent with a POST."""

    @property
    def rows_as(self) -> str:
        """`jsonl` or `csv` for a list as a file, empty for a page."""
        found = self.query.get("as", "")
        return found if found in (JSONL, CSV) else ""

    def text(self, name: str) -> str:
        """A field of the query, without the blanks around it; empty without one."""
        return self.query.get(name, "").strip()

    def number(self, name: str, usual: int, most: int) -> int:
        """A whole number of the query, 1 at least. Raises BadRequest."""
        text = self.text(name)
        if not text:
            return usual
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:19]) <= most:
            raise BadRequest(f"{name} is {text[:40]!a}", f"write a number from 1 to {most:,}")
        return int(text)

    def state(self) -> State:
        """The node as it is now, or was when it answered last."""
        return self.node.state()

    def again(self, **fields: str | int | None) -> str:
        """This address with other fields."""
        return self.links.page(self.here, dict(self.query), **fields)


class ShownPage(NamedTuple):
    """A page: its template, and what that gets beside the frame."""

    template: str
    values: dict[str, Any]
    refresh_s: float = 0.0
    """How often a browser asks anew; 0: never."""
    status: int = 200


class Goto(NamedTuple):
    """Another address; after a POST too, so that loading it again repeats nothing."""

    url: str


class Download(NamedTuple):
    """A file to keep. Its name has letters, digits, dots, - and _ alone."""

    name: str
    content_type: str
    chunks: Iterable[bytes]


Answer = ShownPage | Goto | Download
PageFunction = Callable[[Ask], Answer]


def rows_file(
    ask: Ask, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> Download:
    """A list as JSON lines, or as CSV, as the address asks."""
    if ask.rows_as == CSV:
        return Download(f"{name}.csv", "text/csv; charset=utf-8", _csv(columns, rows))
    return Download(f"{name}.jsonl", "application/x-ndjson", _jsonl(rows))


def _jsonl(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    for row in rows:
        yield (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape")


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([csv_cell(row.get(name)) for name in columns])
        yield text.getvalue().encode("utf-8", "surrogateescape")
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode("utf-8", "surrogateescape")


def csv_cell(value: Any) -> str:
    """A value as a cell that no table program takes for a formula; numbers stay numbers."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_BEGINS_FORMULA) else text
