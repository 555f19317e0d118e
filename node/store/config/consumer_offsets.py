"""`config/consumerOffset.json`: how far each group has read (RocketMQ's ConsumerOffsetManager).

An entry `topic@group` has the offset of the next message of each queue. One process, the writer,
holds the table and saves it; entries and fields that we do not know stay as they are.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime.event_log import fields
from node.runtime.store_paths import OFFSETS_FILE_BYTES_MAX, read_bounded
from node.store.config.config_table import ConfigTable
from protocol.errors import BadRequest, NotAllowed, StoreDamaged, UnknownTopic
from protocol.ids import Queue
from protocol.names import CONSUMER_OFFSETS_FILE, QUEUE_ID_MAX
from protocol.remoting.java_json import parse_java_json

log = logging.getLogger("keelog.writer")

GROUPS_MAX = 20_000
"""Entries of the table: a topic and a group each."""
OFFSETS_MAX = 1_000_000
"""Offsets of all entries. Those that are there already stay."""


class GroupPlaces(NamedTuple):
    """How far a group has come in a topic. `moved_ms`: when a queue's offset changed last, in ms
    since 1970, of the queues where it did since the start."""

    group: str
    topic: str
    offsets: Mapping[int, int]
    moved_ms: Mapping[int, int]


class ConsumerOffsets(ConfigTable):
    """The table in memory. All methods are for one thread.

    `ends` returns the end of each queue, `knows` whether a topic exists, `now_ms` the wall clock.
    """

    def __init__(
        self,
        root: Path,
        ends: Mapping[Queue, int],
        knows: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(root / CONSUMER_OFFSETS_FILE, "offsetTable", now_ms)
        self._ends = ends
        self._knows = knows
        self._moved_ms: dict[str, dict[int, int]] = {}
        """By entry and queue: when its offset changed last, of those that did since the start."""
        self._bound()
        self._count = sum(map(len, self.entries.values()))

    def get(self, topic: str, group: str) -> dict[int, int]:
        """The offset of the next message of each queue; empty for a group without a place.

        Raises StoreDamaged for a file that cannot be read.
        """
        self.check_readable()
        entry = self.entries.get(f"{topic}@{group}", {})
        return {int(queue): offset for queue, offset in entry.items() if _is_offset(queue, offset)}

    def commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Notes how far a group has come. The file has it within about a second.

        Raises BadRequest for an offset beyond the end of its queue, UnknownTopic, NotAllowed for
        one group too many, StoreDamaged.
        """
        self.check_readable()
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
        entry = self.entries.get(key, {})
        changed = {**entry, **{str(queue): offset for queue, offset in offsets.items()}}
        if changed == entry:
            return
        self._check_room(key, len(changed) - len(entry))
        self._replace(key, entry, changed)

    def adopt(self, table: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes over a master's offsets: its places replace ours, and no entry goes away.

        Raises StoreDamaged for our own file.
        """
        self.check_readable()
        for key, theirs in table.items():
            entry = self.entries.get(key, {})
            sound = {queue: offset for queue, offset in theirs.items() if _is_offset(queue, offset)}
            changed = {**entry, **sound}
            if changed != entry or key not in self.entries:
                self._check_room(key, len(changed) - len(entry))
                self._replace(key, entry, changed)

    def _replace(self, key: str, entry: dict[str, Any], changed: dict[str, Any]) -> None:
        now = self._now_ms()
        moved = self._moved_ms.setdefault(key, {})
        for queue, offset in changed.items():
            if entry.get(queue) != offset and _is_offset(queue, offset):
                moved[int(queue)] = now
        self._count += len(changed) - len(entry)
        self.entries[key] = changed
        self.touch()

    def all_of(self, group: str | None) -> list[GroupPlaces]:
        """The places of each entry, those of one group or of all, in order."""
        self.check_readable()
        found: list[GroupPlaces] = []
        for key in sorted(self.entries):
            topic, _, name = key.partition("@")
            if name and "@" not in name and group in (None, name):
                moved = self._moved_ms.get(key, {})
                found.append(GroupPlaces(name, topic, self.get(topic, name), moved))
        return found

    def forget_group(self, group: str) -> bool:
        """Drops the entries of a group, as of a broker's broadcasts; False where it has none."""
        self.check_readable()
        gone = [key for key in self.entries if key.split("@")[1:2] == [group]]
        self._drop(gone)
        return bool(gone)

    def forget(self, topic: str) -> None:
        """Drops the entries of a topic that was removed."""
        self._drop([key for key in self.entries if key.startswith(f"{topic}@")])

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._count -= len(self.entries.pop(key))
            self._moved_ms.pop(key, None)
            self.touch()

    def _bound(self) -> None:
        """A place beyond the end of its queue, as after a power loss that took unflushed messages,
        becomes the end: the next messages get these offsets, and must not be passed over."""
        lowered: list[str] = []
        for key, entry in self.entries.items():
            bounded = self._bounded(key, entry)
            if bounded != entry:
                self.entries[key] = bounded
                lowered.append(key)
                self.touch()
        if lowered:
            extra = fields(file=self.path, groups=len(lowered), first=lowered[0])
            log.warning("places lie beyond their queues, and are lowered", extra=extra)

    def _bounded(self, key: str, entry: dict[str, Any]) -> dict[str, Any]:
        topic = key.partition("@")[0]
        if not self._knows(topic):
            return entry
        bounded = {
            queue: min(offset, self._ends.get(Queue(topic, int(queue)), 0))
            for queue, offset in entry.items()
            if _is_offset(queue, offset)
        }
        return {**entry, **bounded}

    def _check_room(self, key: str, more: int) -> None:
        groups = len(self.entries) + (key not in self.entries)
        if more and (groups > GROUPS_MAX or self._count + more > OFFSETS_MAX):
            raise NotAllowed(
                f"{len(self.entries)} cursors and groups are there already: {GROUPS_MAX} are"
                f" allowed, with {OFFSETS_MAX} queues",
                "use a cursor that is there, or remove topics that nobody reads",
            )


def read_group_offsets(root: Path) -> dict[str, dict[str, dict[int, int]]]:
    """The offsets in the file by group, topic and queue, for a process that does not own it.

    Empty without a file that can be read: its owner says what is wrong with it. Raises OSError.
    """
    try:
        text = read_bounded(root / CONSUMER_OFFSETS_FILE, OFFSETS_FILE_BYTES_MAX)
        table = parse_java_json(text.decode("utf-8", "replace"))["offsetTable"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError, StoreDamaged):
        return {}
    found: dict[str, dict[str, dict[int, int]]] = {}
    for key, entry in table.items() if isinstance(table, dict) else ():
        topic, _, group = key.partition("@")
        if group and "@" not in group and isinstance(entry, dict):
            found.setdefault(group, {})[topic] = {
                int(queue): offset for queue, offset in entry.items() if _is_offset(queue, offset)
            }
    return found


def _is_offset(queue: str, offset: Any) -> bool:
    """Whether an item of an entry is a queue with its offset; old stores hold negative ones."""
    is_queue = queue.isascii() and queue.isdigit() and len(queue) <= len(str(QUEUE_ID_MAX))
    return is_queue and type(offset) is int and 0 <= offset < 2**63
