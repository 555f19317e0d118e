"""A supervisor over fake children: real processes and signals, no store."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from protocol.wire.frames import VERSION, pack, unpack_answer

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
READY = re.compile(r"ready (tcp://127\.0\.0\.1:[0-9]+) \((.*)\) in [0-9.]+ s")
PATIENCE_S = 60.0
FAILING = "process fails again and again"


class Node:
    """A running supervisor, its stderr in a file."""

    def __init__(self, store: Path, *options: str, **behaviour: str) -> None:
        self.store = store
        (store / "commitlog").mkdir(parents=True, exist_ok=True)
        for slot, text in behaviour.items():
            self.behave(slot.replace("_", "-"), text)
        self.log = store.parent / f"{store.name}.log"
        # As a service manager starts it, whatever the tests were started by: `nohup`, a terminal.
        hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            with self.log.open("ab") as stderr:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.fake_supervisor", str(store), *options],
                    cwd=ROOT,
                    stderr=stderr,
                    start_new_session=True,
                )
        finally:
            signal.signal(signal.SIGHUP, hangup)

    def behave(self, slot: str, text: str) -> None:
        """From its next start; in one step, as it may start while this is written."""
        path = self.store / f"behave-{slot}"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def events(self) -> list[str]:
        path = self.store / "events"
        return path.read_text().splitlines() if path.exists() else []

    def wait(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)
        return found

    def endpoint(self) -> str:
        return str(self.wait(lambda: READY.search(self.text))[1])

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def begin(*options: str, **behaviour: str) -> Node:
        nodes.append(Node(tmp_path / "store", *options, **behaviour))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.close()


@pytest.fixture
def ask() -> Iterator[Callable[..., Any]]:
    context = zmq.Context()

    def call(endpoint: str, *frames: bytes, **header: Any) -> Any:
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
            socket.connect(endpoint)
            socket.send_multipart(list(frames) or [pack({"v": VERSION, "id": 1, **header})])
            return unpack_answer(socket.recv())

    yield call
    context.destroy(linger=0)


def test_the_writer_starts_first_and_stops_first(start: Callable[..., Node]) -> None:
    node = start()
    node.endpoint()
    assert node.events()[0].startswith("start writer")
    assert len(node.children()) == 5
    assert node.stop() == 0
    ends = [event for event in node.events() if event.startswith("end")]
    assert ends[0] == "end writer"
    assert sorted(ends[1:]) == ["end index", "end queue-0", "end queue-1", "end reader-0"]


def test_the_ready_line_says_how_long_messages_are_kept(start: Callable[..., Node]) -> None:
    node = start()
    node.endpoint()
    ready = READY.search(node.text)
    assert ready is not None
    assert ready[2].partition(", keeps ")[2].startswith("72 h, log ")


def test_ctrl_c_reaches_the_supervisor_alone_which_stops_in_order(
    start: Callable[..., Node],
) -> None:
    node = start()
    node.endpoint()
    groups = {os.getpgid(child.pid) for child in node.children()}
    assert os.getpgid(node.process.pid) not in groups
    node.process.send_signal(signal.SIGINT)
    assert node.process.wait(PATIENCE_S) == 0


def test_the_control_socket_tells_routes_status_and_health(
    start: Callable[..., Node], ask: Callable[..., Any]
) -> None:
    node = start()
    endpoint = node.endpoint()
    routes = ask(endpoint, op="routes")
    assert routes["writer"] == "tcp://127.0.0.1:12345"
    assert routes["readers"] == ["tcp://127.0.0.1:12345"]
    ((of, local),) = routes["local"].items()  # the fake children all have one address
    assert of == "tcp://127.0.0.1:12345"
    assert re.fullmatch(r"ipc://@keelog-[0-9a-f]{16}-reader-0", local)
    assert (routes["crc"], routes["shards"], routes["node"]) == (True, 2, "test")
    status = ask(endpoint, op="status")
    assert status["ready"] is True
    pids = {row["pid"] for row in status["processes"]}
    assert pids == {child.pid for child in node.children()}
    for row in status["processes"]:
        assert row["state"] == "running"
        assert row["rss_bytes"] > 0
        assert row["restarts"] == 0
    assert status["disk"]["free_bytes"] > 0
    health = ask(endpoint, op="health")
    assert health["ready"] is True
    assert {check["name"] for check in health["checks"]} >= {"writer", "readers", "disk"}


def test_bad_input_is_refused_by_kind_and_the_connection_goes_on(
    start: Callable[..., Node],
) -> None:
    endpoint = start().endpoint()
    good = pack({"v": VERSION, "id": 7, "op": "ping"})
    cases = [
        ([b""], "BadRequest"),
        ([b"\xc1"], "BadRequest"),
        ([pack({"v": 9, "id": 1, "op": "ping"})], "UnknownOperation"),
        ([pack({"v": VERSION, "id": 1, "op": "send"})], "UnknownOperation"),
        ([pack({"v": VERSION, "id": 1})], "BadRequest"),
        ([good, b"payload"], "BadRequest"),
        ([good, b"a", b"b", b"c"], "BadRequest"),
    ]
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        socket.connect(endpoint)
        for frames, kind in cases:
            socket.send_multipart(frames)
            refused = unpack_answer(socket.recv())
            assert refused["error"]["kind"] == kind, frames
            socket.send(good)
            assert unpack_answer(socket.recv())["ok"] is True


@pytest.mark.parametrize("slot", ["writer", "queue-1", "index", "reader-0"])
def test_a_killed_child_comes_back_at_its_endpoint(
    start: Callable[..., Node], ask: Callable[..., Any], slot: str
) -> None:
    node = start()
    endpoint = node.endpoint()
    role, _, index = slot.partition("-")

    def row() -> Any:
        rows = ask(endpoint, op="status")["processes"]
        return next(r for r in rows if (r["role"], r["index"]) == (role, int(index or 0)))

    before = row()
    os.kill(before["pid"], signal.SIGKILL)
    node.wait(lambda: row()["restarts"] == 1 and row()["state"] == "running")
    assert row()["endpoint"] == before["endpoint"]
    assert row()["pid"] != before["pid"]
    starts = [event for event in node.events() if event.startswith(f"start {slot}")]
    if before["endpoint"]:
        assert starts[1] == f"start {slot} tcp://127.0.0.1:12345"
    assert ask(endpoint, op="health")["ready"] is True


def test_a_crash_loop_is_shown_and_tried_again_and_the_rest_goes_on(
    start: Callable[..., Node], ask: Callable[..., Any]
) -> None:
    node = start("crashes_max=3", index="exit 1")
    endpoint = node.endpoint()
    node.wait(lambda: '"index worker", "end": "code 1"' in node.text and FAILING in node.text)
    node.wait(lambda: node.events().count("start index") > 5)
    health = ask(endpoint, op="health")
    assert health["ready"] is True
    assert [c["ok"] for c in health["checks"] if c["name"] == "index_worker"] == [False]
    rows = ask(endpoint, op="status")["processes"]
    assert [row["state"] for row in rows if row["role"] == "index"] == ["failing"]
    node.behave("index", "run")
    node.wait(lambda: all(c["ok"] for c in ask(endpoint, op="health")["checks"]))


def test_a_writer_in_a_crash_loop_leaves_a_node_that_reads_but_is_not_ready(
    start: Callable[..., Node],
) -> None:
    node = start("crashes_max=2", writer="exit 1 when told")
    endpoint = node.endpoint()
    (node.store / "told").touch()
    node.wait(lambda: '"writer", "end": "code 1"' in node.text and FAILING in node.text)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        socket.connect(endpoint)
        answers = {}
        for operation in ("health", "routes"):
            socket.send(pack({"v": VERSION, "id": 1, "op": operation}))
            answers[operation] = unpack_answer(socket.recv())
    assert answers["health"]["ready"] is False
    assert answers["routes"]["writer"] is None
    assert len(answers["routes"]["readers"]) == 1
    node.wait(lambda: len(node.children()) == 4)
    node.behave("writer", "run")  # its cause has gone
    node.wait(lambda: "process runs again" in node.text)
    assert node.stop() == 0


def test_a_writer_without_room_is_waited_for_and_comes_back_by_itself(
    start: Callable[..., Node], ask: Callable[..., Any]
) -> None:
    node = start("crashes_max=2", writer="exit 75 when told")
    endpoint = node.endpoint()
    (node.store / "told").touch()

    def starts() -> int:
        return sum(event.startswith("start writer") for event in node.events())

    node.wait(lambda: starts() > 4)
    node.behave("writer", "exit 75")
    before = starts()
    node.wait(lambda: starts() > before + 1)  # one may have looked before that was written
    node.wait(lambda: ask(endpoint, op="status")["mode"] == "disk_full")
    for _ in range(20):  # also while it is started once more
        routes = ask(endpoint, op="routes")
        assert routes["writer"] is None
        assert routes["writer_error"]["kind"] == "ServiceNotAvailable"
        assert routes["writer_error"]["reason"] == "disk_full: it ended with code 75"
        status = ask(endpoint, op="status")
        assert (status["ready"], status["mode"]) == (False, "disk_full")
        assert status["processes"][0]["state"] == "disk_full"
    assert len(routes["readers"]) == 1
    node.behave("writer", "run")
    node.wait(lambda: ask(endpoint, op="health")["ready"])
    status = ask(endpoint, op="status")
    assert (status["mode"], status["cause"]) == ("normal", None)
    assert ask(endpoint, op="routes")["writer"] is not None
    assert FAILING not in node.text


@pytest.mark.parametrize("code", [2, 5, 6])
def test_a_store_that_the_writer_refuses_ends_the_node_with_its_code(
    start: Callable[..., Node], code: int
) -> None:
    node = start(writer=f"exit {code}")
    assert node.process.wait(PATIENCE_S) == code
    assert node.events() == ["start writer tcp://127.0.0.1:0"]


def test_children_die_with_a_killed_supervisor(start: Callable[..., Node]) -> None:
    node = start()
    node.endpoint()
    children = node.children()
    node.process.kill()
    node.process.wait()
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert (len(gone), alive) == (5, [])


def test_a_child_that_does_not_stop_is_killed(start: Callable[..., Node]) -> None:
    node = start("stop_s_max=0.5", reader_0="deaf")
    node.endpoint()
    children = node.children()
    assert node.stop() == 1
    assert '"process does not stop and is killed", "process": "reader 0"' in node.text
    assert not any(child.is_running() for child in children)


def test_a_node_that_is_still_starting_stops_too(start: Callable[..., Node]) -> None:
    node = start(writer="mute")
    node.wait(node.events)
    assert node.stop() == 0
    assert "ready" not in node.text


def test_a_second_supervisor_is_refused_and_changes_nothing(start: Callable[..., Node]) -> None:
    node = start()
    node.endpoint()
    node.wait(lambda: len(node.events()) == 5)
    before = {path: path.stat().st_mtime_ns for path in node.store.rglob("*")}
    second = start()
    assert second.process.wait(PATIENCE_S) == 99
    assert "StoreLocked" in second.text
    assert {path: path.stat().st_mtime_ns for path in node.store.rglob("*")} == before
    assert node.process.poll() is None


def test_a_supervisor_does_without_numpy() -> None:
    """It would cost each node 30 MB and a quarter of a second."""
    code = "import node.supervisor.loop, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
