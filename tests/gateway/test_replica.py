"""The gateway of a node that follows another one: it answers as a broker does that is a slave."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from keelog.gateway.handlers import Handle, as_slave
from node.runtime.run_files import FOLLOWING, read_follow_state
from node.runtime.settings import Settings
from protocol.record.codec import Record, decode
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.support.follower import HA, followers_place
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import (
    REMOTING,
    RemotingPeer,
    pull_fields,
    remoting_place,
    send_fields,
)

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("replica")]
COUNT = 10


class Pair(NamedTuple):
    """A master with messages in queue 0 of `orders`, and a replica that has them."""

    master: RunningNode
    replica: RunningNode
    peer: RemotingPeer
    """A connection to the replica's gateway."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with ExitStack() as ends:
        master = RunningNode(folder / "master", (REMOTING, HA), queue_workers=1, readers=1)
        ends.enter_context(master)
        host, port = followers_place(master)
        place = remoting_place(master.stderr)
        with closing(RemotingPeer(place)) as peer:
            for number in range(COUNT):
                sent = peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"%d" % number)
                assert sent.code == ResponseCode.SUCCESS
            peer.ask(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"billing"}'
            )
            commit = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
            peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**commit, "commitOffset": 7})
            wait_until(lambda: _offset(peer) == 7, "the offset is not stored")
        settings = (
            REMOTING,
            f"follow={host}:{port}",
            f"follow_remoting={place[0]}:{place[1]}",
            "slave_read_enable=true",
        )
        replica = RunningNode(folder / "replica", settings, queue_workers=1, readers=1)
        ends.enter_context(replica)
        end = master.log_state().appended
        wait_until(lambda: replica.log_state().flushed >= end, "the log is not copied")
        wait_until(lambda: read_follow_state(replica.root).metadata_ms > 0, "no metadata")
        replica.wait_dispatched()
        peer = ends.enter_context(closing(RemotingPeer(remoting_place(replica.stderr))))
        yield Pair(master, replica, peer)


def _offset(peer: RemotingPeer) -> int:
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    return int(peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked).ext.get("offset", -1))


def test_messages_are_read_from_a_replica(pair: Pair) -> None:
    found = pair.peer.ask(RequestCode.PULL_MESSAGE, pull_fields("orders", 0, 0))
    assert found.code == ResponseCode.SUCCESS
    assert found.ext["suggestWhichBrokerId"] == "0"
    bodies, at = [], 0
    while at < len(found.body):
        record = decode(found.body, at)
        assert isinstance(record, Record)
        bodies.append(record.body)
        at += record.size
    assert bodies == [b"%d" % number for number in range(COUNT)]


def test_topics_groups_and_offsets_are_the_masters(pair: Pair) -> None:
    wait_until(lambda: _offset(pair.peer) == 7, "the offset did not come")
    asked = {"topic": "orders", "acceptStandardJsonOnly": True}
    assert pair.peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked).code == ResponseCode.SUCCESS
    group = pair.peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "billing"})
    assert group.code == ResponseCode.SUCCESS
    assert b'"billing"' in group.body


@pytest.mark.parametrize("topic", ["orders", "a-new-one"])
def test_a_send_is_refused_as_a_slave_does(pair: Pair, topic: str) -> None:
    end = pair.replica.log_state().appended
    refused = pair.peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "follows" in (refused.header.remark or "")
    assert pair.replica.log_state().appended == end


def test_tools_see_a_replica_as_a_slave(pair: Pair) -> None:
    found = pair.peer.ask(RequestCode.GET_BROKER_CONFIG, {}).body.decode().splitlines()
    assert "brokerRole=SLAVE" in found


