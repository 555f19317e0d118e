"""The disk answers with errors: nothing is acknowledged that it did not take, and the node says so.

After a failed flush the page cache may call pages clean that the disk never got, so the writer ends
at the first error, and its successor writes the end of the log again before it serves.
"""

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import keelog
from node.runtime.process import EXIT_DISK_ERROR
from node.store.verify.verify import verify
from protocol.errors import OutcomeUnknownError, ServiceNotAvailable
from tests.support.faults.disk_faults import DiskFaults
from tests.support.faults.small_disk import error_switch, small_ext4
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process

SMALL = ("mapped_file_size_commit_log=1048576", "max_hash_slot_num=1000", "max_index_num=4000")
WRITER = "keelog-writer"
LOG = "commitlog/"


def send_some(client: keelog.Client, count: int, start: int = 0) -> dict[str, bytes]:
    """Sends messages with bodies of their own; answers body by message id."""
    bodies = [f"{number:06d}".encode() * 20 for number in range(start, start + count)]
    return {client.send("orders", body, keys="k", queue_id=0).msg_id: body for body in bodies}


def assert_stored(client: keelog.Client, sent: dict[str, bytes]) -> None:
    """Everything that was acknowledged can be read, by id and by pulling its queue."""
    assert {msg_id: client.get(msg_id).body for msg_id in sent} == sent
    pulled: set[bytes] = set()
    offset = 0
    while messages := client.pull("orders", 0, offset).messages:
        pulled |= {message.body for message in messages}
        offset = messages[-1].queue_offset + 1
    assert pulled >= set(sent.values())


