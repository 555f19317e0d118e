"""The three flush modes in a real writer: what an answer promises, what a kill takes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.runtime.state_page import LogPage, LogState
from protocol.record.codec import Record, Torn, decode
from protocol.wire.frames import VERSION, pack, unpack_answer
from tests.support.faults.disk_faults import DiskFaults
from tests.support.writer_process import RawClient, WriterProcess

pytestmark = pytest.mark.process

SYNC = ["flush_disk_type=SYNC_FLUSH"]
POOL = ["transientStorePoolEnable=true"]
NEVER = [
    "commit_interval_commit_log=1000000",
    "commit_commit_log_thorough_interval=1000000",
    "wake_commit_when_put_message=false",
]
SMALL = ["mapped_file_size_commit_log=65536"]
UNTIL_MENDED = "delay 60000"
DEADLINE_S = 30


def state(root: Path) -> LogState:
    with LogPage.open(root) as page:
        return page.read()


def until(root: Path, condition: Callable[[LogState], bool]) -> LogState:
    deadline = time.monotonic() + DEADLINE_S
    while not condition(found := state(root)):
        assert time.monotonic() < deadline, found
        time.sleep(0.005)
    return found


def send(client: RawClient, body: bytes = b"x", **fields: Any) -> dict[str, Any]:
    return client.ask("send", topic="t", queue=0, body=body, **fields)


def bodies(root: Path) -> list[bytes]:
    """Of all records from the log's start, over all segments."""
    data = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    found, position = [], 0
    while not isinstance(item := decode(data, position, position), Torn):
        if isinstance(item, Record):
            found.append(item.body)
        position += item.size
    return found


def test_async_flush_answers_from_memory_and_is_readable_at_once(tmp_path: Path) -> None:
    with WriterProcess(tmp_path / "s", SMALL) as writer, RawClient(writer.endpoint) as client:
        receipt = send(client)
        found = state(writer.root)
        assert (receipt["status"], receipt["flushed"]) == ("PUT_OK", False)
        assert found.readable == found.committed == found.appended > 0


def test_in_sync_flush_a_slow_disk_is_flush_disk_timeout_and_the_message_is_kept(
    tmp_path: Path, faults: DiskFaults
) -> None:
    settings = [*SYNC, *SMALL, "sync_flush_timeout=4000"]
    with (
        WriterProcess(tmp_path / "s", settings, env=faults.env) as writer,
        RawClient(writer.endpoint) as client,
    ):
        first = send(client)
        assert (first["status"], first["flushed"]) == ("PUT_OK", True)
        faults.add("*", "fdatasync", "commitlog/", UNTIL_MENDED)
        before = state(writer.root)
        late = send(client)
        assert (late["status"], late["flushed"]) == ("FLUSH_DISK_TIMEOUT", False)
        assert late["queue_offset"] == 1
        assert state(writer.root).readable == before.readable < state(writer.root).appended
        faults.mend()
        found = until(writer.root, lambda page: page.readable == page.appended)
        assert found.flushed == found.readable
        assert send(client)["status"] == "PUT_OK"
    assert bodies(tmp_path / "s") == [b"x"] * 3


@pytest.mark.parametrize("how", [{"wait": "none"}, {"properties": {"WAIT": "false"}}])
def test_in_sync_flush_wait_false_does_not_wait_and_is_unreadable_until_flushed(
    tmp_path: Path, faults: DiskFaults, how: dict[str, Any]
) -> None:
    with (
        WriterProcess(tmp_path / "s", [*SYNC, *SMALL], env=faults.env) as writer,
        RawClient(writer.endpoint) as client,
    ):
        faults.add("*", "fdatasync", "commitlog/", UNTIL_MENDED)
        receipt = send(client, **how)
        found = state(writer.root)
        assert (receipt["status"], receipt["flushed"]) == ("PUT_OK", False)
        assert found.readable == found.flushed == 0 < found.appended
        faults.mend()
        until(writer.root, lambda page: page.readable == page.flushed == page.appended)


def test_requests_in_flight_share_a_flush(tmp_path: Path, faults: DiskFaults) -> None:
    with (
        WriterProcess(tmp_path / "s", [*SYNC, *SMALL], env=faults.env) as writer,
        RawClient(writer.endpoint) as client,
    ):
        send(client)
        faults.trace()
        faults.add("*", "fdatasync", "commitlog/", "delay 300")
        fields = {"v": VERSION, "op": "send", "topic": "t", "queue": 0, "body": b"x"}
        for number in range(64):
            client.socket.send(pack({**fields, "id": number + 100}))
        answers = [unpack_answer(client.socket.recv_multipart()[0]) for _ in range(64)]
        assert all(answer["flushed"] for answer in answers)
        calls = faults.traced(path="commitlog/")
        flushes = [call for call in calls if call.call == "fdatasync"]
        assert 1 <= len(flushes) <= 16, "64 requests, far fewer flushes"


