"""Who is there: the members of groups and what they subscribe, by heart-beats (34).

In memory only. A member is a connection: when that goes, its memberships go at once. The clients of
a group divide the queues among themselves; the node says who is there, and rings when that changes.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from gateway.connection import RemotingConnection, Reply, Request
from node.runtime.event_log import fields
from protocol.errors import BadRequest, NotAllowed
from protocol.names import is_group_name
from protocol.remoting.bodies import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    MessageQueue,
    SubscriptionData,
)
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.headers import ONE_WAY, RemotingHeader
from protocol.remoting.java_class import read_body, write_body
from protocol.remoting.request_headers import request_fields

log = logging.getLogger("keelog.gateway")

GROUPS_MAX = 20_000
MEMBERS_MAX = 10_000
"""Of one group."""
SUBSCRIPTIONS_MAX = 1_000
"""Topics of one group."""
SILENT_S_MAX = 120.0
"""A member that did not beat for longer is gone."""
LOCKS_MAX = 65_536
"""Of one group."""
LOCK_S = 60.0
"""A queue that a member locked is free again after this time without a renewal."""
BROADCASTING = "BROADCASTING"
_BEAT_EXT = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
_OPAQUES = count(1)


@dataclass(slots=True)
class GroupMember:
    """One connection of a group."""

    client_id: str
    beat_at: float
    language: str = ""
    version: int = 0


@dataclass(slots=True)
class Group:
    """A consumer group with members. Its subscriptions are the newest heart-beat's."""

    members: dict[RemotingConnection, GroupMember] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    message_model: str = ""
    consume_type: str = ""
    consume_from_where: str = ""
    pulled_by: dict[str, dict[int, str]] = field(default_factory=dict)
    """By topic and queue: the client that pulled last."""

    def take(self, data: ConsumerData, without_sub: bool) -> bool:
        """Takes what a heart-beat says; True if the topics have changed."""
        self.message_model, self.consume_type = data.message_model, data.consume_type
        self.consume_from_where = data.consume_from_where
        if without_sub:
            return False
        before = self.subscriptions
        self.subscriptions = {
            one.topic: _newer(before.get(one.topic), one) for one in data.subscription_data_set
        }
        return before.keys() != self.subscriptions.keys()


def _newer(known: SubscriptionData | None, found: SubscriptionData) -> SubscriptionData:
    return known if known is not None and known.sub_version > found.sub_version else found


