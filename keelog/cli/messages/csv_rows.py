"""Rows of CSV as the objects that `keelog produce` sends: the header names their fields."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from keelog.cli.shapes import MESSAGE
from protocol.errors import IllegalMessage

Row = Callable[[], dict[str, Any]]
KEY = "key"
"""A column with one key, beside those that `keelog consume --format csv` prints."""
_NUMBERS = {name for name, kind in MESSAGE.items() if str(kind).startswith("integer")}
_PARTS = {"keys", "properties"}
BYTE_ORDER_MARK = "\ufeff"
"""With which spreadsheets begin what they save as UTF-8."""
CELL_CHARS_MAX = 16 * 1024 * 1024
"""Room for the largest body in base64."""


def csv_rows(batches: Iterable[list[bytes]], count_max: int) -> Iterator[list[Row]]:
    """The rows of a text whose lines come in batches, `count_max` together. A row is called for its
    fields.

    Raises IllegalMessage for a header with a column that no message has, and for broken CSV.
    """
    csv.field_size_limit(CELL_CHARS_MAX)
    # Bytes that are not UTF-8 become half surrogate pairs, which are refused with the row's number.
    lines = (line.decode(errors="surrogateescape") + "\n" for batch in batches for line in batch)
    head = next(lines, "").removeprefix(BYTE_ORDER_MARK)
    reader = csv.DictReader(chain([head] if head else [], lines), strict=True)
    try:
        unknown = sorted({*(reader.fieldnames or ())} - {*MESSAGE, KEY})
        if unknown:
            raise IllegalMessage(
                f"the header names the column {unknown[0][:80]!a}, which no message has",
                "body, key, tags, properties (a JSON object), …: keelog consume --format help",
            )
        while rows := list(islice(reader, count_max)):
            yield [partial(object_of, row) for row in rows]
    except csv.Error as error:
        raise IllegalMessage(
            f"line {reader.line_num} is not CSV: {error}", 'quote each cell that has a comma or "'
        ) from None


def object_of(row: dict[str, Any]) -> dict[str, Any]:
    """The object of a row; an empty cell is an absent field, but for an empty body.

    Raises ValueError for a row with other cells than the header, and for cells of a wrong kind.
    """
    if None in row or None in row.values():
        raise ValueError("it has not as many cells as the header")
    fields: dict[str, Any] = {name: cell for name, cell in row.items() if cell}
    for name in _NUMBERS & fields.keys():
        fields[name] = int(fields[name])
    for name in _PARTS & fields.keys():
        if fields[name][0] in "[{":
            fields[name] = json.loads(fields[name])
    if KEY in fields:
        fields["keys"] = [fields.pop(KEY)]
    if "body_b64" not in fields:
        fields.setdefault("body", "")
    return fields
