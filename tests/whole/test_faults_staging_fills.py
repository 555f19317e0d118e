"""A small disk that staged batches fill: they pay for it themselves, and no message does."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import keelog
from keelog.client.send.staging import StageClient, StagedPart
from keelog.pipeline.options import SinkOptions
from keelog.pipeline.sink import stage_rows
from node.runtime.shortage import used_percent
from node.store.staging_files import (
    StagedBatch,
    batch_dir,
    published_path,
    staged_bytes,
    staging_dir,
)
from node.store.verify.verify import verify
from protocol.errors import BusyError, NotConnected, ServiceNotAvailable
from protocol.record.encode import NewMessage, encode_message
from tests.support.faults.small_disk import fill_to, small_tmpfs
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

MIB = 1024 * 1024
DISK_MIB = 64
COUNT = 12_000
SETTINGS = (
    f"mapped_file_size_commit_log={MIB}",
    "mapped_file_size_consume_queue=40000",
    "max_hash_slot_num=1000",
    "max_index_num=4000",
    "disk_space_warning_level_ratio=90",
    "clean_file_forcibly_enable=true",
    "clean_resource_interval=1000",
    "delete_commit_log_files_interval=1",
)
ROUNDS_S = 4.0
"""Retention has looked, and has had its rounds."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node on a disk of its own."""
    with (
        small_tmpfs(tmp_path, DISK_MIB) as place,
        RunningNode(place / "store", SETTINGS, queue_workers=1, readers=1) as made,
    ):
        yield made


def body(number: int) -> bytes:
    return b"%06d" % number + bytes(994)


def send(node: RunningNode, start: int, end: int) -> None:
    with node.client.producer(timeout=30.0) as producer:
        producer.send_many("kept", [body(n) for n in range(start, end)], queue_id=0)


def assert_all_there(node: RunningNode, count: int) -> None:
    """All that was acknowledged, each at its offset."""
    node.wait_dispatched()
    found = [m.body for m in node.client.tail("kept", "earliest", until_end=True)]
    assert found == [body(number) for number in range(count)]


def frame(number: int, size: int = 60_000) -> bytes:
    message = NewMessage("staged", os.urandom(size), 0, unique_key=f"{number:032d}")
    return encode_message(message, crc=True)


def stage_until_refused(client: StageClient, query: str) -> tuple[StagedPart | None, BusyError]:
    """Frames until there is no room for more; answers what was taken."""
    writer, part = client.stage(query, 0, "a"), None
    for number in range(2_000):
        try:
            writer.put(frame(number), 1)
            part = writer.finish()
        except BusyError as refused:  # a timeout where the time is up amid the last attempt
            assert "disk_full: " in refused.reason
            return part, refused
    raise AssertionError("staging was never refused")


def age(folder: Path, minutes: float) -> None:
    """What is in a folder was last written to so long ago."""
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - minutes * 60,) * 2)


def age_segments(node: RunningNode, minutes: float) -> int:
    """All but the last two; answers where those begin."""
    files = sorted((node.root / "commitlog").iterdir())
    for path in files[:-3]:
        os.utime(path, (time.time() - minutes * 60,) * 2)
    return int(files[-3].name)


@pytest.mark.faults
def test_acknowledged_messages_survive_a_stranger_who_stages_to_the_brim(
    node: RunningNode,
) -> None:
    place = node.root.parent
    send(node, 0, COUNT)
    with StageClient(node.endpoint, timeout=2.0) as client:
        part, refused = stage_until_refused(client, "stranger")
        assert part is not None
        assert part.frames > 100
        assert refused.retriable
        assert refused.hint
        for _ in range(3):  # an ever new stage and batch does not come further
            more, _ = stage_until_refused(client, f"again{time.monotonic_ns()}")
            assert more is None or more.frames <= 1
        staged = staged_bytes(staging_dir(node.root))
        left = (85 - used_percent(place)) / 100 * DISK_MIB * MIB
        assert left > 0.9 * staged, "a publication would reach the forced ratio"
        time.sleep(ROUNDS_S)
        assert node.log_state().min_offset == 0
        send(node, COUNT, COUNT + 500)
        assert node.client.status().mode == "normal"
        assert node.client.health().ready
        assert_all_there(node, COUNT + 500)
        assert client.unstage("stranger", 0) == 1
        wait_until(lambda: publishes(client), "staging does not go on")
        assert published_path(node.root, "after").exists()
    assert "deleting segments" not in node.stderr
    assert node.stderr.count("no more is staged") < 10
    node.stop()
    assert verify(node.root, deep=True).findings == []


