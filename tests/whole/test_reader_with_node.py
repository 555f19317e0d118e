"""A reader process among the other processes of a node, in any order of starts and ends."""

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest
import zmq

from node.runtime.state_page import STOPPED, WorkerPage
from node.store.identity.places import create_store
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, encode_batch
from protocol.wire.frames import pack, unpack_answer
from tests.support.node import wait_until
from tests.support.single_process import SingleProcess, small_files
from tests.support.writer_process import RawClient

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("reader_with_node")]

SHARDS = 2
BIND = ("--bind", "tcp://127.0.0.1:0")
LONG_S = 40.0


class SmallNode:
    """A writer, two queue workers, an index worker and a reader, each started by hand."""

    def __init__(self, root: Path) -> None:
        create_store(root)
        self.root = root
        self._stack = ExitStack()
        self.reader: SingleProcess
        self.writer: SingleProcess
        self.workers: list[SingleProcess] = []

    def start(self, module: str, *arguments: object, wait: bool = True) -> SingleProcess:
        process = SingleProcess(module, self.root, *arguments, *small_files(), wait=wait)
        return self._stack.enter_context(process)

    def start_reader(self, *arguments: object) -> None:
        self.reader = self.start(
            "node.reader.loop", *BIND, "--index", 0, "--shards", SHARDS, *arguments
        )

    def start_writer(self) -> None:
        self.writer = self.start("node.writer.loop", *BIND)

    def start_workers(self) -> None:
        self.workers = [
            self.start("workers.consume_queue", "--shard", i, "--shards", SHARDS)
            for i in range(SHARDS)
        ]
        self.workers.append(self.start("workers.index_file"))

    def open(self, process: SingleProcess) -> "Peer":
        return self._stack.enter_context(Peer(process.endpoint))

    def __enter__(self) -> "SmallNode":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Peer(RawClient):
    """A client that sends now and takes the answer later, and may do both in two threads."""

    def pull(self, topic: str, queue: int, offset: int, number: int = 1, **fields: Any) -> None:
        """Sends a pull."""
        place = {"topic": topic, "queue": queue, "offset": offset}
        self.socket.send(pack({"v": 1, "op": "pull", "id": number, **place, **fields}))

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """The next answer, and its payload."""
        header, *payload = self.socket.recv_multipart()
        return unpack_answer(header), b"".join(payload)

    def records(self, topic: str, queue: int, offset: int = 0, **fields: Any) -> list[Record]:
        """The answer to one pull, decoded."""
        self.pull(topic, queue, offset, **fields)
        header, payload = self.answer()
        assert header["ok"], header
        return split(header, payload)

    def wait_for(self, topic: str, queue: int, count: int) -> list[Record]:
        """Pulls until there are so many records."""
        found: list[Record] = []
        deadline = time.monotonic() + LONG_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            found += self.records(topic, queue, len(found), wait_ms=1_000)
        return found


def split(header: dict[str, Any], payload: bytes) -> list[Record]:
    """The records of an answer."""
    found, position = [], 0
    for size in np.frombuffer(header["sizes"], "<u4").tolist():
        record = decode(payload[position : position + size], 0)
        assert isinstance(record, Record)
        found.append(record)
        position += size
    return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    """All processes, ready."""
    with SmallNode(tmp_path / "store") as node:
        node.start_writer()
        node.start_workers()
        node.start_reader()
        yield node


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallNode]:
    """As `node`, for tests that leave every process as it is."""
    with SmallNode(tmp_path_factory.mktemp("shared") / "store") as node:
        node.start_writer()
        node.start_workers()
        node.start_reader()
        yield node


@pytest.fixture
def topic(keelog_topic: str) -> str:
    return keelog_topic


def append(
    peer: RawClient, topic: str, queue: int, *bodies: bytes, **fields: Any
) -> dict[str, Any]:
    """Appends one batch."""
    messages = [NewMessage(topic, body, queue, **fields) for body in bodies]
    receipt = peer.append(encode_batch(messages, crc=True))
    assert receipt["ok"], receipt
    return receipt


