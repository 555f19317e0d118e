"""Groups as tools look at them (201, 208, 300, 317, 343, 345, 352), remove them (207), and let them
go on elsewhere (222, 314). Clients as tools list them (203, of producers 204 and 328), or ask them
something (223, 307, 309).

Reports say how far groups have come (208, 317), and who reads what (300, 343, 345), as RocketMQ's
AdminBrokerProcessor replies. Requests of tools to a client go to it over its own connection.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from keelog.client import groups as client_groups
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway import groups, members, to_clients, topics
from keelog.gateway.admin.broker_info import BrokerCounts
from keelog.gateway.connection import RemotingConnection, Reply, Request, json_reply, system_error
from keelog.gateway.guard import check_found, check_topics
from keelog.gateway.offsets import Commits, OfTopics, QueueFacts
from keelog.gateway.places import GroupQueuePlace, WaitingResets
from node.runtime.process import now_ms
from node.store.config.topics_file import Topic
from protocol import errors
from protocol.access.remoting_needs import without_credentials
from protocol.ids import parse_offset_message_id
from protocol.record.codec import Record
from protocol.remoting import bodies
from protocol.remoting import header_fields as hf
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import read_body

CLIENTS_SHOWN_MAX = 50_000
"""Producers of one reply to 328; further ones are left out."""
STATUS_S_MAX = 5.0
"""How long each client may take for 221 (Broker2Client#getConsumeStatus)."""
QUEUES_SHOWN_MAX = 50_000
"""Queues of all groups in one reply, which has up to 16 MiB: about 200 bytes each."""


@dataclass(slots=True, eq=False)
class GroupHandlers:
    """One for each gateway, in the thread of its loop. `_look_up` returns the record at a log
    offset."""

    _core: ClientCore
    _topics: topics.Topics
    _groups: groups.Groups
    _members: members.Members
    _commits: Commits
    _resets: WaitingResets
    _facts: QueueFacts
    _counts: BrokerCounts
    _asked: to_clients.ClientRequests
    _look_up: Callable[[int], Record]

    # Reports

    async def stats(self, _: Request, wanted: hf.ConsumeStatsHeader) -> Reply:
        """208: how far a group has come in the queues of its topics."""
        group = wanted.consumer_group
        known = await self._commits.of(group)
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

    async def stats_of_all(self, request: Request, wanted: hf.AllConsumeStatsHeader) -> Reply:
        """317: how far all groups have come, in a list for each topic. The loop has others to
        serve: after each group they have their turn."""
        known = await self._commits.of_all()
        rows: list[Mapping[str, tuple[bodies.ConsumeStats, ...]]] = []
        count = lag = in_flight = 0
        for group in self._groups.names():
            self._facts.look()
            stats = []
            for one in self._stats_of(group, known.get(group, {}), wanted.is_order):
                stats.append(one)
                count += len(one.offset_table)
                _check_room(count)
                for row in one.offset_table.values():
                    lag += row.broker_offset - row.consumer_offset
                    # A broker fills no pullOffset here, so that the sum is below zero.
                    in_flight += row.pull_offset - row.consumer_offset
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
        here = self._members.groups.get(group)
        if here is None or not here.subscriptions:
            return list(topics)
        return [topic for topic in topics if topic in here.subscriptions]

    def _queues(
        self, topic: Topic, count: int, group: str, places: Mapping[int, int], *, with_pulls: bool
    ) -> Iterable[tuple[bodies.MessageQueue, bodies.OffsetWrapper]]:
        here = self._members.groups.get(group) if with_pulls else None
        pulled = {} if here is None else here.pulled.get(topic.name, {})
        for queue_id in range(count):
            end = self._facts.bounds(topic.name, queue_id).max
            place = places.get(queue_id, 0)
            last = self._facts.time_at(topic.name, queue_id, place - 1) if place else 0
            _, pull = pulled.get(queue_id, ("", 0))
            queue = bodies.MessageQueue(topic.name, self._topics.name.broker, queue_id)
            seen = max(place, pull) if with_pulls else 0
            yield queue, bodies.OffsetWrapper(end, place, seen, max(0, last))

    async def readers_of(self, _: Request, wanted: hf.TopicHeader) -> Reply:
        """300: the groups that subscribe a topic, or have offsets of it."""
        topic, known = wanted.topic, await self._commits.of_all()
        groups = {name for name, of in known.items() if topic in of}
        groups |= {name for name, of in self._members.groups.items() if topic in of.subscriptions}
        return json_reply({"groupList": sorted(groups)})

    async def topics_of(self, request: Request, wanted: hf.GroupHeader) -> Reply:
        """343: the topics of which a group has offsets."""
        topics = tuple(sorted(await self._commits.of(wanted.group)))
        address = self._topics.name.address or request.connection.address
        return json_reply(bodies.TopicList(topics, address))

    def subscription(self, _: Request, wanted: hf.GroupHeader) -> Reply:
        """345: what a group subscribes of a topic."""
        group = self._members.groups.get(wanted.group)
        found = None if group is None else group.subscriptions.get(wanted.topic)
        return json_reply({"group": wanted.group, "subscriptionData": found, "topic": wanted.topic})

    # Settings and places

    def config(self, _: Request, wanted: hf.GroupHeader) -> Reply:
        """352: the settings of one group."""
        found = self._groups.entry(wanted.group)
        if found is None:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            return Reply(code, remark="No group in this broker")
        return json_reply(found)

    def configs(self, _: Request, wanted: hf.PagedGroupsHeader) -> Reply:
        """201: the settings of all groups, or of a page of them."""
        names = self._groups.names()
        first = max(0, wanted.group_seq)
        page = names[first : first + max(0, wanted.max_group_num)]
        body = {
            "dataVersion": self._groups.version,
            "forbiddenTable": {},
            "subscriptionGroupTable": {name: self._groups.entry(name) for name in page},
        }
        return json_reply(body, {"totalGroupNum": str(len(names))})

    async def delete(self, _: Request, wanted: hf.DeleteGroupHeader) -> Reply:
        """207: removes a group's settings, and if asked for its offsets."""
        self._groups.remove(wanted.group_name)
        self._resets.forget_group(wanted.group_name)
        if wanted.clean_offset:
            deadline = self._core.deadline(None)
            await run(self._core, client_groups.delete_group(wanted.group_name, deadline))
        return Reply()

    async def reset(self, _: Request, wanted: hf.ResetOffsetHeader) -> Reply:
        """222: of one queue or all, to an offset or a time. Members need not be there."""
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
                    offset = self._facts.bounds(wanted.topic, queue_id).max
                else:
                    offset = self._facts.offset_at(wanted.topic, queue_id, wanted.timestamp)
                places[queue_id] = offset
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

    async def clone(self, request: Request, wanted: hf.CloneOffsetHeader) -> Reply:
        """314: a group gets the offsets of another, of one topic or of all that it reads."""
        known = await self._commits.of(wanted.src_group)
        here = self._members.groups.get(wanted.src_group)
        names = [wanted.topic] if wanted.topic.strip() else sorted(known)
        check_topics(request, names)
        for name in names:
            if self._topics.find(name) is None:
                continue
            is_read = here is None or not here.subscriptions or name in here.subscriptions
            if not wanted.offline and not is_read:
                continue
            await self._commit(name, wanted.dest_group, known.get(name, {}))
        return Reply()

    # Clients. Their replies go back as they are: a stack of threads can be megabytes.

    def connected(self, _: Request, wanted: hf.ConsumerGroupHeader) -> Reply:
        """203: the members of a group and what it subscribes; 206 where nobody is."""
        name = wanted.consumer_group
        group = self._members.groups.get(name)
        if group is None:
            text = f"the consumer group[{name}] not online"
            return Reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=text)
        body = {
            "connectionSet": _shown(group.members),
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": group.subscriptions,
        }
        return json_reply(body)

    def of_producers(self, _: Request, wanted: hf.ProducerGroupHeader) -> Reply:
        """204: the producers of a group."""
        producers = self._members.producers.get(wanted.producer_group)
        if producers is None:
            return system_error(f"the producer group[{wanted.producer_group}] not exist")
        return json_reply({"connectionSet": _shown(producers)})

    def all_producers(self, _: Request) -> Reply:
        """328: the producers of all groups."""
        table, left, wall = {}, CLIENTS_SHOWN_MAX, now_ms() - int(monotonic() * 1000)
        for name, producers in sorted(self._members.producers.items()):
            rows = [
                {
                    "clientId": one.client_id,
                    "language": one.language,
                    "lastUpdateTimestamp": wall + int(one.beat_at * 1000),
                    "remoteIP": f"/{connection.peer}",
                    "version": one.version,
                }
                for connection, one in list(producers.items())[:left]
            ]
            table[name] = rows
            left -= len(rows)
        return json_reply({"data": table})

    async def running_info(self, request: Request, wanted: hf.RunningInfoHeader) -> Reply:
        """307: what a client does."""
        code, ext = RequestCode.GET_CONSUMER_RUNNING_INFO, without_credentials(request.header.ext)
        return await self._call(wanted.consumer_group, wanted.client_id, code, ext)

    async def consume(self, request: Request, wanted: hf.ConsumeDirectlyHeader) -> Reply:
        """309: a client gets a message outside of the order, and reports what became of it. Raises
        BadRequest for what is no message id, NotFound."""
        record = self._look_up(parse_offset_message_id(wanted.msg_id)[1])
        check_found(request, record)
        added = {"brokerName": self._topics.name.broker, "topicSysFlag": "0", "groupSysFlag": "0"}
        ext = {**without_credentials(request.header.ext), **added}
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        return await self._call(wanted.consumer_group, wanted.client_id, code, ext, record.raw)

    async def _call(
        self, group: str, client: str, code: RequestCode, ext: Mapping[str, str], body: bytes = b""
    ) -> Reply:
        """As AdminBrokerProcessor#callConsumer."""
        found = self._members.groups.get(group)
        here = {} if found is None else found.members
        connection = next((at for at, one in here.items() if one.client_id == client), None)
        if connection is None:
            return system_error(f"The Consumer <{group}> <{client}> not online")
        try:
            return await self._asked.ask(connection, code, ext, body)
        except TimeoutError:
            text = f"consumer <{group}> <{client}> Timeout"
            return Reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark=text)
        except ConnectionResetError as error:
            return system_error(f"invoke consumer <{group}> <{client}> Exception: {error}")

    async def client_offsets(self, _: Request, wanted: hf.ConsumerStatusHeader) -> Reply:
        """223: the offsets that clients of a group have in memory, of all or of one."""
        group = self._members.groups.get(wanted.group)
        if group is None:
            raise errors.NotFound(f"No Any Consumer online in the consumer group: [{wanted.group}]")
        ext = {"topic": wanted.topic, "group": wanted.group}
        table = {}
        wants_all = not wanted.client_addr.strip()
        asked = {
            connection: member
            for connection, member in group.members.items()
            if wants_all or wanted.client_addr == member.client_id
        }
        replies = await asyncio.gather(*(self._status_of(one, ext) for one in asked))
        for member, found in zip(asked.values(), replies, strict=True):
            if found is not None and not found.code and found.body:
                body = read_body(bodies.GetConsumerStatusBody, found.body)
                table[member.client_id] = body.message_queue_table
        return json_reply(bodies.GetConsumerStatusBody(consumer_table=table))

    async def _status_of(
        self, connection: RemotingConnection, ext: Mapping[str, str]
    ) -> Reply | None:
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        with suppress(TimeoutError, ConnectionResetError, errors.MqError):
            return await self._asked.ask(connection, code, ext, b"", STATUS_S_MAX)
        return None


def _shown(of: Mapping[RemotingConnection, members.GroupMember]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": str(connection.peer),
            "clientId": one.client_id,
            "language": one.language,
            "version": one.version,
        }
        for connection, one in of.items()
    ]


def _check_room(queues: int) -> None:
    if queues > QUEUES_SHOWN_MAX:
        raise errors.NotAllowed(f"more than {QUEUES_SHOWN_MAX} queues: ask for one group and topic")
