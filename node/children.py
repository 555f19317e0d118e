"""One child process: started by its command line, watched through a pidfd and a pipe.

Nothing is forked but for `exec`, so a child shares no memory, lock or socket with its supervisor.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[1]
"""Where `node` and `workers` are found, in a source tree and in an installation."""
_READY_BYTES_MAX = 4096


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a child. -P: a folder `node` in the current directory is not ours."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Ours, and the place of the modules in front of PYTHONPATH."""
    path = os.environ.get("PYTHONPATH", "")
    parts = [str(SOURCE_ROOT), *([path] if path else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts)}


class Process:
    """A running child. `pidfd` is readable when it has ended, `ready_fd` when it reports."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Starts it; `--ready-fd N` is added to the command line."""
        self._line = b""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            # A process group of its own: Ctrl-C reaches the supervisor alone, which stops the
            # children in order. What they print goes to stderr: stdout is for data.
            self._process = subprocess.Popen(
                [*arguments, "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(writer,),
                process_group=0,
                env=environment(),
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.ready_fd: int | None = reader

    def read_ready(self) -> str | None:
        """The endpoint that it reports; None when it has not yet, or ended before.

        The pipe is closed once there is nothing more to come.
        """
        if self.ready_fd is None:
            return None
        try:
            data = os.read(self.ready_fd, _READY_BYTES_MAX)
        except BlockingIOError:
            return None
        self._line += data
        if data and b"\n" not in self._line and len(self._line) < _READY_BYTES_MAX:
            return None
        os.close(self.ready_fd)
        self.ready_fd = None
        return ready_endpoint(self._line)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to this very process, however pids are reused; ended is fine."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def close(self) -> None:
        """Gives the descriptors back, after it has ended."""
        os.close(self.pidfd)
        if self.ready_fd is not None:
            os.close(self.ready_fd)
            self.ready_fd = None


def ready_endpoint(line: bytes) -> str | None:
    """The endpoint in a ready line (empty when the process binds none); None for anything else."""
    try:
        report = json.loads(line)
    except ValueError:
        return None
    if not isinstance(report, dict) or not report.get("ready"):
        return None
    return str(report.get("endpoint") or "")
