"""The options of sources and exports, parsed and checked once, before any file is opened.

Names and meanings are those of Spark's Kafka source where it has them (docs/spark.md). No Arrow is
imported here: the command line has an export's options without it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from keelog.pipeline.bounds import (
    BOUNDS,
    EARLIEST,
    LATEST,
    STRATEGY,
    PartitionLimits,
    ReadBound,
    Use,
    ending_bound,
    starting_bound,
)
from keelog.pipeline.errors import BadOption, UnknownOption, naming_conditions
from keelog.pipeline.option_values import count, duration_ms, json_object, json_value, one_of
from keelog.pipeline.stores.access import (
    FETCH_OPTIONS,
    FETCH_PREFIX,
    FS_PREFIX,
    StoreAt,
    Way,
    node_name,
    parse_access,
    parse_address,
)
from keelog.pipeline.stream.micro_batch import DELAY_MS, TriggerLimits
from keelog.pipeline.tables import DAMAGE, INDEX, KAFKA, MESSAGES, TABLES, Column, Table
from node.runtime.settings import Settings, load_settings
from node.store.query.filters import TagFilter, parse_tags

OnCorrupt = Literal["fail", "skip", "report"]

PARTITION_BYTES = 128 << 20
"""maxPartitionBytes, as Spark's own `spark.sql.files.maxPartitionBytes`."""
PARTITIONS_MIN_MAX = 100_000
"""minPartitions: planning takes seconds, and the driver 150 MB, for this many."""
SETTING_PREFIX = "store."

