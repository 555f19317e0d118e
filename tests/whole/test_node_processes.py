"""A node as a set of processes: what `ps` shows, what happens when one dies, locks, stops."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import keelog
from keelog.cli.messages.reading import BoundedReader, ConsumeChoice
from keelog.cli.messages.selectors import StartPoint
from node.reader.tail_cache import TAIL_RECORDS_MAX
from node.store.verify.verify import verify
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process
steadily = pytest.mark.xdist_group("steady_node")

SMALL = (
    "mapped_file_size_commit_log=262144",
    "mapped_file_size_consume_queue=4000",
    "max_hash_slot_num=500",
    "max_index_num=2000",
)
NAMES = {"keelog-writer", "keelog-queue-0", "keelog-queue-1", "keelog-index", "keelog-reader-0"}
GONE_S = 60.0
MORE_THAN_THE_TAIL = 2 * TAIL_RECORDS_MAX


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "store", SMALL, readers=1) as running:
        yield running


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """As `node`, for tests whose processes all live on; they share a process of pytest."""
    with RunningNode(tmp_path_factory.mktemp("steady") / "store", SMALL, readers=1) as running:
        yield running


@pytest.fixture
def topic(keelog_topic: str) -> str:
    return keelog_topic


def produce(client: keelog.Client, count: int, topic: str = "orders") -> list[keelog.Receipt]:
    with client.producer(timeout=30.0) as producer:
        return producer.send_many(topic, [b"%d" % number for number in range(count)])


def bodies(client: keelog.Client, topic: str = "orders") -> list[bytes]:
    return sorted(m.body for m in client.tail(topic, "earliest", until_end=True))


def listing(root: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time of change, but for what processes that run say of
    themselves."""
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.parent.name != "run" and path.name != "run"
    }


