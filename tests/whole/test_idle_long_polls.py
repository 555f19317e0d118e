"""A thousand consumers that wait: what they cost a reader, and whom a message wakes."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import zmq

from node.runtime.process import raise_file_limit
from node.runtime.state_page import WorkerPage
from protocol.wire.frames import VERSION, pack, unpack_answer
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process

PULLS = 1_000
WATCHED_S = 3.0
CPU_SHARE_MAX = 0.35
"""Of one processor, which other tests use too; 0.04 was measured (docs/operations.md)."""
HELD_BYTES_MAX = 48 * 1024
"""A held pull with a connection of its own: nearly all of it is what ZeroMQ takes for that."""
WAKE_S_MAX = 10.0
"""Far above the few ms that it takes, far below the end of the held pulls."""
WAIT_MS = 120_000
"""The first is held until the last was sent, and all was measured, on a slow machine too."""
SETTINGS = (
    f"long_polling_ms_max={WAIT_MS}",
    "mapped_file_size_commit_log=16777216",
    "mapped_file_size_consume_queue=20000",
)


@contextmanager
def connections(endpoint: str, count: int) -> Iterator[list["zmq.Socket[bytes]"]]:
    """So many sockets, each connected."""
    raise_file_limit()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.MAX_SOCKETS, count + 10)
    sockets = []
    for _ in range(count):
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        sockets.append(socket)
    try:
        yield sockets
    finally:
        for socket in sockets:
            socket.close(0)
        context.term()


def held_by(node: RunningNode) -> int:
    """What the reader says."""
    with WorkerPage.open(node.root, "reader-0") as page:
        return page.read().held


def pull(queue: int) -> bytes:
    fields = {"topic": "T", "queue": queue, "offset": 0, "wait_ms": WAIT_MS}
    return pack({"v": VERSION, "op": "pull", "id": queue, **fields})


def private_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_a_thousand_held_pulls_cost_little_and_a_message_wakes_one(tmp_path: Path) -> None:
    with (
        RunningNode(tmp_path / "s", SETTINGS, queue_workers=1, readers=1) as node,
        ExitStack() as s,
    ):
        client = node.client
        client.create_topic("T", PULLS)
        (row,) = [one for one in client.status().processes if one.role == "reader"]
        assert row.pid is not None
        reader = psutil.Process(row.pid)
        before = private_bytes(reader)
        sockets = s.enter_context(connections(str(row.endpoint), PULLS))
        for queue, socket in enumerate(sockets):
            socket.send(pull(queue))
        wait_until(lambda: held_by(node) == PULLS, f"{PULLS} pulls are held")

        taken = private_bytes(reader) - before
        assert taken < PULLS * HELD_BYTES_MAX, f"{taken // PULLS} bytes a held pull"
        started, used = time.monotonic(), cpu_s(reader)
        time.sleep(WATCHED_S)  # what is measured is doing nothing
        share = (cpu_s(reader) - used) / (time.monotonic() - started)
        assert share < CPU_SHARE_MAX, f"{share:.0%} of a processor"

        for queue in (0, 500, 999):
            sent = time.monotonic()
            client.send("T", b"x", queue_id=queue)
            assert sockets[queue].poll(int(WAKE_S_MAX * 1000)), "the message woke nobody"
            assert time.monotonic() - sent < WAKE_S_MAX
            answer = unpack_answer(sockets[queue].recv_multipart()[0])
            assert (answer["id"], answer["status"], answer["count"]) == (queue, "FOUND", 1)
        others = [n for n, one in enumerate(sockets) if one.poll(0)]
        assert others == []
        wait_until(lambda: held_by(node) == PULLS - 3, "the others are held")


def test_the_pulls_of_consumers_that_went_away_cost_nothing_but_their_time(tmp_path: Path) -> None:
    """ZeroMQ tells nobody that a peer is gone: its pulls stay until their queue grows."""
    with RunningNode(tmp_path / "s", SETTINGS, queue_workers=1, readers=1) as node:
        node.client.create_topic("T", 1)
        (row,) = [one for one in node.client.status().processes if one.role == "reader"]
        with connections(str(row.endpoint), 3) as sockets:
            for number in range(600):
                request = {"v": VERSION, "op": "pull", "id": number, "topic": "T", "queue": 0}
                sockets[number % 3].send(pack({**request, "offset": 0, "wait_ms": WAIT_MS}))
            wait_until(lambda: held_by(node) == 600, "600 pulls are held")
        node.client.send("T", b"x", queue_id=0)
        wait_until(lambda: held_by(node) == 0, "the dead are forgotten")
        assert len(node.client.pull("T", 0, 0).messages) == 1