_FETCH = tuple(f"{FETCH_PREFIX}{name}" for name in FETCH_OPTIONS)
_EVERY_TABLE = (
    "path",
    "paths",
    "nodes",
    "table",
    "columns",
    "failOnDataLoss",
    "isolation",
    *_FETCH,
)
_PARTITIONS = ("minPartitions", "maxPartitionBytes", "maxRecordsPerPartition")
_TOPICS = ("subscribe", "topics", "subscribePattern", "assign")
_OF_QUEUES = (*_EVERY_TABLE, *_PARTITIONS, *_TOPICS, "queueIds", *BOUNDS, STRATEGY)
TAKEN = {
    "messages": (*_OF_QUEUES, "tags", "onCorruptRecord", "schema", "includeHeaders"),
    "queues": _OF_QUEUES,
    "index": (*_EVERY_TABLE, *_PARTITIONS),
}
"""The options of each table, and `store.<setting>`."""
TAKEN_BY_STREAMS = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
"""The options that only streams take. They take those of their table too, but for its end."""


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """Which queues, and what of them. Without topics, queue ids and bounds: all that there is.

    `topics` are names; `assigned` queues by topic; `pattern` must match a whole name.
    """

    topics: tuple[str, ...] | None = None
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, frozenset[int]] | None = None
    queue_ids: frozenset[int] | None = None
    start: ReadBound = EARLIEST
    end: ReadBound = LATEST
    tags: TagFilter | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == QueueSelection()

    @property
    def named_topics(self) -> tuple[str, ...] | None:
        """The topics that are read, where they are named; None for any."""
        return tuple(sorted(self.assigned)) if self.assigned is not None else self.topics

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
    """All options of a read. `columns` are those of `offered` that it gives."""

    table: Table
    offered: tuple[Column, ...]
    columns: tuple[Column, ...]
    stores: tuple[StoreAt, ...]
    settings: Settings
    selection: QueueSelection
    limits: PartitionLimits
    fail_on_data_loss: bool
    on_corrupt: OnCorrupt
    triggers: TriggerLimits


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export. Without topics, tags and times: every record of the log.

    Texts are as the source's options have them. `from_ms` and `to_ms` are store times, ms since
    1970; `to_ms` is exclusive, and may be later in the next run. `source` holds further options of
    the source (`store.…`, `maxPartitionBytes`, `minPartitions`, `failOnDataLoss`). A file is closed
    when it has `file_bytes_max`. Without `by_topic` there are folders by day alone.
    """

    topics: str | None = None
    tags: str | None = None
    columns: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    on_corrupt: OnCorrupt = "fail"
    file_bytes_max: int = 512 << 20
    by_topic: bool = True
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_queues(self) -> bool:
        """Whether queues lead to the messages; else the log is read from end to end."""
        return any(
            asked is not None for asked in (self.topics, self.tags, self.from_ms, self.to_ms)
        )


def parse_options(
    given: Mapping[str, str], table_name: str | None = None, use: Use = "batch"
) -> SourceOptions:
    """Options as Spark hands them over: names in any case, values as text.

    `table_name` is the table of a format that shows one alone. Raises UnknownOption, BadOption,
    UnknownColumn, StoreUnreadable.
    """
    options = {name.lower(): value for name, value in given.items()}
    table = _table(options, table_name)
    _check_names(given, table, use)
    selection = _selection(options, use)
    on_corrupt = one_of(options, "onCorruptRecord", ("fail", "skip", "report"), "fail")
    records_max = count(options, "maxRecordsPerPartition")
    is_full_read = use == "batch" and table is MESSAGES and selection.is_everything
    if records_max is not None and is_full_read:
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
    offered = _offered(options, table, on_corrupt == "report")
    return SourceOptions(
        table=table,
        offered=offered,
        columns=_columns(options, table._replace(columns=offered)),
        stores=_stores(options),
        settings=settings,
        selection=selection,
        limits=PartitionLimits(
            count(options, "maxPartitionBytes") or PARTITION_BYTES,
            records_max,
            count(options, "minPartitions", PARTITIONS_MIN_MAX) or 1,
        ),
        fail_on_data_loss=one_of(options, "failOnDataLoss", ("true", "false"), "true") == "true",
        on_corrupt=cast(OnCorrupt, on_corrupt),
        triggers=TriggerLimits(
            count(options, "maxOffsetsPerTrigger"),
            count(options, "maxBytesPerTrigger"),
            count(options, "minOffsetsPerTrigger"),
            duration_ms(options, "maxTriggerDelay", DELAY_MS),
        ),
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


def _check_names(given: Mapping[str, str], table: Table, use: Use) -> None:
    if use == "stream" and table is INDEX:
        raise BadOption("the table index is no stream: its rows are not in order", "another table")
    taken = TAKEN[table.name]
    if use != "batch" and table is not INDEX:
        is_end = use == "stream"
        taken = tuple(name for name in taken if not (is_end and name.startswith("ending")))
        taken += TAKEN_BY_STREAMS
    known = {name.lower() for name in taken}
    for name in given:
        if name.lower() in known or name.lower().startswith((SETTING_PREFIX, FS_PREFIX)):
            continue
        what = "a stream" if use == "stream" else f"table {table.name}"
        raise UnknownOption(
            f"{what} takes no option {name[:80]!r}",
            f"one of {', '.join(taken)}, {SETTING_PREFIX}<setting>,"
            f" {FS_PREFIX}<option of pyarrow.fs>",
        )


def _offered(options: Mapping[str, str], table: Table, with_damage: bool) -> tuple[Column, ...]:
    """The columns that may be chosen."""
    is_kafka = one_of(options, "schema", ("keelog", "kafka"), "keelog") == "kafka"
    has_headers = one_of(options, "includeHeaders", ("true", "false"), "false") == "true"
    if has_headers and not is_kafka:
        raise BadOption("includeHeaders goes with schema=kafka", "the column properties")
    columns = table.columns
    if is_kafka:
        columns = KAFKA.columns if has_headers else KAFKA.columns[:-1]
    return (*columns, DAMAGE) if with_damage else columns


def _columns(options: Mapping[str, str], table: Table) -> tuple[Column, ...]:
    asked = options.get("columns")
    if asked is None:
        return table.columns
    chosen = table.choose([name.strip() for name in asked.split(",")])
    return (*chosen, DAMAGE) if DAMAGE in table.columns and DAMAGE not in chosen else chosen


def _stores(options: Mapping[str, str]) -> tuple[StoreAt, ...]:
    stores = _named_stores(options)
    for store in stores:
        if store.access.flushed_only and store.way is Way.NODE:
            raise BadOption(
                f"isolation=flushed is not for {store.root}: a node gives what consumers get",
                "the node's folder, or flush_disk_type=SYNC_FLUSH, where all of that is flushed",
            )
    return stores


def _named_stores(options: Mapping[str, str]) -> tuple[StoreAt, ...]:
    given = [name for name in ("path", "paths", "nodes") if name in options]
    if len(given) != 1:
        raise BadOption(
            f"{' and '.join(given) if given else 'nothing'} says which store to read",
            'load(\'/path/to/store\'), or the option nodes with JSON: {"name": "/path", …}',
        )
    access = parse_access(options)
    if given == ["nodes"]:
        nodes = json_object(options, "nodes")
        return tuple(
            StoreAt(name, parse_address(path), access) for name, path in sorted(nodes.items())
        )
    paths = [options["path"]] if given == ["path"] else json_value(options, "paths")
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


def _selection(options: Mapping[str, str], use: Use) -> QueueSelection:
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
    return QueueSelection(
        topics=names,
        pattern=None if pattern is None else _pattern(pattern),
        assigned=_assigned(options) if "assign" in options else None,
        queue_ids=_queue_ids(options["queueids"]) if "queueids" in options else None,
        start=starting_bound(options, use),
        end=ending_bound(options),
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
    for topic, ids in json_object(options, "assign").items():
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
