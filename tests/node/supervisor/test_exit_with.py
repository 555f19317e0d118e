"""`keelog serve --while-pid`: a node that runs for another process."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from node.runtime.process import StopFlag
from node.store.checkpoints import is_clean
from node.supervisor.service import stop_at_end_of
from protocol.errors import BadRequest, RefusedError
from tests.support.node import wait_until

END_S = 60.0
UNTIL_INPUT_ENDS = [sys.executable, "-c", "input()"]


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(UNTIL_INPUT_ENDS, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_end_of_a_process_that_nobody_waits_for_is_seen(other: subprocess.Popen[bytes]) -> None:
    stop = StopFlag()
    stop_at_end_of(other.pid, stop)
    assert not stop.is_set
    other.kill()
    wait_until(lambda: stop.is_set, "the end of the process is not seen")


def test_the_end_is_seen_without_a_pidfd(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(pid: int, _: int = 0) -> int:
        asked.append(pid)
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    stop = StopFlag()
    stop_at_end_of(other.pid, stop)
    assert not stop.is_set
    other.kill()
    wait_until(lambda: stop.is_set, "the end of the process is not seen")
    assert asked == [other.pid]


def test_the_end_between_two_looks_without_a_pidfd_is_seen(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(process: psutil.Process) -> str:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "status", status)
    monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=OSError(errno.ENOSYS, "absent")))
    stop = StopFlag()
    stop_at_end_of(other.pid, stop)
    wait_until(lambda: stop.is_set, "the end of the process is not seen")
    assert other.poll() is None, "it was said to be gone, and runs"


def test_a_lack_of_threads_refuses_the_start_in_a_sentence(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RefusedError, match="can't start new thread") as refused:
        stop_at_end_of(other.pid, StopFlag())
    assert "pids.max" in refused.value.hint


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("pid", [(1 << 31) - 1, 1 << 40])
def test_a_process_that_is_none_is_refused(pid: int) -> None:
    with pytest.raises(BadRequest, match=f"there is no process {pid}"):
        stop_at_end_of(pid, StopFlag())


def serve(root: Path, pid: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "keelog", "serve", str(root), "--bind", "tcp://127.0.0.1:0"]
    words += ["--while-pid", str(pid), "-X", "mapped_file_size_commit_log=16777216"]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


@pytest.mark.process
def test_a_node_stops_in_order_when_the_process_ends_that_it_is_for(
    tmp_path: Path, other: subprocess.Popen[bytes]
) -> None:
    with serve(tmp_path / "store", other.pid) as node:
        assert node.stderr is not None
        said = next(line for line in node.stderr if line.startswith("ready"))
        assert node.poll() is None, said
        other.kill()
        assert node.wait(END_S) == 0
        assert "the process that this node runs for has ended" in node.stderr.read()
    assert is_clean(tmp_path / "store")


@pytest.mark.process
def test_a_node_for_a_process_that_has_ended_touches_nothing(
    tmp_path: Path, other: subprocess.Popen[bytes]
) -> None:
    other.kill()
    other.wait()
    with serve(tmp_path / "store", other.pid) as node:
        assert node.wait(END_S) == 2
        assert node.stderr is not None
        lines = node.stderr.read().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "try"]
    assert lines[1] == f"cause: there is no process {other.pid}"
    assert not (tmp_path / "store").exists()
