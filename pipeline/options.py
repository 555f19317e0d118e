"""The options of the sources, parsed and checked once, before any file is opened.

Names and meanings are those of Spark's Kafka source where it has them (docs/spark.md).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from node.store.settings import Settings, load_settings
from node.store.tag_filter import TagFilter, parse_tags
from pipeline.access import (
    FETCH_OPTIONS,
    FETCH_PREFIX,
    FS_PREFIX,
    StoreAt,
    node_name,
    parse_access,
    parse_address,
)
from pipeline.bounds import EARLIEST, LATEST, Bound, parse_offsets
from pipeline.errors import BadOption, UnknownOption, naming_conditions
from pipeline.plan import Limits
from pipeline.tables import DAMAGE, MESSAGES, TABLES, Column, Table

OnCorrupt = Literal["fail", "skip", "report"]

PARTITION_BYTES = 128 << 20
"""maxPartitionBytes, as Spark's own `spark.sql.files.maxPartitionBytes`."""
SETTING_PREFIX = "store."

_FETCH = tuple(f"{FETCH_PREFIX}{name}" for name in FETCH_OPTIONS)
_EVERY_TABLE = ("path", "paths", "nodes", "table", "columns", "failOnDataLoss", *_FETCH)
_PARTITIONS = ("minPartitions", "maxPartitionBytes", "maxRecordsPerPartition")
_TOPICS = ("subscribe", "topics", "subscribePattern", "assign")
_BOUNDS = ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp")
_OF_QUEUES = (*_EVERY_TABLE, *_PARTITIONS, *_TOPICS, "queueIds", *_BOUNDS)
TAKEN = {
    "messages": (*_OF_QUEUES, "tags", "onCorruptRecord"),
    "queues": _OF_QUEUES,
    "index": (*_EVERY_TABLE, *_PARTITIONS),
}
"""The options of each table, and `store.<setting>`."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which queues, and what of them. Without topics, queue ids and bounds: all that there is.

    `topics` are names; `assigned` queues by topic; `pattern` must match a whole name.
    """

    topics: tuple[str, ...] | None = None
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, frozenset[int]] | None = None
    queue_ids: frozenset[int] | None = None
    start: Bound = EARLIEST
    end: Bound = LATEST
    tags: TagFilter | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()

    def takes(self, topic: str, queue_id: int) -> bool:
        """Whether the rows of a queue are asked for."""
        if self.queue_ids is not None and queue_id not in self.queue_ids:
            return False
        if self.topics is not None:
            return topic in self.topics
        if self.pattern is not None:
            return self.pattern.fullmatch(topic) is not None
        if self.assigned is not None:
            return queue_id in self.assigned.get(topic, ())
        return True


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything that a read was told."""

    table: Table
    columns: tuple[Column, ...]
    stores: tuple[StoreAt, ...]
    settings: Settings
    selection: Selection
    limits: Limits
    fail_on_data_loss: bool
    on_corrupt: OnCorrupt


def parse_options(given: Mapping[str, str], table_name: str | None = None) -> SourceOptions:
    """Options as Spark hands them over: names in any case, values as text.

    `table_name` is the table of a format that shows one alone. Raises UnknownOption, BadOption,
    UnknownColumn, StoreUnreadable.
    """
    options = {name.lower(): value for name, value in given.items()}
    table = _table(options, table_name)
    _check_names(given, table)
    selection = _selection(options)
    on_corrupt = _one_of(options, "onCorruptRecord", ("fail", "skip", "report"), "fail")
    records_max = _count(options, "maxRecordsPerPartition")
    if records_max is not None and table is MESSAGES and selection.is_everything:
        raise BadOption(
            "maxRecordsPerPartition needs a selection of queues: a read of the whole log does not"
            " know beforehand how many records stand where",
            "maxPartitionBytes, or subscribePattern='.*' to read by queues",
        )
    pairs = [
        f"{name}={value}" for name, value in options.items() if name.startswith(SETTING_PREFIX)
    ]
    with naming_conditions():
        settings = load_settings(pairs)
    return SourceOptions(
        table=table,
        columns=_columns(options, table, on_corrupt == "report"),
        stores=_stores(options),
        settings=settings,
        selection=selection,
        limits=Limits(
            _count(options, "maxPartitionBytes") or PARTITION_BYTES,
            records_max,
            _count(options, "minPartitions") or 1,
        ),
        fail_on_data_loss=_one_of(options, "failOnDataLoss", ("true", "false"), "true") == "true",
        on_corrupt=cast(OnCorrupt, on_corrupt),
    )


def _table(options: Mapping[str, str], table_name: str | None) -> Table:
    asked = options.get("table")
    if table_name is not None and asked not in (None, table_name):
        raise BadOption(
            f"table is {asked!r} here, but this format shows {table_name} alone",
            "format('keelog'), which takes the option",
        )
    name = table_name or asked or MESSAGES.name
    if name not in TABLES:
        raise BadOption(f"there is no table {name[:80]!r}", f"one of {', '.join(TABLES)}")
    return TABLES[name]


def _check_names(given: Mapping[str, str], table: Table) -> None:
    known = {name.lower() for name in TAKEN[table.name]}
    for name in given:
        if name.lower() in known or name.lower().startswith((SETTING_PREFIX, FS_PREFIX)):
            continue
        raise UnknownOption(
            f"table {table.name} takes no option {name[:80]!r}",
            f"one of {', '.join(TAKEN[table.name])}, {SETTING_PREFIX}<setting>,"
            f" {FS_PREFIX}<option of pyarrow.fs>",
        )


def _columns(options: Mapping[str, str], table: Table, with_damage: bool) -> tuple[Column, ...]:
    asked = options.get("columns")
    if with_damage:
        table = table._replace(columns=(*table.columns, DAMAGE))
    if asked is None:
        return table.columns
    chosen = table.choose([name.strip() for name in asked.split(",")])
    return (*chosen, DAMAGE) if with_damage and DAMAGE not in chosen else chosen


def _stores(options: Mapping[str, str]) -> tuple[StoreAt, ...]:
    given = [name for name in ("path", "paths", "nodes") if name in options]
    if len(given) != 1:
        raise BadOption(
            f"{' and '.join(given) if given else 'nothing'} says which store to read",
            'load(\'/path/to/store\'), or the option nodes with JSON: {"name": "/path", …}',
        )
    access = parse_access(options)
    if given == ["nodes"]:
        nodes = _json_object(options, "nodes")
        return tuple(
            StoreAt(name, parse_address(path), access) for name, path in sorted(nodes.items())
        )
    paths = [options["path"]] if given == ["path"] else _json(options, "paths")
    if not isinstance(paths, list) or not paths:
        raise BadOption(
            f"paths is {options['paths'][:80]!r}", 'a JSON list: ["/path/1", "/path/2"]'
        )
    roots = [parse_address(path) for path in paths]
    stores = tuple(StoreAt(node_name(root), root, access) for root in roots)
    if len({store.node for store in stores}) < len(stores):
        raise BadOption(
            "two of the folders have one name, which rows would have as their node",
            'the option nodes with JSON, which names each: {"a": "/path/1", "b": "/path/2"}',
        )
    return stores


def _selection(options: Mapping[str, str]) -> Selection:
    by = [name for name in _TOPICS if name.lower() in options]
    if len(by) > 1:
        raise BadOption(f"{' and '.join(by)} exclude each other", "only one of them")
    topics = options.get("subscribe", options.get("topics"))
    names = None if topics is None else tuple(name.strip() for name in topics.split(","))
    if names is not None and not all(names):
        raise BadOption(f"{by[0]} has an empty name in it", "names with commas between: A,B")
    pattern = options.get("subscribepattern")
    with naming_conditions():
        tags = parse_tags(options.get("tags"))
    return Selection(
        topics=names,
        pattern=None if pattern is None else _pattern(pattern),
        assigned=_assigned(options) if "assign" in options else None,
        queue_ids=_queue_ids(options["queueids"]) if "queueids" in options else None,
        start=_bound(options, "starting", EARLIEST, LATEST),
        end=_bound(options, "ending", LATEST, EARLIEST),
        tags=tags,
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise BadOption(
            f"subscribePattern {text[:80]!r}: {error}", "a regular expression as Python has them"
        ) from None


def _assigned(options: Mapping[str, str]) -> dict[str, frozenset[int]]:
    answer: dict[str, frozenset[int]] = {}
    for topic, ids in _json_object(options, "assign").items():
        if not isinstance(ids, list) or not all(type(number) is int for number in ids):
            raise BadOption(
                f"assign names no list of queues for {topic[:80]!r}", '{"topic": [0, 1]}'
            )
        answer[topic] = frozenset(ids)
    return answer


def _queue_ids(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadOption(f"queueIds is {text[:80]!r}", "numbers with commas between: 0,1,2")
    return frozenset(int(part) for part in parts)


def _bound(options: Mapping[str, str], side: str, default: Bound, other: Bound) -> Bound:
    """`startingOffsets` or `startingTimestamp`, and the same for the end."""
    offsets = options.get(f"{side}offsets")
    time = options.get(f"{side}timestamp")
    if offsets is not None and time is not None:
        raise BadOption(f"{side}Offsets and {side}Timestamp exclude each other", "one of them")
    if time is not None:
        if not time.strip().isascii() or not time.strip().isdigit():
            raise BadOption(f"{side}Timestamp is {time[:80]!r}", "milliseconds since 1970 in UTC")
        return Bound("time", time_ms=int(time))
    if offsets is None or offsets.strip().lower() == default.kind:
        return default
    if offsets.strip().lower() == other.kind:
        raise BadOption(
            f"{side}Offsets cannot be {other.kind}: there would be no row", f"{default.kind}, JSON"
        )
    return parse_offsets(f"{side}Offsets", _json_object(options, f"{side}Offsets"))


def _one_of(options: Mapping[str, str], name: str, known: tuple[str, ...], default: str) -> str:
    value = options.get(name.lower(), default).strip().lower()
    if value not in known:
        raise BadOption(f"{name} is {value[:80]!r}", f"one of {', '.join(known)}")
    return value


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    text = text.strip()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadOption(f"{name} is {text[:80]!r}", "a whole number from 1 on")
    return int(text)


def _json(options: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(options[name.lower()], object_pairs_hook=_each_once)
    except (json.JSONDecodeError, RecursionError) as error:
        text = options[name.lower()]
        raise BadOption(f"{name} is no JSON: {text[:80]!r}: {error}", "docs/spark.md") from None


def _json_object(options: Mapping[str, str], name: str) -> dict[str, Any]:
    value = _json(options, name)
    if not isinstance(value, dict) or not value:
        raise BadOption(f"{name} is no JSON object with anything in it", "docs/spark.md")
    return value


_Pairs = list[tuple[str, Any]]


def _each_once(pairs: _Pairs) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        twice = next(name for name, _ in pairs if [key for key, _ in pairs].count(name) > 1)
        raise BadOption(f"{twice[:80]!r} is named twice in one JSON object", "name it once")
    return dict(pairs)
