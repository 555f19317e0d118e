"""Signs of life on a system that does not show all of them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from node.runtime.state_page import RUNNING, LogPage, run_dir
from node.supervisor.child_process import SilenceWatch
from node.supervisor.plan import Child, ChildRole, RestartLimits, Sign, note_ready, note_start
from node.supervisor.status import usage


class Silent:
    """A process of ours, as far as a look needs it."""

    pid = os.getpid()


def raising(error: Exception) -> Callable[..., Any]:
    def look(*_: object) -> None:
        raise error

    return look


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("no io_counters"),
        ValueError("a line of another form"),
        NotImplementedError("no /proc/PID/io"),
        RuntimeError("an empty file"),
        FileNotFoundError("/proc/7/io"),
        psutil.AccessDenied(),
    ],
)
def test_without_counters_heartbeats_alone_are_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for name in ("io_counters", "cpu_times", "memory_info"):
        monkeypatch.setattr(psutil.Process, name, raising(error))
    run_dir(tmp_path).mkdir(parents=True)
    child = Child(ChildRole.WRITER, 0)
    note_start(child, os.getpid(), 0.0)
    note_ready(child, "tcp://h:1")
    watch = SilenceWatch(tmp_path, 1, RestartLimits())
    with LogPage.create(tmp_path) as page:
        page.publish(epoch=1, state=RUNNING)
        for second in range(4):
            if second < 2:
                page.beat(1_000 * second)
            watch.look([child], {0: Silent()}, float(second))  # type: ignore[dict-item]
    assert child.sign == Sign(1_000, 0, 0.0)
    assert child.stalled_s == pytest.approx(2.0)
    assert usage(os.getpid()) == (None, None)
