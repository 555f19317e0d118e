"""Descriptors run out: floods of connections, limits that fall, limits too small to run with."""

import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import keelog
from node.runtime.shortage import files_needed
from protocol.errors import MqError
from protocol.wire import zmtp
from tests.support.node import RunningNode, wait_until
from tests.support.seldom import seldom

SETTINGS = ("mapped_file_size_commit_log=1048576", "mapped_file_size_consume_queue=6000")
FLOOD_S = 3.0
STARVED_S = 4.0
RECOVERS_S = 10.0
POLLED = 16
"""All below are open, and a process may poll so many: with fewer ZeroMQ would end it."""
BODY = bytes(40_000)
Place = tuple[str, int, int]
"""Topic, queue and offset of an acknowledged message."""


def limited(limit: int, *words: str, kind: str = "NOFILE") -> list[str]:
    """A command line under a limit, soft and hard."""
    setting = (
        f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_{kind}, ({limit},) * 2)"
    )
    return [sys.executable, "-c", f"{setting}; os.execv(sys.argv[1], sys.argv[1:])", *words]


class Flood:
    """Connections to one port, kept up by a thread: `speaks` as far as to the end of ZMTP's
    handshake, else without a word."""

    def __init__(self, port: int, count: int, speaks: bool) -> None:
        self._address, self._count, self._speaks = ("127.0.0.1", port), count, speaks
        self._open: list[socket.socket] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for one in self._open:
            one.close()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._open = [one for one in self._open if self._lives(one)]
            while len(self._open) < self._count:
                one = socket.socket()
                one.setblocking(False)
                with suppress(BlockingIOError):
                    one.connect(self._address)
                self._open.append(one)

    def _lives(self, one: socket.socket) -> bool:
        try:
            if one.recv(1000) == b"":
                one.close()
                return False
            if self._speaks:
                one.send(zmtp.GREETING + zmtp.ready(b"DEALER"))
        except BlockingIOError:
            return True
        except OSError:
            one.close()
            return False
        return True


def port_of(node: RunningNode, role: str) -> int:
    endpoint = node.endpoint
    if role != "control":
        rows = node.client.status().processes
        endpoint = next(row.endpoint or "" for row in rows if row.role == role)
    return int(endpoint.rpartition(":")[2])


def assert_all_there(client: keelog.Client, acknowledged: dict[Place, bytes]) -> None:
    for (topic, queue, offset), body in acknowledged.items():
        messages = client.pull(topic, queue, offset, max_messages=1).messages
        assert [bytes(one.body) for one in messages] == [body], (topic, queue, offset)


def assert_nothing_ended(node: RunningNode) -> None:
    assert [row.restarts for row in node.client.status().processes] == [0] * 4, node.stderr


@pytest.mark.process
@pytest.mark.parametrize("limit", seldom(files_needed(2), 256))
def test_a_flood_of_connections_costs_no_process_and_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    acknowledged: dict[Place, bytes] = {}
    with limited_node(tmp_path / "s", limit, monkeypatch) as node:
        client = node.client
        client.send("before", b"", queue_id=0)
        for role in ("control", "writer", "reader"):
            for speaks in (False, True):
                with Flood(port_of(node, role), limit + 100, speaks):
                    end, number = time.monotonic() + FLOOD_S, 0
                    while time.monotonic() < end:
                        number += 1
                        topic, body = f"{role}-{speaks}-{number}", str(number).encode()
                        try:
                            sent = client.send(topic, body)
                        except keelog.ServiceNotAvailable as error:
                            assert error.reason.startswith("no_resources: ")
                        else:
                            place = sent.topic, sent.queue_id, sent.queue_offset
                            acknowledged[place] = body
                        time.sleep(0.05)
                wait_until(lambda: is_well(node), f"{role} does not recover", RECOVERS_S)
                assert_nothing_ended(node)
        node.wait_dispatched()
        assert_all_there(client, acknowledged)
    assert len(acknowledged) > 50


def is_well(node: RunningNode) -> bool:
    """For a client that comes anew: everything answers."""
    with suppress(MqError), keelog.connect(node.endpoint, timeout=1.0) as client:
        client.pull("before", 0, 0)
        rows = client.status().processes
        return client.health().ready and all(row.state == "running" for row in rows)
    return False


