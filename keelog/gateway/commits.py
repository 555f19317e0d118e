"""Offsets that groups commit, on their way to the writer: those of a moment go together.

A consumer commits with each pull, and a broker keeps what it heard in memory for 5 s
(ConsumerOffsetManager). Here it is in memory for COMMIT_S at most, then it is the writer's. A
gateway that is killed loses that: those messages are consumed again. A commit with a reply is the
writer's when the reply goes. How far groups have come is the writer's table with what is on its
way to it (`GroupOffsets`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import pass_on_error, run
from keelog.client.groups import committed
from node.runtime.event_log import fields
from protocol.errors import MqError, NodeBusy, RefusedError, TopicRemoved

log = logging.getLogger("keelog.gateway")

COMMIT_S = 0.1
"""Between two rounds: the first commit after a quiet time goes at once."""
RETRY_S = 1.0
"""The pause after the writer could not be reached."""
WAITING_MAX = 65_536
"""Offsets that the writer has not taken; further queues are refused as busy."""
COMMITS_AT_ONCE = 16
"""Requests under way."""
REPLY_S = 2.5
"""A Java client closes its connection after 3 s without a reply."""
STOP_S = 2.0
Places = dict[int, int]
"""By queue: the next offset to consume."""
OfTopics = Mapping[str, Mapping[int, int]]
"""As `Places`, by topic and queue."""


class TopicGroup(NamedTuple):
    """A group's offsets of one topic share a request."""

    topic: str
    group: str


@dataclass(slots=True)
class _Unsent:
    """Offsets of one topic and group, and who waits until the writer has them."""

    generation: int = 0
    """Of the topic."""
    places: Places = field(default_factory=dict)
    asked: list[asyncio.Future[None]] = field(default_factory=list)

    def put_back(self, newer: "_Unsent | None") -> "_Unsent":
        """What waits after this was not sent."""
        if newer is None:
            return self
        if newer.generation > self.generation:
            self.end(_removed())
            return newer
        places = {**self.places, **newer.places}
        return _Unsent(self.generation, places, self.asked + newer.asked)

    def end(self, error: MqError | None) -> None:
        """They are the writer's, or refused."""
        for one in self.asked:
            if one.done():
                continue
            if error is None:
                one.set_result(None)
            else:
                one.set_exception(error)


def _removed() -> TopicRemoved:
    return TopicRemoved("the topic was removed, and its offsets with it")


class Commits:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, core: ClientCore, generation_of: Callable[[str], int]) -> None:
        """`generation_of` gives that of a topic."""
        self._generation_of = generation_of
        self.fail: Callable[[BaseException], None] = lambda error: None
        """Is called with an unexpected error; its owner sets it."""
        self._core = core
        self._waiting: dict[TopicGroup, _Unsent] = {}
        self._under_way: dict[TopicGroup, _Unsent] = {}
        self._sending: asyncio.Task[None] | None = None
        self._round_at = 0.0
        self._count = 0
        """Offsets that wait or are under way; one that is both counts twice."""

    def note(self, topic: str, group: str, queue_id: int, offset: int) -> _Unsent | None:
        """Takes one offset; a negative one says nothing. Raises NodeBusy."""
        if offset < 0:
            return None
        key, generation = TopicGroup(topic, group), self._generation_of(topic)
        unsent = self._waiting.get(key)
        if unsent is not None and unsent.generation < generation:
            self._count -= len(self._waiting.pop(key).places)
            unsent.end(_removed())
            unsent = None
        if unsent is None or queue_id not in unsent.places:
            if self._count >= WAITING_MAX:
                raise NodeBusy(f"{WAITING_MAX} offsets wait for the writer")
            self._count += 1
        if unsent is None:
            unsent = self._waiting[key] = _Unsent(generation)
        unsent.places[queue_id] = offset
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())
            self._sending.add_done_callback(lambda task: pass_on_error(task, self.fail))
        return unsent

    async def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """As `note`; returns when the writer has it. Raises what the writer refuses, NodeBusy."""
        unsent = self.note(topic, group, queue_id, offset)
        if unsent is not None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            unsent.asked.append(done)
            try:
                async with asyncio.timeout(REPLY_S):
                    await done
            except TimeoutError:
                raise NodeBusy("the writer has not taken the offset yet") from None

    def waiting(self, topic: str, group: str) -> Mapping[int, int]:
        """What the writer may not have yet, by queue."""
        key = TopicGroup(topic, group)
        found: Places = {}
        for table in (self._under_way, self._waiting):
            if key in table and table[key].generation >= self._generation_of(topic):
                found |= table[key].places
        return found

    async def close(self) -> None:
        """Sends what waits, for STOP_S at most."""
        if self._sending is not None:
            self._sending.cancel()
            with suppress(asyncio.CancelledError):
                await self._sending
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._round()

    async def _send(self) -> None:
        while self._waiting:
            # Also where nothing has to be waited for, so that the rest of the turn goes along.
            await asyncio.sleep(max(0.0, self._round_at + COMMIT_S - monotonic()))
            is_reached = await self._round()
            self._round_at = monotonic()
            if not is_reached:
                await asyncio.sleep(RETRY_S)

    async def _round(self) -> bool:
        """Sends what waits now; False if the writer could not be reached."""
        now = list(self._waiting)
        parts = [now[at : at + COMMITS_AT_ONCE] for at in range(0, len(now), COMMITS_AT_ONCE)]
        for part in parts:
            if not await self._send_part(part):
                return False
        return True

    async def _send_part(self, some: list[TopicGroup]) -> bool:
        self._under_way = {key: self._waiting.pop(key) for key in some}
        try:
            return all(await asyncio.gather(*map(self._commit, some)))
        finally:
            # Cancelled, or not reached.
            for key, unsent in self._under_way.items():
                newer = self._waiting.get(key)
                both = self._waiting[key] = unsent.put_back(newer)
                if newer is not None:
                    self._count -= len(unsent.places) + len(newer.places) - len(both.places)
            self._under_way = {}

    async def _commit(self, key: TopicGroup) -> bool:
        unsent, refused = self._under_way[key], None
        deadline = self._core.deadline(None)
        try:
            asked = operations.commit_cursor(
                *key, unsent.places, deadline, generation=unsent.generation
            )
            await run(self._core, asked)
        except RefusedError as error:
            refused = error
            why = fields(topic=key.topic, group=key.group, why=error)
            log.warning("offsets were not committed", extra=why)
        except MqError as error:
            log.warning("offsets wait for the writer", extra=fields(why=error))
            return False
        del self._under_way[key]
        self._count -= len(unsent.places)
        unsent.end(refused)
        return True


class GroupOffsets:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, core: ClientCore, commits: Commits) -> None:
        self._core = core
        self._commits = commits

    async def all(self) -> Mapping[str, OfTopics]:
        """By group. Raises what the writer refuses."""
        return await self._known(None)

    async def of(self, group: str) -> OfTopics:
        """Of one group. Raises what the writer refuses."""
        return (await self._known(group)).get(group, {})

    async def _known(self, group: str | None) -> Mapping[str, OfTopics]:
        known, _ = await run(self._core, committed(group, self._core.deadline(None)))
        return {
            name: {
                topic: {**places, **self._commits.waiting(topic, name)}
                for topic, places in of.items()
            }
            for name, of in known.items()
        }
