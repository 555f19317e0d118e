"""A writer whose disk is slow: it refuses what it cannot hold, and its memory stays as it was."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from protocol.wire.frames import VERSION, pack, unpack_answer
from tests.support.faults.disk_faults import DiskFaults
from tests.support.writer_process import RawClient, WriterProcess

pytestmark = pytest.mark.process

CAPACITY = 1_000
TIMEOUT_MS = 1_500
FLUSH_MS = 30_000
GROUP_MAX = 512
"""The requests of one turn are let in together."""
SETTINGS = (
    "mapped_file_size_commit_log=67108864",
    "flush_disk_type=SYNC_FLUSH",
    f"sync_flush_timeout={TIMEOUT_MS}",
    f"send_thread_pool_queue_capacity={CAPACITY}",
    f"waiting_bytes_max={8 << 20}",
)
CLIENTS = 20
WAIT_S = 60


@pytest.fixture
def writer(tmp_path: Path, faults: DiskFaults) -> Iterator[WriterProcess]:
    """In SYNC_FLUSH, with one message stored; from now on each flush takes 30 s."""
    with WriterProcess(tmp_path / "store", SETTINGS, faults.env) as process:
        with RawClient(process.endpoint) as client:
            first = client.ask("send", topic="T", queue=0, body=b"first", wait="none")
            assert first["status"] == "PUT_OK"
        faults.add("keelog-writer", "sync", "commitlog/", f"delay {FLUSH_MS}")
        yield process


def private_bytes(process: WriterProcess) -> int:
    """Memory without the files that are mapped."""
    memory = psutil.Process(process.process.pid).memory_info()
    return int(memory.rss - memory.shared)


def outcome_of(answer: dict[str, Any]) -> str:
    return str(answer["status"] if answer["ok"] else answer["error"]["kind"])


def send_many(
    stack: ExitStack, writer: WriterProcess, count: int, body: bytes
) -> tuple[list[RawClient], int]:
    """Sends `count` messages by each of CLIENTS connections, without waiting for an answer.

    Returns the clients, and the most memory that the writer had meanwhile.
    """
    clients = [stack.enter_context(RawClient(writer.endpoint)) for _ in range(CLIENTS)]
    other = stack.enter_context(RawClient(writer.endpoint))
    fields = {"v": VERSION, "op": "send", "topic": "T", "queue": 0, "body": body}
    peak = private_bytes(writer)
    for number in range(count):
        for client in clients:
            client.socket.send(pack({**fields, "id": number}))
        # Without this wait all that is sent could lie in ZeroMQ, which counts messages, not bytes.
        other.ask("ping")
        peak = max(peak, private_bytes(writer))
    return clients, peak


def take_answers(
    clients: list[RawClient], count: int, writer: WriterProcess
) -> tuple[Counter[str], int]:
    """The outcome of every request, and the most memory that the writer had meanwhile."""
    found: Counter[str] = Counter()
    peak = 0
    deadline = time.monotonic() + WAIT_S
    for client in clients:
        for _ in range(count):
            assert client.socket.poll(int((deadline - time.monotonic()) * 1000)), found
            answer = unpack_answer(client.socket.recv())
            found[outcome_of(answer)] += 1
            if not answer["ok"]:
                assert answer["error"]["code"] == 2
                assert answer["error"]["status"] == "SYSTEM_BUSY"
                assert answer["error"]["retriable"]
        peak = max(peak, private_bytes(writer))
    return found, peak


def test_requests_beyond_the_queue_are_refused_while_a_flush_takes_long(
    writer: WriterProcess, faults: DiskFaults
) -> None:
    each = 400
    with ExitStack() as stack:
        before = private_bytes(writer)
        started = time.monotonic()
        clients, peak = send_many(stack, writer, each, bytes(1_000))
        found, later = take_answers(clients, each, writer)
        took = time.monotonic() - started
        assert found.keys() == {"FLUSH_DISK_TIMEOUT", "NodeBusy"}
        assert took >= TIMEOUT_MS / 1000, "an answer came before the time was up"
        assert took < FLUSH_MS / 1000, "answers waited for the flush"
        # Who is told FLUSH_DISK_TIMEOUT makes room for others.
        rounds = took / (TIMEOUT_MS / 1000) + 1
        assert CAPACITY <= found["FLUSH_DISK_TIMEOUT"] <= rounds * (CAPACITY + GROUP_MAX)
        # Each may keep its kilobyte and its own few objects.
        assert max(peak, later) - before < (CAPACITY + GROUP_MAX) * 4_000 + (16 << 20)
        faults.mend()


def test_large_requests_are_refused_by_their_bytes(
    writer: WriterProcess, faults: DiskFaults
) -> None:
    each, body = 10, bytes(512 * 1024)
    with ExitStack() as stack:
        before = private_bytes(writer)
        started = time.monotonic()
        clients, peak = send_many(stack, writer, each, body)
        found, later = take_answers(clients, each, writer)
        rounds = (time.monotonic() - started) / (TIMEOUT_MS / 1000) + 1
        assert found.keys() == {"FLUSH_DISK_TIMEOUT", "NodeBusy"}
        # 8 MiB wait at most, and the group that passed the limit: 1 MiB and one message.
        assert 16 <= found["FLUSH_DISK_TIMEOUT"] <= rounds * (16 + 4)
        # What ZeroMQ has taken in and nobody has looked at yet counts too.
        assert max(peak, later) - before < CLIENTS * each * len(body) // 2 + (32 << 20)
        faults.mend()


def test_a_writer_that_was_slow_takes_messages_again(tmp_path: Path, faults: DiskFaults) -> None:
    with WriterProcess(tmp_path / "store", SETTINGS, faults.env) as process, ExitStack() as stack:
        with RawClient(process.endpoint) as client:
            first = client.ask("send", topic="T", queue=0, body=b"first", wait="none")
            assert first["status"] == "PUT_OK"
        # Of the flush, and perhaps of the zeros ahead of the log, which are synced before it.
        faults.add("keelog-writer", "sync", "commitlog/", f"delay {FLUSH_MS}", times=2)
        clients, _ = send_many(stack, process, 100, b"x")
        found, _ = take_answers(clients, 100, process)
        assert found["NodeBusy"] > 0
        faults.mend()
        last = clients[0].ask("send", topic="T", queue=0, body=b"last", wait="none")
        # Nothing of a refused request was stored, and every other one was.
        assert last["queue_offset"] == 1 + CLIENTS * 100 - found["NodeBusy"]
        assert process.stop() == 0
