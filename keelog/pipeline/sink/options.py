"""What a write takes: its columns by name and type, and its options, checked before any row is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from keelog.pipeline.errors import BadMode, BadOption, UnknownColumn, UnknownOption
from keelog.pipeline.tables import Column
from protocol.errors import MqError
from protocol.names import check_topic_for_send

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
OPTIONS = ("node", "topic", "timeoutMs", "publishTimeoutMs")
_OF_SPARK = ("checkpointlocation", "queryname", "outputmode")
"""Spark's own options of a stream, which it hands over too."""
TIMEOUT_MS = 60_000
PUBLISH_TIMEOUT_MS = 600_000


class Field(NamedTuple):
    """A column of what is written: its name there, and Spark's type as text."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a write. `places`: which column of its rows is which of ours."""

    node: str
    topic: str | None
    timeout_s: float
    publish_timeout_s: float
    places: Mapping[str, int]


def parse_sink_options(
    given: Mapping[str, str], fields: Sequence[Field], overwrite: bool
) -> SinkOptions:
    """Raises BadMode, UnknownOption, BadOption, UnknownColumn."""
    if overwrite:
        raise BadMode(
            "messages cannot be overwritten: a log only grows",
            "mode('append'); for streams outputMode('append')",
        )
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in OPTIONS} | set(_OF_SPARK)
    for name in given:
        if name.lower() not in known:
            raise UnknownOption(
                f"a write takes no option {name[:80]!r}", f"one of {', '.join(OPTIONS)}"
            )
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic_for_send(topic)
        except MqError as error:
            raise BadOption(error.reason, error.hint) from None
    found = places(fields)
    if topic is None and "topic" not in found:
        raise UnknownColumn(
            "nothing says which topic the messages go to", "the option topic, or a column topic"
        )
    return SinkOptions(
        node=_node(options.get("node")),
        topic=topic,
        timeout_s=_milliseconds(options, "timeoutMs", TIMEOUT_MS) / 1000,
        publish_timeout_s=_milliseconds(options, "publishTimeoutMs", PUBLISH_TIMEOUT_MS) / 1000,
        places=found,
    )


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


def _kinds(column: Column) -> tuple[str, ...]:
    """Spark's types that a column may have."""
    kinds = tuple(column.ddl.lower().replace(", ", ",").split(" or "))
    return _INTEGERS if kinds == ("int",) else kinds


def _node(address: str | None) -> str:
    hint = "option('node', 'tcp://host:7850'), the address that keelog serve prints"
    if address is None:
        raise BadOption("nothing says which node to write to", hint)
    try:
        parts = urlsplit(address)
        is_address = parts.scheme == "tcp" and parts.hostname is not None and bool(parts.port)
    except ValueError:
        is_address = False
    if not is_address:
        raise BadOption(f"node is {address[:80]!r}, which is not an address", hint)
    return address


def _milliseconds(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= 2**31:
        raise BadOption(f"{name} is {text[:80]!r}", "milliseconds, as 60000")
    return int(text)
