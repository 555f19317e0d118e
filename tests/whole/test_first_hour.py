"""Somebody new: a fresh clone, a machine with Python alone, and only what README.md says.

`pytest -m soak -s tests/whole/test_first_hour.py` also prints how long each step took. It needs a
package index, the ports that a node has by default, and the state of the tree as committed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.pages import Step, agrees, steps

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
NOT_THERE = re.compile(
    r"(java|javac|mvn|uv|uvx|gcc|g\+\+|cc|c\+\+|c99|clang|tcc|pip|python|node|docker)[\d.+-]*"
)
"""Not on the PATH of a machine that has Python alone."""
KEPT = re.compile(r"(PIP|SSL|UV)_.*|.*_(PROXY|proxy)|REQUESTS_CA_BUNDLE")
"""How a package index is reached from here."""
FIRST_HOUR = "## What it is, and what it is not yet"
SERVED_S, STEP_S = 120, 1200


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment: this Python, and the machine's programs but for those above."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if not NOT_THERE.fullmatch(path.name):
            (programs / path.name).symlink_to(path)
    (programs / "python3").unlink(missing_ok=True)
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: text for name, text in os.environ.items() if KEPT.fullmatch(name)}
    window = {"TERM": "dumb", "COLUMNS": "80", "KEELOG_LOG": "text"}
    return {**kept, **window, "HOME": str(home), "PATH": str(programs)}


def tell(line: str) -> None:
    """For who runs it with -s."""
    sys.stderr.write(f"{line}\n")


def told(words: list[str], clone: Path, env: dict[str, str]) -> str:
    """What a command prints in the clone."""
    return subprocess.run(
        words, cwd=clone, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=STEP_S, check=False,
    ).stdout  # fmt: skip


@contextmanager
def serving(command: str, clone: Path, env: dict[str, str]) -> Iterator[str]:
    """The node in its own terminal: what it says until it is ready."""
    with (clone / "node.log").open("w+") as log:
        node = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=clone, env=env, stderr=log)
        try:
            deadline = time.monotonic() + SERVED_S
            while "\nready " not in (said := (clone / "node.log").read_text()):
                assert node.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.05)
            yield said
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(SERVED_S)


def run_all(todo: list[Step], clone: Path, env: dict[str, str]) -> list[str]:
    """Runs the steps in order and tells what each took; answers those that print other things."""
    wrong = []
    for step in todo:
        begun = time.monotonic()
        words = ["python3", "-c", step.command] if step.is_python else ["bash", "-c", step.command]
        actual = told(words, clone, env)
        tell(f"{time.monotonic() - begun:7.1f} s  {step.command.splitlines()[-1]}")
        if not agrees(step.expected or "…", actual):
            wrong.append(f"line {step.line}: {step.command}\nshown:\n{step.expected}\n{actual}")
    return wrong


def test_who_has_python_alone_gets_through_the_first_hour_by_copy_and_paste(
    tmp_path: Path, bare: dict[str, str]
) -> None:
    git, make = shutil.which("git"), shutil.which("make")
    assert git, "git is not on the PATH"
    assert make, "make is not on the PATH"
    clone = tmp_path / "keelog"
    subprocess.run([git, "clone", "--quiet", str(ROOT), str(clone)], check=True)
    page = (clone / "README.md").read_text(encoding="utf-8")
    todo = [step for step in steps(page[: page.index(FIRST_HOUR)]) if step.command != "make test"]
    at = next(n for n, step in enumerate(todo) if step.command.startswith("keelog serve"))
    begun = time.monotonic()
    wrong = run_all(todo[:at], clone, bare)
    # The page's `export PATH=…`, for each of the commands that follow.
    env = {**bare, "PATH": f"{clone / '.venv' / 'bin'}:{bare['PATH']}"}
    with serving(todo[at].command, clone, env) as said:
        # It also names the file that stderr is here.
        assert agrees(todo[at].expected.replace(") in", "…) in"), said), said
        tell(f"{time.monotonic() - begun:7.1f} s  from the clone to a node that is ready")
        wrong += run_all(todo[at + 1 :], clone, env)
    assert not wrong, "\n\n".join(wrong)
