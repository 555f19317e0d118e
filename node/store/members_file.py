"""`keelog/run/members`: who is in which group now, from the gateway for the supervisor, as JSON.

The gateway replaces the file when something has changed; without a gateway it says nothing. The
next gateway reads it when it starts: whom it awaits.
"""

import json
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.regular_file import OFFSETS_FILE_BYTES_MAX, read_bounded
from node.runtime.state_page import run_dir

_FILE = "members"


def write_members(root: Path, groups: dict[str, Any]) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _FILE, json.dumps(groups).encode())


def read_members(root: Path) -> dict[str, Any]:
    """By group: `members`, `awaited`, `topics`, and `queues`, who pulled last. Empty without a
    file."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _FILE, OFFSETS_FILE_BYTES_MAX))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
