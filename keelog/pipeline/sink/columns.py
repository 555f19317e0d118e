"""The columns that a write takes, by name and type, and the place of each in the rows."""

from collections.abc import Sequence
from typing import NamedTuple

from keelog.pipeline.errors import UnknownColumn
from keelog.pipeline.tables import Column

_INTEGERS = ("tinyint", "smallint", "int", "bigint")

SINK = (
    Column("body", "BINARY or STRING", "the message; `value` is taken as its name too"),
    Column("topic", "STRING", "where it goes, unless the option `topic` says so for all"),
    Column("queueId", "INT", "a queue of the topic; NULL: by `shardingKey`, or all in turn"),
    Column("tags", "STRING", "one tag"),
    Column("keys", "ARRAY<STRING> or STRING", "to find it by; a STRING is split at spaces"),
    Column(
        "properties",
        "MAP<STRING, STRING>",
        "your own; a NULL value is left out, an empty one is refused",
    ),
    Column("flag", "INT", "your own number"),
    Column("delayLevel", "INT", "NULL or 0: what Spark writes is delivered at once"),
    Column("shardingKey", "STRING", "those of one key share a queue, by RocketMQ's hash selector"),
    Column("bornTimestamp", "TIMESTAMP", "when it was made; NULL: now"),
)
"""All may be left out but the body, and the topic where the option is not given."""

_OTHER_NAMES = {"value": "body"}


class Field(NamedTuple):
    """A column of what is written: its name there, and Spark's type as text."""

    name: str
    kind: str


def _kinds(column: Column) -> tuple[str, ...]:
    """Spark's types that a column may have."""
    kinds = tuple(column.ddl.lower().replace(", ", ",").split(" or "))
    return _INTEGERS if kinds == ("int",) else kinds


def places(fields: Sequence[Field]) -> dict[str, int]:
    """Which column of the rows is which of ours. Raises UnknownColumn."""
    known = {column.name.lower(): column for column in SINK}
    found: dict[str, int] = {}
    for place, field in enumerate(fields):
        column = known.get(_OTHER_NAMES.get(field.name.lower(), field.name.lower()))
        if column is None:
            names = ", ".join(column.name for column in SINK)
            raise UnknownColumn(
                f"a message has no column {field.name[:80]!r}", f"select some of {names}"
            )
        name, kinds = column.name, _kinds(column)
        if name in found:
            raise UnknownColumn(f"column {name} is there twice", "select each once")
        kind = field.kind.split("(")[0].replace("varchar", "string").replace("char", "string")
        if kind not in kinds:
            raise UnknownColumn(
                f"column {field.name} is {field.kind}, not {' or '.join(kinds)}",
                "a cast to it",
            )
        found[name] = place
    if "body" not in found:
        raise UnknownColumn(
            f"there is no column body in {', '.join(field.name for field in fields)[:200]}",
            "select('…' AS body); for instance to_json(struct('*')) AS body",
        )
    return found
