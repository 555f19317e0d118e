"""Sends that wait for followers: SYNC_MASTER, and acks="replicated"."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from protocol.errors import MqError
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.support.follower import HA, LogFollower, followers_place, log_bytes
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place, send_fields

pytestmark = pytest.mark.process
SMALL = f"mapped_file_size_commit_log={256 * 1024}"
SYNC = ("broker_role=SYNC_MASTER", "in_sync_replicas=2", "slave_timeout=1000")


def test_a_replicated_send_waits_for_the_report_and_is_on_both_disks(tmp_path: Path) -> None:
    settings = (HA, SMALL, "slave_timeout=30000")
    with (
        RunningNode(tmp_path / "s", settings, queue_workers=1, readers=1) as node,
        LogFollower(followers_place(node), reports=False) as follower,
    ):
        found = []
        sending = threading.Thread(
            target=lambda: found.append(node.client.send("t", b"a", acks="replicated"))
        )
        sending.start()
        wait_until(lambda: follower.end > 0, "nothing came")
        sending.join(0.5)
        assert sending.is_alive(), "it was answered before the report"
        follower.report(follower.end)
        sending.join(30)
        (receipt,) = found
        assert (receipt.status, receipt.flushed) == ("PUT_OK", True)
        assert follower.log[: follower.end] == log_bytes(node.root, 0, follower.end)


def test_replicated_and_other_sends_go_together(tmp_path: Path) -> None:
    with (
        RunningNode(tmp_path / "s", (HA, SMALL), queue_workers=1, readers=1) as node,
        LogFollower(followers_place(node)) as follower,
    ):
        with node.client.producer(acks="replicated") as producer:
            futures = [producer.send_nowait("t", b"%d" % number) for number in range(500)]
            assert {future.result(30).status for future in futures} == {"PUT_OK"}
            acknowledged = node.log_state().appended
            assert follower.end >= acknowledged
        began = time.monotonic()
        assert node.client.send("t", b"y").status == "PUT_OK"
        assert time.monotonic() - began < 5


def test_without_a_follower_a_replicated_send_is_stored_and_says_so(tmp_path: Path) -> None:
    settings = (HA, SMALL, "slave_timeout=300")
    with RunningNode(tmp_path / "s", settings, queue_workers=1, readers=1) as node:
        place = followers_place(node)
        assert node.client.send("t", b"a", acks="replicated").status == "SLAVE_NOT_AVAILABLE"
        with LogFollower(place, reports=False):
            wait_until(lambda: "connected" in node.stderr, "no follower")
            time.sleep(0.3)
            late = node.client.send("t", b"b", acks="replicated")
            assert late.status == "FLUSH_SLAVE_TIMEOUT"
        assert node.client.send("t", b"c").status == "PUT_OK"
        assert [m.body for m in node.client.pull("t", late.queue_id, 0).messages][-1:] == [b"b"]


def test_a_node_that_nobody_may_follow_refuses_a_replicated_send(tmp_path: Path) -> None:
    with (
        RunningNode(tmp_path / "s", queue_workers=1, readers=1) as node,
        pytest.raises(MqError, match="nobody may follow"),
    ):
        node.client.send("t", b"a", acks="replicated")


def test_a_sync_master_that_nobody_may_follow_does_not_start(tmp_path: Path) -> None:
    node = RunningNode(tmp_path / "s", SYNC)
    node.begin()
    assert node.wait() == 2
    assert "nobody may follow this node" in node.stderr


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_sync_master_answers_as_a_broker_does(tmp_path: Path, flush: str) -> None:
    settings = (HA, SMALL, REMOTING, *SYNC, f"flush_disk_type={flush}")
    code = RequestCode.SEND_MESSAGE_V2
    with RunningNode(tmp_path / "s", settings, queue_workers=1, readers=1) as node:
        place = followers_place(node)
        with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
            began = time.monotonic()
            alone = peer.ask(code, send_fields("t", 0), b"alone")
            assert alone.code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert time.monotonic() - began >= 0.9
            assert alone.ext["queueOffset"] == "0"
            with LogFollower(place) as follower:
                wait_until(
                    lambda: (
                        peer.ask(code, send_fields("t", 0), b"both").code == ResponseCode.SUCCESS
                    ),
                    "no success with a follower",
                )
                follower.reports = False
                peer.ask(code, send_fields("t", 0), b"a report may be under way")
                late = peer.ask(code, send_fields("t", 0), b"late")
                assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            quick = peer.ask(code, {**send_fields("t", 0), "i": "WAIT\x01false\x02"}, b"no wait")
            assert quick.code == ResponseCode.SUCCESS
