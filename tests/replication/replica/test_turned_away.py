"""A replica that a node turns away, as its log begins after the replica's end or ends before it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from node.runtime.run_files import CONNECTING, STOPPED
from tests.support.follower import HA, followers_place
from tests.support.ha_master import HaMaster
from tests.support.master_log import SEGMENT_BYTES, MasterLog
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, remoting_place
from tests.support.replica_process import ReplicaProcess

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("turned-away")]
TRIMMED = (
    HA, REMOTING, f"mapped_file_size_commit_log={SEGMENT_BYTES}",
    f"retention_bytes={3 * SEGMENT_BYTES}", "clean_resource_interval=50",
    "delete_commit_log_files_interval=1", "file_forced_reserved_minutes=0",
    "file_forced_warning_seconds=0",
)  # fmt: skip


class Master(NamedTuple):
    """A node whose log begins after 0, with a gateway."""

    node: RunningNode
    place: str
    remoting: str


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    root = tmp_path_factory.mktemp("turns-away") / "store"
    with RunningNode(root, TRIMMED, queue_workers=1, readers=1) as node:
        host, port = followers_place(node)
        wait_until(lambda: _grown(node) > SEGMENT_BYTES, "retention has deleted nothing")
        gateway = "{}:{}".format(*remoting_place(node.stderr))
        yield Master(node, f"{host}:{port}", gateway)


def _grown(node: RunningNode) -> int:
    if not node.log_state().min_offset:
        with node.client.producer() as producer:
            producer.send_many("t", [b"x" * 1_000] * 200)
        time.sleep(0.1)
    return node.log_state().min_offset


def a_copy(root: Path, size: int) -> None:
    """A replica that has stopped, with a log of another master that has `size` bytes at least."""
    log, name = MasterLog(), 0
    while len(log.data) < size:
        log.put_many(50, f"other{name}-")
        name += 1
    with (
        HaMaster(bytes(log.data), SEGMENT_BYTES) as other,
        ReplicaProcess(root, other.place) as replica,
    ):
        replica.wait_end(other.end)
        assert replica.stop() == 0


def test_a_replica_that_was_away_longer_than_its_master_keeps_messages_stops_if_it_can_ask(
    tmp_path: Path, master: Master
) -> None:
    a_copy(tmp_path / "copy", 2_000)
    nobody = ("follow_remoting=127.0.0.1:1",)
    with ReplicaProcess(tmp_path / "copy", master.place, settings=nobody) as replica:
        wait_until(
            lambda: "ends each connection" in replica.state.reason, "it does not say why", 20
        )
        state = replica.state
        assert state.state == CONNECTING
        assert "begins after" in state.reason
        assert "keelog status at the master" in state.hint
    pair = (f"follow_remoting={master.remoting}",)
    with ReplicaProcess(tmp_path / "copy", master.place, settings=pair) as replica:
        state = replica.wait_state(STOPPED)
        assert state.kind == "MasterTrimmed"
        assert f"begins at {master.node.log_state().min_offset}" in state.reason
        assert "empty directory" in state.hint


def test_a_replica_far_ahead_of_its_master_stops(tmp_path: Path, master: Master) -> None:
    end = master.node.log_state().appended
    a_copy(tmp_path / "copy", end + 100_000)
    pair = (f"follow_remoting={master.remoting}",)
    with ReplicaProcess(tmp_path / "copy", master.place, settings=pair) as replica:
        state = replica.wait_state(STOPPED)
        assert state.kind == "MasterShorter"
        assert f"ends at {end}" in state.reason
        assert "rewind" in state.hint
