"""SIGHUP and SIGUSR2: one log file and one level for a whole node, whenever its children start."""

import json
import logging
import os
import pty
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.runtime import event_log
from node.runtime.process import install_stop_signals
from node.supervisor.child_process import Process
from node.supervisor.service import NodeLog, has_terminal
from tests.node.supervisor.test_supervisor import Node

CHILDREN = {"writer", "queue-0", "queue-1", "index", "reader-0"}


class FakeChild(Process):
    def __init__(self, pid: int, has_reported: bool = True) -> None:
        self.pid = pid
        self.has_reported = has_reported
        self.got: list[int] = []

    def signal(self, number: signal.Signals) -> None:
        self.got.append(number)


@pytest.fixture
def node_log() -> Iterator[NodeLog]:
    root = logging.getLogger()
    before = root.level
    yield NodeLog(None)
    root.setLevel(before)


def test_each_child_is_told_once(node_log: NodeLog) -> None:
    child = FakeChild(1)
    for _ in range(3):
        node_log.turn([child])
    assert child.got == []
    node_log.note_toggle()
    node_log.note_reopen()
    for _ in range(3):
        node_log.turn([child])
    assert Counter(child.got) == {signal.SIGUSR2: 1, signal.SIGHUP: 1}
    node_log.note_toggle()
    node_log.turn([child])
    assert child.got[-1] == signal.SIGUSR2


def test_a_child_without_handlers_yet_is_told_when_it_has_them(node_log: NodeLog) -> None:
    child = FakeChild(1, has_reported=False)
    node_log.turn([child])
    node_log.note_toggle()
    node_log.note_reopen()
    node_log.turn([child])
    assert child.got == []
    child.has_reported = True
    node_log.turn([child])
    assert set(child.got) == {signal.SIGUSR2, signal.SIGHUP}


def test_a_child_that_starts_later_has_the_file_and_is_told_of_debug(node_log: NodeLog) -> None:
    node_log.note_toggle()
    node_log.note_reopen()
    node_log.turn([])
    late = FakeChild(2)
    node_log.turn([late])
    assert late.got == [signal.SIGUSR2]


def test_two_toggles_at_once_are_none(node_log: NodeLog) -> None:
    node_log.note_toggle()
    node_log.note_toggle()
    child = FakeChild(1)
    node_log.turn([child])
    assert child.got == []


def test_a_file_is_found_by_its_name_and_no_pipe_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.log"
    reading, writing = os.pipe()
    with path.open("w") as file:
        monkeypatch.setattr(event_log, "STDERR", file.fileno())
        assert event_log.file_of_stderr() == path
        path.unlink()
        assert event_log.file_of_stderr() is None
        monkeypatch.setattr(event_log, "STDERR", writing)
        assert event_log.file_of_stderr() is None
    os.close(reading)
    os.close(writing)


def test_a_file_that_cannot_be_reopened_leaves_the_one_that_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "node.log"
    with path.open("w") as file:
        monkeypatch.setattr(event_log, "STDERR", file.fileno())
        event_log.reopen(tmp_path / "gone" / "node.log")
        assert event_log.file_of_stderr() == path
    assert caplog.messages == ["log file not reopened"]


def test_only_with_a_terminal_a_hangup_is_the_terminals_end() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os._exit(0 if has_terminal() else 1)
    _, with_one = os.waitpid(child, 0)
    os.close(terminal)
    without = os.fork()
    if without == 0:
        os.setsid()
        os._exit(1 if has_terminal() else 0)
    _, found = os.waitpid(without, 0)
    assert (with_one, found) == (0, 0)


# A supervisor over fake children


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "store")
    yield made
    made.close()


def events(path: Path, name: str) -> list[Any]:
    """The lines of this event; the line `ready …` is no event."""
    found = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return [one for one in found if one["event"] == name]


def roles(node: Node, name: str) -> Callable[[], bool]:
    """Whether each process has told this event once."""
    return lambda: (
        Counter(one["role"] for one in events(node.log, name))
        == dict.fromkeys({"supervisor", *CHILDREN}, 1)
    )


@pytest.mark.process
def test_a_log_that_was_moved_away_is_begun_anew_by_all_processes(node: Node) -> None:
    node.endpoint()
    rotated = node.log.with_suffix(".1")
    node.log.rename(rotated)
    node.process.send_signal(signal.SIGHUP)
    node.wait(node.log.exists)
    node.wait(roles(node, "log file reopened"))
    assert node.process.poll() is None
    said = rotated.read_text()
    assert f"log {node.log})" in said  # the ready line says where the log is
    assert node.stop() == 0
    assert rotated.read_text() == said
    assert [one["role"] for one in events(node.log, "stopped")] == ["supervisor"]


@pytest.mark.process
def test_debug_is_on_and_off_in_all_processes_also_in_one_that_is_started_again(
    node: Node,
) -> None:
    node.endpoint()
    node.process.send_signal(signal.SIGUSR2)
    node.wait(roles(node, "debug lines are on"))
    index = next(child for child in node.children() if "--shard" not in child.cmdline())
    index.kill()
    told = node.wait(lambda: events(node.log, "process started"))
    assert told[0]["level"] == "debug"
    node.wait(lambda: len(events(node.log, "debug lines are on")) == len(CHILDREN) + 2)
    node.process.send_signal(signal.SIGUSR2)
    node.wait(roles(node, "debug lines are off"))
    assert node.stop() == 0


def test_a_child_writes_debug_lines_from_one_sigusr2_to_the_next() -> None:
    """`obey_log_signals` in this process, as a child does it."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    try:
        install_stop_signals()
        event_log.obey_log_signals()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert event_log.is_debug()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert not event_log.is_debug()
    finally:
        root.setLevel(level)
