"""The node of the demo: `keelog serve` as a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from keelog.cli.output import say
from node.runtime.event_log import FORMAT_VARIABLE
from node.supervisor.child_process import environment
from protocol.errors import RequestTimeout, ServiceNotAvailable

START_S_MAX = 60.0
STOP_S_MAX = 90.0
_ANY_DISK = ("disk_space_warning_level_ratio=100", "clean_file_forcibly_enable=false")
"""A demo runs on a disk that is 90 % full, too, and deletes nothing there."""
_READY = re.compile(r"^ready (tcp://\S+)")


class DemoNode:
    """A node on a directory and a free port, as a context. What it says goes to our stderr."""

    def __init__(self, store: Path, settings: Sequence[str]) -> None:
        pairs = [word for pair in (*_ANY_DISK, *settings) for word in ("-X", pair)]
        command = [sys.executable, "-P", "-m", "keelog", "serve", str(store)]
        self._process = subprocess.Popen(
            [*command, "--bind", "tcp://127.0.0.1:0", "--while-pid", str(os.getpid()), *pairs],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(), FORMAT_VARIABLE: "text"},
            process_group=0,
        )
        self._ready: SimpleQueue[str] = SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            say(f"  node: {line.rstrip()}")
            ready = _READY.match(line)
            if ready is not None:
                self._ready.put(ready[1])
        self._ready.put("")

    def endpoint(self) -> str:
        """Waits until it is ready. Raises ServiceNotAvailable when it ended instead."""
        try:
            endpoint = self._ready.get(timeout=START_S_MAX)
        except Empty:
            raise RequestTimeout(f"the node is not ready after {START_S_MAX:.0f} s") from None
        if not endpoint:
            raise ServiceNotAvailable(f"the node ended with {self._process.wait()}")
        return endpoint

    def stop(self) -> int:
        """Stops it in order, as an operator would; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_S_MAX)
        self._listener.join()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.stop()
        if self._process.poll() is None:
            self._process.kill()
        if self._process.stderr is not None:
            self._process.stderr.close()
