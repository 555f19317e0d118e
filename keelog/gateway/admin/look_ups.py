"""Messages by key (12) and by log offset (33), as RocketMQ's QueryMessageProcessor finds them."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.messages import Message
from keelog.gateway.connection import Reply, Request, system_error
from node.runtime.state_page import WorkerPage
from node.store.indexes import MAX_MESSAGES_BATCH
from protocol.derived.file_layouts import TAGS_KEY_PREFIX
from protocol.errors import NotFound, StoreDamaged, UnknownTopic
from protocol.record.codec import Record
from protocol.remoting.header_fields import QueryMessageHeader, ViewMessageHeader, request_fields

UNIQUE_MESSAGES_MAX = 32
"""Of one unique key, whatever the client asks for; a Java broker's defaultQueryMaxNum."""
WAIT_S_MAX = 1.0
"""For the index, where it is not as far as the log."""
_LOOK_S = 0.005
_INDEX = "index"
"""The slot of the index worker."""
_OF_TAGS = "T"
"""The type of index in which tags are."""


@dataclass(slots=True, eq=False)
class LookUps:
    """One for each gateway. `_look_up` returns the record at a log offset, and `_readable` how far
    the log of the store at `_root` may be read. Readers look for keys, as an index file that is not
    in memory must not hold up heart-beats."""

    _core: ClientCore
    _root: Path
    _look_up: Callable[[int], Record]
    _readable: Callable[[], int]

    async def by_key(self, request: Request) -> Reply:
        """12: the newest messages with a key, oldest first: up to 64 of them, or about 4 MiB.

        A broker compares hashes, and its client the keys; here only messages with the key count.
        Clients look for what they have just sent, so the index may catch up with the log before.
        Raises NotFound when there are none, StoreDamaged when all that may be it are damaged.
        """
        wanted: QueryMessageHeader = request_fields(request.header)
        end, deadline = self._readable(), monotonic() + WAIT_S_MAX
        while self._indexed() < end and monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
        found = await self._newest(wanted)
        if not found:
            raise NotFound("can not find message, maybe time range not correct")
        last = found[-1].record.head
        ext = {
            "indexLastUpdateTimestamp": str(last.store_timestamp),
            "indexLastUpdatePhyoffset": str(last.physical_offset),
        }
        return Reply(ext=ext, body=b"".join(message.raw for message in found))

    def _indexed(self) -> int:
        """Up to where the log is in the index; 0 where that is not known."""
        try:
            with closing(WorkerPage.open(self._root, _INDEX)) as page:
                return page.read().dispatched
        except FileNotFoundError:
            return 0

    async def _newest(self, wanted: QueryMessageHeader) -> list[Message]:
        limit = UNIQUE_MESSAGES_MAX if wanted.unique_key_query else wanted.max_num
        is_tag = wanted.index_type == _OF_TAGS
        fields = {
            "topic": wanted.topic,
            "key": TAGS_KEY_PREFIX + wanted.key if is_tag else wanted.key,
            "begin": max(wanted.begin_timestamp, 0),
            "end": max(wanted.end_timestamp, 0),
            "max_messages": max(1, min(limit, MAX_MESSAGES_BATCH)),
            "unique": wanted.unique_key_query,
        }
        deadline, cursor = self._core.deadline(None), None
        damaged: list[StoreDamaged] = []
        while True:
            page = operations.find_page(fields, cursor, deadline)
            try:
                found, cursor, some = await run(self._core, page)
            except UnknownTopic:
                return []
            damaged = damaged or some
            if found or cursor is None:
                break
        if damaged and not found:
            raise damaged[0]
        return sorted(found, key=lambda message: message.physical_offset)

    def by_offset(self, request: Request) -> Reply:
        """33: the message at a log offset, which its id names."""
        wanted: ViewMessageHeader = request_fields(request.header)
        try:
            return Reply(body=self._look_up(wanted.offset).raw)
        except NotFound as error:
            return system_error(error.reason)
