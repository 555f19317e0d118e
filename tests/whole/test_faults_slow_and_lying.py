"""Disks that take their time over a flush, and disks that say that they did one."""

import time
from pathlib import Path

import pytest

from node.runtime.process import now_ms
from node.store.checkpoints import load_floor
from node.store.verify.verify import verify
from protocol.errors import SendTimeout
from protocol.status import HealthCheck
from tests.support.faults.disk_faults import LIE, DiskFaults
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process

SEGMENT_BYTES = 1024 * 1024
SMALL = (
    f"mapped_file_size_commit_log={SEGMENT_BYTES}",
    "max_hash_slot_num=1000",
    "max_index_num=4000",
    "flush_disk_type=SYNC_FLUSH",
)
SLOW_MS = 4000
WRITER, LOG = "keelog-writer", "commitlog/"


@pytest.mark.faults
def test_a_slow_flush_is_told_after_the_timeout_and_the_message_may_exist(
    tmp_path: Path, faults: DiskFaults
) -> None:
    settings = (*SMALL, "sync_flush_timeout=300")
    with RunningNode(tmp_path / "store", settings, env=faults.env) as node:
        client = node.client
        assert client.send("orders", b"before", queue_id=0).status == "PUT_OK"
        pids = node.pids()
        slow = faults.add(WRITER, "fdatasync", LOG, f"delay {SLOW_MS}", times=1)
        began = time.monotonic()
        late = client.send("orders", b"late", queue_id=0)
        assert time.monotonic() - began < SLOW_MS / 1000
        assert (late.status, late.flushed) == ("FLUSH_DISK_TIMEOUT", False)
        assert slow.fired == 1
        # The loop goes on: it shows life, answers, and keeps what is not flushed from readers.
        state = node.log_state()
        assert now_ms() - state.heartbeat_ms < 1000
        assert state.readable == state.flushed < state.appended
        assert not client.pull("orders", 0, 1).messages
        assert "orders" in {topic.topic for topic in client.topics()}
        wait_until(lambda: node.log_state().readable == state.appended, "the flush does not end")
        assert client.pull("orders", 0, 1, wait=10.0).messages[0].body == b"late"
        assert client.send("orders", b"after", queue_id=0).status == "PUT_OK"
        assert node.pids() == pids


@pytest.mark.faults
@pytest.mark.parametrize("mode", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_flush_that_does_not_end_is_in_health_and_the_node_not_ready_where_sends_wait_for_it(
    tmp_path: Path, faults: DiskFaults, mode: str
) -> None:
    settings = (
        *SMALL[:-1],
        f"flush_disk_type={mode}",
        "sync_flush_timeout=300",
        "node.silence_limit_s=1",
    )
    with RunningNode(tmp_path / "store", settings, env=faults.env) as node:
        client = node.client
        faults.add(WRITER, "fdatasync", LOG, f"delay {SLOW_MS}", times=1)
        client.send("orders", bytes(100_000), queue_id=0)
        wait_until(lambda: not flush_check(node).ok, "health does not notice")
        assert "has not ended a flush" in flush_check(node).detail
        waits = mode == "SYNC_FLUSH"
        assert flush_check(node).needed == waits
        assert client.health().ready == client.status().ready == (not waits)
        wait_until(lambda: flush_check(node).ok, "health keeps it")
        wait_until(lambda: client.health().ready, "the node is not ready again")


def flush_check(node: RunningNode) -> HealthCheck:
    return next(one for one in node.client.health().checks if one.name == "flush")


@pytest.mark.faults
def test_a_client_gives_up_before_the_node_and_does_not_know(
    tmp_path: Path, faults: DiskFaults
) -> None:
    with RunningNode(tmp_path / "store", SMALL, env=faults.env) as node:
        node.client.send("orders", b"before", queue_id=0)
        faults.add(WRITER, "fdatasync", LOG, f"delay {SLOW_MS}", times=1)
        with pytest.raises(SendTimeout):
            node.client.send("orders", b"late", queue_id=0, timeout=0.5)
        assert node.client.pull("orders", 0, 1, wait=20.0).messages[0].body == b"late"


@pytest.mark.faults
def test_a_disk_that_lied_about_a_flush_is_found_out_and_the_start_refused(
    tmp_path: Path, faults: DiskFaults
) -> None:
    root = tmp_path / "store"
    with RunningNode(root, SMALL, env=faults.env) as node:
        for number in range(20):
            node.client.send("orders", b"%d" % number, queue_id=0)
        node.wait_dispatched()
        durable = node.log_state().flushed
        lie = faults.add(WRITER, "fdatasync", LOG, LIE)
        for number in range(20, 40):
            assert node.client.send("orders", b"%d" % number, queue_id=0).flushed
        assert lie.fired
        claimed = node.log_state().flushed
        node.kill_all()
    assert load_floor(root) == claimed
    # The power was cut: what was not really synced is gone.
    with (root / LOG / f"{0:020d}").open("r+b") as file:
        file.seek(durable)
        file.write(bytes(SEGMENT_BYTES - durable))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    node = RunningNode(root, SMALL)
    node.begin()
    assert node.wait() == 5
    assert f"offset {durable}" in node.stderr
    assert f"everything below {claimed} was durable" in node.stderr
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before
    assert not verify(root, deep=True).ok