def test_ends_of_transactions_and_changes_of_groups_are_refused(pair: Pair) -> None:
    ended = pair.peer.ask(RequestCode.END_TRANSACTION, {"commitOrRollback": 8})
    assert ended.code == ResponseCode.SLAVE_NOT_AVAILABLE
    changed = pair.peer.ask(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"other"}'
    )
    assert changed.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_pulls_are_refused_unless_the_replica_may_be_read() -> None:
    served = object()
    pull: dict[int, Handle] = {RequestCode.PULL_MESSAGE: lambda _request: served}
    follows = Settings(follow="127.0.0.1:10912")
    handle = as_slave(pull, follows)[RequestCode.PULL_MESSAGE]
    assert handle(None).code == ResponseCode.SYSTEM_BUSY  # type: ignore[arg-type]
    readable = Settings(follow="127.0.0.1:10912", slave_read_enable=True)
    assert as_slave(pull, readable)[RequestCode.PULL_MESSAGE](None) is served  # type: ignore[arg-type]
    assert as_slave(pull, Settings()) == pull


def test_a_replica_runs_no_process_that_delivers(pair: Pair) -> None:
    assert "tasks" not in pair.replica.pids()
    assert "tasks" in pair.master.pids()
    # The state is written each half second.
    wait_until(
        lambda: read_follow_state(pair.replica.root).state == FOLLOWING, "it does not follow"
    )
    health = pair.replica.client.health()
    assert health.ready
    checks = {check.name: check for check in health.checks}
    assert checks["following"].ok
    assert "none are taken" in checks["appends"].detail


def test_slow_consumers_are_sent_to_a_slave_if_it_may_be_read(tmp_path: Path) -> None:
    # With a share of 0 everything that is stored lies too far back.
    readable = ("slave_read_enable=true", "access_message_in_memory_max_ratio=0")
    with (
        RunningNode(tmp_path / "s", (REMOTING, *readable), queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
    ):
        peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"x")
        groups = {"other": {"whichBrokerWhenConsumeSlowly": 3}, "moved": {"brokerId": 2}}
        for name, settings in groups.items():
            body = json.dumps({"groupName": name, **settings}).encode()
            peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

        def which(offset: int, group: str = "g", **others: object) -> tuple[int, str]:
            fields = pull_fields("orders", 0, offset, consumerGroup=group, **others)
            found = peer.ask(RequestCode.PULL_MESSAGE, fields)
            return found.code, found.ext["suggestWhichBrokerId"]

        assert which(0) == (ResponseCode.SUCCESS, "1")
        assert which(0, "other") == (ResponseCode.SUCCESS, "3")
        node.wait_dispatched()
        refused = {"subscription": "no-such-tag"}
        assert which(0, **refused) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")
        # At the end of the queue nobody is slow.
        assert which(1) == (ResponseCode.PULL_NOT_FOUND, "0")
        assert which(1, "moved") == (ResponseCode.PULL_NOT_FOUND, "2")


def test_who_is_slow_does_not_depend_on_a_queue_worker_that_lags(tmp_path: Path) -> None:
    # Each message is of a tag that the pull refuses, so the answer has no record with a place.
    options = (REMOTING, "slave_read_enable=true", "access_message_in_memory_max_ratio=0")
    with (
        RunningNode(tmp_path / "s", options, queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
    ):
        peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"x")
        node.wait_dispatched()
        pid = node.kill("queue", number=signal.SIGSTOP)
        try:
            peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"y")
            fields = pull_fields("orders", 0, 1, subscription="no-such-tag")
            found = peer.ask(RequestCode.PULL_MESSAGE, fields)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert found.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert found.ext["suggestWhichBrokerId"] == "1"


def test_near_the_end_or_without_readable_slaves_the_master_is_named(pair: Pair) -> None:
    with closing(RemotingPeer(remoting_place(pair.master.stderr))) as peer:
        found = peer.ask(RequestCode.PULL_MESSAGE, pull_fields("orders", 0, 0))
    assert (found.code, found.ext["suggestWhichBrokerId"]) == (ResponseCode.SUCCESS, "0")