@contextmanager
def limited_node(
    root: Path, limit: int, monkeypatch: pytest.MonkeyPatch, restart_limit: int = 5
) -> Iterator[RunningNode]:
    start = subprocess.Popen

    def popen(command: list[str], **options: object) -> "subprocess.Popen[str]":
        if command[1:3] == ["-m", "keelog"]:
            command = limited(limit, *command)
        return start(command, **options)  # type: ignore[call-overload,no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", popen)
        node = RunningNode(root, SETTINGS, queue_workers=1, readers=1, restart_limit=restart_limit)
        node.start()
    with suppress_start(node):
        yield node


@contextmanager
def suppress_start(node: RunningNode) -> Iterator[None]:
    """The end of a node that was started already."""
    try:
        yield
    except BaseException as error:
        node.__exit__(type(error), error, None)
        raise
    node.stop()


class Load:
    """Sends from a thread: large bodies, so that segments are made, and new topics now and then."""

    def __init__(self, endpoint: str) -> None:
        self.acknowledged: dict[Place, bytes] = {}
        self.refused: list[str] = []
        self.failed: list[str] = []
        self._endpoint = endpoint
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        with keelog.connect(self._endpoint, timeout=20.0) as client:
            while not self._over.wait(0.01):
                number += 1
                body = str(number).encode() + BODY
                try:
                    sent = client.send(f"t{number}" if number % 10 == 0 else "t", body)
                except keelog.ServiceNotAvailable as error:
                    self.refused.append(error.reason)
                except MqError as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                else:
                    self.acknowledged[sent.topic, sent.queue_id, sent.queue_offset] = body

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def starved(pid: int, limit: int) -> Iterator[None]:
    """A process, and what it starts, under a soft limit of descriptors."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.process
@pytest.mark.parametrize("role", ["writer", *seldom("supervisor", "queue", "index", "reader")])
@pytest.mark.parametrize("leaves", ["nothing", *seldom("what is open")])
def test_a_process_without_descriptors_waits_and_loses_nothing(
    tmp_path: Path, role: str, leaves: str
) -> None:
    with RunningNode(tmp_path / "s", SETTINGS, queue_workers=1, readers=1, restart_limit=5) as node:
        node.client.send("before", b"", queue_id=0)
        pid = node.pid if role == "supervisor" else node.pids()[role][0]
        limit = psutil.Process(pid).num_fds() if leaves == "what is open" else POLLED
        with Load(node.endpoint) as load:
            time.sleep(0.5)
            with starved(pid, limit):
                time.sleep(STARVED_S)
            wait_until(lambda: is_well(node), f"the {role} does not recover", RECOVERS_S)
            sent = len(load.acknowledged)
            wait_until(lambda: len(load.acknowledged) > sent + 10, "sends do not go on")
        assert load.failed == []
        assert all(reason.startswith("no_resources: ") for reason in load.refused)
        ends = [line for line in node.stderr.splitlines() if "ended and is started again" in line]
        # ZeroMQ itself aborts when it cannot accept who connects to a worker's bell.
        assert all(role in ("queue", "index") and "signal 6" in line for line in ends), ends
        node.wait_dispatched()
        assert_all_there(node.client, load.acknowledged)


@pytest.mark.process
@pytest.mark.parametrize("limit", [12, *seldom(20, files_needed(2) - 1)])
def test_a_limit_of_descriptors_too_small_to_run_with_is_said_at_once(
    tmp_path: Path, limit: int
) -> None:
    words = [sys.executable, "-m", "keelog", "serve", str(tmp_path / "s")]
    ended = subprocess.run(
        limited(limit, *words, "--bind", "tcp://127.0.0.1:0"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    needed = files_needed(2)
    cause = (
        f"cause: no_resources: RLIMIT_NOFILE is {limit}, each process of this node needs {needed}"
    )
    assert cause in ended.stderr
    assert "LimitNOFILE" in ended.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.process
@pytest.mark.parametrize("module", ["node.writer.loop", "node.reader.loop", "workers.index_file"])
def test_a_child_does_not_start_with_fewer_descriptors_than_it_needs(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / "s").mkdir()
    words = [sys.executable, "-m", module, str(tmp_path / "s")]
    ended = subprocess.run(
        limited(20, *words), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 71
    assert "cause: no_resources: RLIMIT_NOFILE is 20" in ended.stderr
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.faults
@pytest.mark.process
def test_a_node_whose_processes_have_too_little_memory_to_start_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "keelog", "serve", str(tmp_path / "s")]
    ended = subprocess.run(
        limited(100_000_000, *words, "--bind", "tcp://127.0.0.1:0", kind="AS"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "error: no process of the node could be started" in ended.stderr
    assert "give them more memory" in ended.stderr