class Members:
    """All groups of a node. Times are seconds of the caller's monotonic clock."""

    def __init__(self) -> None:
        self.may_ring: Callable[[str], bool] = lambda group: True
        """Whether a group's members hear of changes; its owner sets it."""
        self.changes = 0
        """Rises when `shown` has something else to say."""
        self.groups: dict[str, Group] = {}
        self.producers: dict[str, dict[RemotingConnection, GroupMember]] = {}
        self._locks: dict[str, dict[MessageQueue, tuple[str, float]]] = {}

    def find(self, group: str) -> Group | None:
        """A group with members; None where nobody is."""
        return self.groups.get(group)

    # Requests

    def beat(self, request: Request, now: float) -> Iterable[str]:
        """34: takes a heart-beat, replies to it, and returns the consumer groups that are new."""
        data = read_body(HeartbeatData, request.body)
        connection, fresh = request.connection, []
        for producer in data.producer_data_set:
            if producer.group_name:
                self._beat_of_producer(_checked(producer.group_name), connection, data, now)
        for consumer in data.consumer_data_set:
            name = consumer.group_name
            if not name:
                continue
            if name not in self.groups:
                fresh.append(name)
            self._beat_of(request, data, consumer, now)
        request.answer(Reply(ext=_BEAT_EXT))
        return fresh

    def _beat_of_producer(
        self, name: str, connection: RemotingConnection, data: HeartbeatData, now: float
    ) -> None:
        members = self.producers.get(name, {})
        if not members and len(self.producers) >= GROUPS_MAX:
            raise NotAllowed(f"{GROUPS_MAX} groups of producers are there already")
        if connection not in members and len(members) >= MEMBERS_MAX:
            raise NotAllowed(f"group {name} has {MEMBERS_MAX} producers already")
        members[connection] = GroupMember(data.client_id, now)
        self.producers[name] = members

    def _beat_of(
        self,
        request: Request,
        data: HeartbeatData,
        consumer: ConsumerData,
        now: float,
    ) -> None:
        name, connection = _checked(consumer.group_name), request.connection
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= GROUPS_MAX:
                raise NotAllowed(f"{GROUPS_MAX} groups have members already")
            group = self.groups[name] = Group()
        is_new = connection not in group.members
        if is_new and len(group.members) >= MEMBERS_MAX:
            raise NotAllowed(f"group {name} has {MEMBERS_MAX} members already")
        if len(consumer.subscription_data_set) > SUBSCRIPTIONS_MAX:
            raise NotAllowed(f"group {name} subscribes more than {SUBSCRIPTIONS_MAX} topics")
        known = group.members.get(connection)
        if known is not None and known.client_id != data.client_id:
            extra = fields(group=name, before=known.client_id, now=data.client_id)
            log.warning("a connection has changed its client id", extra=extra)
        header = request.header
        group.members[connection] = GroupMember(
            data.client_id, now, header.language.name, header.version
        )
        if group.take(consumer, data.without_sub) or is_new:
            self.changes += 1
            self._ring(name, group)

    def unregister(self, request: Request) -> Reply:
        """35: a client leaves a group."""
        wanted = request_fields(request.header)
        if wanted.producer_group:
            self._leave_producers(wanted.producer_group, request.connection)
        if wanted.consumer_group:
            self._leave(wanted.consumer_group, request.connection)
        return Reply()

    def members_of(self, request: Request) -> Reply:
        """38: the ids of a group's members, one for each connection."""
        name = request_fields(request.header).consumer_group
        group = self.groups.get(name)
        if group is None:
            text = f"no consumer for this group, {name}"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=text)
        ids = tuple(member.client_id for member in group.members.values())
        return Reply(body=write_body(ConsumerIdList(ids), standard=True))

    def lock(self, request: Request, now: float) -> Reply:
        """41: locks those of the queues that nobody else has."""
        wanted = read_body(LockBatchBody, request.body)
        name = _checked(wanted.consumer_group)
        if name not in self._locks and len(self._locks) >= GROUPS_MAX:
            raise NotAllowed(f"{GROUPS_MAX} groups have locked queues already")
        locks = self._locks.setdefault(name, {})
        granted = []
        for queue in wanted.mq_set:
            owner, since = locks.get(queue, ("", now))
            is_free = len(locks) < LOCKS_MAX if not owner else now - since > LOCK_S
            if is_free or owner == wanted.client_id:
                locks[queue] = wanted.client_id, now
                granted.append(queue)
        return Reply(body=write_body(LockedQueues(tuple(granted)), standard=True))

    def has_locks(self, name: str, now: float) -> bool:
        """Whether a group has locked a queue of late: it consumes in order."""
        locks = self._locks.get(name, {})
        return any(now - since <= LOCK_S for _, since in locks.values())

    def unlock(self, request: Request) -> Reply:
        """42: gives locks back."""
        wanted = read_body(LockBatchBody, request.body)
        locks = self._locks.get(wanted.consumer_group, {})
        for queue in wanted.mq_set:
            if locks.get(queue, ("", 0.0))[0] == wanted.client_id:
                del locks[queue]
        return Reply()

    def note_pull(self, name: str, connection: RemotingConnection, topic: str, queue: int) -> None:
        """A member pulls from a queue."""
        group = self.groups.get(name)
        member = None if group is None else group.members.get(connection)
        if group is None or member is None:
            return
        pulled_by = group.pulled_by.setdefault(topic, {})
        if pulled_by.get(queue) != member.client_id:
            pulled_by[queue] = member.client_id
            self.changes += 1

    def shown(self) -> dict[str, Any]:
        """Groups, members and queues, for people."""
        found: dict[str, Any] = {}
        for name, group in self.groups.items():
            here = {member.client_id for member in group.members.values()}
            found[name] = {
                "topics": sorted(group.subscriptions),
                "members": [
                    {
                        "client_id": member.client_id, "address": str(connection.peer),
                        "language": member.language, "version": member.version,
                    }
                    for connection, member in group.members.items()
                ],
                "queues": {
                    topic: {str(n): client for n, client in sorted(of.items()) if client in here}
                    for topic, of in sorted(group.pulled_by.items())
                    if topic in group.subscriptions
                },
            }  # fmt: skip
        return found

    # Ends

    def went(self, connection: RemotingConnection) -> None:
        """A connection is gone, and leaves all its groups."""
        for name in [name for name, group in self.groups.items() if connection in group.members]:
            self._leave(name, connection)
        for name in [name for name, all_of in self.producers.items() if connection in all_of]:
            self._leave_producers(name, connection)

    def drop_silent(self, now: float) -> None:
        """Drops the members that did not beat for SILENT_S_MAX, and locks that have expired."""
        for name, group in list(self.groups.items()):
            for connection in _silent(group.members, now):
                self._leave(name, connection)
        for name, members in list(self.producers.items()):
            for connection in _silent(members, now):
                self._leave_producers(name, connection)
        for name, locks in list(self._locks.items()):
            for queue in [one for one, (_, since) in locks.items() if now - since > LOCK_S]:
                del locks[queue]
            if not locks:
                del self._locks[name]

    def _leave(self, name: str, connection: RemotingConnection) -> None:
        group = self.groups.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        self.changes += 1
        if not group.members:
            del self.groups[name]
        self._ring(name, group)

    def _leave_producers(self, name: str, connection: RemotingConnection) -> None:
        members = self.producers.get(name, {})
        members.pop(connection, None)
        if not members:
            self.producers.pop(name, None)

    def _ring(self, name: str, group: Group) -> None:
        """40: tells all members that the group has changed."""
        if group.message_model == BROADCASTING or not self.may_ring(name):
            return
        for connection in group.members:
            ext = {"consumerGroup": name}
            connection.send(
                RemotingHeader(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, next(_OPAQUES), ONE_WAY, ext
                )
            )


def _silent(
    members: Mapping[RemotingConnection, GroupMember], now: float
) -> list[RemotingConnection]:
    return [one for one, member in members.items() if now - member.beat_at > SILENT_S_MAX]


def _checked(group: str) -> str:
    """Raises BadRequest for a name that RocketMQ does not allow."""
    if not is_group_name(group):
        raise BadRequest(f"{group[:80]!a} cannot name a group")
    return group
