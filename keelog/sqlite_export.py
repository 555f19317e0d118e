"""Every message of a store as rows of an SQLite database, with a table of its keys beside it.

Written under another name in one transaction, and renamed: the name always means a whole database.
SQLite sorts in files beside it meanwhile: the folder for temporary files may be small.
"""

import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from node.runtime.disk import rename, sync_dir, sync_file
from node.store.hints import see_all_damage
from node.store.log.damage import Damage, columns_past_damage
from node.store.query.tag_filter import TagFilter
from node.store.stopped_store import StoppedStore
from pipeline.errors import CorruptRecord
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

Progress = Callable[[int, int], None]


class Chosen(NamedTuple):
    """Which messages: all, or those of topics, tags and store times [`from_ms`, `to_ms`)."""

    topics: frozenset[str] | None = None
    tags: TagFilter | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    skips_damage: bool = False

    def takes(self, record: Record) -> bool:
        """Whether a message is wanted."""
        at = record.head.store_timestamp
        return (
            (self.topics is None or record.topic in self.topics)
            and (self.tags is None or record.tags in self.tags.tags)
            and (self.from_ms is None or at >= self.from_ms)
            and (self.to_ms is None or at < self.to_ms)
        )


class SqliteResult(NamedTuple):
    """The rows and keys that were written, and the damaged places that were passed over."""

    out: str
    rows: int
    keys: int
    damaged: int


def export_sqlite(
    store: StoppedStore, out: Path, chosen: Chosen, overwrite: bool, progress: Progress
) -> SqliteResult:
    """Writes `out`.

    Raises BadRequest when it is there and `overwrite` is not, CorruptRecord, and MqError when it
    cannot be written.
    """
    if out.exists() and not overwrite:
        raise BadRequest(f"{out} is there already", "another name, or --overwrite")
    partial = out.with_name(f"{out.name}.partial")
    partial.unlink(missing_ok=True)
    folder = sorted_in = out.absolute().parent
    try:
        with closing(sqlite3.connect(partial, isolation_level=None)) as database:
            # Nobody reads it before it is renamed, and what a crash leaves is thrown away.
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA synchronous = OFF")
            sorted_in = _sort_in(database, folder)
            database.executescript(TABLES)
            database.execute("BEGIN")
            result = _fill(database, store, chosen, progress)._replace(out=str(out))
            database.execute("COMMIT")
            database.executescript(INDEXES)
        sync_file(partial)
        rename(partial, out)
        sync_dir(folder)
    except sqlite3.OperationalError as error:
        places = " ".join(dict.fromkeys(map(shlex.quote, (str(folder), str(sorted_in)))))
        raise MqError(
            f"{partial} cannot be written: {error}", f"ls -ld {places}; df -h {places}"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return result


def _sort_in(database: sqlite3.Connection, folder: Path) -> Path:
    """Has SQLite sort in `folder`. Returns where it does so: some builds take no such order."""
    quoted = str(folder).replace("'", "''")
    database.execute(f"PRAGMA temp_store_directory = '{quoted}'")
    if database.execute("PRAGMA temp_store_directory").fetchone():
        return folder
    return Path(os.environ.get("SQLITE_TMPDIR") or os.environ.get("TMPDIR") or "/var/tmp")


def _fill(
    database: sqlite3.Connection, store: StoppedStore, chosen: Chosen, progress: Progress
) -> SqliteResult:
    rows = keys = damaged = 0
    log = store.log
    for item in _with_rest(store):
        if isinstance(item, Damage):
            place = f"{item.where}, offset {item.torn.position}: {item.torn.why}"
            if not chosen.skips_damage:
                hint = f"--on-corrupt skip, and {see_all_damage(store.root)}"
                raise CorruptRecord(place, hint)
            damaged += 1
            continue
        shown = store.removed.visible(item)
        window = _WindowRows(shown, chosen)
        database.executemany(_INSERT, window.rows())
        database.executemany(_INSERT_KEY, window.keys)
        rows, keys = rows + window.count, keys + len(window.keys)
        damaged += window.unreadable
        done = item.end - log.min_offset
        progress(done, log.end - log.min_offset)
    return SqliteResult("", rows, keys, damaged)


def _with_rest(store: StoppedStore) -> Iterator[RecordColumns | Damage]:
    """The log, and at its end the damage after which nothing proves itself."""
    log = store.log
    yield from columns_past_damage(log, log.min_offset, log.end)
    if log.stopped is not None:
        where = str(log.segment_at(log.stopped.position).path)
        yield Damage(where, log.stopped, log.end)


class _WindowRows:
    """The messages of one window of the log. One at a time: unpacked bodies may be large."""

    def __init__(self, columns: RecordColumns, chosen: Chosen) -> None:
        self._columns = columns
        self._chosen = chosen
        self.count = 0
        self.unreadable = 0
        self.keys: list[tuple[str, str, int]] = []

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows that are wanted."""
        for row in range(len(self._columns)):
            record = self._columns.record(row)
            if self._chosen.takes(record):
                self.count += 1
                self.keys += ((record.topic, key, record.physical_offset) for key in record.keys)
                yield _row(record, self._body(record))

    def _body(self, record: Record) -> bytes | None:
        """The plain body; None for one that cannot be unpacked, with `skips_damage`."""
        try:
            return record.body
        except BodyUnreadable as error:
            if not self._chosen.skips_damage:
                hint = "--on-corrupt skip, which leaves its body NULL; raw_body has it as stored"
                raise CorruptRecord(error.reason, hint) from None
            self.unreadable += 1
            return None


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
