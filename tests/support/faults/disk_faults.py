"""Faults in the calls that reach a disk, of chosen processes and files (see faults.c).

with RunningNode(root, env=faults.env) as node:
    once = faults.add("keelog-writer", "fdatasync", "commitlog/", errno.EIO, times=1)
    …
    wait_until(lambda: once.fired, "no flush")
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

_SOURCE = Path(__file__).with_name("faults.c")
REFUSE = Path(__file__).with_name("refuse.c")
"""Calls that the system refuses."""
FOR_EVER = -1
LIE = "lie 0"


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault. `text` is its line in the file of rules."""

    folder: Path
    number: int
    text: str

    @property
    def fired(self) -> int:
        """How often it has applied so far."""
        return len(list(self.folder.glob(f"fired-{self.number}-*")))


class TracedCall(NamedTuple):
    """One call that reached the library."""

    pid: int
    process: str
    call: str
    result: int
    path: str


class DiskFaults:
    """The rules that hold now for every process started with `env`; they may change at any time."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder = folder
        self._rules: list[Rule] = []
        self._count = 0
        self.env = {"LD_PRELOAD": str(library), "FAULTS_DIR": str(folder)}

    def add(
        self, process: str, call: str, path: str, action: int | str, times: int = FOR_EVER
    ) -> Rule:
        """`action`: an errno, LIE, or `delay MS`, which `mend` ends.

        `process` and `path` as faults.c takes them.
        """
        action = f"fail {action}" if isinstance(action, int) else action
        text = f"{self._count} {process} {call} {path} {action} {times}"
        self._rules.append(Rule(self._folder, self._count, text))
        self._count += 1
        self._write()
        return self._rules[-1]

    def mend(self) -> None:
        """From now on the disk is a good one."""
        self._rules.clear()
        self._write()

    def _write(self) -> None:
        temporary = self._folder / "rules.new"
        temporary.write_text("".join(f"{rule.text}\n" for rule in self._rules))
        temporary.replace(self._folder / "rules")

    def trace(self) -> None:
        """From now on calls are noted, for `traced`."""
        (self._folder / "trace").touch()

    def traced(self, process: str = "", path: str = "") -> list[TracedCall]:
        """The calls so far, of processes whose name begins so, on files with that in the path."""
        calls = []
        for line in (self._folder / "trace").read_text().splitlines():
            pid, name, call, result, where = line.split(maxsplit=4)
            if name.startswith(process) and path in where:
                calls.append(TracedCall(int(pid), name, call, int(result), where))
        return calls


def build_library(folder: Path, source: Path = _SOURCE) -> Path:
    """Compiles a library for LD_PRELOAD. Skips the test where there is no C compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: faults are put in by a small library")
    library = folder / f"{source.stem}.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{source.name} does not compile:\n{done.stderr}"
    return library
