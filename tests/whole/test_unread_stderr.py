"""A node whose stderr nobody reads: a pipe that is full, a terminal that is stopped (Ctrl-S)."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from keelog.client.client import Client, connect
from node.supervisor.bind import free_ports
from protocol.errors import MqError
from tests.support.node import SEGMENT_BYTES, wait_until
from tests.support.seldom import seldom

pytestmark = pytest.mark.process

STOP_S = 30.0
_PIPE_BYTES = 4096


class UnreadNode:
    """A node with a gateway, whose stderr was full before it began."""

    def __init__(self, root: Path, kind: str) -> None:
        self.kind = kind
        self.reading, self.writing = pty.openpty() if kind == "terminal" else os.pipe()
        os.set_blocking(self.reading, False)
        self.stop_reader()
        port = free_ports(8)
        self.endpoint = f"tcp://127.0.0.1:{port}"
        command = [sys.executable, "-m", "keelog", "serve", str(root), "--bind", self.endpoint]
        command += ["--remoting", f"127.0.0.1:{port + 7}", "--http", "0"]
        command += ["--restart-limit", "0", "--while-pid", str(os.getpid())]
        command += ["-X", f"mapped_file_size_commit_log={SEGMENT_BYTES}"]
        command += ["-X", "disk_space_warning_level_ratio=100"]
        self.process = subprocess.Popen(command, stderr=self.writing, start_new_session=True)
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Raises NotConnected while nobody answers."""
        if self._client is None:
            self._client = connect(self.endpoint, timeout=10.0)
        return self._client

    def stop_reader(self) -> None:
        if self.kind == "terminal":
            termios.tcflow(self.writing, termios.TCOOFF)
            return
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        beside = os.open(f"/proc/self/fd/{self.writing}", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(beside, b"\n")
        os.close(beside)

    def read(self) -> str:
        """What the reader finds, when it reads again."""
        if self.kind == "terminal":
            termios.tcflow(self.writing, termios.TCOON)
        found = b""
        with suppress(BlockingIOError):
            while data := os.read(self.reading, 1 << 16):
                found += data
        return found.decode()

    def is_ready(self) -> bool:
        with suppress(MqError):
            return self.client.health().ready
        return False

    def dropped(self) -> dict[str, float]:
        """By role, from the metrics."""
        url = f"{self.client.status().raw['http']}/metrics"
        with urllib.request.urlopen(url) as page:
            lines = page.read().decode().splitlines()
        name = "keelog_process_dropped_lines_total{"
        rows = [line.removeprefix(name).split() for line in lines if line.startswith(name)]
        return {labels.split('"')[3]: float(value) for labels, value in rows}

    def pid_of(self, role: str) -> int:
        with suppress(MqError):
            for one in self.client.status().processes:
                if one.role == role and one.pid and one.state == "running":
                    return one.pid
        return 0

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.read()
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture(params=["pipe", *seldom("terminal")])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UnreadNode]:
    made = UnreadNode(tmp_path / "store", request.param)
    try:
        wait_until(made.is_ready, "it does not become ready")
        yield made
    finally:
        made.close()


def test_it_serves_heals_counts_what_it_dropped_and_stops(node: UnreadNode) -> None:
    client = node.client
    node.process.send_signal(signal.SIGUSR2)  # from now on each process has much to say
    client.create_topic("gone", queues=1)
    client.create_topic("orders", queues=1)
    client.delete_topic("gone")  # the writer logs it
    for number in range(5):
        client.send("orders", str(number).encode())
    with client.consumer("readers", "orders", start="earliest") as consumer:
        for number in range(5):
            message = consumer.get(timeout=30.0)
            assert message is not None
            assert message.body == str(number).encode()
            consumer.commit()
    killed = node.pid_of("reader")
    os.kill(killed, signal.SIGKILL)  # the supervisor logs it
    wait_until(lambda: node.pid_of("reader") not in (0, killed), "the reader does not come back")
    wait_until(lambda: bool(node.dropped()["supervisor"]), "nothing was dropped")
    wait_until(lambda: bool(node.dropped()["writer"]), "nothing of the writer was dropped")
    said = ""

    def comes(text: str) -> bool:
        nonlocal said
        said += node.read()
        return text in said

    wait_until(lambda: comes("ready tcp://"), "no ready line though somebody reads again")
    os.kill(node.pid_of("reader"), signal.SIGKILL)
    wait_until(lambda: comes("lines were dropped: nobody read stderr"), "no count")
    node.stop_reader()
    node.process.terminate()
    assert node.process.wait(STOP_S) == 0


def test_a_start_that_fails_ends_in_time(tmp_path: Path) -> None:
    """The writer, which finds the damage, says so before it ends; nobody reads it."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / "garbage").write_bytes(b"x")
    node = UnreadNode(tmp_path / "store", "pipe")
    try:
        assert node.process.wait(STOP_S) != 0
    finally:
        node.close()