def keelog_says(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    command = [sys.executable, "-m", "keelog", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("mode", "call"),
    [
        ("ASYNC_FLUSH", "fdatasync"),
        pytest.param("SYNC_FLUSH", "fdatasync", marks=pytest.mark.faults),
        pytest.param("SYNC_FLUSH", "pwrite", marks=pytest.mark.faults),
        pytest.param("ASYNC_FLUSH", "pwrite", marks=pytest.mark.faults),
    ],
)
def test_one_error_ends_the_writer_and_its_successor_makes_the_tail_durable_before_it_serves(
    tmp_path: Path, faults: DiskFaults, mode: str, call: str
) -> None:
    settings = (*SMALL, f"flush_disk_type={mode}")
    with RunningNode(tmp_path / "store", settings, env=faults.env) as node:
        sent = send_some(node.client, 5)
        epoch, first_pid = node.log_state().epoch, node.pids()["writer"][0]
        faults.trace()
        once = faults.add(WRITER, call, LOG, errno.EIO, times=1)
        with pytest.raises(OutcomeUnknownError):
            node.client.send("orders", b"lost?", keys="lost", queue_id=0, acks="flushed")
        assert once.fired == 1
        wait_until(lambda: node.log_state().epoch == epoch + 1, "no successor")
        node.wait_all_run()
        calls = [one for one in faults.traced(WRITER, LOG) if one.call in ("pwrite", "fdatasync")]
        failed = next(n for n, one in enumerate(calls) if one.result == -1)
        assert calls[failed].pid == first_pid
        # No second sync of the first process: it could succeed without having written anything.
        assert all(one.pid != first_pid for one in calls[failed + 1 :] if one.call == "fdatasync")
        successor = [one.call for one in calls[failed + 1 :] if one.pid != first_pid]
        # What stood there and was not flushed is written again; of a failed pwrite nothing stands.
        above_the_floor = call == "fdatasync" or mode == "ASYNC_FLUSH"
        assert successor[: 1 + above_the_floor] == ["pwrite", "fdatasync"][-1 - above_the_floor :]
        sent |= send_some(node.client, 5, start=5)
        node.wait_dispatched()
        assert_stored(node.client, sent)
        row = next(one for one in node.client.status().processes if one.role == "writer")
        assert (row.exit_code, row.restarts, row.state) == (EXIT_DISK_ERROR, 1, "running")
        assert "Input/output error" in node.stderr
    assert verify(tmp_path / "store", deep=True).findings == []


@pytest.mark.faults
def test_a_client_that_may_repeat_gets_its_receipt_over_the_error(
    tmp_path: Path, faults: DiskFaults
) -> None:
    settings = (*SMALL, "flush_disk_type=SYNC_FLUSH")
    retry = keelog.Retry(duplicates_ok=True, max_attempts=20)
    with (
        RunningNode(tmp_path / "store", settings, env=faults.env) as node,
        keelog.connect(node.endpoint, timeout=60.0, retry=retry) as client,
    ):
        epoch = node.log_state().epoch
        faults.add(WRITER, "fdatasync", LOG, errno.EIO, times=1)
        receipt = client.send("orders", b"again", queue_id=0, unique_key="U1")
        assert node.log_state().epoch == epoch + 1
        assert client.get(receipt.msg_id).body == b"again"
        node.wait_dispatched()
        found = list(client.find("orders", "U1", unique=True))
        # The first attempt may have been kept: at least once, and told by its unique key.
        assert 1 <= len(found) <= 2
        assert {message.body for message in found} == {b"again"}


@pytest.fixture
def broken(tmp_path: Path, faults: DiskFaults) -> Iterator[tuple[RunningNode, dict[str, bytes]]]:
    """A node whose log cannot be synced any more, and what it had acknowledged before."""
    settings = (*SMALL, "flush_disk_type=SYNC_FLUSH")
    with RunningNode(tmp_path / "store", settings, restart_limit=5, env=faults.env) as node:
        sent = send_some(node.client, 20)
        node.wait_dispatched()
        faults.add(WRITER, "sync", LOG, errno.EIO)
        with pytest.raises(OutcomeUnknownError):
            node.client.send("orders", b"lost?", queue_id=0)
        wait_until(lambda: node.client.status().raw["mode"] == "read_only", "not read-only")
        yield node, sent


def assert_commands_say_why(endpoint: str) -> None:
    """`status`, `health` and what needs a writer, of a read-only node."""
    code, out, _ = keelog_says("status", "--node", endpoint, "--format", "table")
    assert code == 0
    assert "read_only: appends are refused, reads go on. " in out
    assert "Input/output error" in out
    code, _, err = keelog_says("health", "--node", endpoint)
    assert code == 4
    assert err.splitlines()[0] == f"error: the node at {endpoint} is not ready"
    assert "appends: refused, read_only: " in err
    code, _, err = keelog_says("topic", "create", "new", "--queues", "1", "--node", endpoint)
    _, cause, hint = err.splitlines()
    assert cause.startswith("cause: read_only: the writer is given_up: disk_error: ")
    assert hint == "try: restart the node when that is fixed; reading goes on"


@pytest.mark.faults
def test_errors_for_ever_leave_a_node_that_reads_and_says_why_it_does_not_write(
    broken: tuple[RunningNode, dict[str, bytes]], faults: DiskFaults
) -> None:
    node, sent = broken
    client = node.client
    status = client.status().raw
    writer = status["processes"][0]
    assert (writer["state"], writer["exit_code"]) == ("given_up", EXIT_DISK_ERROR)
    for text in (status["cause"], writer["cause"]):
        assert "disk_error: " in text
        assert "/commitlog/" in text
        assert "Input/output error" in text
    assert not status["ready"]
    check = next(one for one in client.health().raw["checks"] if one["name"] == "appends")
    assert check["ok"] is False
    assert check["detail"].startswith("refused, read_only: the writer is given_up: disk_error: ")

    with pytest.raises(
        ServiceNotAvailable, match=r"^read_only: the writer is given_up: disk_error"
    ):
        client.send("orders", b"refused", queue_id=0)
    with client.producer() as producer:
        waiting = producer.send_nowait("orders", b"refused too", queue_id=0)
        with pytest.raises(ServiceNotAvailable, match=r"^read_only: "):
            waiting.result()
    with pytest.raises(ServiceNotAvailable, match=r"^read_only: "):
        client.create_topic("new", queues=1)
    assert_stored(client, sent)
    assert {message.body for message in client.find("orders", "k")} >= set(sent.values())

    assert_commands_say_why(node.endpoint)
    assert node.client.status().raw["processes"][0]["state"] == "given_up"  # and stays so
    node.stop()
    faults.mend()
    with RunningNode(node.root, (*SMALL, "flush_disk_type=SYNC_FLUSH")) as again:
        sent |= send_some(again.client, 3, start=20)
        again.wait_dispatched()
        assert_stored(again.client, sent)
    assert verify(node.root, deep=True).findings == []


@pytest.mark.faults
def test_an_error_at_the_start_is_a_bad_disk_and_no_damage(
    tmp_path: Path, faults: DiskFaults
) -> None:
    root = tmp_path / "store"
    with RunningNode(root, SMALL) as node:
        sent = send_some(node.client, 5)
        node.wait_dispatched()
        node.kill_all()
    faults.add(WRITER, "sync", LOG, errno.EIO)
    node = RunningNode(root, SMALL, restart_limit=5, env=faults.env)
    node.begin("tcp://127.0.0.1:28470")
    try:
        wait_until(lambda: "the node is read-only now" in node.stderr, "not given up")
        wait_until(lambda: len(node.client.routes().readers) == 2, "no readers")
        assert "below" not in node.stderr  # what damage below the durable floor is said to be
        assert node.client.status().raw["mode"] == "read_only"
        assert_stored(node.client, sent)
    finally:
        node.stop()


@pytest.mark.faults
def test_a_file_system_that_became_read_only_is_an_error_like_others(tmp_path: Path) -> None:
    with small_ext4(tmp_path, 64) as place:
        node = RunningNode(place / "store", SMALL, restart_limit=3)
        node.start()
        try:
            sent = send_some(node.client, 20)
            node.wait_dispatched()
            switch = error_switch(place)
            if not switch.exists():
                pytest.skip("this kernel cannot make an ext4 fail")
            switch.write_text("a test\n")
            with pytest.raises(OutcomeUnknownError):
                for number in range(10_000):
                    node.client.send("orders", bytes(10_000), queue_id=number % 8, acks="flushed")
            wait_until(lambda: node.client.status().raw["mode"] == "read_only", "not read-only")
            assert "Read-only file system" in node.client.status().raw["cause"]
            assert_stored(node.client, sent)
        finally:
            node.kill_all()
