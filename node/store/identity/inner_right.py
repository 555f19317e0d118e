"""The right of a node's own processes to append to the system's topics.

It is a random text in `keelog/run/right`, which only the owner of the store can read: who can read
it could write the store's files as well. The writer makes it once; gateway and tasks send it along.
"""

import secrets
from pathlib import Path

from node.runtime import disk

_FILE = "right"
_BYTES = 16


def make_right(run_dir: Path) -> str:
    """The right of the store; made when there is none. Raises OSError."""
    found = find_right(run_dir)
    if not found:
        found = secrets.token_hex(_BYTES)
        disk.write_atomically(run_dir / _FILE, found.encode())
    return found


def find_right(run_dir: Path) -> str:
    """The right of the store; empty when there is none."""
    try:
        found = (run_dir / _FILE).read_bytes()
    except FileNotFoundError:
        return ""
    text = found.decode("ascii", "replace")
    return text if len(text) == 2 * _BYTES and text.isalnum() else ""
