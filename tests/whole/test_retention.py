"""Retention of a running node: segments, queue files and index files go; ends stay."""

import os
import time
from pathlib import Path

import pytest

import keelog
from node.store.checkpoints import load_tails
from node.store.verify.verify import verify
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process

SEGMENT_BYTES = 64 * 1024
SMALL = (
    f"mapped_file_size_commit_log={SEGMENT_BYTES}",
    "mapped_file_size_consume_queue=2000",
    "max_hash_slot_num=100",
    "max_index_num=200",
)
BRISK = (
    "clean_resource_interval=100",
    "delete_commit_log_files_interval=1",
    "file_reserved_time=1",
    "delete_when=" + ";".join(map(str, range(24))),
)


def send(node: RunningNode, count: int, start: int = 0) -> list[keelog.Receipt]:
    with node.client.producer(timeout=30.0) as producer:
        bodies = [b"%06d" % number + bytes(100) for number in range(start, start + count)]
        return producer.send_many("orders", bodies, queue_id=0, keys="k")


def age(root: Path, keep: int) -> int:
    """Makes all segments but the last `keep` two hours old; answers where the rest begins."""
    files = sorted((root / COMMIT_LOG_DIR).iterdir())
    for path in files[:-keep]:
        os.utime(path, (time.time() - 7200,) * 2)
    return int(files[-keep].name)


def readable(node: RunningNode) -> list[int]:
    """The queue offsets of all that can be pulled."""
    return [m.queue_offset for m in node.client.tail("orders", "earliest", until_end=True)]


def test_old_segments_go_and_the_node_goes_on_across_a_kill_and_a_stop(tmp_path: Path) -> None:
    root = tmp_path / "store"
    node = RunningNode(root, [*SMALL, *BRISK])
    with node:
        receipts = send(node, 4000)
        node.wait_dispatched()
        queue_files = len(list((root / CONSUME_QUEUE_DIR / "orders" / "0").iterdir()))
        index_files = len(list((root / INDEX_DIR).iterdir()))
        begin = age(root, keep=4)
        wait_until(lambda: node.log_state().min_offset == begin, "segments are not deleted")
        wait_until(
            lambda: min(int(p.name) for p in (root / COMMIT_LOG_DIR).iterdir()) == begin,
            "the files are still there",
        )
        kept = sorted(r.queue_offset for r in receipts if r.physical_offset >= begin)
        gone = min(receipts, key=lambda receipt: receipt.physical_offset)
        wait_until(
            lambda: len(list((root / CONSUME_QUEUE_DIR / "orders" / "0").iterdir())) < queue_files,
            "queue files are not deleted",
        )
        wait_until(
            lambda: len(list((root / INDEX_DIR).iterdir())) < index_files,
            "index files are not deleted",
        )
        assert node.client.offsets("orders", 0)[0].min_offset == kept[0]
        early = node.client.pull("orders", 0, 0)
        assert (early.status, early.next_begin_offset) == ("OFFSET_TOO_SMALL", kept[0])
        assert readable(node) == kept
        with pytest.raises(keelog.NotFound):
            node.client.get(gone.msg_id)
        found = {m.queue_offset for m in node.client.find("orders", "k", limit=10_000)}
        assert found == set(kept), "keys of deleted messages are passed over"
        killed = node.kill("writer")
        wait_until(lambda: node.pids().get("writer") not in (None, [killed]), "no new writer")
        node.wait_all_run()
        assert send(node, 1, start=4000)[0].queue_offset == 4000
        tails = load_tails(root)
        assert tails is not None
        assert tails.at >= begin, "the queues' ends must be known without the deleted segments"
        node.kill_all()
    again = RunningNode(root, [*SMALL, *BRISK])
    with again:
        assert send(again, 1, start=4001)[0].queue_offset == 4001
        again.wait_dispatched()
        assert readable(again) == [*kept, 4000, 4001]
    report = verify(root, deep=True)
    assert report.ok, report.findings
    assert report.min_offset == begin


@pytest.mark.faults
def test_a_stopped_worker_keeps_what_it_has_not_seen(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", [*SMALL, *BRISK], queue_workers=1) as node:
        send(node, 1000)
        node.wait_dispatched()
        wait_until(
            lambda: node.worker_states()["index"].saved == node.log_state().appended,
            "the index is not saved",
        )
        seen = node.log_state().appended
        pid = node.kill("index", number=19)
        try:
            send(node, 3000, start=1000)
            age(node.root, keep=2)
            limit = seen - seen % SEGMENT_BYTES
            wait_until(lambda: node.log_state().min_offset == limit, "nothing was deleted")
            time.sleep(1.0)
            assert node.log_state().min_offset == limit
        finally:
            os.kill(pid, 18)
        wait_until(lambda: node.log_state().min_offset > limit, "the rest is not deleted")
        node.wait_dispatched()
    assert verify(node.root, deep=True).ok


FORCED = (
    "disk_space_clean_forcibly_ratio=1",
    "clean_file_forcibly_enable=true",
    "file_reserved_time=72",
    "file_forced_warning_seconds=0",
)


@pytest.mark.faults
def test_above_the_forced_ratio_segments_go_before_their_time_but_not_young(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", [*SMALL, *BRISK, *FORCED]) as node:
        send(node, 4000)
        node.wait_dispatched()
        wait_until(lambda: "no segment could be deleted" in node.stderr, "nobody looked")
        assert node.log_state().min_offset == 0
        begin = age(node.root, keep=4)
        wait_until(lambda: node.log_state().min_offset == begin, "segments are not deleted")
        time.sleep(1.5)
        assert node.log_state().min_offset == begin
        assert send(node, 1, start=4000)[0].queue_offset == 4000
    assert verify(node.root, deep=True).ok


@pytest.mark.faults
def test_as_in_a_broker_segments_go_at_any_age_and_the_last_stays(tmp_path: Path) -> None:
    any_age = [*FORCED, "file_forced_reserved_minutes=0"]
    with RunningNode(tmp_path / "store", [*SMALL, *BRISK, *any_age]) as node:
        last = max(r.physical_offset for r in send(node, 4000))
        begin = last - last % SEGMENT_BYTES
        wait_until(lambda: node.log_state().min_offset == begin, "segments are not deleted")
        assert send(node, 1, start=4000)[0].queue_offset == 4000
        node.wait_dispatched()
        assert readable(node)[-1] == 4000
    assert verify(node.root, deep=True).ok


@pytest.mark.faults
def test_above_the_warning_ratio_appends_are_refused_and_reads_go_on(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, SMALL) as node:
        send(node, 10)
    limits = ["disk_space_warning_level_ratio=1", "clean_file_forcibly_enable=false"]
    with RunningNode(root, [*SMALL, *limits]) as full:
        full.wait_dispatched()
        with pytest.raises(keelog.ServiceNotAvailable, match="disk_full") as refused:
            full.client.send("orders", b"one more", timeout=1.0)
        assert "disk_space_warning_level_ratio" in str(refused.value)
        assert readable(full) == list(range(10))
