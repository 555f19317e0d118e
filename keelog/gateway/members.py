"""Who is there: the members of groups and what they subscribe, by heart-beats (34).

A member is a connection: when that goes, its memberships go at once. The clients of a group divide
its queues among those whom 38 names; the node notifies them when that changes.

After a restart clients come back one by one, and the first would take all queues, also those that
others still consume. So 38 also names the members that were there before the gateway started, until
they are back, or their time is over (`AwaitedMembers`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from keelog.gateway.client_ids import ClientIds
from keelog.gateway.connection import RemotingConnection, Reply, Request, json_reply, system_error
from keelog.gateway.guard import AskingUser
from node.runtime.event_log import fields
from protocol.errors import BadRequest, NotAllowed
from protocol.names import is_group_name
from protocol.remoting import bodies, codes, headers, java_json
from protocol.remoting import header_fields as hf

log = logging.getLogger("keelog.gateway")

REJOIN_S = 10.0
"""How long a member of before the start is awaited that beats as soon as it is connected again: a
Java client pulls again after 3 s."""
BEAT_S = 35.0
"""For every other one: it beats each 30 s, whether its connection is new or not."""
REJOINS_SINCE = 473
"""Java's clients of 5.3.0 and later beat on a new connection (MQClientInstance)."""
AWAITED_MAX = 100_000
"""Members of all groups that are awaited; of further ones nobody knows."""
GROUPS_MAX = 20_000
MEMBERS_MAX = 10_000
"""Of one group."""
SUBSCRIPTIONS_MAX = 1_000
"""Topics of one group."""
SILENT_S_MAX = 120.0
"""A member that did not beat for longer is gone."""
MEMBERSHIPS_MAX = 100_000
"""Of all groups, those of producers too: one connection can be in many."""
SUBSCRIBED_CHARS_MAX = 64 * 1024 * 1024
"""Texts of the subscriptions of all groups."""
CLIENT_ID_CHARS_MAX = 1_024
LOCKS_MAX = 65_536
"""Of one group."""
LOCKS_OF_ALL_MAX = 200_000
NAME_CHARS_MAX = 255
"""Of the topic and the broker of a queue that is locked: no topic has a longer name."""
LOCK_S = 60.0
"""A queue that a member locked is free again after this time without a renewal."""
PULLED_QUEUES_MAX = 65_536
"""Of all groups: queues of which is known who pulled last, and from where."""
ASKED_MAX = 3
"""Connections of a group of producers that are looked at for one that can be asked
(ProducerManager#getAvailableChannel)."""
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
    asker: AskingUser | None = None
    """The user who sent the last heart-beat; None where nobody must say so."""


