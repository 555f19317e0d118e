"""The options of sources, writes and exports, parsed and checked before any store is opened.

Names and meanings are those of Spark's Kafka source where it has them (docs/spark.md). Spark hands
options over as text, with names in any case. No Arrow is imported here: the command line has an
export's options without it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from keelog.pipeline import bounds, errors, micro_batch, node_keys, tables
from keelog.pipeline.errors import BadOption
from keelog.pipeline.stores import access
from keelog.pipeline.tables import DAMAGE, Column, Table
from node.runtime.settings import Settings, load_settings
from node.store.query.filters import TagFilter, parse_tags
from protocol.errors import MqError
from protocol.names import check_topic_for_send

Options = Mapping[str, str]
"""As Spark hands them over, but with names in lower case."""
OnCorrupt = Literal["fail", "skip", "report"]
Use = Literal["batch", "stream", "any"]
"""What options are for; `any` while Spark has not said which: what either takes is taken."""

PARTITION_BYTES = 128 << 20
"""maxPartitionBytes, as Spark's own `spark.sql.files.maxPartitionBytes`."""
PARTITIONS_MIN_MAX = 100_000
"""minPartitions: planning takes seconds, and the driver 150 MB, for this many."""
WINDOW_BYTES_MIN = 4096
IN_FLIGHT_MAX = 64
RETRIES_MAX = 1_000
SINK_TIMEOUT_MS = 60_000
SINK_PUBLISH_TIMEOUT_MS = 600_000
SINK_TIMEOUT_MS_MAX = 2**31
_DAY_MS = 86_400_000
SETTING_PREFIX, FETCH_PREFIX, FS_PREFIX = "store.", "fetch.", "fs."

_FETCH: Mapping[str, tuple[str, int, int]] = {
    f"{FETCH_PREFIX}inFlight": ("in_flight", 1, IN_FLIGHT_MAX),
    f"{FETCH_PREFIX}windowBytes": ("window_bytes", WINDOW_BYTES_MIN, access.WINDOW_BYTES_MAX),
    f"{FETCH_PREFIX}timeoutMs": ("timeout_ms", 1, _DAY_MS),
    f"{FETCH_PREFIX}numRetries": ("num_retries", 0, RETRIES_MAX),
    f"{FETCH_PREFIX}retryIntervalMs": ("retry_interval_ms", 1, _DAY_MS),
}
"""The fields of Access that they give, and their bounds."""
_STORES = ("path", "paths", "nodes")
_KEYS = (node_keys.KEY, node_keys.SERVER_KEY)
_EVERY_TABLE = (*_STORES, *_KEYS, "table", "columns", "failOnDataLoss", "isolation", *_FETCH)
_PARTITIONS = ("minPartitions", "maxPartitionBytes", "maxRecordsPerPartition")
_TOPICS = ("subscribe", "topics", "subscribePattern", "assign")
_BOUNDS = tuple(
    f"{side}{what}"
    for side in ("starting", "ending")
    for what in ("Offsets", "Timestamp", "OffsetsByTimestamp")
)
_STRATEGY = "startingOffsetsByTimestampStrategy"
_OF_QUEUES = (*_EVERY_TABLE, *_PARTITIONS, *_TOPICS, "queueIds", *_BOUNDS, _STRATEGY)
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
TAKEN_BY_WRITES = ("node", *_KEYS, "topic", "timeoutMs", "publishTimeoutMs")
_OF_SPARK = ("checkpointlocation", "queryname", "outputmode")
"""Spark's own options of a stream, which it hands over too."""
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_UNIT_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": _DAY_MS}
_DURATION = re.compile(r"([0-9]{1,15})\s*(ms|s|m|min|h|d|)")


def _one_of(options: Options, name: str, known: tuple[str, ...], default: str) -> str:
    value = options.get(name.lower(), default).strip().lower()
    if value not in known:
        raise BadOption(f"{name} is {value[:80]!r}", f"one of {', '.join(known)}")
    return value


