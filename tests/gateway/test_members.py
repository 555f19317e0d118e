"""Membership, subscriptions and locks of groups, without sockets."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

import keelog.gateway.members
from keelog.gateway.connection import Reply, Request
from keelog.gateway.members import CLIENT_ID_CHARS_MAX, LOCK_S, SILENT_S_MAX, Members
from protocol.errors import BadRequest, NotAllowed
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
from protocol.remoting.header_fields import request_fields
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_json import read_body, write_body

QUEUES = tuple(MessageQueue("t", "b", number) for number in range(4))


class Handler:
    """In place of the service."""

    def count(self, code: int, outcome: int) -> None:
        assert not outcome


@dataclass(eq=False)
class Peer:
    """In place of a connection: it keeps what is sent."""

    handler: Handler = field(default_factory=Handler)
    peer: str = "10.0.0.1:5"
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
    return [one.group_name for one in members.beat(request(peer, heartbeat), now)]


def ids(members: Members) -> list[str]:
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    asked = request(Peer(), code=code, consumerGroup="g")
    reply = members.members_of(asked, request_fields(asked.header))
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


def test_a_client_with_two_connections_is_named_once_and_has_all_queues() -> None:
    members, first, second = Members(), Peer(), Peer()
    beat(members, first, "c1")
    beat(members, second, "c1")
    assert ids(members) == ["c1"]
    members.went(first)  # type: ignore[arg-type]
    assert ids(members) == ["c1"], "its other connection is there"
    members.went(second)  # type: ignore[arg-type]
    assert ids(members) == []


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
    group = members.groups.get("g")
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
    asked = request(one, code=code, **fields)
    assert members.unregister(asked, request_fields(asked.header)) == Reply()
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


def test_memberships_and_subscriptions_of_all_groups_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keelog.gateway.members, "MEMBERSHIPS_MAX", 3)
    members, peers = Members(), [Peer() for _ in range(3)]
    beat(members, peers[0], "c1")
    with pytest.raises(NotAllowed, match="members of 3 groups already"):
        for peer in peers[1:]:
            beat(members, peer, "c2")  # a producer and a member of a consumer group each
    members.went(peers[0])  # type: ignore[arg-type]
    beat(members, peers[2], "c3")
    for peer in peers:
        members.went(peer)  # type: ignore[arg-type]
    assert (members._memberships, members._chars) == (0, 0)
    assert not members._joined
    assert not members._produces
    monkeypatch.setattr(keelog.gateway.members, "SUBSCRIBED_CHARS_MAX", 100)
    beat(members, peers[0], "c" * 60)  # its id is its expression here
    with pytest.raises(NotAllowed, match="subscriptions of all groups"):
        beat(members, peers[0], "c" * 60)
    members.went(peers[0])  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="client id"):
        beat(members, peers[0], "c" * (CLIENT_ID_CHARS_MAX + 1))
    assert not members.groups


def test_locks_of_all_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keelog.gateway.members, "LOCKS_OF_ALL_MAX", 3)
    members = Members()
    assert lock(members, "c1", 0.0) == [0, 1, 2]
    assert lock(members, "c1", 1.0) == [0, 1, 2], "those that it has are renewed"
    members.unlock(request(Peer(), LockBatchBody("g", "c1", QUEUES[:1])))
    assert lock(members, "c1", 2.0) == [0, 1, 2]
    members.drop_silent(3.0 + LOCK_S)
    assert members._lock_count == 0
    long = (MessageQueue("t" * 300, "b", 0),)
    reply = members.lock(request(Peer(), LockBatchBody("g", "c1", long)), 100.0)
    assert not read_body(LockedQueues, bytes(reply.body)).lock_ok_mq_set


def test_what_members_pull_is_noted_for_their_topics_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keelog.gateway.members, "PULLED_QUEUES_MAX", 2)
    members, one, two = Members(), Peer(), Peer()
    beat(members, one, "c1", 0.0, 1, "t", "u")
    to: Any = one
    stranger: Any = two
    members.note_pull("g", stranger, "t", 0, 5)
    members.note_pull("g", to, "other", 0, 5)
    for number in (3, 7):
        members.note_pull("g", to, "t", 0, number)
    members.note_pull("g", to, "u", 1, 9)
    members.note_pull("g", to, "u", 2, 9)
    shown = members.shown(0.0, 1_000)["g"]
    assert shown["queues"] == {"t": {"0": "c1"}, "u": {"1": "c1"}}
    assert shown["pulled"] == {"t": {"0": 7}, "u": {"1": 9}}
    beat(members, one, "c1", 0.0, 2, "t")
    assert members.shown(0.0, 1_000)["g"]["pulled"] == {"t": {"0": 7}}
    assert members._pulled_queues == 1
    members.went(to)
    assert members._pulled_queues == 0


def test_a_silent_member_is_named_and_its_last_beat_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members, one = Members(), Peer()
    beat(members, one, "c1", 5.0)
    assert members.shown(65.0, 100_000)["g"]["beats_ms"] == {"10.0.0.1:5": 40_000}
    before = members.pulls
    beat(members, one, "c1", 35.0)
    assert members.pulls > before, "the file of the members is not written anew"
    with caplog.at_level(logging.WARNING, "keelog.gateway"):
        members.drop_silent(35.0 + SILENT_S_MAX + 1)
    (line,) = caplog.records
    assert vars(line)["fields"].items() >= {"group": "g", "client_id": "c1"}.items()


def test_a_producer_is_found_by_its_id_while_its_connection_is_there() -> None:
    members, old, new = Members(), Peer(), Peer()
    beat(members, old, "c1")
    beat(members, new, "c1")
    assert members.producers_by_id.get("c1") is new  # type: ignore[comparison-overlap]
    members.went(old)  # type: ignore[arg-type]
    assert members.producers_by_id.get("c1") is new  # type: ignore[comparison-overlap]
    members.went(new)  # type: ignore[arg-type]
    assert members.producers_by_id.get("c1") is None


def test_the_end_of_a_connection_costs_no_look_at_all_groups() -> None:
    members = Members()
    for number in range(5_000):
        data = HeartbeatData("c", (), (ConsumerData(f"g{number}"),))
        members.beat(request(Peer(), data), 0.0)
    strangers: list[Any] = [Peer() for _ in range(2_000)]
    began = time.process_time()
    for stranger in strangers:
        members.went(stranger)
    assert time.process_time() - began < 0.2, "ten million look-ups take a second"
