"""`config/consumerOffset.json`: how far each group has read (RocketMQ's ConsumerOffsetManager).

An entry `topic@group` has the offset of the next message of each queue. One process, the writer,
holds the table and saves it; entries and fields that we do not know stay as they are.
"""

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.regular_file import OFFSETS_FILE_BYTES_MAX, read_bounded
from protocol.errors import BadRequest, NotAllowed, StoreDamaged, UnknownTopic
from protocol.ids import Queue
from protocol.names import CONSUMER_OFFSETS_FILE, QUEUE_ID_MAX
from protocol.remoting.java_json import parse_java_json

log = logging.getLogger("keelog.offsets")

GROUPS_MAX = 20_000
"""Entries of the table: a topic and a group each."""
OFFSETS_MAX = 200_000
"""Offsets of all entries. Those that are there already stay."""
SAVE_EVERY_S = 1.0
_RESTORE_HINT = "restore it from consumerOffset.json.bak, or remove it"
_TABLE = "offsetTable"

Table = dict[str, dict[str, Any]]


class ConsumerOffsets:
    """The table in memory; a thread saves it. All methods are for one thread.

    `ends` returns the end of each queue, `knows` whether a topic exists, `now_ms` the wall clock.
    """

    def __init__(
        self,
        root: Path,
        ends: Mapping[Queue, int],
        knows: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self.path = root / CONSUMER_OFFSETS_FILE
        self._ends = ends
        self._knows = knows
        self._now_ms = now_ms
        self._saver = ThreadPoolExecutor(1, "keelog-offsets")
        self._saving: Future[None] | None = None
        self._save_at = 0.0
        self._is_dirty = False
        self._damage: StoreDamaged | None = None
        self._document: dict[str, Any] = {}
        self._table: Table = {}
        self._load()

    def get(self, topic: str, group: str) -> dict[int, int]:
        """The offset of the next message of each queue; empty for a group without a place.

        Raises StoreDamaged for a file that cannot be read.
        """
        self._check_readable()
        entry = self._table.get(f"{topic}@{group}", {})
        return {int(queue): offset for queue, offset in entry.items() if _is_offset(queue, offset)}

    def commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Notes how far a group has come. The file has it within about a second.

        Raises BadRequest for an offset beyond the end of its queue, UnknownTopic, NotAllowed for
        one group too many, StoreDamaged.
        """
        self._check_readable()
        if not self._knows(topic):
            raise UnknownTopic(f"there is no topic {topic}", "see the topics with: keelog topic ls")
        for queue_id, offset in offsets.items():
            end = self._ends.get(Queue(topic, queue_id), 0)
            if offset > end:
                raise BadRequest(
                    f"queue {queue_id} of {topic} ends at {end}, {offset} is beyond it",
                    "commit the offset after a message that you have read",
                )
        key = f"{topic}@{group}"
        entry = self._table.get(key, {})
        changed = {**entry, **{str(queue): offset for queue, offset in offsets.items()}}
        if changed == entry:
            return
        self._check_room(key, len(changed) - len(entry))
        self._table[key] = changed
        self._is_dirty = True

    def forget(self, topic: str) -> None:
        """Drops the entries of a topic that was removed."""
        gone = [key for key in self._table if key.startswith(f"{topic}@")]
        for key in gone:
            del self._table[key]
        self._is_dirty = self._is_dirty or bool(gone)

    def turn(self, now: float) -> None:
        """Begins a save when one is due, and takes the result of the last. Raises StoreMoved."""
        if self._saving is not None:
            if not self._saving.done():
                return
            self._collect()
        if self._is_dirty and now >= self._save_at:
            self._save_at = now + SAVE_EVERY_S
            self._begin()

    def save(self) -> None:
        """Saves what is not saved, and waits for it. Raises StoreMoved."""
        if self._saving is not None:
            self._collect()
        if self._is_dirty:
            self._begin()
            self._collect()

    def close(self) -> None:
        """Saves what is not saved, and ends the thread."""
        self.save()
        self._saver.shutdown()

    def _begin(self) -> None:
        self._is_dirty = False
        version = dict(self._document.get("dataVersion") or {"stateVersion": 0})
        version["counter"] = int(version.get("counter") or 0) + 1
        version["timestamp"] = self._now_ms()
        self._document["dataVersion"] = version
        # An entry is replaced, never changed, so that a copy of the table is a snapshot.
        document = {**self._document, _TABLE: dict(self._table)}
        self._saving = self._saver.submit(_save, self.path, document)

    def _collect(self) -> None:
        """Waits for the save. Without room on the disk it is tried again."""
        assert self._saving is not None
        try:
            self._saving.result()
        except OSError as error:
            self._is_dirty = True
            log.warning(
                "the offsets of consumers were not saved",
                extra=fields(file=self.path, why=error.strerror),
            )
        finally:
            self._saving = None

    def _load(self) -> None:
        """Reads the file, or `.bak` where it cannot be read, as a broker does.

        A place beyond the end of its queue, as after a power loss that took unflushed messages,
        becomes the end: the next messages get these offsets, and must not be passed over.
        """
        for path in (self.path, disk.backup_of(self.path)):
            try:
                self._document = _read(path)
            except FileNotFoundError:
                continue
            except StoreDamaged as damage:
                log.warning("cannot be read", extra=fields(file=path, why=damage.found))
                self._damage = self._damage or damage
                continue
            self._damage = None
            break
        self._table = self._document.pop(_TABLE, {})
        for key, entry in self._table.items():
            self._table[key] = self._bounded(key, entry)

    def _bounded(self, key: str, entry: dict[str, Any]) -> dict[str, Any]:
        topic = key.partition("@")[0]
        if not self._knows(topic):
            return entry
        bounded = {
            queue: min(offset, self._ends.get(Queue(topic, int(queue)), 0))
            for queue, offset in entry.items()
            if _is_offset(queue, offset)
        }
        self._is_dirty = self._is_dirty or any(entry[queue] != bounded[queue] for queue in bounded)
        return {**entry, **bounded}

    def _check_readable(self) -> None:
        if self._damage is not None:
            raise self._damage

    def _check_room(self, key: str, more: int) -> None:
        groups = len(self._table) + (key not in self._table)
        if more and (
            groups > GROUPS_MAX or sum(map(len, self._table.values())) + more > OFFSETS_MAX
        ):
            raise NotAllowed(
                f"{len(self._table)} cursors and groups are there already: {GROUPS_MAX} are"
                f" allowed, with {OFFSETS_MAX} queues",
                "use a cursor that is there, or remove topics that nobody reads",
            )


def _save(path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent="\t", sort_keys=True, ensure_ascii=False)
    disk.write_with_backup(path, text.encode())


def _read(path: Path) -> dict[str, Any]:
    """Raises StoreDamaged for what is not such a table, OSError."""
    text = read_bounded(path, OFFSETS_FILE_BYTES_MAX).decode("utf-8", "replace")
    try:
        document = parse_java_json(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(str(path), 0, f"is not JSON: {error}", _RESTORE_HINT) from None
    table = document.get(_TABLE, {}) if isinstance(document, dict) else None
    if not isinstance(table, dict) or not all(isinstance(one, dict) for one in table.values()):
        raise StoreDamaged(str(path), 0, f"has no {_TABLE}", _RESTORE_HINT)
    return {**document, _TABLE: table}


def _is_offset(queue: str, offset: Any) -> bool:
    """Whether an item of an entry is a queue with its offset; old stores hold negative ones."""
    is_queue = queue.isascii() and queue.isdigit() and len(queue) <= len(str(QUEUE_ID_MAX))
    return is_queue and type(offset) is int and 0 <= offset < 2**63
