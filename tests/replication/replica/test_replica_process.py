"""The replica as a real process that follows a master of the tests: what it copies, when it
stops, and what it says."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from keelog.replication.replica.loop import Replica
from node.runtime.run_files import FOLLOWING, STOPPED, WAITING
from node.store.checkpoints import load_tails
from protocol.ids import Queue
from protocol.record.columns import scan
from tests.support.ha_master import HaMaster
from tests.support.master_log import SEGMENT_BYTES, MasterLog
from tests.support.node import wait_until
from tests.support.replica_process import ReplicaProcess
from tests.support.writer_process import RawClient

pytestmark = pytest.mark.nodes

OVERLAP_BYTES = 64 * 1024


def copied(root: Path, master: HaMaster) -> bytes:
    """The bytes of the replica's segments up to the end of the master's log."""
    names = sorted((root / "commitlog").iterdir())
    data = b"".join(path.read_bytes() for path in names)
    return data[: master.end - int(names[0].name)]


def a_log(count: int = 300, garbage: bytes = b"\0") -> MasterLog:
    log = MasterLog(garbage=garbage)
    log.put_many(count)
    return log


def test_an_empty_replica_copies_all_segments_and_goes_on(tmp_path: Path) -> None:
    log = a_log(garbage=b"what was there")
    first = bytes(log.data)
    log.put_many(200, "later")
    with (
        HaMaster(first, SEGMENT_BYTES, cuts=(1, 7, 12, 700, 32_768)) as master,
        ReplicaProcess(tmp_path / "copy", master.place) as replica,
    ):
        replica.wait_end(master.end)
        assert copied(replica.root, master) == first
        master.grow(bytes(log.data[len(first) :]))
        replica.wait_end(master.end)
        assert copied(replica.root, master) == log.data
        wait_until(lambda: replica.state.acknowledged == master.end, "nothing was acknowledged")
        assert master.reports[0] == 1
        assert master.reports == sorted(master.reports)
        state = replica.wait_state(FOLLOWING)
        assert (state.lag_bytes, state.connections) == (0, 1)
        assert replica.stop() == 0


def test_nothing_is_acknowledged_that_is_no_whole_record(tmp_path: Path) -> None:
    log = a_log(20)
    ends = MasterLog()
    ends.put_many(19)
    with (
        HaMaster(bytes(log.data[:-5]), SEGMENT_BYTES) as master,
        ReplicaProcess(tmp_path / "copy", master.place) as replica,
    ):
        replica.wait_end(len(ends.data))
        wait_until(lambda: len(ends.data) in master.reports, f"reports: {master.reports}")
        assert max(master.reports) == len(ends.data)
        master.grow(bytes(log.data[-5:]))
        replica.wait_end(len(log.data))


def test_a_replica_that_is_killed_in_the_middle_resumes(tmp_path: Path) -> None:
    log = a_log(600, garbage=b"\xff")
    with HaMaster(b"", SEGMENT_BYTES, cuts=(900, 13)) as master:
        for part in range(4):
            size = len(log.data) * (part + 1) // 4
            with ReplicaProcess(tmp_path / "copy", master.place) as replica:
                master.grow(bytes(log.data[master.end : size]))
                time.sleep(0.05 * part)
                replica.kill()
        with ReplicaProcess(tmp_path / "copy", master.place) as replica:
            replica.wait_end(master.end)
            assert copied(replica.root, master) == log.data


def test_a_flush_is_reported_in_the_turn_in_which_it_ended() -> None:
    calls: list[str] = []
    replica = Replica.__new__(Replica)
    replica.copy = Mock(take_flushed=lambda _: calls.append("take in the flush"))
    replica.follower = Mock(turn=lambda _: calls.append("report"))
    replica.store = Mock(retention=Mock(full=None))
    replica.server = replica.tables = Mock(receive=lambda: None)
    replica._beat_at = 1.0
    replica.step(1.0)
    assert calls == ["take in the flush", "report"]


def test_a_lost_connection_is_made_again_after_a_comparison(tmp_path: Path) -> None:
    log = a_log(1500)
    half = len(log.data) // 2
    with (
        HaMaster(bytes(log.data[:half]), SEGMENT_BYTES) as master,
        ReplicaProcess(tmp_path / "copy", master.place) as replica,
    ):
        wait_until(lambda: replica.state.end > half - 1000, "it does not copy")
        end = replica.state.end
        master.reports.clear()
        master.drop()
        master.grow(bytes(log.data[half:]))
        replica.wait_end(master.end)
        assert copied(replica.root, master) == log.data
        assert master.reports[0] == end - OVERLAP_BYTES
        wait_until(lambda: replica.state.connections == 2, f"{replica.state}")
        assert replica.state.state == FOLLOWING
        assert "closed the connection" in replica.state.disconnected


def test_a_master_that_is_away_is_so_since_one_moment_and_the_lag_grows(tmp_path: Path) -> None:
    log = a_log(20)
    master = HaMaster(bytes(log.data), SEGMENT_BYTES)
    place = master.place
    with ReplicaProcess(tmp_path / "copy", place) as replica:
        replica.wait_end(master.end)
        before = replica.wait_state(FOLLOWING)
        assert before.lag_ms == 0
        master.close()
        wait_until(lambda: replica.state.lag_ms > 1_000, f"the lag stands: {replica.state}")
        first = replica.state
        wait_until(lambda: replica.state.lag_ms > 4_000, f"the lag stands: {replica.state}")
        assert replica.state.disconnected_ms == first.disconnected_ms
        assert "cannot connect" in replica.state.disconnected
        assert replica.stop() == 0
    with ReplicaProcess(tmp_path / "copy", place) as replica:
        wait_until(lambda: replica.state.disconnected != "", "it does not try")
        wait_until(lambda: replica.state.lag_ms > 4_000, f"it forgot: {replica.state}")
        assert (replica.state.master_end, replica.state.contact_ms) == (
            first.master_end,
            first.contact_ms,
        )


def test_a_quiet_masters_new_message_is_as_old_as_it_is_and_not_as_the_one_before() -> None:
    replica = Replica.__new__(Replica)
    replica.copy = Mock(last_store_ms=1)  # the newest record here is of 1970
    replica.follower = Mock(is_connected=True, state=FOLLOWING)
    replica._level_ms = 0
    assert replica._lag_ms(0) == 0
    assert replica._lag_ms(100) < 60_000
    replica.follower = Mock(is_connected=False, state=WAITING)
    replica._level_ms -= 70_000
    assert replica._lag_ms(0) >= 70_000


def _shorter(log: MasterLog) -> bytes:
    return bytes(log.data[:-3000])


def _shorter_than_what_is_compared(log: MasterLog) -> bytes:
    return bytes(log.data[:-OVERLAP_BYTES][:-3000])


def _overtook(log: MasterLog) -> bytes:
    other = MasterLog()
    other.put_many(1480)
    assert log.data.startswith(other.data)
    other.put_many(100, "another")
    return bytes(other.data)


@pytest.mark.parametrize(
    ("become", "kind"),
    [
        (_shorter, "MasterShorter"),
        (_shorter_than_what_is_compared, "MasterShorter"),
        (_overtook, "OtherBytes"),
    ],
)
def test_a_master_with_another_history_is_left_for_good(
    tmp_path: Path, become: Callable[[MasterLog], bytes], kind: str
) -> None:
    log = a_log(1500)
    with (
        HaMaster(bytes(log.data), SEGMENT_BYTES) as master,
        ReplicaProcess(tmp_path / "copy", master.place) as replica,
    ):
        replica.wait_end(master.end)
        before = copied(replica.root, master)
        wait_until(lambda: master.reports[-1] == master.end, "the end is not acknowledged")
        master.reports.clear()
        master.become(become(log))
        state = replica.wait_state(STOPPED)
        assert state.kind == kind
        assert state.hint
        assert max(master.reports) <= len(log.data) - OVERLAP_BYTES  # it acknowledged nothing
        connections = master.connections
        time.sleep(0.5)
        assert master.connections == connections
        end = len(before)
        data = b"".join(p.read_bytes() for p in sorted((replica.root / "commitlog").iterdir()))
        assert data[:end] == before
        with RawClient(replica.endpoint) as client:
            assert client.ask("ping")["ok"]
        replica.stop()
        assert kind in replica.stderr


def test_a_master_that_deleted_what_follows_is_left_for_good(tmp_path: Path) -> None:
    log = a_log(300)
    part = SEGMENT_BYTES * 3
    with (
        HaMaster(bytes(log.data[:part]), SEGMENT_BYTES) as master,
        ReplicaProcess(tmp_path / "copy", master.place) as replica,
    ):
        replica.wait_end(part)
        begin = SEGMENT_BYTES * 5
        master.become(bytes(log.data[begin:]), begin)
        state = replica.wait_state(STOPPED)
        assert state.kind == "MasterShorter"
        assert "or begins after it" in state.reason


def test_an_empty_replica_of_a_trimmed_master_waits_and_says_why(tmp_path: Path) -> None:
    log, begin = a_log(300), SEGMENT_BYTES * 5
    with (
        HaMaster(bytes(log.data[begin:]), SEGMENT_BYTES, begin) as master,
        ReplicaProcess(tmp_path / "copy", master.place) as replica,
    ):
        state = replica.wait_state(WAITING)
        assert "no longer begins at 0" in state.reason
        assert "follow_remoting" in state.hint


def test_a_master_with_longer_segments_is_left_with_a_hint(tmp_path: Path) -> None:
    log = a_log(300)
    with (
        HaMaster(bytes(log.data), SEGMENT_BYTES) as master,
        ReplicaProcess(tmp_path / "copy", master.place, SEGMENT_BYTES * 2) as replica,
    ):
        state = replica.wait_state(STOPPED)
        assert state.kind == "OtherSegments"
        assert f"({SEGMENT_BYTES} bytes)" in state.hint


def test_a_replica_takes_nothing_from_clients(tmp_path: Path) -> None:
    with (
        HaMaster(b"", SEGMENT_BYTES) as master,
        ReplicaProcess(tmp_path / "copy", master.place) as replica,
        RawClient(replica.endpoint) as client,
    ):
        for operation in ("send", "append", "create_topic", "stage", "delete_topic"):
            answer = client.ask(operation, topic="orders", body=b"x")
            error = answer["error"]
            assert not answer["ok"]
            assert (error["kind"], error["code"], error["retriable"]) == ("NodeFollows", 14, False)
            assert master.place in error["reason"]


def test_a_replica_has_the_users_that_were_made_there_and_no_others(tmp_path: Path) -> None:
    log, local = a_log(20), f"ipc://@keelog-replica-{os.getpid()}"
    with (
        HaMaster(bytes(log.data), SEGMENT_BYTES) as master,
        ReplicaProcess(tmp_path / "copy", master.place, local=local) as replica,
        RawClient(local) as client,
    ):
        replica.wait_end(master.end)
        assert client.ask("users")["users"] == []
        assert not (replica.root / "keelog" / "auth").exists()
        info = b'{"password":"canary-secret"}'
        asked = client.ask("change_users", change="create_user", name="alice", info=info)
        assert asked["changed"]
        assert [row["name"] for row in client.ask("users")["users"]] == ["alice"]


def test_a_master_that_comes_later_is_found(tmp_path: Path) -> None:
    log = a_log(50)
    master = HaMaster(bytes(log.data), SEGMENT_BYTES)
    place = master.place
    master.close()
    with ReplicaProcess(tmp_path / "copy", place) as replica:
        wait_until(lambda: "cannot connect" in replica.state.disconnected, "it says nothing")
        port = int(place.rpartition(":")[2])
        with HaMaster(bytes(log.data), SEGMENT_BYTES, port=port) as later:
            replica.wait_end(len(log.data))
            assert copied(replica.root, later) == log.data


def test_saved_ends_of_queues_are_those_of_the_log(tmp_path: Path) -> None:
    log = a_log(900)
    # Retention looks each second, and saves the ends of queues before it deletes anything.
    looks = ("retention_bytes=1000000000", "clean_resource_interval=100")
    with HaMaster(b"", SEGMENT_BYTES) as master:
        with ReplicaProcess(tmp_path / "copy", master.place, settings=looks) as replica:
            for part in range(6):
                master.grow(bytes(log.data[master.end : len(log.data) * (part + 1) // 6]))
                time.sleep(0.3)

            def is_saved() -> bool:
                tails = load_tails(replica.root)
                return tails is not None and tails.at > SEGMENT_BYTES

            wait_until(is_saved, "no snapshot was saved", 20)
            replica.kill()
        tails = load_tails(tmp_path / "copy")
        assert tails is not None
        ends: dict[Queue, int] = {}
        position = 0
        while position < tails.at:
            left = SEGMENT_BYTES - position % SEGMENT_BYTES
            found = scan(bytes(log.data[position : position + left]), position)
            for row in range(len(found.columns)):
                record = found.columns.record(row)
                if record.physical_offset < tails.at:
                    queue = Queue(record.topic, record.head.queue_id)
                    ends[queue] = record.head.queue_offset + 1
            position += left
        assert tails.next_offset == ends


def test_a_replica_on_a_full_disk_waits_quietly_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    log, used = a_log(600), tmp_path / "percent"
    half = len(log.data) // 2
    used.write_text("50")
    with (
        HaMaster(bytes(log.data[:half]), SEGMENT_BYTES) as master,
        ReplicaProcess(
            tmp_path / "copy",
            master.place,
            settings=("disk_space_warning_level_ratio=90",),
            module="tests.support.replica_on_a_full_disk",
        ) as replica,
    ):
        replica.wait_state(FOLLOWING)
        wait_until(lambda: replica.state.end > half - 1000, "it does not copy")
        used.write_text("91")
        state = replica.wait_state(WAITING)
        assert state.reason == (
            "disk_full: the disk is 91 % full, above disk_space_warning_level_ratio, 90 %"
        )
        assert "free space" in state.hint
        master.grow(bytes(log.data[half:]))
        process = psutil.Process(replica.process.pid)
        before = process.cpu_times()
        time.sleep(2)
        after = process.cpu_times()
        spent_s = after.user + after.system - before.user - before.system
        assert spent_s < 0.5, f"{spent_s} s of CPU in 2 s"
        assert replica.state.end == state.end
        used.write_text("89")
        replica.wait_end(master.end)
        assert copied(replica.root, master) == log.data
        assert replica.wait_state(FOLLOWING).reason == ""
        assert replica.stop() == 0


def test_a_replica_stops_although_its_master_says_nothing(tmp_path: Path) -> None:
    # Connections are taken by the system, and nobody ever reads from them.
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        HaMaster(b"", SEGMENT_BYTES) as master,
    ):
        place = f"127.0.0.1:{mute.getsockname()[1]}"
        settings = (f"follow_remoting={place}",)
        with ReplicaProcess(tmp_path / "copy", master.place, settings=settings) as replica:
            began = time.monotonic()
            assert replica.stop() == 0
            assert time.monotonic() - began < 10
