"""The node below a keeper: `keelog serve` in the role that it is to have, as a process."""

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from node.runtime.event_log import fields

log = logging.getLogger("keelog.keeper")

STOP_WAIT_S = 90.0
"""After so long a node that was asked to stop is killed; its own limits are shorter."""


class NodeProcess:
    """One node at a time. It stops by itself when the keeper ends."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: str) -> None:
        """`command` without what a role adds; it runs in `folder`."""
        self._command = [*command, "--while-pid", str(os.getpid())]
        self._env, self._folder = dict(env), folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_there(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    @property
    def pids(self) -> list[int]:
        """Of the node; empty where none runs."""
        return [] if self._process is None else [self._process.pid]

    def start(self, role: Sequence[str]) -> None:
        """Starts it with the options of a role. Raises OSError."""
        # A process group of its own: Ctrl-C reaches the keeper alone, which stops the node.
        self._process = subprocess.Popen(
            [*self._command, *role],
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            env=self._env,
            process_group=0,
        )

    def ended(self) -> int | None:
        """The exit code of a node that ended by itself; None while it runs, or none was started."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> int:
        """Stops it in order; returns its exit code, 0 where none runs."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            extra = fields(process_pid=process.pid)
            log.error("the node does not stop and is killed", extra=extra)  # noqa: TRY400
            process.kill()
            return process.wait()
        # By the signal: it did not handle it yet, and has done nothing.
        return 0 if code == -signal.SIGTERM else code