def test_what_was_appended_is_pulled_and_found_in_every_way(shared: SmallNode, topic: str) -> None:
    writer, reader = shared.open(shared.writer), shared.open(shared.reader)
    sent = writer.ask("send", topic=topic, queue=3, body=b"hello", tags="paid", keys=["o-1"])
    (record,) = reader.wait_for(topic, 3, 1)
    assert (record.body, record.tags) == (b"hello", "paid")
    wanted = [
        {"physical_offset": sent["physical_offset"]},
        {"msg_id": sent["msg_id"]},
        {"topic": topic, "queue": 3, "offset": 0},
    ]
    for fields in wanted:
        reader.socket.send(pack({"v": 1, "op": "get", "id": 1, **fields}))
        header, payload = reader.answer()
        assert header["ok"], header
        assert payload == record.raw
    # By key and time the files alone tell.
    later = int(time.time() * 1000) + 9_999
    by_time: dict[str, Any] = {"topic": topic, "queue": 3, "timestamp": later}
    wait_until(lambda: reader.ask("find", topic=topic, key="o-1")["count"] == 1, "the key")
    wait_until(lambda: reader.ask("seek", **by_time)["offset"] == 1, "the time")
    assert reader.ask("offsets", topic=topic, queue=3)["queues"] == [
        {"queue_id": 3, "min_offset": 0, "max_offset": 1, "behind": False}
    ]
    (row,) = (row for row in reader.ask("topics")["topics"] if row["topic"] == topic)
    assert (row["queues"], row["perm"]) == (8, 6)


def test_a_long_poll_is_answered_on_arrival(shared: SmallNode, topic: str) -> None:
    writer, reader = shared.open(shared.writer), shared.open(shared.reader)
    append(writer, topic, 1, b"first")
    assert len(reader.wait_for(topic, 1, 1)) == 1
    latencies = []
    for number in range(30):
        reader.pull(topic, 1, number + 1, wait_ms=20_000)
        time.sleep(0.02)
        begin = time.monotonic()
        append(writer, topic, 1, b"%d" % number)
        header, _ = reader.answer()
        latencies.append(time.monotonic() - begin)
        assert (header["status"], header["next_begin_offset"]) == ("FOUND", number + 2)
    # Far below every time-out, far above what it takes: other tests share the two cores.
    assert statistics.median(latencies) < 0.1, latencies


@pytest.mark.faults
def test_a_long_poll_is_answered_although_no_hint_can_come(node: SmallNode) -> None:
    writer, reader = node.open(node.writer), node.open(node.reader)
    append(writer, "orders", 1, b"first")
    reader.wait_for("orders", 1, 1)
    bells = list((node.root / "keelog" / "run").glob("reader-*.bell"))
    assert bells
    for path in bells:
        path.unlink()
    for worker in node.workers:
        worker.stop()
    node.start_workers()  # They connect to a socket that is not there.
    latencies = []
    for number in range(10):
        reader.pull("orders", 1, number + 1, wait_ms=20_000)
        time.sleep(0.02)
        begin = time.monotonic()
        append(writer, "orders", 1, b"more")
        header, _ = reader.answer()
        latencies.append(time.monotonic() - begin)
        assert header["status"] == "FOUND"
    assert statistics.median(latencies) < 0.1, latencies


def test_a_reader_that_starts_first_serves_when_the_others_have_come(tmp_path: Path) -> None:
    with SmallNode(tmp_path / "store") as node:
        node.start_reader()
        reader = node.open(node.reader)
        assert reader.ask("ping")["ok"]
        assert reader.ask("topics")["topics"] == []
        reader.pull("orders", 2, 0, wait_ms=30_000)
        node.start_writer()
        node.start_workers()
        append(node.open(node.writer), "orders", 2, b"at last")
        header, payload = reader.answer()
        assert header["status"] == "FOUND"
        assert b"at last" in payload


def test_a_held_pull_survives_the_ends_of_writer_and_workers(node: SmallNode) -> None:
    writer, reader = node.open(node.writer), node.open(node.reader)
    bodies = [b"%d" % number for number in range(300)]
    append(writer, "orders", 1, *bodies)
    assert len(reader.wait_for("orders", 1, 300)) == 300
    reader.pull("orders", 1, 300, wait_ms=30_000)
    node.writer.kill()
    for worker in node.workers:
        worker.kill()
    assert reader.socket.poll(300) == 0
    node.start_writer()
    node.start_workers()
    append(node.open(node.writer), "orders", 1, b"after")
    header, payload = reader.answer()
    assert (header["status"], header["next_begin_offset"]) == ("FOUND", 301)
    assert b"after" in payload
    again = reader.wait_for("orders", 1, 301)
    assert [record.body for record in again] == [*bodies, b"after"]