@dataclass(slots=True)
class Group:
    """A consumer group with members. Its subscriptions are the newest heart-beat's."""

    members: dict[RemotingConnection, GroupMember] = field(default_factory=dict)
    subscriptions: dict[str, bodies.SubscriptionData] = field(default_factory=dict)
    message_model: str = ""
    consume_type: str = ""
    consume_from_where: str = ""
    pulled: dict[str, dict[int, tuple[str, int]]] = field(default_factory=dict)
    """By topic and queue: the client that pulled last, and from which offset."""
    begun: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and queue, of those in `pulled`: the offset of the first pull."""
    chars: int = 0
    """Of its subscriptions."""

    def take(self, data: bodies.ConsumerData, without_sub: bool) -> bool:
        """Takes what a heart-beat says; True if the topics have changed."""
        self.message_model, self.consume_type = data.message_model, data.consume_type
        self.consume_from_where = data.consume_from_where
        if without_sub:
            return False
        before = self.subscriptions
        self.subscriptions = {
            one.topic: _newer(before.get(one.topic), one) for one in data.subscription_data_set
        }
        self.chars = _chars(self.subscriptions.values())
        return before.keys() != self.subscriptions.keys()

    def forget_pulls(self) -> int:
        """Forgets the queues of topics that it does not subscribe; returns how many."""
        gone = [
            (topic, queue)
            for topic in self.pulled.keys() - self.subscriptions.keys()
            for queue in self.pulled.pop(topic)
        ]
        for place in gone:
            self.begun.pop(place, None)
        return len(gone)


def _chars(subscriptions: Iterable[bodies.SubscriptionData]) -> int:
    return sum(
        len(one.topic) + len(one.sub_string) + sum(map(len, one.tags_set)) + len(one.code_set)
        for one in subscriptions
    )


def _newer(
    known: bodies.SubscriptionData | None, found: bodies.SubscriptionData
) -> bodies.SubscriptionData:
    return known if known is not None and known.sub_version > found.sub_version else found


class Members:
    """All groups of a node. Times are seconds of the caller's monotonic clock."""

    def __init__(self, awaited: "AwaitedMembers | None" = None) -> None:
        """`awaited`: who was there before the gateway started."""
        self._awaited = AwaitedMembers() if awaited is None else awaited
        self.may_notify: Callable[[str], bool] = lambda group: True
        """Whether a group's members hear of changes; its owner sets it."""
        self.changes = self.pulls = 0
        """They rise when `shown` has something else to say: of members, and of what they pulled or
        when they beat."""
        self._pulled_queues = self._turn = 0
        self.groups: dict[str, Group] = {}
        """Those with members."""
        self.producers: dict[str, dict[RemotingConnection, GroupMember]] = {}
        self.producers_by_id: dict[str, RemotingConnection] = {}
        """The connection of each client that is a producer: the one that beat last."""
        self._joined: dict[RemotingConnection, set[str]] = {}
        """By connection: its consumer groups."""
        self._produces: dict[RemotingConnection, set[str]] = {}
        """By connection: its producer groups."""
        self._client_ids = ClientIds()
        self._memberships = self._chars = self._lock_count = 0
        self._locks: dict[str, dict[bodies.MessageQueue, tuple[str, float]]] = {}

    def has(self, group: str, connection: RemotingConnection) -> bool:
        """Whether a connection is a member of a consumer group."""
        return group in self._joined.get(connection, ())

    def may_be_behind(self, group: str, connection: RemotingConnection) -> bool:
        """Whether a connection is a member that commits at the node how far it has come, and never
        goes on elsewhere by itself, as one that looks at messages may."""
        found = self.groups.get(group)
        if found is None or connection not in found.members:
            return False
        return (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")

    def producer_of(
        self, group: str, may: Callable[[AskingUser | None], bool] | None = None
    ) -> RemotingConnection | None:
        """A connection of a group of producers: each in turn, first those whose client reads.
        `may`: whether a member of this user counts; else all do."""
        found = self.producers.get(group, {})
        members = [one for one, member in found.items() if may is None or may(member.asker)]
        if not members:
            return None
        self._turn += 1
        turns = (members[(self._turn + n) % len(members)] for n in range(ASKED_MAX))
        here = [one for one in turns if not one.is_closed]
        return next((one for one in here if not one.is_unread), here[0] if here else None)

    def asker_of(self, client_id: str, connection: RemotingConnection) -> AskingUser | None:
        """Whose producer it is that beats with an id on a connection; None where nobody logged in
        as it did."""
        for name in self._produces.get(connection, ()):
            member = self.producers[name][connection]
            if member.client_id == client_id:
                return member.asker
        return None

    # Requests

    def beat(self, request: Request, now: float) -> Iterable[bodies.ConsumerData]:
        """34: takes a heart-beat, replies to it, and returns the consumer groups that are new."""
        data = java_json.read_body(bodies.HeartbeatData, request.body)
        if len(data.client_id) > CLIENT_ID_CHARS_MAX:
            raise BadRequest(f"a client id of more than {CLIENT_ID_CHARS_MAX} characters")
        self._client_ids.bind(data.client_id, request)
        request.connection.client_id = data.client_id
        fresh = []
        for producer in data.producer_data_set:
            if producer.group_name:
                self._beat_of_producer(_checked(producer.group_name), request, data, now)
        for consumer in data.consumer_data_set:
            if consumer.group_name:
                fresh += [consumer] if consumer.group_name not in self.groups else []
                self._beat_of(request, data, consumer, now)
        request.answer(Reply(ext=_BEAT_EXT))
        return fresh

    def _beat_of_producer(
        self, name: str, request: Request, data: bodies.HeartbeatData, now: float
    ) -> None:
        connection, header = request.connection, request.header
        members = self.producers.get(name, {})
        if not members and len(self.producers) >= GROUPS_MAX:
            raise NotAllowed(f"{GROUPS_MAX} groups of producers are there already")
        if connection not in members:
            if len(members) >= MEMBERS_MAX:
                raise NotAllowed(f"group {name} has {MEMBERS_MAX} producers already")
            self._join(self._produces, connection, name)
        members[connection] = GroupMember(
            data.client_id, now, header.language.name, header.version, request.asker
        )
        self.producers[name] = members
        self.producers_by_id[data.client_id] = connection

    def _beat_of(
        self, request: Request, data: bodies.HeartbeatData, of: bodies.ConsumerData, now: float
    ) -> None:
        name, connection, header = _checked(of.group_name), request.connection, request.header
        group = self.groups.get(name)
        if len(of.subscription_data_set) > SUBSCRIPTIONS_MAX:
            raise NotAllowed(f"group {name} subscribes more than {SUBSCRIPTIONS_MAX} topics")
        if self._chars + _chars(of.subscription_data_set) > SUBSCRIBED_CHARS_MAX:
            raise NotAllowed(f"the subscriptions of all groups have {self._chars} characters")
        if group is None and len(self.groups) >= GROUPS_MAX:
            raise NotAllowed(f"{GROUPS_MAX} groups have members already")
        is_new = group is None or connection not in group.members
        if group is not None and is_new and len(group.members) >= MEMBERS_MAX:
            raise NotAllowed(f"group {name} has {MEMBERS_MAX} members already")
        if is_new:
            self._join(self._joined, connection, name)
        if group is None:
            group = self.groups[name] = Group()
        known = group.members.get(connection)
        if known is not None and known.client_id != data.client_id:
            extra = fields(group=name, before=known.client_id, now=data.client_id)
            log.warning("a connection has changed its client id", extra=extra)
        member = GroupMember(
            data.client_id, now, header.language.name, header.version, request.asker
        )
        group.members[connection] = member
        if self._awaited.groups:
            self._awaited.forget(name, data.client_id)
        connection.group = name
        self.pulls += 1
        chars = group.chars
        has_changed = group.take(of, data.without_sub)
        self._chars += group.chars - chars
        if has_changed or is_new:
            self._pulled_queues -= group.forget_pulls()
            self.changes += 1
            self._notify(name, group)

    def _join(
        self, of: dict[RemotingConnection, set[str]], connection: RemotingConnection, name: str
    ) -> None:
        """Raises NotAllowed for one membership too many."""
        if self._memberships >= MEMBERSHIPS_MAX:
            raise NotAllowed(f"clients are members of {MEMBERSHIPS_MAX} groups already")
        self._memberships += 1
        of.setdefault(connection, set()).add(name)

    def _part(
        self, of: dict[RemotingConnection, set[str]], connection: RemotingConnection, name: str
    ) -> None:
        self._memberships -= 1
        names = of[connection]
        names.discard(name)
        if not names:
            del of[connection]

    def unregister(self, request: Request, wanted: hf.UnregisterClientHeader) -> Reply:
        """35: a client leaves a group."""
        self._client_ids.check(wanted.client_id, request)
        if wanted.producer_group:
            self._leave_producers(wanted.producer_group, request.connection)
        if wanted.consumer_group:
            self._leave(wanted.consumer_group, request.connection)
            if self._awaited.forget(wanted.consumer_group, wanted.client_id):
                self._notify_anew(wanted.consumer_group)
        return Reply()

    def members_of(self, _: Request, wanted: hf.ConsumerGroupHeader) -> Reply:
        """38: the ids of a group's members and of those awaited, each once.

        A broker names an id once for each connection. Java's client may open two at a time after a
        request that timed out, keep both and beat on both: it divides the queues by two then, and
        nobody reads the second half until a connection is idle for two minutes.
        """
        name = wanted.consumer_group
        group = self.groups.get(name)
        here = () if group is None else group.members.values()
        awaited = self._awaited.groups.get(name, ())
        ids = dict.fromkeys((*(member.client_id for member in here), *awaited))
        if not ids:
            return system_error(f"no consumer for this group, {name}")
        return json_reply(bodies.ConsumerIdList(tuple(ids)))

    def lock(self, request: Request, now: float) -> Reply:
        """41: locks those of the queues that nobody else has."""
        wanted = java_json.read_body(bodies.LockBatchBody, request.body)
        name = _checked(wanted.consumer_group)
        if name not in self._locks and len(self._locks) >= GROUPS_MAX:
            raise NotAllowed(f"{GROUPS_MAX} groups have locked queues already")
        if len(wanted.client_id) > CLIENT_ID_CHARS_MAX:
            raise BadRequest(f"a client id of more than {CLIENT_ID_CHARS_MAX} characters")
        self._client_ids.check(wanted.client_id, request)
        locks = self._locks.setdefault(name, {})
        granted = []
        for queue in wanted.mq_set:
            if max(len(queue.topic), len(queue.broker_name)) > NAME_CHARS_MAX:
                continue
            owner, since = locks.get(queue, ("", now))
            has_room = len(locks) < LOCKS_MAX and self._lock_count < LOCKS_OF_ALL_MAX
            is_free = now - since > LOCK_S if queue in locks else has_room
            if is_free or owner == wanted.client_id:
                self._lock_count += queue not in locks
                locks[queue] = wanted.client_id, now
                granted.append(queue)
        return json_reply(bodies.LockedQueues(tuple(granted)))

    def has_locks(self, name: str, now: float) -> bool:
        """Whether a group has locked a queue of late: it consumes in order."""
        locks = self._locks.get(name, {})
        return any(now - since <= LOCK_S for _, since in locks.values())

    def unlock(self, request: Request) -> Reply:
        """42: gives locks back."""
        wanted = java_json.read_body(bodies.LockBatchBody, request.body)
        self._client_ids.check(wanted.client_id, request)
        locks = self._locks.get(wanted.consumer_group, {})
        for queue in wanted.mq_set:
            if locks.get(queue, ("", 0.0))[0] == wanted.client_id:
                del locks[queue]
                self._lock_count -= 1
        return Reply()

    def note_pull(
        self, name: str, connection: RemotingConnection, topic: str, queue: int, offset: int
    ) -> None:
        """A member pulls from a queue that is there, of a topic of its group."""
        group = self.groups.get(name)
        member = None if group is None else group.members.get(connection)
        if group is None or member is None or topic not in group.subscriptions:
            return
        pulled = group.pulled.setdefault(topic, {})
        before = pulled.get(queue)
        if before is None:
            if self._pulled_queues >= PULLED_QUEUES_MAX:
                return
            self._pulled_queues += 1
            group.begun[topic, queue] = offset
        if before is None or before[0] != member.client_id:
            self.changes += 1
        pulled[queue] = member.client_id, offset
        self.pulls += 1

    def shown(self, now: float, now_ms: int) -> dict[str, Any]:
        """Groups, members and queues, for people. `now_ms`: the same moment, in ms since 1970."""
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
                "beats_ms": {
                    str(connection.peer): now_ms - int((now - member.beat_at) * 1000)
                    for connection, member in group.members.items()
                },
                "awaited": self._awaited.left(name),
                "queues": {
                    topic: {str(n): who for n, (who, _) in sorted(of.items()) if who in here}
                    for topic, of in sorted(group.pulled.items())
                },
                "pulled": {
                    topic: {str(n): offset for n, (_, offset) in sorted(of.items())}
                    for topic, of in sorted(group.pulled.items())
                },
            }  # fmt: skip
        for name in self._awaited.groups.keys() - found.keys():
            found[name] = {"members": [], "awaited": self._awaited.left(name), "queues": {}}
        return found

    # Ends

    def went(self, connection: RemotingConnection) -> None:
        """A connection is gone, and leaves all its groups."""
        self._client_ids.went(connection)
        for name in list(self._joined.get(connection, ())):
            self._leave(name, connection)
        for name in list(self._produces.get(connection, ())):
            self._leave_producers(name, connection)

    def drop_silent(self, now: float) -> None:
        """Drops the members that did not beat for SILENT_S_MAX, locks that have expired, and those
        who were awaited for long enough."""
        for name in self._awaited.drop_due(now) if self._awaited.groups else ():
            self._notify_anew(name)
        for name, group in list(self.groups.items()):
            for connection in _silent(group.members, now):
                who = fields(
                    group=name, client_id=group.members[connection].client_id,
                    peer=str(connection.peer), why=f"no heart-beat for {SILENT_S_MAX:.0f} s",
                )  # fmt: skip
                log.warning("a member is gone, and its queues are free", extra=who)
                self._leave(name, connection)
        for name, members in list(self.producers.items()):
            for connection in _silent(members, now):
                self._leave_producers(name, connection)
        for name, locks in list(self._locks.items()):
            for queue in [one for one, (_, since) in locks.items() if now - since > LOCK_S]:
                del locks[queue]
                self._lock_count -= 1
            if not locks:
                del self._locks[name]

    def _leave(self, name: str, connection: RemotingConnection) -> None:
        group = self.groups.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        self.changes += 1
        self._part(self._joined, connection, name)
        if not group.members:
            del self.groups[name]
            self._chars -= group.chars
            self._pulled_queues -= sum(map(len, group.pulled.values()))
        self._notify(name, group)

    def _leave_producers(self, name: str, connection: RemotingConnection) -> None:
        members = self.producers.get(name, {})
        member = members.pop(connection, None)
        if not members:
            self.producers.pop(name, None)
        if member is None:
            return
        self._part(self._produces, connection, name)
        if self.producers_by_id.get(member.client_id) is connection:
            # As at a broker also where it is a producer of another group: that beats again.
            del self.producers_by_id[member.client_id]

    def _notify_anew(self, name: str) -> None:
        """One that was awaited is so no more, and is not back."""
        self.changes += 1
        group = self.groups.get(name)
        if group is not None:
            self._notify(name, group)

    def _notify(self, name: str, group: Group) -> None:
        """40: notifies all members that the group has changed."""
        if group.message_model == BROADCASTING or not self.may_notify(name):
            return
        code, ext = codes.RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name}
        for connection in group.members:
            connection.send(headers.RemotingHeader(code, next(_OPAQUES), headers.ONE_WAY, ext))


