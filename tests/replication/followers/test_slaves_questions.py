"""What a slave of RocketMQ asks of a master beside the log, frame by frame."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from protocol.addresses import VIP_DISTANCE
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import parse_java_json
from tests.support.follower import HA, LogFollower, followers_place
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place, send_fields

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("slaves-questions")]
CODE = RequestCode
SMALL = f"mapped_file_size_commit_log={256 * 1024}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("asked") / "store"
    with RunningNode(root, (REMOTING, HA, SMALL), queue_workers=1, readers=1) as running:
        running.client.create_topic("orders", queues=3)
        yield running


@pytest.fixture
def peer(node: RunningNode) -> Iterator[RemotingPeer]:
    with closing(RemotingPeer(remoting_place(node.stderr))) as connected:
        yield connected


def test_a_slave_gets_the_topics_at_the_port_two_below(node: RunningNode) -> None:
    host, port = remoting_place(node.stderr)
    with closing(RemotingPeer((host, port - VIP_DISTANCE))) as peer:
        asked = {"topicSeq": 0, "maxTopicNum": 2000, "dataVersion": "{}"}
        found = peer.ask(CODE.GET_ALL_TOPIC_CONFIG, asked)
    body = json.loads(found.body)
    assert body["topicConfigTable"]["orders"]["writeQueueNums"] == 3
    assert body["dataVersion"]["counter"] > 0
    assert found.ext["totalTopicNum"] == str(len(body["topicConfigTable"]))


def test_a_slave_gets_groups_and_how_far_they_are(node: RunningNode, peer: RemotingPeer) -> None:
    body = json.dumps({"groupName": "g1", "retryMaxTimes": 3}).encode()
    assert peer.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
    for queue, offset in ((0, 5), (2, 7)):
        for number in range(offset):
            node.client.send("orders", b"%d" % number, queue_id=queue)
        place = {"topic": "orders", "consumerGroup": "g1", "queueId": queue, "commitOffset": offset}
        assert peer.ask(CODE.UPDATE_CONSUMER_OFFSET, place).code == ResponseCode.SUCCESS
    asked = {"groupSeq": 0, "maxGroupNum": 2000, "dataVersion": "{}"}
    groups = json.loads(peer.ask(CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, asked).body)
    assert groups["subscriptionGroupTable"]["g1"]["retryMaxTimes"] == 3
    offsets = parse_java_json(peer.ask(CODE.GET_ALL_CONSUMER_OFFSET, {}).body.decode())
    assert offsets["offsetTable"]["orders@g1"] == {"0": 5, "2": 7}
    modes = json.loads(peer.ask(CODE.GET_ALL_MESSAGE_REQUEST_MODE, {}).body)
    assert modes == {"messageRequestModeMap": {}}


def test_a_slave_gets_how_far_delay_levels_are(node: RunningNode, peer: RemotingPeer) -> None:
    found = peer.ask(CODE.GET_ALL_DELAY_OFFSET, {})
    assert found.code == ResponseCode.SUCCESS
    assert isinstance(json.loads(found.body)["offsetTable"], dict)
    path = node.root / "config" / "delayOffset.json"
    delayed = send_fields("orders", 1, i="DELAY\x011\x02")
    assert peer.ask(CODE.SEND_MESSAGE_V2, delayed, b"later").code == ResponseCode.SUCCESS
    wait_until(lambda: path.exists() and b'"1"' in path.read_bytes(), "no delay was delivered")
    found = peer.ask(CODE.GET_ALL_DELAY_OFFSET, {})
    assert json.loads(found.body)["offsetTable"]["1"] >= 1


def test_a_slave_with_a_timer_wheel_gets_where_the_masters_is(peer: RemotingPeer) -> None:
    check = peer.ask(CODE.GET_TIMER_CHECK_POINT, {})
    assert (check.code, len(check.body)) == (ResponseCode.SUCCESS, 7 * 8)
    metrics = json.loads(peer.ask(CODE.GET_TIMER_METRICS, {}).body)
    assert metrics["timingCount"] == {}


def test_tools_see_who_follows(node: RunningNode, peer: RemotingPeer) -> None:
    with LogFollower(followers_place(node)) as follower:
        node.client.send("orders", b"x", acks="flushed")
        follower.wait_for(node.log_state().appended)

        def shown() -> dict[str, object]:
            found: dict[str, object] = json.loads(peer.ask(CODE.GET_BROKER_HA_STATUS, {}).body)
            return found

        wait_until(lambda: shown()["inSyncSlaveNums"] == 1, "nobody is shown as in sync")
        (row,) = list(shown()["haConnectionInfo"])  # type: ignore[call-overload]
        end = node.log_state().appended
        wait_until(
            lambda: shown()["haConnectionInfo"][0]["slaveAckOffset"] == end,  # type: ignore[index]
            "the acknowledgement is not shown",
        )
        assert row["inSync"] is True
        assert row["transferFromWhere"] <= end
        assert row["addr"].startswith("127.0.0.1:")
        assert shown()["masterCommitLogMaxOffset"] == end