def _whole(
    options: Options, name: str, low: int = 1, high: int | None = None, form: str = ""
) -> int | None:
    """A whole number in [`low`, `high`]; None when it is not given."""
    text = options.get(name.lower())
    if text is None:
        return None
    text = text.strip()
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= (high or int(text)):
        upto = "on" if high is None else f"to {high}"
        raise BadOption(f"{name} is {text[:80]!r}", form or f"a whole number from {low} {upto}")
    return int(text)


def _duration_ms(options: Options, name: str, default: int) -> int:
    """A time as Spark writes it, `500ms`, `10s`, `15m`, `2h`; without a unit in milliseconds."""
    text = options.get(name.lower())
    if text is None:
        return default
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise BadOption(f"{name} is {text[:80]!r}", "500ms, 10s, 15m, 2h or 1d")
    return int(found[1]) * _UNIT_MS[found[2]]


def _json(options: Options, name: str) -> Any:
    """JSON in which no object names a key twice."""
    text = options[name.lower()]
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadOption(f"{name} is no JSON: {text[:80]!r}: {error}", "docs/spark.md") from None


def _json_object(options: Options, name: str) -> dict[str, Any]:
    value = _json(options, name)
    if not isinstance(value, dict) or not value:
        raise BadOption(f"{name} is no JSON object with anything in it", "docs/spark.md")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        twice = next(name for name, _ in pairs if [key for key, _ in pairs].count(name) > 1)
        raise BadOption(f"{twice[:80]!r} is named twice in one JSON object", "name it once")
    return dict(pairs)


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """Which queues, and what of them. Without topics, queue ids and bounds: all that there is.

    `topics` are names; `assigned` queues by topic; `pattern` must match a whole name.
    """

    topics: tuple[str, ...] | None = None
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, frozenset[int]] | None = None
    queue_ids: frozenset[int] | None = None
    start: bounds.ReadBound = bounds.EARLIEST
    end: bounds.ReadBound = bounds.LATEST
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
    """All options of a read. `columns` are those of the table that it gives."""

    table: Table
    columns: tuple[Column, ...]
    stores: tuple[access.StoreAt, ...]
    settings: Settings
    selection: QueueSelection
    limits: bounds.PartitionLimits
    fail_on_data_loss: bool
    on_corrupt: OnCorrupt
    triggers: micro_batch.TriggerLimits


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
    on_corrupt = _one_of(options, "onCorruptRecord", ("fail", "skip", "report"), "fail")
    records_max = _whole(options, "maxRecordsPerPartition")
    is_full_read = use == "batch" and table is tables.MESSAGES and selection.is_everything
    if records_max is not None and is_full_read:
        raise BadOption(
            "maxRecordsPerPartition needs a selection of queues: a read of the whole log does not"
            " know beforehand how many records stand where",
            "maxPartitionBytes, or subscribePattern='.*' to read by queues",
        )
    pairs = [
        f"{name}={value}" for name, value in options.items() if name.startswith(SETTING_PREFIX)
    ]
    with errors.naming_conditions():
        settings = load_settings(pairs)
    table = table._replace(columns=_offered(options, table, on_corrupt == "report"))
    return SourceOptions(
        table=table,
        columns=_columns(options, table),
        stores=_stores(options),
        settings=settings,
        selection=selection,
        limits=bounds.PartitionLimits(
            _whole(options, "maxPartitionBytes") or PARTITION_BYTES,
            records_max,
            _whole(options, "minPartitions", high=PARTITIONS_MIN_MAX) or 1,
        ),
        fail_on_data_loss=_one_of(options, "failOnDataLoss", ("true", "false"), "true") == "true",
        on_corrupt=cast(OnCorrupt, on_corrupt),
        triggers=micro_batch.TriggerLimits(
            _whole(options, "maxOffsetsPerTrigger"),
            _whole(options, "maxBytesPerTrigger"),
            _whole(options, "minOffsetsPerTrigger"),
            _duration_ms(options, "maxTriggerDelay", micro_batch.DELAY_MS),
        ),
    )


