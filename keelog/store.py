"""Store directories without a node: Keelog's own and those of a RocketMQ broker, read-only.

    from keelog.store import open_store

    with open_store("./store") as store:
        for message in store.scan(topic="orders"):
            print(message.queue_offset, message.body)

The store appears as it is after recovery; nothing is locked or written. Of a directory that a node
runs on it is what was there when it was opened. `backup` and `restore` copy a store.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keelog.client.messages import Message
from keelog.client.operations import milliseconds
from keelog.client.options import OnFoundDamage, Time, check_limit, check_on_damage, pass_over
from node.runtime.settings import Settings
from node.store.file_cache import see_all_damage
from node.store.log.reader import Damage, columns_past_damage
from node.store.opening import StoppedStore
from node.store.query.look_up import FindRequest
from node.store.query.look_up import find as find_page
from protocol.errors import BadRequest, NotFound, StoreDamaged
from protocol.ids import parse_offset_message_id
from protocol.record.codec import Torn
from protocol.record.columns import RecordColumns
from protocol.request_fields import INT64_MAX
from protocol.requests import FIND_MESSAGES_DEFAULT

if TYPE_CHECKING:
    from node.store.backup.backup import BackupReport

log = logging.getLogger("keelog.store")

__all__ = ["OpenStore", "backup", "open_store", "restore"]


def open_store(path: Path | str, settings: Settings | None = None) -> "OpenStore":
    """Opens a directory, to be closed again: use it with `with`.

    File sizes are found from the files; `settings` says them where there is none. Raises NotAStore,
    StoreDamaged, StorePermission.
    """
    return OpenStore(Path(path), settings or Settings())


def backup(
    path: Path | str, out: Path | str, *, prune: bool = False, link: bool = False
) -> "BackupReport":
    """Brings the backup in `out` up to a store, which a node may run: `keelog store backup`.

    Raises NotAStore, StorePermission, StoreDamaged, StoreLocked, BackupRefused.
    """
    # Imported here: who reads a store needs neither of the two.
    from node.store.backup.backup import backup as back_up

    return back_up(Path(path), Path(out), prune=prune, link=link)


def restore(out: Path | str, path: Path | str) -> "BackupReport":
    """Makes a store in a new or empty directory of the backup in `out`: `keelog store restore`.

    Raises BackupRefused, BadRequest, StoreDamaged.
    """
    from keelog.restore import restore as restore_backup

    return restore_backup(Path(out), Path(path))


class OpenStore(StoppedStore):
    """An open store, made by `open_store`.

    Times are datetimes (without a zone: local time) or ms since 1970.
    """

    def scan(
        self,
        topic: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        *,
        on_damage: OnFoundDamage = "fail",
    ) -> Iterator[Message]:
        """Every message in the order of the log, each with its checksum verified; of one topic, or
        stored between two times, both included.

        `on_damage`: "fail" raises StoreDamaged at a damaged record, "skip" goes on after it and
        logs a warning, a function gets the error.
        """
        check_on_damage(on_damage)
        begin, end = milliseconds(since, 0), milliseconds(until, INT64_MAX)
        for part in columns_past_damage(self.log, self.log.min_offset):
            if isinstance(part, Damage):
                pass_over(self._damaged(part.torn), on_damage, log)
                continue
            shown = self.removed.visible(part)
            for row in _wanted(shown, topic, begin, end):
                yield Message(shown.piece(shown.start, shown.size, row), is_whole=True)
        if self.log.stopped is not None:
            pass_over(self._damaged(self.log.stopped), on_damage, log)

    def _damaged(self, torn: Torn) -> StoreDamaged:
        path = self.log.segment_at(torn.position).path
        return StoreDamaged(str(path), torn.position, torn.why, see_all_damage(path))

    def get(self, msg_id: str | None = None, *, physical_offset: int | None = None) -> Message:
        """One message, by its offset message id or its place in the log. Raises NotFound,
        StoreDamaged, BadRequest."""
        if (msg_id is None) == (physical_offset is None):
            raise BadRequest("get needs msg_id or physical_offset", "name one message")
        if msg_id is not None:
            physical_offset = parse_offset_message_id(msg_id)[1]
        assert physical_offset is not None
        record = self.look_up(physical_offset)
        if msg_id is not None and record.message_id != msg_id.upper():
            raise NotFound(f"no record has the id {msg_id}: at its place is {record.message_id}")
        return Message(record.raw)

    def find(
        self,
        topic: str,
        key: str,
        since: Time | None = None,
        until: Time | None = None,
        *,
        limit: int | None = None,
        unique: bool = False,
        on_damage: OnFoundDamage = "fail",
    ) -> Iterator[Message]:
        """Messages with a key, newest first; all without `limit`. `unique` looks at unique keys
        alone. Raises UnknownTopic.

        `on_damage`: "fail" raises StoreDamaged for a damaged record that may have the key, after
        the last message; "skip" logs a warning instead, a function gets the error.
        """
        check_limit(limit)
        check_on_damage(on_damage)
        damaged: list[StoreDamaged] = []
        begin, end = milliseconds(since, 0), milliseconds(until, INT64_MAX)
        cursor, left = None, limit
        while left is None or left > 0:
            size = FIND_MESSAGES_DEFAULT if left is None else min(left, FIND_MESSAGES_DEFAULT)
            page = find_page(
                self, FindRequest(topic, key, begin, end, size, cursor, unique, skip_damaged=True)
            )
            if on_damage == "fail":
                damaged += page.damaged[:1]
            else:
                for error in page.damaged:
                    pass_over(error, on_damage, log)
            yield from (Message(record.raw) for record in page.records)
            left = None if left is None else left - len(page.records)
            cursor = page.cursor
            if cursor is None:
                break
        if damaged:
            raise damaged[0]


def _wanted(columns: RecordColumns, topic: str | None, begin: int, end: int) -> list[int]:
    """The rows of one topic, or of all, whose store time is in [`begin`, `end`]."""
    stored = columns.store_timestamp
    wanted = (stored >= begin) & (stored <= end)
    if topic is None:
        return np.flatnonzero(wanted).tolist()
    name = topic.encode()
    starts, lengths = columns.topic_start, columns.topic_length
    rows: list[int] = np.flatnonzero(wanted & (lengths == len(name))).tolist()
    return [row for row in rows if columns.piece(starts, lengths, row) == name]
