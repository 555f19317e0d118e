"""The writer as a real process: what it stores, what it refuses, how it starts and stops."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from node.runtime.state_page import LogPage
from node.store.checkpoints import load_epochs, load_tails
from node.store.identity.places import create_store
from protocol.ids import Queue
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, encode_batch
from protocol.wire.frames import pack
from tests.support.writer_process import RawClient, WriterProcess

pytestmark = pytest.mark.process


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[WriterProcess]:
    with WriterProcess(tmp_path / "store", ["mapped_file_size_commit_log=16777216"]) as process:
        yield process


@pytest.fixture
def client(writer: WriterProcess) -> Iterator[RawClient]:
    with RawClient(writer.endpoint) as made:
        yield made


def stored(root: Path) -> list[Record]:
    data = (root / "commitlog" / f"{0:020d}").read_bytes()
    found: list[Record] = []
    position = 0
    while isinstance(record := decode(data, position, position), Record):
        found.append(record)
        position += record.size
    return found


def test_a_message_is_stored_and_the_receipt_says_where(
    writer: WriterProcess, client: RawClient
) -> None:
    fields: dict[str, Any] = {"tags": "paid", "keys": ["o-1"], "properties": {"tenant": "ä"}}
    receipt = client.ask("send", topic="orders", queue=3, body=b"hello", **fields)
    assert receipt["ok"]
    assert (receipt["status"], receipt["topic"], receipt["queue_id"]) == ("PUT_OK", "orders", 3)
    assert (receipt["queue_offset"], receipt["physical_offset"]) == (0, 0)
    assert receipt["flushed"] is False
    (record,) = stored(writer.root)
    assert (record.body, record.tags, record.keys) == (b"hello", "paid", ["o-1"])
    assert record.properties["tenant"] == "ä"
    assert record.message_id == receipt["msg_id"]
    assert str(record.born_host) == "127.0.0.1:0"


def test_a_batch_is_stored_in_order(writer: WriterProcess, client: RawClient) -> None:
    messages = [NewMessage(f"t{i % 3}", bytes([i]), i % 2) for i in range(100)]
    answer = client.append(encode_batch(messages, crc=True))
    assert answer["ok"]
    assert sum(count for *_, count in answer["queues"]) == 100
    assert [record.body for record in stored(writer.root)] == [bytes([i]) for i in range(100)]


def test_who_waits_for_the_disk_is_told_that_it_is_there(
    writer: WriterProcess, client: RawClient
) -> None:
    receipt = client.ask("send", topic="orders", body=b"x", wait="flushed")
    assert receipt["flushed"] is True
    with LogPage.open(writer.root) as page:
        assert page.read().flushed == page.read().appended > 0


def test_in_sync_flush_only_flushed_bytes_are_readable(tmp_path: Path) -> None:
    with (
        WriterProcess(tmp_path / "store", ["flush_disk_type=SYNC_FLUSH"]) as writer,
        RawClient(writer.endpoint) as client,
    ):
        assert client.ask("send", topic="t", body=b"x")["flushed"] is True
        assert client.ask("send", topic="t", body=b"x", wait="none")["flushed"] is False
        with LogPage.open(writer.root) as page:
            state = page.read()
        assert state.readable == state.flushed


def test_a_killed_writer_goes_on_where_it_was(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for start in range(3):
        with WriterProcess(root) as writer, RawClient(writer.endpoint) as client:
            receipts = [client.ask("send", topic="t", queue=1, body=b"x") for _ in range(20)]
            writer.kill()
        assert [receipt["queue_offset"] for receipt in receipts] == [
            *range(20 * start, 20 * start + 20)
        ]
        assert receipts[0]["epoch"] == start + 1
    assert [line.epoch for line in load_epochs(root)] == [1, 2, 3]


def test_a_torn_tail_is_cut_and_kept_in_quarantine(tmp_path: Path) -> None:
    root = tmp_path / "store"
    small = ["mapped_file_size_commit_log=1048576"]
    with WriterProcess(root, small) as writer, RawClient(writer.endpoint) as client:
        for _ in range(5):
            last = client.ask("send", topic="t", queue=1, body=bytes(500))
        writer.kill()
    segment = root / "commitlog" / f"{0:020d}"
    size = stored(root)[-1].size
    with segment.open("r+b") as file:
        file.seek(last["physical_offset"] + 300)
        file.write(b"\xff" * 7)
    with WriterProcess(root) as writer, RawClient(writer.endpoint) as client:
        again = client.ask("send", topic="t", queue=1, body=b"new")
    assert again["physical_offset"] == last["physical_offset"]
    assert again["queue_offset"] == last["queue_offset"]
    (folder,) = (root / "keelog/quarantine").iterdir()
    kept = b"".join(path.read_bytes() for path in sorted(folder.glob("0*")))
    assert len(kept.rstrip(b"\0")) == size
    assert b"bad_crc" in (folder / "report.json").read_bytes()


def test_without_workers_a_stop_is_not_called_clean(
    writer: WriterProcess, client: RawClient
) -> None:
    client.ask("send", topic="t", queue=0, body=b"x")
    assert writer.stop() == 0
    assert (writer.root / "abort").exists()
    assert not (writer.root / "keelog/clean").exists()
    tails = load_tails(writer.root)
    assert tails is not None and tails.next_offset == {Queue("t", 0): 1}


def test_a_second_writer_ends_with_6_and_changes_nothing(writer: WriterProcess) -> None:
    writer.process.send_signal(signal.SIGSTOP)  # what changes now, the second one changes
    os.waitid(os.P_PID, writer.process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        before = {path: path.lstat().st_mtime_ns for path in writer.root.rglob("*")}
        with WriterProcess(writer.root) as second:
            assert second.wait() == 6
            assert "held by another process" in second.stderr
        assert {path: path.lstat().st_mtime_ns for path in writer.root.rglob("*")} == before
    finally:
        writer.process.send_signal(signal.SIGCONT)


def test_a_taken_port_is_an_error_of_the_start_and_none_of_the_log(tmp_path: Path) -> None:
    """Whoever reads that the log cannot be trusted looks for a bad disk."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        root = tmp_path / "store"
        create_store(root)
        words = [sys.executable, "-P", "-m", "node.writer.loop", str(root)]
        done = subprocess.run(
            [*words, "--bind", f"tcp://127.0.0.1:{port}"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"error: the writer of {root} cannot start\ncause: cannot bind" in done.stderr


def deep(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


GOOD = {"v": 1, "op": "send", "id": 9, "topic": "t", "queue": 0, "body": b"x"}
BAD_FRAMES: dict[str, tuple[list[bytes], str]] = {
    "an empty header": ([b""], "BadRequest"),
    "cut msgpack": ([pack(GOOD)[:-2]], "BadRequest"),
    "no map": ([msgpack.packb([1, 2])], "BadRequest"),
    "nested ten thousand deep": ([deep(10_000)], "BadRequest"),
    "says it holds 4 GiB": ([b"\xc6\xff\xff\xff\xff" + b"x" * 10], "BadRequest"),
    "says it holds 4 G items": ([b"\xdd\xff\xff\xff\xff"], "BadRequest"),
    "an extension type": ([msgpack.packb({"v": msgpack.ExtType(1, b"x")})], "BadRequest"),
    "another version": ([pack({**GOOD, "v": 2})], "UnknownOperation"),
    "an unknown operation": ([pack({**GOOD, "op": "dance"})], "UnknownOperation"),
    "no operation": ([pack({"v": 1, "id": 1})], "BadRequest"),
    "no id": ([pack({"v": 1, "op": "ping"})], "BadRequest"),
    "too many frames": ([pack(GOOD), b"", b"", b"x" * 1000], "BadRequest"),
    "a payload behind a send": ([pack(GOOD), b"x"], "BadRequest"),
    "a payload behind a ping": ([pack({"v": 1, "op": "ping", "id": 1}), b"x"], "BadRequest"),
    "an append without records": ([pack({**GOOD, "op": "append"})], "BadRequest"),
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_bad_frames_get_one_typed_error_and_the_connection_goes_on(
    writer: WriterProcess, client: RawClient, what: str
) -> None:
    frames, kind = BAD_FRAMES[what]
    refusal = client.frames(*frames)
    assert refusal["ok"] is False
    assert refusal["error"]["kind"] == kind
    assert refusal["error"]["reason"]
    assert client.ask("send", topic="t", queue=0, body=b"after")["queue_offset"] == 0


def test_a_request_over_a_limit_of_lists_is_refused_by_its_id(client: RawClient) -> None:
    for field in ({"keys": ["k"] * 1_001}, {"properties": {str(n): "" for n in range(1_001)}}):
        refusal = client.ask("send", topic="t", queue=0, body=b"x", **field)
        assert refusal["error"]["kind"] == "BadRequest"


BAD_SENDS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty topic": ({"topic": ""}, "IllegalMessage"),
    "a topic of 128 bytes": ({"topic": "x" * 128}, "IllegalMessage"),
    "a retry topic of 256 bytes": ({"topic": "%RETRY%" + "x" * 249}, "IllegalMessage"),
    "a topic with a slash": ({"topic": "a/b"}, "IllegalMessage"),
    "a topic that leads out": ({"topic": ".."}, "IllegalMessage"),
    "a topic with NUL": ({"topic": "a\0"}, "IllegalMessage"),
    "a topic with a line break": ({"topic": "a\n"}, "IllegalMessage"),
    "a reserved topic": ({"topic": "SCHEDULE_TOPIC_XXXX"}, "NotAllowed"),
    "a queue that is not there": ({"queue": 8}, "BadRequest"),
    "a queue below -1": ({"queue": -2}, "BadRequest"),
    "a queue that is no number": ({"queue": "0"}, "BadRequest"),
    "a body that is text": ({"body": "x"}, "BadRequest"),
    "a body over 4 MiB": ({"body": bytes(4 * 1024 * 1024 + 1)}, "MessageTooLarge"),
    "a born port that no host has": ({"born_host": "1.2.3.4:65536"}, "BadRequest"),
    "properties over 32,767 bytes": ({"properties": {"p": "x" * 32_767}}, "PropertiesTooLarge"),
    "a separator in a value": ({"properties": {"p": "a\x02b"}}, "IllegalMessage"),
    "a separator in a name": ({"properties": {"a\x01": "b"}}, "IllegalMessage"),
    "a separator in a key": ({"keys": ["a\x01"]}, "IllegalMessage"),
    "a key with a space": ({"keys": ["a b"]}, "IllegalMessage"),
    "tags that are a number": ({"tags": 7}, "BadRequest"),
    "a property that is a number": ({"properties": {"p": 7}}, "BadRequest"),
    "a delay": ({"properties": {"DELAY": "3"}}, "NotAllowed"),
    "a transaction": ({"sys_flag": 4}, "IllegalMessage"),
    "half a transaction": ({"properties": {"TRAN_MSG": "true"}}, "NotAllowed"),
    "an inner batch": ({"properties": {"INNER_NUM": "2"}}, "NotAllowed"),
    "no such wait": ({"wait": "maybe"}, "BadRequest"),
    "no address": ({"born_host": "nowhere"}, "BadRequest"),
    "a flag of 40 bits": ({"flag": 2**40}, "BadRequest"),
}


@pytest.mark.parametrize("what", BAD_SENDS)
def test_a_bad_message_gets_one_typed_error_and_nothing_is_stored(
    writer: WriterProcess, client: RawClient, what: str
) -> None:
    fields, kind = BAD_SENDS[what]
    refusal = client.ask("send", **{"topic": "t", "queue": 0, "body": b"x", **fields})
    assert refusal["ok"] is False, refusal
    assert refusal["error"]["kind"] == kind, refusal
    with LogPage.open(writer.root) as page:
        assert page.read().appended == 0
    assert client.ask("send", topic="t", queue=0, body=b"after")["queue_offset"] == 0


BAD_BATCHES: dict[str, dict[str, Any]] = {
    "another count": {"count": 2},
    "a count of zero": {"count": 0},
    "another length": {"bytes": 7},
    "another checksum": {"crc": 1},
    "sizes of other records": {"sizes": bytes(12)},
    "too few sizes": {"sizes": bytes(4)},
    "a queue of its own": {"queue": 3},
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_a_batch_that_does_not_agree_with_its_header_is_refused(
    writer: WriterProcess, client: RawClient, what: str
) -> None:
    batch = encode_batch([NewMessage("t", bytes([i]), 0) for i in range(3)], crc=True)
    refusal = client.append(batch, **BAD_BATCHES[what])
    assert refusal["error"]["kind"] == "BadRequest"
    assert stored(writer.root) == []
    assert client.append(batch)["queues"] == [["t", 0, 0, 3]]


def test_random_bytes_never_stop_the_writer(writer: WriterProcess, client: RawClient) -> None:
    rng = random.Random(7)
    good = encode_batch([NewMessage("t", bytes(50), 0)] * 3, crc=True)
    for _ in range(1_500):
        data = bytearray(rng.choice([pack(GOOD), good.records, rng.randbytes(rng.randrange(200))]))
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        frames = (
            [bytes(data)] if rng.random() < 0.5 else [pack(GOOD | {"op": "append"}), bytes(data)]
        )
        assert "ok" in client.frames(*frames)
    assert client.ask("ping")["ok"]
    assert all(isinstance(record, Record) for record in stored(writer.root))


def test_topics_are_made_listed_and_removed(client: RawClient) -> None:
    assert client.ask("create_topic", topic="orders", queues=4)["created"] is True
    assert client.ask("create_topic", topic="orders", queues=4)["created"] is False
    (row,) = client.ask("topics")["topics"]
    assert row == {
        "topic": "orders", "read_queues": 4, "write_queues": 4, "perm": 6, "retention_hours": 0,
    }  # fmt: skip
    assert client.ask("delete_topic", topic="orders")["deleted"] is True
    assert client.ask("topics")["topics"] == []


def test_a_topic_that_was_removed_begins_again_at_offset_0(client: RawClient) -> None:
    for count in (1, 2, 3):
        for expected in range(count):
            assert client.ask("send", topic="t", queue=0, body=b"")["queue_offset"] == expected
        gone = client.ask("delete_topic", topic="t")
        assert gone["deleted"]
        assert gone["left_in_log_bytes"] > 0
        assert gone["until"] is None, "the segment is still being written"


def test_a_purge_without_workers_finds_its_place_in_the_log(client: RawClient) -> None:
    for _ in range(5):
        client.ask("send", topic="t", queue=0, body=b"")
    purged = client.ask("purge_topic", topic="t", offset=3)
    assert purged["queues"] == [{"queue_id": 0, "min_offset": 3}]
    again = client.ask("purge_topic", topic="t", offset=2)
    assert again["queues"] == [{"queue_id": 0, "min_offset": 3}], "a purge brings nothing back"
    assert client.ask("send", topic="t", queue=0, body=b"")["queue_offset"] == 5


@pytest.mark.parametrize("shape", ["file", "gap", "length", "foreign"])
def test_a_directory_that_is_no_store_is_refused_and_left_alone(tmp_path: Path, shape: str) -> None:
    root = tmp_path / "store"
    if shape == "file":
        root.write_text("not a store")
    else:
        names = {"gap": [0, 2000], "length": [0, 1000], "foreign": [0]}[shape]
        (root / "commitlog").mkdir(parents=True)
        for name in names:
            size = 999 if (shape, name) == ("length", 1000) else 1000
            (root / "commitlog" / f"{name:020d}").write_bytes(b"x" * size)
        if shape == "foreign":
            (root / "commitlog/notes.txt").write_text("mine")
        create_store(root)
    before = sorted(os.walk(root))
    with WriterProcess(root, creates=False) as writer:
        assert writer.wait() in (2, 5)
        assert "error:" in writer.stderr
        assert "Traceback" not in writer.stderr
    after = sorted(os.walk(root))
    assert [sorted(set(files) - {"lock"}) for _, _, files in after] == [
        sorted(set(files) - {"lock"}) for _, _, files in before
    ]
