"""Messages as rows of an SQLite database, with a table of their keys beside them.

An exported file is written under another name and renamed, a database in one transaction: the name
always means a whole file. SQLite sorts in files beside it meanwhile: the folder for temporary
files may be small.
"""

import os
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from keelog.pipeline.errors import CorruptRecord
from keelog.pipeline.options import ExportOptions
from keelog.text import Advance
from node.runtime.disk import rename, sync_dir, sync_file
from node.store.file_cache import see_all_damage
from node.store.log.reader import Damage, columns_past_damage
from node.store.opening import StoppedStore
from node.store.query.filters import parse_tags
from protocol.errors import BadRequest, BodyUnreadable, MqError
from protocol.record.bodies import COMPRESSED
from protocol.record.codec import Record
from protocol.record.columns import RecordColumns

TABLES = """
CREATE TABLE messages (
  physical_offset INTEGER PRIMARY KEY, topic TEXT, queue_id INTEGER, queue_offset INTEGER,
  store_size INTEGER, msg_id TEXT, unique_key TEXT, tags TEXT, properties TEXT, flag INTEGER,
  sys_flag INTEGER, born_timestamp INTEGER, born_host TEXT, store_timestamp INTEGER,
  store_host TEXT, body_crc INTEGER, reconsume_times INTEGER, prepared_transaction_offset INTEGER,
  body BLOB, raw_body BLOB
);
CREATE TABLE keys (topic TEXT, key TEXT, physical_offset INTEGER REFERENCES messages);
"""
INDEXES = """
CREATE INDEX messages_by_queue ON messages (topic, queue_id, queue_offset);
CREATE INDEX messages_by_time ON messages (store_timestamp);
CREATE INDEX keys_by_key ON keys (topic, key);
"""
_INSERT = f"INSERT INTO messages VALUES ({', '.join('?' * 20)})"
_encode = msgspec.json.Encoder().encode
_INSERT_KEY = "INSERT INTO keys VALUES (?, ?, ?)"
_RECORDS_AT_ONCE = 1000
"""The keys of this many wait in memory."""
PlainBody = Callable[[Record], bytes | None]
"""A message's body without compression; None for one that cannot be unpacked."""


def chosen_by(asked: ExportOptions) -> Callable[[Record], bool]:
    """Says which messages are wanted: all, or those of topics, tags and store times [`from_ms`,
    `to_ms`). Raises BadRequest."""
    topics, tags, names = asked.topics, parse_tags(asked.tags), frozenset[str]()
    if topics is not None:
        names = frozenset(name.strip() for name in topics.split(","))

    def takes(record: Record) -> bool:
        at = record.head.store_timestamp
        return (
            (topics is None or record.topic in names)
            and (tags is None or record.tags in tags.tags)
            and (asked.from_ms is None or at >= asked.from_ms)
            and (asked.to_ms is None or at < asked.to_ms)
        )

    return takes


class SqliteResult(NamedTuple):
    """The rows and keys that were written, and the damaged places that were passed over."""

    out: str
    rows: int
    keys: int
    damaged: int


class SqliteTables:
    """The tables of a database that is being written, and the number of their rows."""

    def __init__(self, database: sqlite3.Connection, body: PlainBody) -> None:
        self._database = database
        self._body = body
        self.rows = 0
        self.keys = 0

    def add(self, records: Iterator[Record]) -> None:
        """Messages and their keys. One message at a time: unpacked bodies may be large."""
        while True:
            before = self.rows
            keys: list[tuple[str, str, int]] = []
            rows = self._rows(islice(records, _RECORDS_AT_ONCE), keys)
            self._database.executemany(_INSERT, rows)
            self._database.executemany(_INSERT_KEY, keys)
            self.keys += len(keys)
            if self.rows == before:
                return

    def _rows(
        self, records: Iterable[Record], keys: list[tuple[str, str, int]]
    ) -> Iterator[tuple[Any, ...]]:
        for record in records:
            self.rows += 1
            keys += ((record.topic, key, record.physical_offset) for key in record.keys)
            yield _row(record, self._body(record))


