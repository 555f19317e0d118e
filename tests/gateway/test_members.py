"""Membership, subscriptions and locks of groups, without sockets."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.connection import Reply, Request
from gateway.members import LOCK_S, SILENT_S_MAX, Members
from protocol.errors import BadRequest
from protocol.remoting.bodies import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from protocol.remoting.codes import RequestCode
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_class import read_body, write_body

QUEUES = tuple(MessageQueue("t", "b", number) for number in range(4))


@dataclass(eq=False)
class Peer:
    """In place of a connection: it keeps what is sent."""

    under_way: int = 0
    sent: list[RemotingHeader] = field(default_factory=list)

    def send(self, header: RemotingHeader, body: bytes = b"") -> None:
        self.sent.append(header)

    def rings(self) -> int:
        """How often it was told that its group has changed, since the last look."""
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        count = sum(not one.is_answer and one.code == code for one in self.sent)
        self.sent.clear()
        return count


def request(peer: Any, body: Any = None, code: int = 0, **ext: str) -> Request:
    data = b"" if body is None else write_body(body, standard=False)
    header = RemotingHeader(code, 1, ext=ext)
    return Request(peer, header, memoryview(data))


def beat(
    members: Members, peer: Any, client: str, now: float = 0.0, version: int = 1, *topics: str
) -> list[str]:
    wanted = tuple(
        SubscriptionData(topic, client, sub_version=version) for topic in topics or ("t",)
    )
    data = ConsumerData("g", subscription_data_set=wanted)
    heartbeat = HeartbeatData(client, (ProducerData("p"),), (data,))
    return list(members.beat(request(peer, heartbeat), now))


def ids(members: Members) -> list[str]:
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    reply = members.members_of(request(Peer(), code=code, consumerGroup="g"))
    return (
        list(read_body(ConsumerIdList, bytes(reply.body)).consumer_id_list)
        if not reply.code
        else []
    )


def lock(members: Members, client: str, now: float) -> list[int]:
    reply = members.lock(request(Peer(), LockBatchBody("g", client, QUEUES)), now)
    found = read_body(LockedQueues, bytes(reply.body)).lock_ok_mq_set
    return sorted(queue.queue_id for queue in found)


def test_members_are_rung_when_one_comes_and_when_one_goes() -> None:
    members, one, two = Members(), Peer(), Peer()
    assert beat(members, one, "c1") == ["g"]
    assert one.rings() == 1
    assert beat(members, one, "c1") == []
    assert one.rings() == 0
    beat(members, two, "c2")
    assert (one.rings(), two.rings()) == (1, 1)
    assert ids(members) == ["c1", "c2"]
    members.went(one)  # type: ignore[arg-type]
    assert (one.rings(), two.rings()) == (0, 1)
    assert ids(members) == ["c2"]
    members.went(two)  # type: ignore[arg-type]
    assert ids(members) == []
    assert not members.groups
    assert not members.producers


def test_a_member_that_does_not_beat_is_gone_after_a_time() -> None:
    members, one, two = Members(), Peer(), Peer()
    beat(members, one, "c1", 0.0)
    beat(members, two, "c2", 60.0)
    members.drop_silent(SILENT_S_MAX)
    assert ids(members) == ["c1", "c2"]
    members.drop_silent(SILENT_S_MAX + 1)
    assert ids(members) == ["c2"]
    members.went(two)  # type: ignore[arg-type]
    assert not members.producers, "the silent one is gone from there too"


def test_a_subscription_is_the_groups_and_an_older_one_does_not_replace_it() -> None:
    members, one, two = Members(), Peer(), Peer()
    beat(members, one, "new", 0.0, 5)
    beat(members, two, "old", 0.0, 4)
    group = members.find("g")
    assert group is not None
    assert group.subscriptions["t"].sub_string == "new"
    one.rings()
    beat(members, two, "old", 0.0, 6, "t", "u")
    assert group.subscriptions.keys() == {"t", "u"}
    assert one.rings() == 1, "other topics are a change"
    beat(members, one, "new", 0.0, 7)
    assert group.subscriptions.keys() == {"t"}


def test_a_member_that_leaves_is_gone_at_once() -> None:
    members, one = Members(), Peer()
    beat(members, one, "c1")
    fields = {"clientID": "c1", "consumerGroup": "g", "producerGroup": "p"}
    code: Any = RequestCode.UNREGISTER_CLIENT
    assert members.unregister(request(one, code=code, **fields)) == Reply()
    assert not members.groups
    assert not members.producers


def test_queues_are_locked_for_one_client_until_it_gives_them_back_or_is_late() -> None:
    members = Members()
    assert lock(members, "c1", 0.0) == [0, 1, 2, 3]
    assert lock(members, "c2", 1.0) == []
    assert lock(members, "c1", 30.0) == [0, 1, 2, 3]
    assert lock(members, "c2", 30.0 + LOCK_S) == []
    assert lock(members, "c2", 30.1 + LOCK_S) == [0, 1, 2, 3]
    members.unlock(request(Peer(), LockBatchBody("g", "c1", QUEUES)))
    assert lock(members, "c1", 100.0) == [], "only the owner can unlock"
    members.unlock(request(Peer(), LockBatchBody("g", "c2", QUEUES[:1])))
    assert lock(members, "c1", 100.0) == [0]
    members.drop_silent(300.0)
    assert lock(members, "c3", 300.0) == [0, 1, 2, 3]


def test_a_name_that_no_group_has_is_refused() -> None:
    members = Members()
    data = HeartbeatData("c", (), (ConsumerData("a@b"),))
    with pytest.raises(BadRequest, match="'a@b' cannot name a group"):
        list(members.beat(request(Peer(), data), 0.0))
    assert not members.groups
