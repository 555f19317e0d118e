"""Processes beside a node under load."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import multiprocessing, threading
from tests.soak.load import obey_the_parent_alone

def help_along(ready):
    obey_the_parent_alone()
    ready.set()
    threading.Event().wait()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    helper = context.Process(target=help_along, args=(ready,), daemon=True)
    helper.start()
    ready.wait()
    print(helper.pid, flush=True)
    input()
"""


@pytest.mark.process
def test_a_helper_does_not_outlive_a_parent_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        helper = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert psutil.wait_procs([helper], 60)[1] == []