@contextmanager
def sqlite_file(out: Path, overwrite: bool, body: PlainBody) -> Iterator[SqliteTables]:
    """The tables of `out`, which is there after the block, whole. Raises BadRequest when it is
    there and `overwrite` is not, MqError when it cannot be written."""
    folder = sorted_in = out.absolute().parent
    with whole_file(out, overwrite) as partial:
        try:
            with closing(sqlite3.connect(partial, isolation_level=None)) as database:
                # Nobody reads it before it is renamed, and what a crash leaves is thrown away.
                database.execute("PRAGMA journal_mode = OFF")
                database.execute("PRAGMA synchronous = OFF")
                sorted_in = _sort_in(database, folder)
                database.executescript(TABLES)
                database.execute("BEGIN")
                yield SqliteTables(database, body)
                database.execute("COMMIT")
                database.executescript(INDEXES)
        except sqlite3.OperationalError as error:
            places = " ".join(dict.fromkeys(map(shlex.quote, (str(folder), str(sorted_in)))))
            raise MqError(
                f"{partial} cannot be written: {error}", f"ls -ld {places}; df -h {places}"
            ) from None


def export_sqlite(
    store: StoppedStore,
    out: Path,
    takes: Callable[[Record], bool],
    skips_damage: bool,
    overwrite: bool,
    progress: Advance,
) -> SqliteResult:
    """Writes what `takes` wants. Raises what `sqlite_file` raises, and CorruptRecord."""
    damaged = 0

    def plain(record: Record) -> bytes | None:
        nonlocal damaged
        try:
            return record.body
        except BodyUnreadable as error:
            if not skips_damage:
                hint = "--on-corrupt skip, which leaves its body NULL; raw_body has it as stored"
                raise CorruptRecord(error.reason, hint) from None
            damaged += 1
            return None

    log = store.log
    with sqlite_file(out, overwrite, plain) as tables:
        for item in _with_rest(store):
            if isinstance(item, Damage):
                if not skips_damage:
                    place = f"{item.where}, offset {item.torn.position}: {item.torn.why}"
                    hint = f"--on-corrupt skip, and {see_all_damage(store.root)}"
                    raise CorruptRecord(place, hint)
                damaged += 1
                continue
            shown = store.removed.visible(item)
            tables.add(filter(takes, map(shown.record, range(len(shown)))))
            progress(item.end - log.min_offset, log.end - log.min_offset)
    return SqliteResult(str(out), tables.rows, tables.keys, damaged)


@contextmanager
def whole_file(out: Path, overwrite: bool) -> Iterator[Path]:
    """The path to write to; it becomes `out` after the block, and goes away when that fails. Raises
    BadRequest when `out` is there and `overwrite` is not."""
    if out.exists() and not overwrite:
        raise BadRequest(f"{out} is there already", "another name, or --overwrite")
    partial = out.with_name(f"{out.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        sync_file(partial)
        rename(partial, out)
        sync_dir(out.absolute().parent)
    finally:
        partial.unlink(missing_ok=True)


def _sort_in(database: sqlite3.Connection, folder: Path) -> Path:
    """Has SQLite sort in `folder`. Returns where it does so: some builds take no such order."""
    quoted = str(folder).replace("'", "''")
    database.execute(f"PRAGMA temp_store_directory = '{quoted}'")
    if database.execute("PRAGMA temp_store_directory").fetchone():
        return folder
    return Path(os.environ.get("SQLITE_TMPDIR") or os.environ.get("TMPDIR") or "/var/tmp")


def _with_rest(store: StoppedStore) -> Iterator[RecordColumns | Damage]:
    """The log, and at its end the damage after which nothing proves itself."""
    log = store.log
    yield from columns_past_damage(log, log.min_offset, log.end)
    if log.stopped is not None:
        where = str(log.segment_at(log.stopped.position).path)
        yield Damage(where, log.stopped, log.end)


def _row(record: Record, body: bytes | None) -> tuple[Any, ...]:
    head = record.head
    return (
        head.physical_offset,
        record.topic,
        head.queue_id,
        head.queue_offset,
        head.total_size,
        record.message_id,
        record.unique_key or None,
        record.tags or None,
        _encode(record.properties).decode(),
        head.flag,
        head.sys_flag,
        head.born_timestamp,
        str(record.born_host),
        head.store_timestamp,
        str(record.store_host),
        head.body_crc,
        head.reconsume_times,
        head.prepared_transaction_offset,
        body,
        record.raw_body if head.sys_flag & COMPRESSED else None,
    )