def _silent(
    members: Mapping[RemotingConnection, GroupMember], now: float
) -> list[RemotingConnection]:
    return [one for one, member in members.items() if now - member.beat_at > SILENT_S_MAX]


def _checked(group: str) -> str:
    """Raises BadRequest for a name that RocketMQ does not allow."""
    if not is_group_name(group):
        raise BadRequest(f"{group[:80]!a} cannot name a group")
    return group


class AwaitedMembers:
    """Client ids by group, each with the moment until which it is awaited. Times are seconds of the
    caller's monotonic clock."""

    def __init__(self, before: Mapping[str, Any] | None = None, now: float = 0.0) -> None:
        """`before`: the file of the members as the last gateway left it; what it should not hold
        is passed over."""
        self._now = now
        self.groups: dict[str, dict[str, float]] = {}
        for group, client_id, wait_s in islice(_members_before(before or {}), AWAITED_MAX):
            self.groups.setdefault(group, {})[client_id] = now + wait_s

    def left(self, group: str) -> dict[str, float]:
        """For how many seconds each of a group is awaited still, as of the last look."""
        awaited = self.groups.get(group, {})
        return {one: round(max(0.0, until - self._now), 1) for one, until in awaited.items()}

    def forget(self, group: str, client_id: str) -> bool:
        """A member is back, or has left for good; whether it was awaited."""
        awaited = self.groups.get(group, {})
        if awaited.pop(client_id, None) is None:
            return False
        if not awaited:
            del self.groups[group]
        return True

    def drop_due(self, now: float) -> list[str]:
        """Awaits those no longer whose time is over; returns their groups."""
        self._now = now
        changed = []
        for group, awaited in list(self.groups.items()):
            due = [client_id for client_id, until in awaited.items() if until <= now]
            for client_id in due:
                self.forget(group, client_id)
            changed += [group] if due else []
        return changed


def _members_before(before: Mapping[str, Any]) -> Iterable[tuple[str, str, float]]:
    """Group, client id and seconds to wait of those who were there, and of those awaited then."""
    for group, entry in before.items():
        if not isinstance(entry, dict):
            continue
        awaited, members = entry.get("awaited"), entry.get("members")
        for client_id, left_s in awaited.items() if isinstance(awaited, dict) else ():
            # No longer than the first wait allowed, however often the gateway starts.
            if isinstance(left_s, int | float) and left_s > 0:
                yield group, client_id, min(float(left_s), BEAT_S)
        for member in members if isinstance(members, list) else ():
            if isinstance(member, dict) and isinstance(member.get("client_id"), str):
                yield group, member["client_id"], _awaited_s(member)


def _awaited_s(member: Mapping[str, Any]) -> float:
    language, version = member.get("language"), member.get("version")
    number = version if isinstance(version, int) else 0
    is_java = language == codes.Language.JAVA.name
    rejoins = language == codes.Language.PYTHON.name or (is_java and number >= REJOINS_SINCE)
    return REJOIN_S if rejoins else BEAT_S