def test_with_a_pool_only_what_is_committed_is_readable(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with (
        WriterProcess(root, [*POOL, *SMALL, *NEVER]) as writer,
        RawClient(writer.endpoint) as client,
    ):
        receipt = send(client, b"a")
        found = state(root)
        assert (receipt["status"], receipt["flushed"]) == ("PUT_OK", False)
        assert found.readable == found.committed == found.flushed == 0 < found.appended
        receipt = send(client, b"b", wait="flushed")
        found = state(root)
        assert receipt["flushed"] is True
        assert found.readable == found.committed == found.flushed == found.appended
        send(client, b"c")
        assert bodies(root) == [b"a", b"b"]
        assert writer.stop() == 0
    assert bodies(root) == [b"a", b"b", b"c"], "a stop in order commits everything"


def test_with_a_pool_and_the_defaults_a_message_is_readable_soon(tmp_path: Path) -> None:
    with (
        WriterProcess(tmp_path / "s", [*POOL, *SMALL]) as writer,
        RawClient(writer.endpoint) as client,
    ):
        for number in range(1, 4):
            send(client)
            page = until(writer.root, lambda page: page.readable == page.appended)
            assert page.records == number


def test_sync_flush_takes_no_notice_of_the_pool(tmp_path: Path) -> None:
    with (
        WriterProcess(tmp_path / "s", [*SYNC, *POOL, *SMALL, *NEVER]) as writer,
        RawClient(writer.endpoint) as client,
    ):
        assert send(client)["flushed"] is True


def test_a_kill_in_pool_mode_takes_what_was_not_committed_and_the_node_goes_on(
    tmp_path: Path,
) -> None:
    root = tmp_path / "s"
    with (
        WriterProcess(root, [*POOL, *SMALL, *NEVER]) as writer,
        RawClient(writer.endpoint) as client,
    ):
        send(client, b"kept", wait="flushed")
        lost = [send(client, b"lost") for _ in range(20)]
        writer.kill()
    with WriterProcess(root, [*POOL, *SMALL]) as writer, RawClient(writer.endpoint) as client:
        again = send(client, b"new", wait="flushed")
        assert again["epoch"] == 2
        assert again["physical_offset"] == lost[0]["physical_offset"]
        assert again["queue_offset"] == lost[0]["queue_offset"] == 1
    assert bodies(root) == [b"kept", b"new"]


def test_kills_in_pool_mode_lose_a_suffix_over_segment_ends_too(tmp_path: Path) -> None:
    """Each time the log ends between what was committed and what was answered."""
    root = tmp_path / "s"
    expected: list[bytes] = []
    offsets: list[int] = []
    for round_number in range(3):
        settings = [*POOL, *SMALL, *(NEVER if round_number == 1 else [])]
        with WriterProcess(root, settings) as writer, RawClient(writer.endpoint) as client:
            offsets = offsets[: len(expected)]
            for number in range(40):
                body = b"%d-%d" % (round_number, number) + bytes(5_000)
                offsets.append(send(client, body)["physical_offset"])
                expected.append(body)
            writer.kill()
        kept = bodies(root)
        assert kept == expected[: len(kept)]
        committed = state(root).committed
        assert len(kept) >= sum(offset < committed for offset in offsets)
        expected = kept
    with WriterProcess(root, SMALL) as writer, RawClient(writer.endpoint) as client:
        send(client, b"last", wait="flushed")
    assert bodies(root) == [*expected, b"last"]


def test_a_full_pool_is_told_at_once_where_that_is_asked_for(
    tmp_path: Path, faults: DiskFaults
) -> None:
    settings = [*POOL, *SMALL, "transient_store_pool_size=1"]
    settings.append("fastFailIfNoBufferInStorePool=true")
    with (
        WriterProcess(tmp_path / "s", settings, env=faults.env) as writer,
        RawClient(writer.endpoint) as client,
    ):
        send(client, wait="flushed")
        slow = faults.add("*", "pwrite", "commitlog/", UNTIL_MENDED)
        body = bytes(5_000)
        answers = [send(client, body) for _ in range(30)]
        taken = [answer for answer in answers if answer["ok"]]
        refused = [answer["error"] for answer in answers if not answer["ok"]]
        assert slow.fired
        assert len(taken) * 5_000 <= 65536 + 5_200
        assert {(error["kind"], error["code"]) for error in refused} == {("NodeBusy", 2)}
        faults.mend()
        until(writer.root, lambda page: page.committed == page.appended)
        assert send(client, body)["status"] == "PUT_OK"
        assert len(bodies(writer.root)) >= 1 + len(taken)
