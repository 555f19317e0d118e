"""`keelog/auth/audit.log`: who did what, and who was refused, as lines of JSON.

The gateway has a file of its own, `audit.gateway.log`: each file has one writing process.

No line holds a signature or a secret: an event has no field for one. Control characters are
escaped, so that no name makes a line, or moves the cursor of a terminal. Lines go to the end of the
file by one call each. A file that was renamed is left, and a new one begun: logs can be rotated
without a signal.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from node.access.users_file import auth_dir
from node.runtime import disk
from protocol.human_text import one_line

AUDIT_FILE = "audit.log"
GATEWAY_AUDIT_FILE = "audit.gateway.log"
VALUE_CHARS_MAX = 300
LINES_A_SECOND_MAX = 100
"""Of refusals; further ones are counted. Somebody who is refused all the time fills no disk."""

DONE, REFUSED = "done", "refused"


class AuditEvent(NamedTuple):
    """One line. Empty for what is not known."""

    end: str
    """At which end of the node: `remoting`, `zeromq`, `local`, `command`."""
    user: str
    address: str
    operation: str
    resource: str
    outcome: str
    """DONE or REFUSED."""
    reason: str = ""


class AuditLog:
    """The log, for one thread. It is made with its first line."""

    def __init__(self, root: Path, name: str = AUDIT_FILE) -> None:
        self._path = auth_dir(root) / name
        self._descriptor: int | None = None
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def write(self, event: AuditEvent, now_ms: int) -> None:
        """Writes an event. Refusals beyond LINES_A_SECOND_MAX are counted, and the next line has
        their number. Without room on the disk the line is left out, with a warning. Raises OSError.
        """
        second = now_ms // 1000
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= LINES_A_SECOND_MAX and event.outcome == REFUSED:
            self._left_out += 1
            return
        self._lines += 1
        with disk.if_room():
            disk.write_all(self._opened(), self._line(event, now_ms), 0)
            self._left_out = 0

    def _line(self, event: AuditEvent, now_ms: int) -> bytes:
        at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        row = {"time": at.replace("+00:00", "Z")}
        row |= {name: _short(value) for name, value in event._asdict().items() if value}
        if self._left_out:
            row["left_out"] = str(self._left_out)
        return f"{one_line(json.dumps(row))}\n".encode()

    def _opened(self) -> int:
        """The open file of that name; makes file and folder where they are missing."""
        if self._descriptor is not None:
            try:
                if os.path.samestat(self._path.lstat(), os.fstat(self._descriptor)):
                    return self._descriptor
            except FileNotFoundError:
                pass
            self.close()
        disk.make_durable_dir(self._path.parent)
        self._descriptor = disk.open_log(self._path)
        return self._descriptor

    def close(self) -> None:
        """Gives the descriptor back; the next line opens the file again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _short(value: str) -> str:
    return value if len(value) <= VALUE_CHARS_MAX else f"{value[: VALUE_CHARS_MAX - 1]}…"
