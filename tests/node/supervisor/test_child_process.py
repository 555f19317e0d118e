"""One child process: what it reports in pieces, and signals that never hit another process."""

import gc
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from node.runtime.process import (
    DamageReport,
    report_damage,
    report_end,
    report_ready,
    report_recovery,
)
from node.supervisor.child_process import ChildReport, Process, parse_report

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0
TALKS = """
import os, sys, time
pipe = int(sys.argv[-1])
parts = b'{"ready": true, "end', b'point": "tcp://h:1"}\\nnoise\\n{"en', b'ded": "no luck"}\\n'
for part in parts:
    os.write(pipe, part)
    time.sleep(0.05)
"""


def wait_for_end(process: Process) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while (code := process.exit_code()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return code


def test_reports_come_whole_however_they_were_written() -> None:
    process = Process([sys.executable, "-c", TALKS])
    reports: list[ChildReport] = []
    try:
        deadline = time.monotonic() + PATIENCE_S
        while process.report_fd is not None and time.monotonic() < deadline:
            reports += process.reports()
            time.sleep(0.005)
        assert reports == [ChildReport("tcp://h:1"), ChildReport(None, "no luck")]
        assert process.reports() == []
        assert wait_for_end(process) == 0
    finally:
        process.close()


def test_a_child_that_floods_its_pipe_is_heard_no_more() -> None:
    process = Process(
        [sys.executable, "-c", "import os, sys; os.write(int(sys.argv[-1]), b'x' * 9000)"]
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while process.report_fd is not None and time.monotonic() < deadline:
            assert process.reports() == []
        assert process.report_fd is None
        wait_for_end(process)
    finally:
        process.close()


def test_a_signal_reaches_this_very_process_or_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process.signal(signal.SIGKILL)
        assert wait_for_end(process) == -signal.SIGKILL
        # Its number may be somebody else's now: it is not used.
        monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a number is no process"))
        process.signal(signal.SIGKILL)
    finally:
        process.close()


def test_no_process_of_ours_kills_by_number() -> None:
    found = [
        (path.name, line.strip())
        for folder in ("node", "workers")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\bos\.kill(pg)?\(|\.send_signal\(|\.terminate\(\)", line)
    ]
    # Of subprocess: its own child, which keeps its pid until it was waited for.
    assert found == [("child_process.py", "self._process.send_signal(number)")]


def test_a_supervisor_that_is_stopped_makes_no_child_wait() -> None:
    """Reports that may be left out leave room for those of the start and of the end."""
    reading, writing = os.pipe2(os.O_NONBLOCK)
    damage = DamageReport("f" * 300, 1, "x" * 200, 1, 2, 3)
    for number in range(5_000):
        report_recovery(writing, number, 5_000)
        report_damage(writing, damage)
    assert not report_damage(writing, damage)
    report_ready(writing, "tcp://127.0.0.1:1")
    gc.unfreeze()
    report_end(writing, "a reason")
    told = [parse_report(line) for line in os.read(reading, 1 << 16).splitlines()]
    assert [one and (one.endpoint, one.reason) for one in told[-2:]] == [
        ("tcp://127.0.0.1:1", ""),
        (None, "a reason"),
    ]
    os.close(reading)
    report_end(writing, "nobody is there")
    os.close(writing)