def test_pages_that_somebody_removed_and_made_anew_are_found(node: SmallNode) -> None:
    writer, reader = node.open(node.writer), node.open(node.reader)
    append(writer, "orders", 1, b"one")
    reader.wait_for("orders", 1, 1)
    for process in (node.writer, *node.workers):
        assert process.stop() == 0
    for path in (node.root / "keelog" / "run").glob("*.page"):
        if not path.name.startswith("reader"):
            path.unlink()
    reader.pull("orders", 1, 1, wait_ms=30_000)
    node.start_writer()
    node.start_workers()
    append(node.open(node.writer), "orders", 1, b"two")
    header, _ = reader.answer()
    assert (header["status"], header["next_begin_offset"]) == ("FOUND", 2)


def test_sigterm_answers_what_is_held_long_before_its_time(node: SmallNode) -> None:
    writer, reader = node.open(node.writer), node.open(node.reader)
    append(writer, "orders", 1, b"one")
    reader.wait_for("orders", 1, 1)
    for number in range(500):
        reader.pull("orders", 1, 1, number, wait_ms=30_000)
    page = WorkerPage.open(node.root, "reader-0")
    deadline = time.monotonic() + LONG_S
    while page.read().held < 500:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begin = time.monotonic()
    assert node.reader.stop() == 0, node.reader.stderr
    assert time.monotonic() - begin < 10.0, "it waited for the ends of the pulls"
    numbers = set()
    for _ in range(500):
        header, _ = reader.answer()
        assert header["status"] == "OFFSET_OVERFLOW_ONE"
        numbers.add(header["id"])
    assert numbers == set(range(500))
    assert (page.read().state, page.read().held) == (STOPPED, 0)
    page.close()


def test_a_thousand_idle_polls_cost_next_to_nothing(node: SmallNode) -> None:
    writer, reader = node.open(node.writer), node.open(node.reader)
    append(writer, "orders", 1, b"one")
    reader.wait_for("orders", 1, 1)
    for number in range(1_000):
        reader.pull(f"topic-{number}", 0, 0, number, wait_ms=30_000)
    page = WorkerPage.open(node.root, "reader-0")
    deadline = time.monotonic() + LONG_S
    while page.read().held < 1_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process = psutil.Process(node.reader.process.pid)
    before, begin = sum(process.cpu_times()[:2]), time.monotonic()
    for _ in range(100):
        append(writer, "orders", 1, b"others grow")
        time.sleep(0.01)
    share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begin)
    assert share < 0.25, f"{share:.0%} of a core"
    append(writer, "topic-77", 0, b"for one of them")
    header, _ = reader.answer()
    assert (header["id"], header["status"]) == (77, "FOUND")
    page.close()


def test_hostile_peers_do_not_keep_others_from_their_answers(shared: SmallNode, topic: str) -> None:
    writer, reader = shared.open(shared.writer), shared.open(shared.reader)
    append(writer, topic, 1, b"one")
    reader.wait_for(topic, 1, 1)
    host, port = shared.reader.endpoint.removeprefix("tcp://").split(":")
    raw = [socket.create_connection((host, int(port))) for _ in range(20)]
    for number, connection in enumerate(raw):
        connection.sendall(bytes(number) + b"\xff" * 10 + b"\x7f\x03" + b"garbage" * number)
    with RawClient(shared.reader.endpoint) as hostile:
        assert not hostile.frames(b"\xc1")["ok"]
        assert hostile.frames(b"", b"", b"")["error"]["kind"] == "BadRequest"
        assert hostile.frames(*[b"x"] * 10_000)["error"]["kind"] == "BadRequest"
        deep = b"\x91" * 2_000 + b"\xc0"
        assert not hostile.frames(deep)["ok"]
        assert not hostile.frames(msgpack.packb({"v": 1, "id": 2**64 - 1, "op": "ping"}))["ok"]
        hostile.socket.send(b"x" * (2 << 20))  # Costs it the connection.
        assert len(reader.records(topic, 1)) == 1
    for connection in raw:
        connection.close()
    assert reader.ask("ping")["ok"]


