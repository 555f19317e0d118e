"""`keelog/run/followers`: who follows the node, and how far, from the process that serves them for
the gateway and the supervisor, as JSON. A node that nobody may follow has no such file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime import disk
from node.runtime.regular_file import read_bounded
from node.runtime.state_page import run_dir

ENDED_SHOWN_MAX = 16
"""Ends of connections in the file: the latest."""
_FILE = "followers"
_BYTES_MAX = 256 * 1024


class FollowerRow(NamedTuple):
    """One connection: what it was `sent` and has `acknowledged`, as ends in the log."""

    address: str
    since_ms: int
    sent: int
    acknowledged: int
    lag_bytes: int
    """From what it has acknowledged to the end of the log."""
    lag_s: float
    """How long ago the log ended where the follower is."""
    in_sync: bool
    bytes_per_s: int
    broker_id: int = 0
    """The id that it said a controller gave it; 0: it said none."""


class FollowerEnd(NamedTuple):
    """A connection that ended: where the follower was, and why it ended."""

    address: str
    at_ms: int
    acknowledged: int
    reason: str


class FollowersState(NamedTuple):
    """`acknowledged`: the end of the log that `needed` followers have."""

    needed: int = 0
    acknowledged: int = 0
    followers: tuple[FollowerRow, ...] = ()
    ended: tuple[FollowerEnd, ...] = ()
    """The latest first."""
    sync_state: int = -1
    """The number of the sync state that `acknowledged` follows; -1: of none."""

    @property
    def in_sync(self) -> int:
        """How many followers are in sync."""
        return sum(row.in_sync for row in self.followers)

    def shape(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "needed": self.needed,
            "acknowledged": self.acknowledged,
            "followers": [row._asdict() for row in self.followers],
            "ended": [end._asdict() for end in self.ended],
            "sync_state": self.sync_state,
        }


def write_followers(root: Path, state: FollowersState) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _FILE, json.dumps(state.shape()).encode())


def read_followers(root: Path) -> FollowersState:
    """Nobody, without a file."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _FILE, _BYTES_MAX))
        return FollowersState(
            int(found["needed"]),
            int(found["acknowledged"]),
            tuple(_row(row) for row in found["followers"]),
            tuple(_end(end) for end in found["ended"][:ENDED_SHOWN_MAX]),
            int(found["sync_state"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return FollowersState()


def _row(found: Mapping[str, Any]) -> FollowerRow:
    since_ms, sent, acknowledged, lag, speed, broker_id = (
        int(found[name])
        for name in ("since_ms", "sent", "acknowledged", "lag_bytes", "bytes_per_s", "broker_id")
    )
    address, lag_s, in_sync = str(found["address"]), float(found["lag_s"]), bool(found["in_sync"])
    return FollowerRow(address, since_ms, sent, acknowledged, lag, lag_s, in_sync, speed, broker_id)


def _end(found: Mapping[str, Any]) -> FollowerEnd:
    at_ms, acknowledged = int(found["at_ms"]), int(found["acknowledged"])
    return FollowerEnd(str(found["address"]), at_ms, acknowledged, str(found["reason"]))
