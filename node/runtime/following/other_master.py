"""`keelog/run/other_master`: that another master runs under this one's broker name, as JSON, from
the gateway for the writer and the supervisor. It lasts until the node starts again."""

import json
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.regular_file import SMALL_FILE_BYTES_MAX, read_bounded
from node.runtime.state_page import run_dir

_FILE = "other_master"
ANOTHER_MASTER = "another_master"
"""The reason of refusals while one leads."""
STEP = "stop the older one, then: keelog replica demote DIR --follow HOST:PORT"


class OtherMaster(NamedTuple):
    """`address`: where it takes requests. `leads`: name servers hold it for the newer one, so this
    node takes no messages."""

    address: str
    leads: bool

    def __str__(self) -> str:
        if self.leads:
            return f"{self.address} was promoted after this node, whose messages nobody would read"
        return f"{self.address} is a master under this one's name too"


def write_other_master(root: Path, other: OtherMaster) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _FILE, json.dumps(other._asdict()).encode())


def read_other_master(root: Path) -> OtherMaster | None:
    """None without a file."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _FILE, SMALL_FILE_BYTES_MAX))
        return OtherMaster(str(found["address"]), found["leads"] is True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_other_master(root: Path) -> None:
    """It is gone, or the node starts."""
    disk.unlink(run_dir(root) / _FILE, missing_ok=True)
