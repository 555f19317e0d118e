"""Calls that fail in one kind of process: the others, and the log above all, go on."""

import errno
import os
from pathlib import Path

import pytest

from node.runtime import disk
from node.runtime.process import EXIT_DISK_ERROR
from node.runtime.settings import Settings
from node.store.identity.places import create_store
from node.store.verify.verify import verify
from node.writer.store import WriterStore, open_writer_store
from protocol.errors import ServiceNotAvailable
from protocol.ids import parse_host
from tests.support.faults.disk_faults import DiskFaults
from tests.support.node import RunningNode, wait_until

SEGMENT_BYTES = 1024 * 1024
SMALL = (
    f"mapped_file_size_commit_log={SEGMENT_BYTES}",
    "max_hash_slot_num=1000",
    "max_index_num=4000",
)
BODY = bytes(60_000)


@pytest.mark.process
@pytest.mark.faults
def test_without_room_for_a_segment_sends_wait_for_it_and_nothing_is_left_of_the_try(
    tmp_path: Path, faults: DiskFaults
) -> None:
    with RunningNode(tmp_path / "store", SMALL, env=faults.env) as node:
        client, sent = node.client, []
        full = faults.add("keelog-writer", "fallocate", "/keelog/run/0", errno.ENOSPC)
        with pytest.raises(ServiceNotAvailable, match="disk_full: no room for the segment"):
            for _ in range(60):
                sent.append(client.send("orders", BODY, queue_id=0).msg_id)
        assert len(sent) >= 15  # the current segment takes what fits
        wait_until(lambda: full.fired > 3, "it is not tried again")
        assert client.status().mode == "disk_full"
        assert not list((node.root / "keelog/run").glob("0*"))
        segments = sorted((node.root / "commitlog").iterdir())
        for segment in segments:
            assert segment.stat().st_blocks * 512 >= segment.stat().st_size == SEGMENT_BYTES
        faults.mend()
        wait_until(lambda: client.status().mode == "normal", "it does not notice the room")
        sent += [client.send("orders", BODY, queue_id=0).msg_id for _ in range(3)]
        assert len(list((node.root / "commitlog").iterdir())) > len(segments)
        assert all(client.get(msg_id).body == BODY for msg_id in sent)
        node.wait_dispatched()
    assert verify(tmp_path / "store", deep=True).findings == []


@pytest.mark.process
@pytest.mark.faults
def test_a_worker_whose_files_fail_is_tried_again_and_the_log_goes_on(
    tmp_path: Path, faults: DiskFaults
) -> None:
    with RunningNode(tmp_path / "store", SMALL, restart_limit=3, env=faults.env) as node:
        client = node.client
        client.send("orders", b"0", keys="k", queue_id=0)
        node.wait_dispatched()
        faults.add("keelog-index", "sync", "/index/", errno.EIO)
        client.send("orders", b"1", keys="k", queue_id=0)

        def index_row() -> tuple[str | None, int | None]:
            row = next(one for one in client.status().processes if one.role == "index")
            return row.state, row.exit_code

        wait_until(lambda: index_row() == ("failing", EXIT_DISK_ERROR), "no crash loop")
        assert client.send("orders", b"2", keys="k", queue_id=0, acks="flushed").flushed
        health = client.health()
        assert health.ready
        assert [one.ok for one in health.checks if one.name == "index_worker"] == [False]
        assert client.status().mode == "normal"
        pulled = client.pull("orders", 0, 0, wait=10.0).messages
        wait_until(lambda: len(client.pull("orders", 0, 0).messages) == 3, "queues do not follow")
        assert pulled[0].body == b"0"
        node.kill_all()
    faults.mend()
    with RunningNode(tmp_path / "store", SMALL) as node:
        node.wait_dispatched()
        assert {one.body for one in node.client.find("orders", "k")} == {b"0", b"1", b"2"}
    assert verify(tmp_path / "store", deep=True).findings == []


@pytest.fixture
def store(tmp_path: Path) -> WriterStore:
    """A writer's store, without its loop."""
    settings = Settings(mapped_file_size_commit_log=SEGMENT_BYTES)
    create_store(tmp_path / "s")
    return open_writer_store(tmp_path / "s", settings, parse_host("127.0.0.1:1"), alone=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_floor_and_a_snapshot_that_find_no_room_are_no_failed_flush(
    store: WriterStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    save = store.after_flush(0)
    store.floor.save(0)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number), "keelog/floor")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_all", fail)
        if number == errno.EIO:
            with pytest.raises(OSError, match="Input/output error"):
                save()
        else:
            save()
    save()
    store.close_cleanly(workers_done=False)


def test_what_may_be_left_undone_ends_at_the_full_disk_and_lets_other_errors_through() -> None:
    done = []
    with disk.if_room():
        done.append(1)
        raise OSError(errno.ENOSPC, "full", "f")
    with pytest.raises(OSError, match="bad"), disk.if_room():
        raise OSError(errno.EIO, "bad")
    assert done == [1]


def test_an_error_of_a_descriptor_names_the_file(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "f", os.O_RDONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            disk.write_all(descriptor, b"x", 0)
    finally:
        os.close(descriptor)
    assert caught.value.filename == str(tmp_path / "f")