def serve_again(root: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "keelog", "serve", str(root), "--bind", "tcp://127.0.0.1:0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@steadily
def test_every_process_has_a_name_of_its_own_in_ps(steady: RunningNode) -> None:
    children = psutil.Process(steady.pid).children()
    comms = {Path(f"/proc/{child.pid}/comm").read_text().strip() for child in children}
    assert comms == NAMES
    assert Path(f"/proc/{steady.pid}/comm").read_text().strip() == "keelog-serve"
    commands = [" ".join(child.cmdline()) for child in children]
    assert sum("-m node.writer.loop" in command for command in commands) == 1
    assert sum("-m workers.consume_queue" in command for command in commands) == 2


@steadily
def test_status_shows_the_offset_and_the_lag_of_each_process(
    steady: RunningNode, topic: str
) -> None:
    produce(steady.client, 1000, topic)
    end = steady.client.status().log.appended
    assert end > 0

    def all_there() -> bool:
        rows = steady.client.status().processes
        return all(row.offset == end and row.lag_bytes == 0 for row in rows)

    wait_until(all_there, "offsets do not reach the log's end, or lags stay")
    rows = steady.client.status().processes
    assert [row.role for row in rows] == ["writer", "queue", "queue", "index", "reader"]
    assert len({row.pid for row in rows}) == 5


@steadily
def test_a_stopped_worker_shows_its_lag_and_holds_up_nobody(
    steady: RunningNode, topic: str
) -> None:
    produce(steady.client, 100, topic)
    steady.wait_dispatched()
    pid = steady.kill("index", number=signal.SIGSTOP)
    try:
        produce(steady.client, 500, topic)
        wait_until(lambda: len(bodies(steady.client, topic)) == 600, "messages are not readable")
        index = next(row for row in steady.client.status().processes if row.role == "index")
        assert index.lag_bytes is not None
        assert index.lag_bytes > 0
    finally:
        os.kill(pid, signal.SIGCONT)
    steady.wait_dispatched()


@contextmanager
def stopped_queue_workers(node: RunningNode) -> Iterator[Callable[[], None]]:
    """Gives what lets them go on."""
    pids = node.pids()["queue"]

    def go_on() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield go_on
    finally:
        go_on()


@steadily
def test_who_reads_to_the_end_is_told_of_a_queue_worker_that_stands_still(
    steady: RunningNode,
    topic: str,
) -> None:
    produce(steady.client, 100, topic)
    steady.wait_dispatched()
    found: list[bytes] = []
    once = keelog.Retry(max_attempts=1)
    with stopped_queue_workers(steady), keelog.connect(steady.endpoint, retry=once) as client:
        produce(steady.client, MORE_THAN_THE_TAIL, topic)
        with pytest.raises(keelog.ServiceNotAvailable, match="is behind the log"):
            found.extend(m.body for m in client.tail(topic, "earliest", until_end=True))
    assert sorted(found) == sorted(b"%d" % number for number in range(100))


@steadily
def test_who_reads_to_the_end_waits_for_a_queue_worker_that_is_behind(
    steady: RunningNode, topic: str
) -> None:
    produce(steady.client, 100, topic)
    steady.wait_dispatched()
    with stopped_queue_workers(steady) as go_on:
        produce(steady.client, MORE_THAN_THE_TAIL, topic)
        messages = steady.client.tail(topic, "earliest", until_end=True)
        found = [next(messages)]
        go_on()
        found += messages
    assert len(found) == 100 + MORE_THAN_THE_TAIL


@steadily
def test_consume_says_so_when_a_queue_worker_keeps_it_from_the_end(
    steady: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keelog.cli.messages.reading._CATCH_UP_S", 0.1)
    wanted = ConsumeChoice(topic, (), None, StartPoint("start"), None)
    produce(steady.client, 100, topic)
    steady.wait_dispatched()
    found: list[bytes] = []
    once = keelog.Retry(max_attempts=1)
    with stopped_queue_workers(steady), keelog.connect(steady.endpoint, retry=once) as client:
        produce(steady.client, MORE_THAN_THE_TAIL, topic)
        with pytest.raises(keelog.ServiceNotAvailable, match="is behind the log"):
            found.extend(message.body for message in BoundedReader(client, wanted).read_to_end())
    assert len(found) == 100


@steadily
def test_a_second_node_on_the_store_exits_with_6_and_changes_nothing(
    steady: RunningNode, topic: str
) -> None:
    produce(steady.client, 100, topic)
    steady.wait_dispatched()
    # Held still: what changes now, the second node has changed.
    supervisor = psutil.Process(steady.pid)
    processes = [supervisor, *supervisor.children()]
    for process in processes:
        process.suspend()
    try:
        wait_until(lambda: {one.status() for one in processes} == {"stopped"}, "one goes on")
        before = listing(steady.root)
        second = serve_again(steady.root)
        after = listing(steady.root)
    finally:
        for process in processes:
            process.resume()
    assert second.returncode == 6
    lines = second.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "try"]
    assert "lock" in second.stderr
    assert second.stdout == ""
    assert after == before
    assert len(bodies(steady.client, topic)) == 100


def test_sigterm_leaves_a_clean_store(node: RunningNode) -> None:
    produce(node.client, 3000)
    children = psutil.Process(node.pid).children()
    node.stop()
    assert not any(child.is_running() for child in children)
    assert not (node.root / "abort").exists()
    assert (node.root / "keelog" / "clean").exists()
    report = verify(node.root, deep=True)
    shape = report.shape()
    assert (shape["ok"], shape["clean_shutdown"], shape["findings"]) == (True, True, [])
    assert shape["commit_log"]["records"] == shape["queues"]["units"] == 3000


def test_ctrl_c_stops_in_order_too(node: RunningNode) -> None:
    produce(node.client, 100)
    os.kill(node.pid, signal.SIGINT)
    assert node.wait() == 0
    assert (node.root / "keelog" / "clean").exists()


def test_a_killed_supervisor_takes_its_children_along_and_a_new_node_starts_at_once(
    node: RunningNode,
) -> None:
    produce(node.client, 1000)
    children = psutil.Process(node.pid).children()
    os.kill(node.pid, signal.SIGKILL)
    assert node.wait() == -signal.SIGKILL
    with RunningNode(node.root, readers=1) as again:
        assert len(bodies_of_all(again, 1000)) == 1000
    _, alive = psutil.wait_procs(children, GONE_S)
    assert alive == []


def bodies_of_all(node: RunningNode, count: int) -> list[bytes]:
    wait_until(lambda: len(bodies(node.client)) == count, "not everything is readable")
    return bodies(node.client)


@pytest.mark.parametrize(
    ("role", "index"),
    [
        *(("writer", 0), ("queue", 0), ("index", 0), ("reader", 0)),
        pytest.param("queue", 1, marks=pytest.mark.faults),
    ],
)
def test_a_killed_process_comes_back_and_nothing_is_lost(
    node: RunningNode, role: str, index: int
) -> None:
    produce(node.client, 1000)
    before = {(row.role, row.index): row.endpoint for row in node.client.status().processes}
    killed = node.kill(role, index)

    def is_back() -> bool:
        rows = node.client.status().processes
        row = next(row for row in rows if (row.role, row.index) == (role, index))
        return row.state == "running" and row.pid != killed and row.restarts == 1

    wait_until(is_back, f"{role} {index} does not come back")
    after = {(row.role, row.index): row.endpoint for row in node.client.status().processes}
    assert after == before
    assert node.client.health().ready
    produce(node.client, 1000, topic="after")
    assert len(bodies_of_all(node, 1000)) == 1000
    wait_until(lambda: len(bodies(node.client, "after")) == 1000, "new messages are not readable")
    node.wait_dispatched()
    node.stop()
    report = verify(node.root, deep=True)
    assert report.ok, report.shape()["findings"]


def test_a_crash_of_the_writer_does_not_stop_reads(node: RunningNode) -> None:
    queue = produce(node.client, 100)[0].queue_id
    assert len(bodies_of_all(node, 100)) == 100
    node.kill("writer")
    result = node.client.pull("orders", queue, 0)
    assert result.status == "FOUND"


@pytest.mark.parametrize("kind", ["file", "below a file", "other things"])
def test_what_is_no_store_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    path = {"file": file, "below a file": file / "store", "other things": tmp_path}[kind]
    before = listing(tmp_path)
    refused = serve_again(path)
    assert refused.returncode == 1
    lines = refused.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "try"]
    assert listing(tmp_path) == before