def publishes(client: StageClient) -> bool:
    writer = client.stage("after", 0, "a")
    try:
        writer.put(frame(9_999), 1)
        part = writer.finish()
    except BusyError:
        return False
    assert part is not None
    return client.publish("after", 0, [part]).records == 1


@pytest.mark.faults
def test_a_whole_disk_of_stages_can_be_published_and_takes_no_message(node: RunningNode) -> None:
    send(node, 0, COUNT)
    age_segments(node, 120)
    with StageClient(node.endpoint, timeout=2.0) as client:
        part, _ = stage_until_refused(client, "job")
        assert part is not None
        published = client.publish("job", 0, [part], timeout=60.0)
        assert published.records == part.records
    time.sleep(ROUNDS_S)
    assert node.log_state().min_offset == 0
    assert_all_there(node, COUNT)


def test_a_spark_task_without_room_fails_with_the_nodes_reason(node: RunningNode) -> None:
    fill_to(node.root.parent, 80)
    rows = pa.record_batch([pa.array([os.urandom(100_000)] * 50, pa.binary())], ["body"])
    options = SinkOptions(node.endpoint, "orders", 2.0, 2.0, {"body": 0})
    # The second where the time is up amid the last attempt.
    with pytest.raises((BusyError, NotConnected), match="disk_full: ") as failed:
        stage_rows(options, "job", 0, 0, 0, [rows])
    assert "below 85 % of the disk" in str(failed.value)
    folder = staging_dir(node.root)
    wait_until(lambda: staged_bytes(folder) == 0, "its repetition lacks that room")


@pytest.mark.faults
def test_abandoned_stages_go_before_any_segment_and_live_ones_stay(node: RunningNode) -> None:
    place = node.root.parent
    send(node, 0, COUNT)
    with StageClient(node.endpoint, timeout=5.0) as client:
        for query in ("dead", "live"):
            writer = client.stage(query, 0, "a")
            for number in range(60):
                writer.put(frame(number), 1)
            writer.finish()
    dead, live = (batch_dir(node.root, StagedBatch(query, 0)) for query in ("dead", "live"))
    begin = age_segments(node, 120)
    age(dead, 60)
    fill_to(place, 87)
    wait_until(lambda: not dead.exists(), "the abandoned batch stays")
    time.sleep(ROUNDS_S)
    assert used_percent(place) <= 85
    assert node.log_state().min_offset == 0
    assert_all_there(node, COUNT)
    fill_to(place, 86)
    wait_until(lambda: 0 < node.log_state().min_offset <= begin, "old segments stay, too")
    assert live.exists()


@pytest.mark.faults
def test_young_messages_stay_on_a_full_disk_and_appends_wait_for_room(node: RunningNode) -> None:
    send(node, 0, COUNT)
    ballast = fill_to(node.root.parent, 93)
    once = keelog.Retry(max_attempts=1)
    with keelog.connect(node.endpoint, timeout=5.0, retry=once) as client:
        wait_until(
            lambda: node.client.status().mode != "normal" or refused(client), "it is not full"
        )
        time.sleep(ROUNDS_S)
        assert refused(client)
        assert node.log_state().min_offset == 0
        assert_all_there(node, COUNT)
        ballast.unlink()
        wait_until(lambda: not refused(client), "appends do not go on")


def refused(client: keelog.Client) -> bool:
    try:
        client.send("other", b"x", queue_id=0)
    except ServiceNotAvailable as error:
        assert error.reason.startswith("disk_full: ")
        return True
    return False
