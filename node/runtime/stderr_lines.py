"""Lines on stderr, by processes that never wait for who reads them.

A terminal that is stopped (Ctrl-S), or a pipe that nobody reads, would otherwise stop all that a
process does. A line that does not go at once is dropped, and counted.
"""

import os
import select
import socket
import stat
import time
from contextlib import suppress

STDERR = 2
LAST_WORDS_S = 1.0
"""How long a process that ends waits until its last lines can be written."""
_READERS_WAIT = (BlockingIOError, InterruptedError)


class LineOutput:
    """Writes to one descriptor without a buffer, also in the handler of a signal."""

    def __init__(self, descriptor: int) -> None:
        self.dropped = 0
        """Texts since the start that were not written, or not to their end."""
        self._descriptor = descriptor
        self._opened: int | None = None
        self._opened_of: os.stat_result | None = None
        self._is_torn = False

    def write(self, text: str, wait_s: float = 0.0) -> bool:
        """One call for a line, so that lines of several processes do not mix.

        False, and it counts as dropped, when it has not gone after `wait_s`.
        """
        if self.try_to_write(text, wait_s):
            return True
        self.dropped += 1
        return False

    def try_to_write(self, text: str, wait_s: float = 0.0) -> bool:
        """As `write`, without the count."""
        # Where the line before was cut short, what was cut off would swallow the beginning of this.
        left = text.encode("utf-8", "backslashreplace")
        left = b"\n" + left if self._is_torn else left
        deadline = time.monotonic() + wait_s
        try:
            while left:
                written = self._write_some(left)
                self._is_torn = 0 < written < len(left) or (self._is_torn and not written)
                left = left[written:]
                if left and not self._wait(deadline - time.monotonic()):
                    return False
        except OSError:
            return False  # the reader may have ended, that must not end us
        return True

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """Gives back what was opened beside the descriptor."""
        if self._opened is not None:
            os.close(self._opened)
        self._opened = self._opened_of = None

    def _write_some(self, data: bytes) -> int:
        """How many bytes went at once. Raises OSError."""
        status = os.fstat(self._descriptor)
        try:
            if stat.S_ISSOCK(status.st_mode):
                with socket.fromfd(self._descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as end:
                    return end.send(data, socket.MSG_DONTWAIT)
            if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
                return self._write_without_waiting(data, status)
            return os.write(self._descriptor, data)
        except _READERS_WAIT:
            return 0

    def _write_without_waiting(self, data: bytes, status: os.stat_result) -> int:
        # O_NONBLOCK belongs to the open file, which is that of the shell and of other programs too.
        # So the same pipe or terminal is opened once more.
        if self._opened_of is None or not os.path.samestat(self._opened_of, status):
            self.close()
            self._opened_of = status
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            with suppress(OSError):  # no /proc, or a terminal of another user
                self._opened = os.open(f"/proc/self/fd/{self._descriptor}", flags)
        if self._opened is not None:
            return os.write(self._opened, data)
        # A pipe that is writable takes as much; only who fills it in this moment could stop us.
        is_writable = self._wait(0.0)
        return os.write(self._descriptor, data[: select.PIPE_BUF]) if is_writable else 0

    def _wait(self, wait_s: float) -> bool:
        """Whether more can be written, after at most `wait_s`."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return wait_s >= 0 and bool(poll.poll(wait_s * 1000))


stderr = LineOutput(STDERR)
"""Of this process."""
