"""Groups as tools look at them (201, 208, 300, 317, 343, 345, 352), remove them (207), and let them
go on elsewhere (222, 314).

Reports say how far groups have come (208, 317), and who reads what (300, 343, 345), as RocketMQ's
AdminBrokerProcessor replies.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keelog.client import groups as client_groups
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway.admin.figures import BrokerCounts
from keelog.gateway.commits import Commits, GroupOffsets, OfTopics
from keelog.gateway.connection import Reply, Request, json_reply, system_error
from keelog.gateway.groups import Groups
from keelog.gateway.members import Members
from keelog.gateway.offsets import QueueFacts
from keelog.gateway.places import GroupQueuePlace, WaitingResets
from keelog.gateway.topics import Topics
from node.store.config.topics_file import Topic
from protocol.errors import NotAllowed
from protocol.remoting import bodies, header_fields
from protocol.remoting.codes import ResponseCode
from protocol.remoting.java_json import write_body

QUEUES_SHOWN_MAX = 50_000
"""Queues of all groups in one reply, which has up to 16 MiB: about 200 bytes each."""


@dataclass(slots=True, eq=False)
class GroupHandlers:
    """One for each gateway, in the thread of its loop."""

    _core: ClientCore
    _topics: Topics
    _groups: Groups
    _members: Members
    _commits: Commits
    _resets: WaitingResets
    _facts: QueueFacts
    _offsets: GroupOffsets
    _counts: BrokerCounts

    # Reports

    async def stats(self, request: Request) -> Reply:
        """208: how far a group has come in the queues of its topics."""
        wanted: header_fields.ConsumeStatsHeader = header_fields.request_fields(request.header)
        group = wanted.consumer_group
        known = await self._offsets.of(group)
        topics: Iterable[str] = filter(None, wanted.topic_list.split(";"))
        if not wanted.topic_list:
            topics = self._still_read(group, [wanted.topic] if wanted.topic.strip() else known)
        self._facts.look()
        table: dict[bodies.MessageQueue, bodies.OffsetWrapper] = {}
        tps = 0.0
        for name in sorted(topics):
            topic = self._topics.find(name)
            if topic is not None:
                _check_room(len(table))
                places = known.get(name, {})
                table.update(self._queues(topic, topic.read_queues, group, places, with_pulls=True))
                tps += self._counts.get_tps(name, group)
        return json_reply(bodies.ConsumeStats(table, tps))

    async def stats_of_all(self, request: Request) -> Reply:
        """317: how far all groups have come, in a list for each topic. The loop has others to
        serve: after each group they have their turn."""
        is_order = header_fields.request_fields(request.header).is_order
        known = await self._offsets.all()
        rows: list[Mapping[str, tuple[bodies.ConsumeStats, ...]]] = []
        count = lag = in_flight = 0
        for group in self._groups.names():
            self._facts.look()
            stats = []
            for one in self._stats_of(group, known.get(group, {}), is_order):
                stats.append(one)
                count += len(one.offset_table)
                _check_room(count)
                lag += sum(w.broker_offset - w.consumer_offset for w in one.offset_table.values())
                # A broker fills no pullOffset here, so that the sum is below zero.
                in_flight += sum(
                    w.pull_offset - w.consumer_offset for w in one.offset_table.values()
                )
            rows.append({group: tuple(stats)})
            await asyncio.sleep(0)
        address = self._topics.name.address or request.connection.address
        return json_reply(bodies.ConsumeStatsList(tuple(rows), address, lag, in_flight))

    def _stats_of(
        self, group: str, known: OfTopics, is_order: bool
    ) -> Iterable[bodies.ConsumeStats]:
        for name in self._still_read(group, known):
            topic = self._topics.find(name)
            if topic is None or (is_order and not topic.is_ordered):
                continue
            places = known.get(name, {})
            table = dict(self._queues(topic, topic.write_queues, group, places, with_pulls=False))
            yield bodies.ConsumeStats(table, self._counts.get_tps(name, group))

    def _still_read(self, group: str, topics: Iterable[str]) -> list[str]:
        """Of a group with members only the topics that these subscribe."""
        here = self._members.find(group)
        if here is None or not here.subscriptions:
            return list(topics)
        return [topic for topic in topics if topic in here.subscriptions]

    def _queues(
        self, topic: Topic, count: int, group: str, places: Mapping[int, int], *, with_pulls: bool
    ) -> Iterable[tuple[bodies.MessageQueue, bodies.OffsetWrapper]]:
        here = self._members.find(group) if with_pulls else None
        pulled = {} if here is None else here.pulled.get(topic.name, {})
        for queue_id in range(count):
            end = self._facts.bounds(topic.name, queue_id).max
            place = places.get(queue_id, 0)
            last = self._facts.time_at(topic.name, queue_id, place - 1) if place else 0
            _, pull = pulled.get(queue_id, ("", 0))
            queue = bodies.MessageQueue(topic.name, self._topics.name.broker, queue_id)
            seen = max(place, pull) if with_pulls else 0
            yield queue, bodies.OffsetWrapper(end, place, seen, max(0, last))

    async def readers_of(self, request: Request) -> Reply:
        """300: the groups that subscribe a topic, or have offsets of it."""
        topic = header_fields.request_fields(request.header).topic
        known = await self._offsets.all()
        groups = {name for name, of in known.items() if topic in of}
        groups |= {name for name, of in self._members.groups.items() if topic in of.subscriptions}
        return json_reply({"groupList": sorted(groups)})

    async def topics_of(self, request: Request) -> Reply:
        """343: the topics of which a group has offsets."""
        wanted: header_fields.GroupHeader = header_fields.request_fields(request.header)
        topics = tuple(sorted(await self._offsets.of(wanted.group)))
        address = self._topics.name.address or request.connection.address
        return json_reply(bodies.TopicList(topics, address))

    def subscription(self, request: Request) -> Reply:
        """345: what a group subscribes of a topic."""
        wanted: header_fields.GroupHeader = header_fields.request_fields(request.header)
        group = self._members.find(wanted.group)
        found = None if group is None else group.subscriptions.get(wanted.topic)
        return json_reply({"group": wanted.group, "subscriptionData": found, "topic": wanted.topic})

    # Settings and places

    def config(self, request: Request) -> Reply:
        """352: the settings of one group."""
        found = self._groups.entry(header_fields.request_fields(request.header).group)
        if found is None:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            return Reply(code, remark="No group in this broker")
        return json_reply(found)

    def configs(self, request: Request) -> Reply:
        """201: the settings of all groups, or of a page of them."""
        wanted: header_fields.PagedGroupsHeader = header_fields.request_fields(request.header)
        names = self._groups.names()
        first = max(0, wanted.group_seq)
        page = names[first : first + max(0, wanted.max_group_num)]
        body: dict[str, Any] = {
            "dataVersion": self._groups.version,
            "forbiddenTable": {},
            "subscriptionGroupTable": {name: self._groups.entry(name) for name in page},
        }
        ext = {"totalGroupNum": str(len(names))}
        return Reply(ext=ext, body=write_body(body, standard=True))

    async def delete(self, request: Request) -> Reply:
        """207: removes a group's settings, and if asked for its offsets."""
        wanted: header_fields.DeleteGroupHeader = header_fields.request_fields(request.header)
        self._groups.remove(wanted.group_name)
        self._resets.forget_group(wanted.group_name)
        if wanted.clean_offset:
            deadline = self._core.deadline(None)
            await run(self._core, client_groups.delete_group(wanted.group_name, deadline))
        return Reply()

    async def reset(self, request: Request) -> Reply:
        """222: of one queue or all, to an offset or a time. Members need not be there."""
        wanted: header_fields.ResetOffsetHeader = header_fields.request_fields(request.header)
        topic = self._topics.find(wanted.topic)
        if topic is None:
            text = f"Topic {wanted.topic} does not exist"
            return Reply(ResponseCode.TOPIC_NOT_EXIST, remark=text)
        if not self._groups.has(wanted.group):
            text = f"Group {wanted.group} does not exist"
            return Reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=text)
        self._facts.look()
        places: dict[int, int] = {}
        if wanted.queue_id >= 0 and wanted.offset != -1:
            low, high = self._facts.bounds(wanted.topic, wanted.queue_id)
            if not low <= wanted.offset <= high:
                return system_error(
                    f"Target offset {wanted.offset} not in consume queue range [{low}-{high}]"
                )
            places[wanted.queue_id] = wanted.offset
        else:
            queues = range(topic.read_queues) if wanted.queue_id < 0 else (wanted.queue_id,)
            for queue_id in queues:
                if wanted.timestamp < 0:
                    places[queue_id] = self._facts.bounds(wanted.topic, queue_id).max
                else:
                    places[queue_id] = self._facts.offset_at(
                        wanted.topic, queue_id, wanted.timestamp
                    )
        if not places:
            return system_error("No queues to reset.")
        for queue_id, offset in places.items():
            self._resets.put(GroupQueuePlace(wanted.topic, wanted.group, queue_id), offset)
        await self._commit(wanted.topic, wanted.group, places)
        broker = self._topics.name.broker
        table = {
            bodies.MessageQueue(wanted.topic, broker, n): offset for n, offset in places.items()
        }
        return json_reply(bodies.ResetOffsetBody(table))

    async def _commit(self, topic: str, group: str, places: Mapping[int, int]) -> None:
        """All queues go to the writer together."""
        commit = self._commits.commit
        await asyncio.gather(*(commit(topic, group, n, offset) for n, offset in places.items()))

    async def clone(self, request: Request) -> Reply:
        """314: a group gets the offsets of another, of one topic or of all that it reads."""
        wanted: header_fields.CloneOffsetHeader = header_fields.request_fields(request.header)
        known = await self._offsets.of(wanted.src_group)
        here = self._members.find(wanted.src_group)
        for name in [wanted.topic] if wanted.topic.strip() else sorted(known):
            if self._topics.find(name) is None:
                continue
            is_read = here is None or not here.subscriptions or name in here.subscriptions
            if not wanted.offline and not is_read:
                continue
            await self._commit(name, wanted.dest_group, known.get(name, {}))
        return Reply()


def _check_room(queues: int) -> None:
    if queues > QUEUES_SHOWN_MAX:
        raise NotAllowed(f"more than {QUEUES_SHOWN_MAX} queues: ask for one group and topic")
