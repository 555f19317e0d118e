"""Offsets that groups commit, on their way to the writer: those of a moment go together.

A consumer commits with each pull, and a broker keeps what it heard in memory for 5 s
(ConsumerOffsetManager). Here it is in memory for COMMIT_S, then it is the writer's. A gateway that
is killed loses so much: those messages are consumed again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from client import operations
from client.aio.run import run
from client.core import ClientCore
from node.runtime.event_log import fields
from protocol.errors import MqError, NodeBusy, RefusedError

log = logging.getLogger("keelog.gateway")

COMMIT_S = 0.1
RETRY_S = 1.0
"""The pause after the writer could not be reached."""
WAITING_MAX = 65_536
"""Pairs of a topic and a group whose offsets the writer has not taken; more are refused as busy."""
COMMITS_AT_ONCE = 16
"""Requests under way."""
STOP_S = 2.0
Places = dict[int, int]
"""By queue: the next offset to consume."""


class TopicGroup(NamedTuple):
    """A group's offsets of one topic share a request."""

    topic: str
    group: str


class Commits:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, core: ClientCore) -> None:
        self.fail: Callable[[BaseException], None] = lambda error: None
        """Is called with an unexpected error; its owner sets it."""
        self._core = core
        self._waiting: dict[TopicGroup, Places] = {}
        self._under_way: dict[TopicGroup, Places] = {}
        self._sending: asyncio.Task[None] | None = None

    def note(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Takes one offset; a negative one says nothing. Raises NodeBusy."""
        if offset < 0:
            return
        key = TopicGroup(topic, group)
        places = self._waiting.get(key)
        if places is None:
            if len(self._waiting) >= WAITING_MAX:
                raise NodeBusy(f"the offsets of {WAITING_MAX} groups wait for the writer")
            places = self._waiting[key] = {}
        places[queue_id] = offset
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())
            self._sending.add_done_callback(self._sent)

    def waiting(self, topic: str, group: str) -> Mapping[int, int]:
        """What the writer may not have yet, by queue."""
        key = TopicGroup(topic, group)
        return {**self._under_way.get(key, {}), **self._waiting.get(key, {})}

    async def close(self) -> None:
        """Sends what waits, for STOP_S at most."""
        if self._sending is not None:
            self._sending.cancel()
            with suppress(asyncio.CancelledError):
                await self._sending
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._waiting and await self._round():
                    pass

    async def _send(self) -> None:
        while self._waiting:
            await asyncio.sleep(COMMIT_S)
            while self._waiting and await self._round():
                pass
            if self._waiting:
                await asyncio.sleep(RETRY_S)

    async def _round(self) -> bool:
        """Sends some of what waits; False if the writer could not be reached."""
        some = list(self._waiting)[:COMMITS_AT_ONCE]
        self._under_way = {key: self._waiting.pop(key) for key in some}
        try:
            return all(await asyncio.gather(*map(self._commit, some)))
        finally:
            for key, places in self._under_way.items():
                # Cancelled, or not reached: what came meanwhile is newer.
                self._waiting[key] = {**places, **self._waiting.get(key, {})}
            self._under_way = {}

    async def _commit(self, key: TopicGroup) -> bool:
        deadline = self._core.deadline(None)
        commit = operations.commit_cursor(*key, self._under_way[key], deadline)
        try:
            await run(self._core, commit)
        except RefusedError as error:
            why = fields(topic=key.topic, group=key.group, why=error)
            log.warning("offsets were not committed", extra=why)
        except MqError as error:
            log.warning("offsets wait for the writer", extra=fields(why=error))
            return False
        del self._under_way[key]
        return True

    def _sent(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