def test_peers_that_vanish_with_their_polls_do_no_harm(shared: SmallNode, topic: str) -> None:
    writer, reader = shared.open(shared.writer), shared.open(shared.reader)
    append(writer, topic, 1, b"one")
    reader.wait_for(topic, 1, 1)
    for _ in range(20):
        with Peer(shared.reader.endpoint) as gone:
            for number in range(20):
                gone.pull(topic, 1, 1, number, wait_ms=30_000)
            assert gone.socket.poll(20, zmq.POLLIN) == 0
    reader.pull(topic, 1, 1, wait_ms=20_000)
    append(writer, topic, 1, b"two")
    header, _ = reader.answer()
    assert header["status"] == "FOUND"
    page = WorkerPage.open(shared.root, "reader-0")
    deadline = time.monotonic() + LONG_S
    while page.read().held:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    page.close()


def test_nothing_is_lost_between_a_pull_and_its_hold(shared: SmallNode, topic: str) -> None:
    """The gap between 'nothing there' and 'now I wait' is where an arrival could be missed."""
    writer, reader = shared.open(shared.writer), shared.open(shared.reader)
    total = 2_000

    def send() -> None:
        for number in range(total):
            append(writer, topic, 1, b"%d" % number)

    sender = threading.Thread(target=send)
    sender.start()
    bodies: list[bytes] = []
    slowest = 0.0
    while len(bodies) < total:
        begin = time.monotonic()
        bodies += [r.body for r in reader.records(topic, 1, len(bodies), wait_ms=30_000)]
        slowest = max(slowest, time.monotonic() - begin)
    sender.join()
    assert bodies == [b"%d" % number for number in range(total)]
    assert slowest < 20.0, "a pull was answered when its time was up"


@pytest.mark.faults
def test_killing_queue_workers_sends_no_consumer_back(node: SmallNode) -> None:
    writer, reader = node.open(node.writer), node.open(node.reader)
    total, kills = 600, 6

    def send() -> None:
        for number in range(total):
            append(writer, "orders", 1, b"%d" % number)
            time.sleep(0.01)

    sender = threading.Thread(target=send)
    sender.start()
    bodies: list[bytes] = []
    deadline = time.monotonic() + 3 * LONG_S
    while len(bodies) < total:
        assert time.monotonic() < deadline, len(bodies)
        # From this thread: a child is sent SIGTERM when the thread that started it ends.
        if kills and len(bodies) > 60 * (7 - kills):
            kills -= 1
            index = kills % SHARDS
            node.workers[index].kill()
            shard = ("--shard", index, "--shards", SHARDS)
            node.workers[index] = node.start("workers.consume_queue", *shard, wait=False)
        reader.pull("orders", 1, len(bodies), wait_ms=200)
        header, payload = reader.answer()
        if not header["ok"]:
            assert header["error"]["kind"] == "ServiceNotAvailable", header
            continue
        assert header["status"] in ("FOUND", "OFFSET_OVERFLOW_ONE")
        assert header["next_begin_offset"] == len(bodies) + header["count"]
        bodies += [record.body for record in split(header, payload)]
    sender.join()
    assert not kills
    assert bodies == [b"%d" % number for number in range(total)]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--shards", 0), 2),
        (("--index", -1), 2),
        (("-X", "no_such_setting=1"), 2),
        (("--bind", "nonsense"), 2),
    ],
)
def test_a_reader_with_bad_arguments_is_not_to_be_started_again(
    tmp_path: Path, arguments: tuple[object, ...], code: int
) -> None:
    create_store(tmp_path)
    with SingleProcess("node.reader.loop", tmp_path, *BIND, *arguments, wait=False) as process:
        assert process.wait() == code
        assert process.stderr.startswith("error: ")


def test_a_second_reader_of_one_slot_is_refused(shared: SmallNode) -> None:
    second = shared.start("node.reader.loop", *BIND, "--index", 0, "--shards", SHARDS, wait=False)
    assert second.wait() == 6
    third = shared.start("node.reader.loop", *BIND, "--index", 1, "--shards", SHARDS)
    assert shared.open(third).ask("ping")["ok"]
