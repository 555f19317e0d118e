"""The tables of a store: names, Spark types and meanings of their columns."""

from collections.abc import Sequence
from typing import NamedTuple

from keelog.pipeline.errors import UnknownColumn


class Column(NamedTuple):
    """One column; `ddl` is its Spark SQL type. All may be NULL as far as Spark is concerned."""

    name: str
    ddl: str
    meaning: str


class Table(NamedTuple):
    """What one format shows."""

    name: str
    columns: tuple[Column, ...]

    def choose(self, names: Sequence[str]) -> tuple[Column, ...]:
        """Columns by name, case aside, in the order given. Raises UnknownColumn."""
        known = {column.name.lower(): column for column in self.columns}
        chosen: dict[str, Column] = {}
        for name in names:
            column = known.get(name.lower())
            if column is None:
                raise UnknownColumn(
                    f"table {self.name} has no column {name[:80]!r}", f"one of {self.names()}"
                )
            if column.name in chosen:
                raise UnknownColumn(f"column {column.name} is asked for twice", "name each once")
            chosen[column.name] = column
        return tuple(chosen.values())

    def names(self) -> str:
        return ", ".join(column.name for column in self.columns)


def ddl(columns: Sequence[Column]) -> str:
    """Columns as Spark's DDL, which needs no session to be read later."""
    return ", ".join(f"`{column.name}` {column.ddl}" for column in columns)


_NODE = Column("node", "STRING", "which store: its name in `nodes`, else that of its folder")
_PLACE = (
    Column("topic", "STRING", "topic"),
    Column("queueId", "INT", "queue of the topic"),
    Column("queueOffset", "BIGINT", "number of the message in its queue"),
)
_PHYSICAL_OFFSET = Column("physicalOffset", "BIGINT", "log offset of the record, in bytes")

MESSAGES = Table(
    "messages",
    (
        *_PLACE,
        Column("body", "BINARY", "the body, without its producer's compression"),
        Column(
            "rawBody",
            "BINARY",
            "the body as stored where it is compressed, as `sysFlag` says; else NULL",
        ),
        Column("tags", "STRING", "TAGS, NULL without"),
        Column("keys", "ARRAY<STRING>", "the single keys of KEYS, empty without"),
        Column("uniqKey", "STRING", "UNIQ_KEY, the id that the client gave, NULL without"),
        Column("properties", "MAP<STRING, STRING>", "all properties, those above included"),
        Column("flag", "INT", "the sender's own number"),
        Column("sysFlag", "INT", "compression, transaction and IPv6 bits"),
        Column("bornTimestamp", "TIMESTAMP", "when it was made"),
        Column("bornHost", "STRING", "who made it, `address:port`"),
        Column("storeTimestamp", "TIMESTAMP", "when it was stored"),
        Column("storeHost", "STRING", "who stored it first, `address:port`"),
        Column("reconsumeTimes", "INT", "how often it was sent back"),
        Column("preparedTransactionOffset", "BIGINT", "log offset of the half message"),
        Column("bodyCrc", "INT", "CRC-32 of the body as stored, without the top bit"),
        Column("msgId", "STRING", "offset message id: store host and log offset in hex"),
        _PHYSICAL_OFFSET,
        Column("storeSize", "INT", "bytes of the whole record"),
        _NODE,
    ),
)

DAMAGE = Column("damage", "STRING", "NULL for a message; else what is wrong at this place")
"""The column that messages have besides with `onCorruptRecord=report`."""

KAFKA = Table(
    MESSAGES.name,
    (
        Column("key", "BINARY", "KEYS, NULL without"),
        Column("value", "BINARY", "the body, without its producer's compression"),
        Column("topic", "STRING", "topic"),
        Column("partition", "INT", "queue of the topic"),
        Column("offset", "BIGINT", "number of the message in its queue"),
        Column("timestamp", "TIMESTAMP", "when it was stored"),
        Column("timestampType", "INT", "always 1: given by the node, not by the sender"),
        Column(
            "headers",
            "ARRAY<STRUCT<key: STRING, value: BINARY>>",
            "with `includeHeaders`: all properties, NULL without any",
        ),
    ),
)
"""`messages` with `schema=kafka`: names and types of Spark's Kafka source."""

QUEUES = Table(
    "queues",
    (
        *_PLACE,
        _PHYSICAL_OFFSET,
        Column("storeSize", "INT", "bytes of the record; 2147483647 for a filler unit"),
        Column("tagsCode", "BIGINT", "hash of TAGS, or the delivery time of a delayed message"),
        _NODE,
    ),
)

INDEX = Table(
    "index",
    (
        Column("file", "STRING", "name of the index file"),
        Column("entry", "INT", "number of the entry in its file, from 1 on"),
        Column("slot", "INT", "hash bucket that the entry belongs to"),
        Column("keyHash", "INT", "|Java hash of topic#key|"),
        _PHYSICAL_OFFSET,
        Column("storeTimestamp", "TIMESTAMP", "when the record was stored, to the second"),
        Column("prevEntry", "INT", "the bucket's entry before this one, 0 for none"),
        _NODE,
    ),
)

TABLES = {table.name: table for table in (MESSAGES, QUEUES, INDEX)}

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
"""Rows to write. All may be left out but the body, and the topic where the option is not given."""
