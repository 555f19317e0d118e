"""`config/topics.json`: RocketMQ's table of topics (TopicConfigManager).

Reading takes the broker's JSON, whose integer keys have no quotes. Writing keeps every field that
we do not know. A node offers RocketMQ's TopicAttributes as far as it has them. A table may have
others, from a broker: such a topic is served as one without them.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.shortage import refusal_for
from node.runtime.store_paths import TOPICS_FILE_BYTES_MAX, check_held, read_bounded
from node.store.file_cache import refuse
from protocol.errors import NotAllowed, StoreDamaged
from protocol.names import QUEUE_ID_MAX, TOPICS_FILE
from protocol.remoting.java_json import parse_java_json

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
"""A send may create topics by the settings of this one (PermName)."""
PERM_DEFAULT = PERM_READ | PERM_WRITE
MESSAGE_TYPE, CLEANUP, QUEUE_TYPE = "message.type", "cleanup.policy", "queue.type"
LITE_EXPIRATION = "lite.topic.expiration"
RESERVE_TIME = "reserve.time"
"""In hours. A request to make a topic names them as retention_hours."""
OFFERED: Mapping[str, tuple[str, ...]] = {
    QUEUE_TYPE: ("SimpleCQ",),
    CLEANUP: ("DELETE",),
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}

_NEW_ENTRY = {"attributes": {}, "order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
_RESTORE_HINT = "restore it from topics.json.bak, or remove it"
_REASONS: Mapping[tuple[str, str], str] = {
    (CLEANUP, "COMPACTION"): "messages are kept by age and size alone",
    (QUEUE_TYPE, "BatchCQ"): "queues have one unit for each message",
    (MESSAGE_TYPE, "PRIORITY"): "messages have no priority",
    (MESSAGE_TYPE, "LITE"): "there are no lite topics",
}
_LEAVE_OUT_HINT = "leave the attribute out"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic's settings. `retention_hours`: 0 where the node's `file_reserved_time` counts.

    The rest is RocketMQ's: the node keeps it for clients, and does nothing by it. `attributes` are
    pairs of a name and a value, sorted, without RESERVE_TIME.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_DEFAULT
    retention_hours: int = 0
    is_ordered: bool = False
    sys_flag: int = 0
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def is_writable(self) -> bool:
        """True if messages may be sent to it."""
        return bool(self.perm & PERM_WRITE)


class TopicsFile:
    """The table in memory. Only the writer saves it; everybody may read it."""

    def __init__(self, root: Path) -> None:
        self.path = root / TOPICS_FILE
        self._document: dict[str, Any] = {}
        self._stamp: tuple[int, int] | None = None
        self.topics: dict[str, Topic] = {}
        self.reload()

    def reload(self) -> bool:
        """Reads the file again if it changed; without the file `.bak`, as a broker does.

        Returns True if it read one.
        Raises StoreDamaged for a file that makes no sense, StorePermission, StoreMoved.
        """
        check_held()
        path = self.path if os.path.lexists(self.path) else disk.backup_of(self.path)
        try:
            status = path.lstat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return False
            self._document, self.topics = _load(path)
        except FileNotFoundError:
            return False
        except PermissionError as error:
            refuse(path, error)
        self._stamp = stamp
        return True

    @property
    def version(self) -> int:
        """The counter of the table, which rises with each save."""
        return int(self._document.get("dataVersion", {}).get("counter", 0))

    def put(self, topics: Iterable[Topic], timestamp_ms: int) -> None:
        """Adds or replaces topics and saves once: the whole table is written, and synced.

        Raises ServiceNotAvailable, disk_full or no_resources, with nothing changed, and other
        OSErrors.
        """
        topics = list(topics)
        table = dict(self._document.get("topicConfigTable", {}))
        for topic in topics:
            known, hours = table.get(topic.name, _NEW_ENTRY), topic.retention_hours
            reserve_time = {RESERVE_TIME: str(hours)} if hours else {}
            table[topic.name] = {
                **known,
                "attributes": {**dict(topic.attributes), **reserve_time},
                "topicName": topic.name,
                "perm": topic.perm,
                "readQueueNums": topic.read_queues,
                "writeQueueNums": topic.write_queues,
                "order": topic.is_ordered,
                "topicSysFlag": topic.sys_flag,
            }
        self._save(table, timestamp_ms)
        self.topics.update((topic.name, topic) for topic in topics)

    def adopt(self, document: dict[str, Any]) -> bool:
        """Replaces the table by that of a master, version included; False where it is the same.

        Raises StoreDamaged for one that makes no sense, and as `put` does.
        """
        known = {name: self._document.get(name) for name in document}
        if known == document:
            return False
        table = document.get("topicConfigTable", {})
        topics = {name: _topic(self.path, name, entry) for name, entry in table.items()}
        self._save_document({**self._document, **document})
        self.topics = topics
        return True

    def write_again(self) -> bool:
        """Writes the table as it is where somebody has removed its file; False where it is there.

        Raises OSError.
        """
        if not self._document or os.path.lexists(self.path):
            return False
        disk.make_durable_dir(self.path.parent)
        self._write(self._document)
        return True

    def begin(self, above: int, timestamp_ms: int) -> None:
        """Writes a table without topics, of a later version than `above`. Raises OSError."""
        version = {"counter": above + 1, "stateVersion": 0, "timestamp": timestamp_ms}
        document = {"dataVersion": version, "topicConfigTable": {}}
        disk.make_durable_dir(self.path.parent)
        self._write(document)
        self._document, self.topics = document, {}

    def remove(self, name: str, timestamp_ms: int) -> bool:
        """Takes a topic out and saves; False when there is none. Raises as `put` does."""
        if name not in self.topics:
            return False
        table = self._document["topicConfigTable"]
        self._save({other: table[other] for other in table if other != name}, timestamp_ms)
        del self.topics[name]
        return True

    def _save(self, table: dict[str, Any], timestamp_ms: int) -> None:
        """Writes the table. If that fails, the table in memory becomes that of the file again."""
        version = dict(self._document.get("dataVersion", {"stateVersion": 0}))
        version["counter"] = self.version + 1
        version["timestamp"] = timestamp_ms
        self._save_document({**self._document, "dataVersion": version, "topicConfigTable": table})

    def _save_document(self, document: dict[str, Any]) -> None:
        """As `_save`, for the whole file."""
        try:
            self._write(document)
        except OSError as error:
            if error.errno not in disk.PASSING:
                raise
            self._stamp = None
            with suppress(OSError):  # the error may have come after the new table was in place
                self.reload()
            raise refusal_for(error, str(self.path)) from None
        self._document = document

    def _write(self, document: dict[str, Any]) -> None:
        text = json.dumps(document, indent="\t", sort_keys=True, ensure_ascii=False)
        disk.write_with_backup(self.path, text.encode())
        status = self.path.stat()
        self._stamp = (status.st_mtime_ns, status.st_size)


def unreadable_tables(root: Path) -> Iterator[StoreDamaged]:
    """Yields what is wrong with the table, then with its copy, which counts without the table.

    Ends at the first of the two that can be read. Raises StorePermission.
    """
    path = root / TOPICS_FILE
    for table in (path, disk.backup_of(path)):
        try:
            _load(table)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            refuse(table, error)
        except StoreDamaged as damage:
            yield damage
        else:
            return


def _load(path: Path) -> tuple[dict[str, Any], dict[str, Topic]]:
    """The whole document, and its topics. Raises StoreDamaged, OSError."""
    try:
        text = read_bounded(path, TOPICS_FILE_BYTES_MAX).decode()
    except UnicodeDecodeError:
        raise StoreDamaged(str(path), 0, "is not UTF-8", _RESTORE_HINT) from None
    document = _parse_table(path, text) if text.strip() else {}
    table = document.get("topicConfigTable", {})
    return document, {name: _topic(path, name, entry) for name, entry in table.items()}


def _parse_table(path: Path, text: str) -> dict[str, Any]:
    try:
        document = parse_java_json(text)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(str(path), 0, f"is not JSON: {error}", _RESTORE_HINT) from None
    table = document.get("topicConfigTable", {}) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise StoreDamaged(str(path), 0, "has no topicConfigTable", _RESTORE_HINT)
    return dict(document)


def _topic(path: Path, name: str, entry: Any) -> Topic:
    try:
        attributes = {
            str(key): str(value) for key, value in (entry.get("attributes") or {}).items()
        }
        topic = Topic(
            name,
            int(entry.get("readQueueNums", 0)),
            int(entry.get("writeQueueNums", 0)),
            int(entry.get("perm", PERM_DEFAULT)),
            max(0, int(attributes.pop(RESERVE_TIME, 0))),
            entry.get("order") is True,
            int(entry.get("topicSysFlag", 0)),
            tuple(sorted(attributes.items())),
        )
    except (AttributeError, TypeError, ValueError, OverflowError):
        text = f"the entry of topic {name[:80]!a} is no topic"
        raise StoreDamaged(str(path), 0, text, _RESTORE_HINT) from None
    for count in (topic.read_queues, topic.write_queues):
        if not 0 <= count <= QUEUE_ID_MAX + 1:
            found = f"topic {name[:80]!a} has {count} queues"
            raise StoreDamaged(str(path), 0, found, _RESTORE_HINT)
    return topic


def reason_not_offered(name: str, value: str) -> str:
    """Why a node does not offer an attribute; empty where it does."""
    if value in OFFERED.get(name, ()):
        return ""
    if name == LITE_EXPIRATION:
        return _REASONS[MESSAGE_TYPE, "LITE"]
    if name in OFFERED:
        return _REASONS.get((name, value), f"it may be {', '.join(OFFERED[name])}")
    return "a node does not know it"


def check_offered(wanted: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Raises NotAllowed for what a topic does not have already, as `known` says."""
    for name, value in sorted(wanted.items()):
        if known.get(name) == value:
            continue
        if name == RESERVE_TIME:
            raise NotAllowed(f"{name} is no attribute here", "name retention_hours")
        why = reason_not_offered(name, value)
        if why:
            text = f"a node does not offer {name[:80]}={value[:80]}: {why}"
            raise NotAllowed(text, _LEAVE_OUT_HINT)
