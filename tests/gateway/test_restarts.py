"""A gateway that is killed under a group: who reads what afterwards."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil
import pytest

import keelog
from node.runtime.run_files import read_members
from node.supervisor.bind import free_ports
from protocol.remoting.bodies import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    SubscriptionData,
)
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import read_body, write_body
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import RemotingPeer, remoting_place, send_fields

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("gateway_restarts")]
COUNT = 40
SETTLED_S = 2.0
"""Both are back, and have divided the queues anew."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("restarts") / "store"
    settings = ("serve.remoting=127.0.0.1:0",)
    with RunningNode(root, settings, queue_workers=1, readers=1) as running:
        running.client.create_topic("shared", 4)
        yield running


def kill_gateway(node: RunningNode) -> None:
    """SIGKILL; returns when another one serves."""
    (row,) = [one for one in node.client.status().processes if one.role == "gateway"]
    assert row.pid is not None
    os.kill(row.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(row.pid)] if psutil.pid_exists(row.pid) else [], 10)

    def is_back() -> bool:
        (now,) = [one for one in node.client.status().processes if one.role == "gateway"]
        return now.pid not in (None, row.pid) and now.state == "running"

    wait_until(is_back, "the gateway is not back")


def beat(peer: RemotingPeer, client_id: str, group: str) -> None:
    wanted = (SubscriptionData("shared", "*", sub_version=1),)
    data = ConsumerData(group, subscription_data_set=wanted)
    body = write_body(HeartbeatData(client_id, consumer_data_set=(data,)), standard=True)
    assert peer.ask(RequestCode.HEART_BEAT, {}, body).code == ResponseCode.SUCCESS


def named(peer: RemotingPeer, group: str) -> list[str]:
    answer = peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    assert answer.code == ResponseCode.SUCCESS
    return sorted(read_body(ConsumerIdList, bytes(answer.body)).consumer_id_list)


def await_file(root: Path, group: str, members: int) -> None:
    wait_until(
        lambda: len(read_members(root).get(group, {}).get("members", ())) == members,
        "the members are not in the file",
    )


@pytest.mark.faults
def test_the_first_that_comes_back_hears_of_the_others(node: RunningNode) -> None:
    place = remoting_place(node.stderr)
    with ExitStack() as ends:
        for name in ("c1", "c2"):
            beat(ends.enter_context(closing(RemotingPeer(place))), name, "awaited")
        await_file(node.root, "awaited", 2)
        kill_gateway(node)
    with closing(RemotingPeer(place)) as one:
        beat(one, "c1", "awaited")
        assert named(one, "awaited") == ["c1", "c2"]
        # This peer says version 513 of Java: such a client beats as soon as it is back.
        one.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        one.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        assert named(one, "awaited") == ["c1"]


@pytest.mark.faults
def test_no_message_comes_again_when_the_gateway_is_killed(node: RunningNode) -> None:
    """Nothing is settled, so whoever took a queue anew would get its messages again."""
    bodies = [b"%d" % number for number in range(COUNT)]
    with ExitStack() as ends:
        members = [
            ends.enter_context(node.client.consumer("keepers", "shared", start="latest"))
            for _ in range(2)
        ]
        wait_until(lambda: all(len(of_topic(one)) == 2 for one in members), "not shared")
        await_file(node.root, "keepers", 2)
        owned = [of_topic(one) for one in members]
        for number, body in enumerate(bodies):
            node.client.send("shared", body, queue_id=number % 4)
        held = [[need(one) for _ in range(COUNT // 2)] for one in members]
        assert sorted(one.body for some in held for one in some) == sorted(bodies)

        kill_gateway(node)
        await_file(node.root, "keepers", 2)
        again = [one.get(timeout=SETTLED_S) for one in members]
        assert again == [None, None]
        assert [of_topic(one) for one in members] == owned


def test_a_member_keeps_to_its_queues_while_the_other_is_not_back(node: RunningNode) -> None:
    place = remoting_place(node.stderr)
    with ExitStack() as ends:
        member = ends.enter_context(node.client.consumer("slow", "shared", start="latest"))
        with closing(RemotingPeer(place)) as other:
            beat(other, "slow one", "slow")
            wait_until(lambda: len(of_topic(member)) == 2, "not shared")
            await_file(node.root, "slow", 2)
            owned = of_topic(member)
            kill_gateway(node)
        await_file(node.root, "slow", 1)
        time.sleep(SETTLED_S)
        assert of_topic(member) == owned
        beat(ends.enter_context(closing(RemotingPeer(place))), "slow one", "slow")
        await_file(node.root, "slow", 2)
        time.sleep(SETTLED_S)
        assert of_topic(member) == owned


def of_topic(member: keelog.Consumer) -> list[tuple[str, int]]:
    """Its queues, without those of the retry topic."""
    return sorted(one for one in member.assignment() if one[0] == "shared")


def need(member: keelog.Consumer) -> keelog.GroupMessage:
    """The next message; it is not settled."""
    message = member.get(timeout=20)
    assert message is not None
    return message


@pytest.mark.faults
def test_a_send_fits_the_node_before_the_gateway_has_heard_from_the_supervisor(
    tmp_path: Path,
) -> None:
    place = ("127.0.0.1", free_ports(3) + 2)
    settings = ("serve.remoting={}:{}".format(*place), "enabled_append_prop_crc=false")
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node:
        node.client.create_topic("early", 1)
        old, supervisor = node.kill("gateway"), psutil.Process(node.pid)

        def is_another() -> bool:
            children = (one for one in supervisor.children() if one.pid != old)
            return any("keelog.gateway.loop" in one.cmdline() for one in children)

        wait_until(is_another, "no other gateway is started")
        supervisor.suspend()
        try:
            wait_until(lambda: listens(place), "the gateway does not listen")
            with closing(RemotingPeer(place)) as peer:
                asked = peer.send(RequestCode.SEND_MESSAGE_V2, send_fields("early", 0), b"early")
                # Long enough for the gateway to have made a record of it.
                time.sleep(SETTLED_S)
                supervisor.resume()
                answer = peer.answer_to(asked)
        finally:
            supervisor.resume()
        assert answer.code == ResponseCode.SUCCESS, answer.header.remark


def listens(place: tuple[str, int]) -> bool:
    """Whether somebody does."""
    with suppress(OSError), socket.create_connection(place, timeout=1.0):
        return True
    return False