def _table(options: Mapping[str, str], table_name: str | None) -> Table:
    asked = options.get("table")
    if table_name is not None and asked not in (None, table_name):
        raise BadOption(
            f"table is {asked!r} here, but this format shows {table_name} alone",
            "format('keelog'), which takes the option",
        )
    name = table_name or asked or tables.MESSAGES.name
    if name not in tables.TABLES:
        raise BadOption(f"there is no table {name[:80]!r}", f"one of {', '.join(tables.TABLES)}")
    return tables.TABLES[name]


def _check_names(given: Mapping[str, str], table: Table, use: Use) -> None:
    if use == "stream" and table is tables.INDEX:
        raise BadOption("the table index is no stream: its rows are not in order", "another table")
    taken = TAKEN[table.name]
    if use != "batch" and table is not tables.INDEX:
        is_end = use == "stream"
        taken = tuple(name for name in taken if not (is_end and name.startswith("ending")))
        taken += TAKEN_BY_STREAMS
    known = {name.lower() for name in taken}
    for name in given:
        if name.lower() in known or name.lower().startswith((SETTING_PREFIX, FS_PREFIX)):
            continue
        what = "a stream" if use == "stream" else f"table {table.name}"
        raise errors.UnknownOption(
            f"{what} takes no option {name[:80]!r}",
            f"one of {', '.join(taken)}, {SETTING_PREFIX}<setting>,"
            f" {FS_PREFIX}<option of pyarrow.fs>",
        )


def _offered(options: Mapping[str, str], table: Table, with_damage: bool) -> tuple[Column, ...]:
    """The columns that may be chosen."""
    is_kafka = _one_of(options, "schema", ("keelog", "kafka"), "keelog") == "kafka"
    has_headers = _one_of(options, "includeHeaders", ("true", "false"), "false") == "true"
    if has_headers and not is_kafka:
        raise BadOption("includeHeaders goes with schema=kafka", "the column properties")
    columns = table.columns
    if is_kafka:
        columns = tables.KAFKA.columns if has_headers else tables.KAFKA.columns[:-1]
    return (*columns, DAMAGE) if with_damage else columns


def _columns(options: Mapping[str, str], table: Table) -> tuple[Column, ...]:
    asked = options.get("columns")
    if asked is None:
        return table.columns
    chosen = table.choose([name.strip() for name in asked.split(",")])
    return (*chosen, DAMAGE) if DAMAGE in table.columns and DAMAGE not in chosen else chosen