def test_a_damaged_store_is_refused_with_5_and_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, SMALL, readers=1) as node:
        produce(node.client, 2000)
        node.wait_dispatched()
    (root / "keelog" / "tails").unlink()  # so that the start looks at the last segments again
    segment = sorted((root / "commitlog").iterdir())[-1]
    with segment.open("r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 20)
    before = listing(root)
    refused = serve_again(root)
    assert refused.returncode == 5, refused.stderr
    assert segment.parent.name in refused.stderr
    lines = refused.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "try"]
    assert listing(root) == before


def test_a_store_with_other_file_sizes_is_served_without_naming_them(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, SMALL, readers=1) as node:
        produce(node.client, 3000)
        node.wait_dispatched()
    with RunningNode(root, readers=1) as node:
        produce(node.client, 3000)
        assert len(bodies_of_all(node, 6000)) == 6000
        node.wait_dispatched()
    sizes = {path.stat().st_size for path in (root / "commitlog").iterdir()}
    assert sizes == {262_144}
    assert {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*")} == {4000}
    assert {path.stat().st_size for path in (root / "index").iterdir()} == {42_040}
    assert verify(root, deep=True).shape()["findings"] == []


def test_an_unknown_setting_is_a_usage_error_that_names_the_nearest(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keelog", "serve", str(tmp_path / "store")]
    done = subprocess.run(
        [*command, "-X", "store.flush_disk_typ=x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "flush_disk_type" in done.stderr
    assert not (tmp_path / "store").exists()
