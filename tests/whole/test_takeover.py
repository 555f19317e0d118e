"""A writer takes over what a broker left, killed or stopped in order, and goes on."""

from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.runtime.state_page import run_dir
from node.store.checkpoints import load_owner
from node.store.identity.places import create_store
from node.store.opening import open_store
from node.writer.appender import AppendRequest
from node.writer.recovery import examine
from node.writer.store import WriterStore, open_writer_store
from protocol.ids import Host, Queue
from protocol.record.encode import NewMessage, encode_batch
from tests.support.golden import GetStore, facts
from workers.feed import LiveFeed
from workers.index_file import IndexFiles, IndexWriter

HOST = Host(b"\x7f\x00\x00\x01", 10911)


def taken_over(root: Path, name: str) -> WriterStore:
    """A broker's store as `keelog serve` opens it."""
    create_store(root)
    return open_writer_store(root, settings(name), HOST, alone=True)


def settings(name: str) -> Settings:
    config = facts(name).state["config"]
    return Settings(
        mapped_file_size_commit_log=config["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=config["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=config["maxHashSlotNum"],
        max_index_num=config["maxIndexNum"],
    )


def leave(store: WriterStore) -> None:
    """As a kill leaves it, but that this process gives its files back."""
    store.log.close(unlink_next=False)
    store.floor.close()
    store.retention.close()
    store.checkpoint.close()
    store.page.close()
    store.lock.release()


@pytest.mark.parametrize("name", ["small-killed", "small-torn", "small-clean", "trimmed"])
def test_the_log_ends_where_rocketmq_says_and_goes_on_there(
    golden_copy: GetStore, name: str
) -> None:
    root, state = golden_copy(name), facts(name).state
    store = taken_over(root, name)
    assert store.log.end == state["maxPhyOffset"]
    queue = max(
        (Queue(one["topic"], one["queueId"]) for one in state["queues"]),
        key=lambda one: store.placement.tails.get(one, 0),
    )
    following = store.placement.tails[queue]
    request = AppendRequest(encode_batch([NewMessage(*_message(queue))], crc=True).records, 1)
    store.appender.append([request], now_ms=0)
    assert request.error is None
    assert request.queues == [(queue.topic, queue.queue_id, following, 1)]
    leave(store)
    found = examine(root, settings(name))
    assert (found.end, found.cut) == (request.end, None)
    assert found.tails[queue] == following + 1
    with open_store(root) as after:
        for message in facts(name).messages:
            offset = message["physicalOffset"]
            if state["minPhyOffset"] <= offset < state["maxPhyOffset"]:
                assert after.log.record_at(offset).message_id == message["msgId"]
        assert after.log.record_at(request.physical_offset).body == b"ours"


def test_store_times_go_on_above_the_brokers_although_our_clock_is_back(
    golden_copy: GetStore,
) -> None:
    store = taken_over(golden_copy("small-killed"), "small-killed")
    newest = max(message["storeTimestamp"] for message in facts("small-killed").messages)
    request = AppendRequest(
        encode_batch([NewMessage(*_message(Queue("orders", 0)))], crc=True).records, 1
    )
    store.appender.append([request], now_ms=newest - 3_600_000)
    assert request.store_timestamp == newest
    leave(store)


@pytest.mark.parametrize(("name", "is_kept"), [("small-clean", True), ("small-killed", False)])
def test_the_last_index_file_is_kept_when_the_broker_stopped_in_order(
    golden_copy: GetStore, name: str, is_kept: bool
) -> None:
    root = golden_copy(name)
    last = max((root / "index").iterdir())
    before = last.read_bytes()
    store = taken_over(root, name)
    assert load_owner(root) == 1
    feed = LiveFeed(root)
    folder = IndexWriter(root, settings(name).index_geometry, run_dir(root) / "index.new")
    IndexFiles(root, folder, feed).resume_from()
    assert last.exists() == is_kept
    assert not is_kept or last.read_bytes() == before
    folder.close()
    feed.close()
    leave(store)


def test_a_broker_that_was_killed_after_us_is_not_taken_for_us(golden_copy: GetStore) -> None:
    root = golden_copy("small-killed")
    leave(taken_over(root, "small-killed"))
    (root / "abort").write_text("4711")
    assert load_owner(root) is None
    assert examine(root, settings("small-killed")).cut is None


def _message(queue: Queue) -> tuple[str, bytes, int]:
    return queue.topic, b"ours", queue.queue_id
