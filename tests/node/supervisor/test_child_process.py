"""One child process: what it reports in pieces, and signals that never hit another process."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from node.supervisor.child_process import ChildReport, Process

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
    assert not found
