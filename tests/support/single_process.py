"""One process of a node, started alone as its supervisor would start it."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

START_S = 60.0
STOP_S = 60.0


def is_readable(descriptor: int, wait_s: float) -> bool:
    """Waits for bytes. A process of many tests has descriptors that `select.select` cannot take."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


class SingleProcess:
    """`python -m MODULE DIR …`, with a pipe for its readiness, as a context."""

    def __init__(
        self,
        module: str,
        root: Path,
        *arguments: object,
        wait: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`wait`: returns when it is ready. `env`: variables beside ours."""
        self.module = module
        self.endpoint = ""
        self._ready, write_end = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", module, str(root), "--ready-fd", str(write_end)),
                *(str(argument) for argument in arguments),
            ],
            pass_fds=[write_end],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        os.close(write_end)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Returns when the process has said that it works. Fails when it ends before."""
        deadline = time.monotonic() + START_S
        while self._ready >= 0:
            left = deadline - time.monotonic()
            if left <= 0 or not is_readable(self._ready, left):
                raise AssertionError(f"{self.module} was not ready within {START_S} s")
            is_ready = self.hear()
            assert is_ready, f"{self.module} ended with {self.wait()}: {self.stderr}"

    def hear(self) -> bool:
        """Waits for as long as it takes; False when the process ends before it is ready."""
        said: dict[str, object] = {}
        with os.fdopen(self._ready) as pipe:
            # Lines about a recovery may come first, and one about the end instead.
            while "ready" not in said and (line := pipe.readline()):
                said = json.loads(line)
        self._ready = -1
        self.endpoint = str(said.get("endpoint", ""))
        return "ready" in said

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """SIGKILL; returns the exit code."""
        self.process.kill()
        return self.wait()

    def wait(self) -> int:
        """The exit code of a process that ends by itself; `stderr` holds what it said."""
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1
        _, self.stderr = self.process.communicate(timeout=STOP_S)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        elif self.process.stderr is not None and not self.process.stderr.closed:
            self.wait()


def small_files() -> Sequence[str]:
    """Settings that make segments, queue and index files small."""
    pairs = (
        "mapped_file_size_commit_log=1048576",
        "mapped_file_size_consume_queue=4000",
        "max_hash_slot_num=500",
        "max_index_num=2000",
    )
    return [word for pair in pairs for word in ("-X", pair)]