def _stores(options: Options) -> tuple[access.StoreAt, ...]:
    given = [name for name in _STORES if name in options]
    if len(given) != 1:
        raise BadOption(
            f"{' and '.join(given) if given else 'nothing'} says which store to read",
            'load(\'/path/to/store\'), or the option nodes with JSON: {"name": "/path", …}',
        )
    asked = _access(options)
    if given == ["nodes"]:
        named = sorted(_json_object(options, "nodes").items())
        stores = tuple(
            access.StoreAt(name, access.parse_address(path), asked) for name, path in named
        )
    else:
        paths = [options["path"]] if given == ["path"] else _json(options, "paths")
        if not isinstance(paths, list) or not paths:
            raise BadOption(
                f"paths is {options['paths'][:80]!r}", 'a JSON list: ["/path/1", "/path/2"]'
            )
        roots = [access.parse_address(path) for path in paths]
        stores = tuple(access.StoreAt(access.node_name(root), root, asked) for root in roots)
    if len({store.node for store in stores}) < len(stores):
        raise BadOption(
            "two of the folders have one name, which rows would have as their node",
            'the option nodes with JSON, which names each: {"a": "/path/1", "b": "/path/2"}',
        )
    if asked.keys is not None and all(store.way is not access.Way.NODE for store in stores):
        raise BadOption("key is for a node, and none of the stores is one", "tcp://host:7850")
    for store in stores:
        if asked.flushed_only and store.way is access.Way.NODE:
            raise BadOption(
                f"isolation=flushed is not for {store.root}: a node gives what consumers get",
                "the node's folder, or flush_disk_type=SYNC_FLUSH, where all of that is flushed",
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
    with errors.naming_conditions():
        tags = parse_tags(options.get("tags"))
    return QueueSelection(
        topics=names,
        pattern=None if pattern is None else _pattern(pattern),
        assigned=_assigned(options) if "assign" in options else None,
        queue_ids=_queue_ids(options["queueids"]) if "queueids" in options else None,
        # Batches begin at the earliest row by default, streams after the latest.
        start=_bound(
            options,
            "starting",
            bounds.LATEST if use == "stream" else bounds.EARLIEST,
            bounds.LATEST if use == "batch" else None,
        ),
        end=_bound(options, "ending", bounds.LATEST, bounds.EARLIEST),
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


def _access(options: Options) -> access.Access:
    isolation = _one_of(options, "isolation", ("readable", "flushed"), "readable")
    given = {
        field: found
        for name, (field, low, high) in _FETCH.items()
        if (found := _whole(options, name, low, high)) is not None
    }
    fs = {
        name.removeprefix(FS_PREFIX): value
        for name, value in options.items()
        if name.startswith(FS_PREFIX)
    }
    flushed_only = isolation == "flushed"
    return access.Access(
        **given, fs=tuple(sorted(fs.items())), flushed_only=flushed_only, keys=_keys(options)
    )


def _keys(options: Options) -> node_keys.NodeKeys | None:
    return node_keys.parse_node_keys(*(options.get(name.lower()) for name in _KEYS))


def _bound(
    options: Options, side: str, default: bounds.ReadBound, forbidden: bounds.ReadBound | None
) -> bounds.ReadBound:
    """Of several options for one side the first counts: a time for all, times of each, offsets."""
    form = "milliseconds since 1970 in UTC"
    time_ms = _whole(options, f"{side}Timestamp", low=0, form=form)
    # Queues that are named one by one are expected to have a message each.
    asked = _one_of(options, _STRATEGY, ("error", "latest", ""), "")
    if time_ms is not None:
        must_exist = side == "starting" and asked == "error"
        return bounds.ReadBound("time", time_ms=time_ms, must_exist=must_exist)
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in options:
        must_exist = side == "starting" and asked != "latest"
        times = _of_queues(name, _json_object(options, name), "1700000000000", 0)
        return bounds.ReadBound("times", times, must_exist=must_exist)
    name = f"{side}Offsets"
    word = options.get(name.lower(), default.kind).strip().lower()
    if forbidden is not None and word == forbidden.kind:
        raise BadOption(f"{name} cannot be {word}: there would be no row", f"{default.kind}, JSON")
    if word in ("earliest", "latest"):
        return bounds.EARLIEST if word == "earliest" else bounds.LATEST
    offsets = _of_queues(name, _json_object(options, name), "23", bounds.EARLIEST_OFFSET)
    never = None
    if forbidden is not None:
        never = bounds.EARLIEST_OFFSET if forbidden is bounds.EARLIEST else bounds.LATEST_OFFSET
    for queue, offset in offsets.items():
        if offset == never:
            raise BadOption(
                f"{name} has {offset} for {queue}: there would be no row", "another offset"
            )
    return bounds.ReadBound("offsets", offsets)


def _of_queues(
    name: str, value: Mapping[str, Any], example: str, least: int
) -> dict[bounds.QueueAt, int]:
    """`{"topic": {"0": 23}}`, or with several stores `{"topic": {"node": {"0": 23}}}`."""
    answer: dict[bounds.QueueAt, int] = {}
    for queue, number in _leaves(value):
        if queue is None or type(number) is not int or number < least:
            raise BadOption(
                f"{name} has another form",
                f'{{"topic": {{"0": {example}}}}}, with several stores'
                f' {{"topic": {{"node": {{"0": {example}}}}}}}',
            )
        answer[queue] = number
    return answer


def _leaves(value: Mapping[str, Any]) -> Iterable[tuple[bounds.QueueAt | None, Any]]:
    for topic, inner in value.items():
        if not isinstance(inner, dict):
            yield None, inner
            continue
        for key, leaf in inner.items():
            if isinstance(leaf, dict):
                yield from ((_queue_at(topic, key, number), at) for number, at in leaf.items())
            else:
                yield _queue_at(topic, "", key), leaf


def _queue_at(topic: str, node: str, number: str) -> bounds.QueueAt | None:
    is_number = number.isascii() and number.isdigit()
    return bounds.QueueAt(topic, node, int(number)) if is_number else None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a write. `places`: which column of its rows is which of ours."""

    node: str
    topic: str | None
    timeout_s: float
    publish_timeout_s: float
    places: Mapping[str, int]
    keys: node_keys.NodeKeys | None = None


def parse_sink_options(
    given: Mapping[str, str], fields: Sequence[tuple[str, str]], overwrite: bool
) -> SinkOptions:
    """`fields` are the names of the rows' columns, and Spark's types as text.

    Raises BadMode, UnknownOption, BadOption, UnknownColumn.
    """
    if overwrite:
        raise errors.BadMode(
            "messages cannot be overwritten: a log only grows",
            "mode('append'); for streams outputMode('append')",
        )
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in TAKEN_BY_WRITES} | set(_OF_SPARK)
    for name in given:
        if name.lower() not in known:
            raise errors.UnknownOption(
                f"a write takes no option {name[:80]!r}", f"one of {', '.join(TAKEN_BY_WRITES)}"
            )
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic_for_send(topic)
        except MqError as error:
            raise BadOption(error.reason, error.hint) from None
    found = _sink_places(fields)
    if topic is None and "topic" not in found:
        raise errors.UnknownColumn(
            "nothing says which topic the messages go to", "the option topic, or a column topic"
        )

    def seconds(name: str, default_ms: int) -> float:
        form = "milliseconds, as 60000"
        return (_whole(options, name, 1, SINK_TIMEOUT_MS_MAX, form) or default_ms) / 1000

    return SinkOptions(
        node=_sink_node(options.get("node")),
        topic=topic,
        timeout_s=seconds("timeoutMs", SINK_TIMEOUT_MS),
        publish_timeout_s=seconds("publishTimeoutMs", SINK_PUBLISH_TIMEOUT_MS),
        places=found,
        keys=_keys(options),
    )


def _sink_places(fields: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Which column of the rows is which of ours. Raises UnknownColumn."""
    known = {column.name.lower(): column for column in tables.SINK}
    known["value"] = known["body"]
    found: dict[str, int] = {}
    for place, (given, kind) in enumerate(fields):
        column = known.get(given.lower())
        if column is None:
            raise errors.UnknownColumn(
                f"a message has no column {given[:80]!r}",
                f"select some of {', '.join(column.name for column in tables.SINK)}",
            )
        kinds = tuple(column.ddl.lower().replace(", ", ",").split(" or "))
        kinds = _INTEGERS if kinds == ("int",) else kinds
        if column.name in found:
            raise errors.UnknownColumn(f"column {column.name} is there twice", "select each once")
        if kind.split("(")[0].replace("varchar", "string").replace("char", "string") not in kinds:
            raise errors.UnknownColumn(
                f"column {given} is {kind}, not {' or '.join(kinds)}", "a cast to it"
            )
        found[column.name] = place
    if "body" not in found:
        raise errors.UnknownColumn(
            f"there is no column body in {', '.join(name for name, _ in fields)[:200]}",
            "select('…' AS body); for instance to_json(struct('*')) AS body",
        )
    return found


def _sink_node(address: str | None) -> str:
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
