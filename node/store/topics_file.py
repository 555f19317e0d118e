"""`config/topics.json`: RocketMQ's table of topics (TopicConfigManager).

Read tolerantly (the broker's JSON has integer keys without quotes), written with everything
kept that we do not know.
"""

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.store import disk
from protocol.errors import ServiceNotAvailable, StoreDamaged, StorePermission
from protocol.names import QUEUE_ID_MAX, TOPICS_FILE

PERM_READ = 4
PERM_WRITE = 2
PERM_DEFAULT = PERM_READ | PERM_WRITE
_OWNER_HINT = "run as the owner of the store"
_RESTORE_HINT = "restore it from topics.json.bak, or remove it"
_MOVE_HINT = "move it away, as by: keelog store repair DIR"
_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[{,])(\s*)(-?[0-9]+)(\s*):')


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic's settings."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_DEFAULT

    @property
    def is_writable(self) -> bool:
        """Whether messages may be sent to it."""
        return bool(self.perm & PERM_WRITE)

    @property
    def is_readable(self) -> bool:
        """Whether it may be read."""
        return bool(self.perm & PERM_READ)


def parse_broker_json(text: str) -> Any:
    """JSON as the broker writes it: integer keys may stand without quotes."""
    quoted = _BARE_KEY.sub(lambda m: m[1] if m[1] else f'{m[2]}"{m[3]}"{m[4]}:', text)
    return json.loads(quoted)


class TopicsFile:
    """The table in memory. Only the writer saves it; everybody may read it."""

    def __init__(self, root: Path) -> None:
        self.path = root / TOPICS_FILE
        self._document: dict[str, Any] = {}
        self._stamp: tuple[int, int] | None = None
        self.topics: dict[str, Topic] = {}
        self.reload()

    def reload(self) -> bool:
        """Reads the file again when it changed; `.bak` when it is missing, as the broker does.

        Raises StoreDamaged when it cannot be understood.
        """
        path = self.path if self.path.exists() else _copy_of(self.path)
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return False
            self._document, self.topics = _load(path)
        except FileNotFoundError:
            return False
        except PermissionError as error:
            raise StorePermission(f"{path}: {error.strerror}", _OWNER_HINT) from None
        self._stamp = stamp
        return True

    def put(self, topic: Topic, timestamp_ms: int) -> None:
        """Adds or replaces a topic and saves.

        Raises ServiceNotAvailable, disk_full, with nothing changed, and other OSErrors.
        """
        table = self._document.setdefault("topicConfigTable", {})
        entry = table.setdefault(
            topic.name,
            {"attributes": {}, "order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0},
        )
        entry.update(
            topicName=topic.name,
            perm=topic.perm,
            readQueueNums=topic.read_queues,
            writeQueueNums=topic.write_queues,
        )
        self.topics[topic.name] = topic
        self._save(timestamp_ms)

    def remove(self, name: str, timestamp_ms: int) -> bool:
        """Takes a topic out and saves; False when there is none. Raises as `put` does."""
        if self.topics.pop(name, None) is None:
            return False
        del self._document["topicConfigTable"][name]
        self._save(timestamp_ms)
        return True

    def _save(self, timestamp_ms: int) -> None:
        try:
            self._write(timestamp_ms)
        except OSError as error:
            # What the table says is what the file says, also when it could not be written.
            self._document, self.topics, self._stamp = {}, {}, None
            self.reload()
            if error.errno not in disk.DISK_FULL:
                raise
            raise ServiceNotAvailable(
                f"disk_full: no room for {self.path}", "free space; appends then go on"
            ) from None

    def _write(self, timestamp_ms: int) -> None:
        version = self._document.setdefault("dataVersion", {"stateVersion": 0})
        version["counter"] = int(version.get("counter", 0)) + 1
        version["timestamp"] = timestamp_ms
        disk.make_durable_dir(self.path.parent)
        if self.path.exists():
            backup = _copy_of(self.path)
            disk.unlink(backup, missing_ok=True)
            disk.link(self.path, backup)
            disk.sync_dir(self.path.parent)
        text = json.dumps(self._document, indent="\t", sort_keys=True, ensure_ascii=False)
        disk.write_atomically(self.path, text.encode())
        status = self.path.stat()
        self._stamp = (status.st_mtime_ns, status.st_size)


def unreadable_tables(root: Path) -> Iterator[StoreDamaged]:
    """Why the table cannot be understood, and then its copy, which counts when the table is gone.

    Nothing when it can, or is not there. Raises StorePermission.
    """
    path = root / TOPICS_FILE
    for table in (path, _copy_of(path)):
        try:
            _load(table)
        except FileNotFoundError:
            continue
        except PermissionError as error:
            raise StorePermission(f"{table}: {error.strerror}", _OWNER_HINT) from None
        except StoreDamaged as damage:
            yield damage
        else:
            return


def _copy_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _load(path: Path) -> tuple[dict[str, Any], dict[str, Topic]]:
    """The whole document, and its topics. Raises StoreDamaged, OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        # To open a FIFO would be to wait for its other end.
        found = "is no file, but a folder, a FIFO, a socket or a device"
        raise StoreDamaged(str(path), 0, found, _MOVE_HINT)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise StoreDamaged(str(path), 0, "is not UTF-8", _RESTORE_HINT) from None
    document = _parse(path, text) if text.strip() else {}
    table = document.get("topicConfigTable", {})
    return document, {name: _topic(path, name, entry) for name, entry in table.items()}


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        document = parse_broker_json(text)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(str(path), 0, f"is not JSON: {error}", _RESTORE_HINT) from None
    table = document.get("topicConfigTable", {}) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise StoreDamaged(str(path), 0, "has no topicConfigTable", _RESTORE_HINT)
    return dict(document)


def _topic(path: Path, name: str, entry: Any) -> Topic:
    try:
        topic = Topic(
            name,
            int(entry.get("readQueueNums", 0)),
            int(entry.get("writeQueueNums", 0)),
            int(entry.get("perm", PERM_DEFAULT)),
        )
    except (AttributeError, TypeError, ValueError, OverflowError):
        found = f"the entry of topic {name[:80]!a} is no topic"
        raise StoreDamaged(str(path), 0, found, _RESTORE_HINT) from None
    for count in (topic.read_queues, topic.write_queues):
        if not 0 <= count <= QUEUE_ID_MAX + 1:
            found = f"topic {name[:80]!a} has {count} queues"
            raise StoreDamaged(str(path), 0, found, _RESTORE_HINT)
    return topic
