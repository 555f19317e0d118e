"""RocketMQ's own store as a subprocess: opens a directory and reports, or appends to it.

tests/interop/java/README.md tells what the program does and what its output means.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

RUN = Path(__file__).parent / "java" / "run.sh"
BUILD_S = 300
LIMIT_S = 120
_LOOK_S = 0.005

Row = dict[str, Any]


def why_missing() -> str:
    """Why the probe cannot run here; empty when it can."""
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"not on the PATH: {', '.join(missing)}" if missing else ""


def build() -> None:
    """Builds the probe when its sources are newer than the build."""
    subprocess.run([str(RUN), "build"], check=True, timeout=BUILD_S)


def read_lines(path: Path) -> list[Row]:
    """A file with one JSON object a line; a last line that was cut by a kill is left out."""
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.split("\n") if line]


@dataclass(frozen=True)
class Report:
    """What RocketMQ saw in a directory after it had recovered and dispatched it."""

    folder: Path
    seconds: float

    @cached_property
    def state(self) -> Row:
        """Log range, queues, files, problems."""
        value: Row = json.loads((self.folder / "state.json").read_text())
        return value

    @cached_property
    def messages(self) -> list[Row]:
        """Every record, in log order."""
        return read_lines(self.folder / "messages.jsonl")

    @cached_property
    def units(self) -> list[Row]:
        """Every queue unit."""
        return read_lines(self.folder / "cq.jsonl")

    @cached_property
    def pulls(self) -> list[Row]:
        """How many messages pulls brought, for each queue."""
        return read_lines(self.folder / "pulls.jsonl")

    @cached_property
    def lookups(self) -> list[Row]:
        """The answers to the look-ups by key that were asked for."""
        return read_lines(self.folder / "lookups.jsonl")


class RocketMQ:
    """Opens stores with RocketMQ. `work` takes its logs, reports and receipts."""

    def __init__(self, work: Path, config: Mapping[str, object]) -> None:
        self._work = work
        self._work.mkdir(parents=True, exist_ok=True)
        self._settings = [f"{name}={value!s}" for name, value in config.items()]
        self._runs = 0

    def facts(self, store: Path, lookups: Iterable[tuple[str, str]] = ()) -> Report:
        """Everything it sees in `store`, which it recovers and leaves cleanly stopped.

        `lookups` are topics and keys. Fails when it met any problem.
        """
        out = self._folder()
        options: list[str] = []
        asked = [{"topic": t, "key": k, "maxNum": 1_000_000} for t, k in lookups]
        if asked:
            path = out / "asked.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in asked))
            options = [f"lookups={path}"]
        began = time.monotonic()
        self._run(["facts", str(store), str(out), *options])
        report = Report(out, time.monotonic() - began)
        assert report.state["loaded"], report.state
        assert report.state["problemCount"] == 0, report.state["problems"][:5]
        assert len(report.lookups if asked else ()) == len(asked)
        return report

    def append(self, store: Path, count: int, topics: str, *options: str) -> list[Row]:
        """Stores `count` messages in turn in the queues of `topics`; answers their receipts."""
        receipts = self._folder() / "receipts.jsonl"
        self._run(["append", str(store), str(count), topics, str(receipts), *options])
        return read_lines(receipts)

    def append_and_die(self, store: Path, topics: str, after: int) -> list[Row]:
        """SIGKILL in the midst of appending, when there are at least `after` receipts."""
        home = self._folder()
        receipts = home / "receipts.jsonl"
        arguments = ["append", str(store), "10000000", topics, str(receipts), "maxBody=600"]
        process = subprocess.Popen(
            [str(RUN), *arguments, *self._settings], env={**os.environ, "PROBE_HOME": str(home)}
        )
        try:
            deadline = time.monotonic() + LIMIT_S
            while not receipts.exists() or receipts.read_bytes().count(b"\n") < after:
                assert process.poll() is None, f"the probe ended with {process.returncode}"
                assert time.monotonic() < deadline, "the probe is too slow"
                time.sleep(_LOOK_S)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(LIMIT_S)
        return read_lines(receipts)

    def _folder(self) -> Path:
        self._runs += 1
        folder = self._work / f"run-{self._runs}"
        folder.mkdir()
        return folder

    def _run(self, arguments: Sequence[str]) -> None:
        done = subprocess.run(
            [str(RUN), *arguments, *self._settings],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        said = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, f"the probe's {arguments[0]} ended with {said}"
