"""A shell at a terminal of its own, into which a test types."""

import os
import pty
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Self

from tests.support.single_process import is_readable

_MARK = "ready>"
_READ_S = 0.05
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()=>][0-9A-B]?|[\x07\x00]")
END_S = 10.0


class Shell:
    """An interactive shell whose prompt is a mark. `screen` is what came since the last prompt."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command, self._env = command, env
        self.screen = ""

    def __enter__(self) -> Self:
        self._fd, inner = pty.openpty()
        self._process = subprocess.Popen(
            self._command, stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            env={**self._env, "TERM": "dumb", "PS1": _MARK, "PROMPT": _MARK},
        )  # fmt: skip
        os.close(inner)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(END_S)
        os.close(self._fd)

    def run(self, line: str, timeout_s: float) -> None:
        """Types a line and Enter, and waits for the prompt behind a word that it prints."""
        self.screen = ""
        self._type(f"{line}; echo do''ne\n")
        self.wait_for("done", timeout_s)
        self.wait_for(_MARK, timeout_s)

    def completed(self, text: str, expected: str, timeout_s: float) -> None:
        """Types a text and TAB until the screen shows what is expected."""
        deadline = time.monotonic() + timeout_s
        patience_s = 3.0
        while True:
            self._type("\x15")  # the line is empty again
            self._read(0.0)
            self.screen = ""
            self._type(f"{text}\t")
            try:
                self.wait_for(expected, min(patience_s, timeout_s))
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                patience_s *= 2  # a busy machine may take that long each time
            else:
                self._type("\x15")
                return

    def wait_for(self, text: str, timeout_s: float) -> None:
        """Returns when the screen shows a text."""
        deadline = time.monotonic() + timeout_s
        while text not in self.screen:
            assert time.monotonic() < deadline, f"no {text!r} on the screen:\n{self.screen!r}"
            self._read(_READ_S)

    def _type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def _read(self, wait_s: float) -> None:
        while is_readable(self._fd, wait_s):
            data = os.read(self._fd, 65536).decode(errors="replace")
            self.screen = _CONTROL.sub("", self.screen + data)
            wait_s = 0.0
