"""`keelog top` of a running node: its numbers while somebody sends, and its screen."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from keelog.cli.main import cli
from tests.support.node import RunningNode, wait_until
from tests.support.single_process import is_readable

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-node")]

ROWS, COLUMNS = 24, 80
PATIENCE_S = 60.0


@contextmanager
def load(node: RunningNode) -> Iterator[None]:
    """Somebody sends, and is in the middle of it."""
    stop, sent = threading.Event(), threading.Event()

    def send() -> None:
        while not stop.is_set():
            node.client.send("watched", b"x" * 100, queue_id=0)
            sent.set()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        assert sent.wait(PATIENCE_S)
        yield
    finally:
        stop.set()
        sender.join()


def invoke(node: RunningNode, *words: str) -> str:
    arguments = ["top", "--node", node.endpoint, "--once", "--interval", "0.4", *words]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.exception is None, result.output
    return result.stdout


def test_the_numbers_are_those_of_what_is_sent_meanwhile(node: RunningNode) -> None:
    shown: dict[str, Any] = {}

    def has_seen_some() -> bool:
        """On a busy machine nothing may come in the time between two looks."""
        shown.update(json.loads(invoke(node, "--json", "--sort", "cpu")))
        return bool(shown["rates"]["records_per_s"] > 0)

    with load(node):
        wait_until(has_seen_some, "nothing is seen of what is sent", PATIENCE_S)
    assert shown["rates"]["appended_bytes_per_s"] > 100 * shown["rates"]["records_per_s"]
    append = next(row for row in shown["operations"] if row["op"] == "append")
    assert append["per_s"] > 0
    assert 0 < append["p50_ms"] <= append["p99_ms"]
    shares = [row["cpu_percent"] for row in shown["processes"]]
    assert shares == sorted(shares, reverse=True)
    assert shown["dispatch_lag_bytes"].keys() == {"queues", "index"}
    assert not [row for row in shown["operations"] if "buckets" in row]


def test_without_a_terminal_the_same_is_plain_lines(node: RunningNode) -> None:
    text = invoke(node, "--format", "table")
    assert "\x1b" not in text
    assert text.splitlines()[0].startswith(f"{node.root}: ready, normal, epoch")
    for word in ("messages/s", "p99 ms", "writer 0", "queue 1", "sorted by process"):
        assert word in text


class Terminal:
    """A command at a terminal of 80 columns."""

    def __init__(self, *words: str) -> None:
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "keelog", *words],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env=environment,
        )
        os.close(inner)
        self.text = ""

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, self.text
            if is_readable(self._fd, 0.05):
                self.text += os.read(self._fd, 65536).decode(errors="replace")

    def press(self, key: str) -> None:
        os.write(self._fd, key.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._fd)


def test_on_a_terminal_it_is_one_screen_that_s_sorts_and_q_ends(node: RunningNode) -> None:
    terminal = Terminal("top", "--node", node.endpoint, "--interval", "0.1")
    try:
        terminal.wait(lambda: "sorted by process; s: by the next, q: end" in terminal.text)
        terminal.press("s")
        terminal.wait(lambda: "sorted by cpu" in terminal.text)
        terminal.press("q")
        terminal.wait(lambda: "\x1b[?1049l" in terminal.text)
        assert terminal.process.wait(PATIENCE_S) == 0
    finally:
        terminal.close()
    assert terminal.text.count("\x1b[?1049h") == 1  # the screen of its own, which is left again
