"""`config/consumerOffset.json`: how far each group has read (RocketMQ's ConsumerOffsetManager).

An entry `topic@group` has the offset of the next message of each queue. One process, the writer,
holds the table and saves it; entries and fields that we do not know stay as they are.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from node.store.config.config_table import ConfigTable
from protocol.errors import BadRequest, NotAllowed, UnknownTopic
from protocol.ids import Queue
from protocol.names import CONSUMER_OFFSETS_FILE, QUEUE_ID_MAX

GROUPS_MAX = 20_000
"""Entries of the table: a topic and a group each."""
OFFSETS_MAX = 200_000
"""Offsets of all entries. Those that are there already stay."""


class ConsumerOffsets:
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
        self._ends = ends
        self._knows = knows
        self._file = ConfigTable(root / CONSUMER_OFFSETS_FILE, "offsetTable", now_ms)
        self._bound()

    def get(self, topic: str, group: str) -> dict[int, int]:
        """The offset of the next message of each queue; empty for a group without a place.

        Raises StoreDamaged for a file that cannot be read.
        """
        self._file.check_readable()
        entry = self._file.entries.get(f"{topic}@{group}", {})
        return {int(queue): offset for queue, offset in entry.items() if _is_offset(queue, offset)}

    def commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Notes how far a group has come. The file has it within about a second.

        Raises BadRequest for an offset beyond the end of its queue, UnknownTopic, NotAllowed for
        one group too many, StoreDamaged.
        """
        self._file.check_readable()
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
        entry = self._file.entries.get(key, {})
        changed = {**entry, **{str(queue): offset for queue, offset in offsets.items()}}
        if changed == entry:
            return
        self._check_room(key, len(changed) - len(entry))
        self._file.entries[key] = changed
        self._file.touch()

    def all_of(self, group: str | None) -> list[tuple[str, str, dict[int, int]]]:
        """Group, topic and offsets of each entry, those of one group or of all, in order."""
        self._file.check_readable()
        found: list[tuple[str, str, dict[int, int]]] = []
        for key in sorted(self._file.entries):
            topic, _, name = key.partition("@")
            if name and "@" not in name and group in (None, name):
                found.append((name, topic, self.get(topic, name)))
        return found

    def forget_group(self, group: str) -> bool:
        """Drops the entries of a group, as of a broker's broadcasts; False where it has none."""
        self._file.check_readable()
        gone = [key for key in self._file.entries if key.split("@")[1:2] == [group]]
        for key in gone:
            del self._file.entries[key]
            self._file.touch()
        return bool(gone)

    def forget(self, topic: str) -> None:
        """Drops the entries of a topic that was removed."""
        gone = [key for key in self._file.entries if key.startswith(f"{topic}@")]
        for key in gone:
            del self._file.entries[key]
            self._file.touch()

    def turn(self, now: float) -> None:
        """Saves when that is due. Raises StoreMoved."""
        self._file.turn(now)

    def save(self) -> None:
        """Saves what is not saved, and waits for it. Raises StoreMoved."""
        self._file.save()

    def close(self) -> None:
        """Saves what is not saved."""
        self._file.close()

    def _bound(self) -> None:
        """A place beyond the end of its queue, as after a power loss that took unflushed messages,
        becomes the end: the next messages get these offsets, and must not be passed over."""
        for key, entry in self._file.entries.items():
            bounded = self._bounded(key, entry)
            if bounded != entry:
                self._file.entries[key] = bounded
                self._file.touch()

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
        groups = len(self._file.entries) + (key not in self._file.entries)
        if more and (
            groups > GROUPS_MAX or sum(map(len, self._file.entries.values())) + more > OFFSETS_MAX
        ):
            raise NotAllowed(
                f"{len(self._file.entries)} cursors and groups are there already: {GROUPS_MAX} are"
                f" allowed, with {OFFSETS_MAX} queues",
                "use a cursor that is there, or remove topics that nobody reads",
            )


def _is_offset(queue: str, offset: Any) -> bool:
    """Whether an item of an entry is a queue with its offset; old stores hold negative ones."""
    is_queue = queue.isascii() and queue.isdigit() and len(queue) <= len(str(QUEUE_ID_MAX))
    return is_queue and type(offset) is int and 0 <= offset < 2**63
