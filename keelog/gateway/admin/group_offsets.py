"""How far groups have come: the writer's table with what is on its way to it."""

from collections.abc import Mapping

from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.groups import committed
from keelog.gateway.commits import Commits, Places

OfTopics = Mapping[str, Mapping[int, int]]
"""By topic and queue: the next offset to consume."""


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

    async def of_topic(self, topic: str, group: str) -> Mapping[int, int]:
        """Of one group and topic. Raises what the writer refuses."""
        return (await self.of(group)).get(topic, {})

    async def topics_of(self, group: str) -> list[str]:
        """The topics of which a group has offsets."""
        return sorted(await self.of(group))

    async def _known(self, group: str | None) -> Mapping[str, OfTopics]:
        known, _ = await run(self._core, committed(group, self._core.deadline(None)))
        return {
            name: {topic: self._newest(topic, name, places) for topic, places in of.items()}
            for name, of in known.items()
        }

    def _newest(self, topic: str, group: str, places: Mapping[int, int]) -> Places:
        return {**places, **self._commits.waiting(topic, group)}
