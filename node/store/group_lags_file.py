"""`keelog/run/groups`: the lag of consumer groups, from the tasks for the supervisor, as JSON.

A node without a gateway has no tasks, and the file says nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.regular_file import QUEUES_FILE_BYTES_MAX, read_bounded
from node.runtime.state_page import run_dir

GROUP_ROWS_MAX = 500
"""Pairs of a group and a topic in the file, the largest lag first; the others are summed up."""
_FILE = "groups"
_NUMBERS = ("queues", "members", "lag", "in_flight")


def write_group_lags(root: Path, lags: Mapping[str, Any]) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _FILE, json.dumps(lags).encode())


def read_group_lags(root: Path) -> dict[str, Any]:
    """The lag of groups: the numbers of `groups` and `members` there are, the `lag` of all,
    `rows` of group, topic and their numbers, and the sums of all `others`. Zeros without a file."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _FILE, QUEUES_FILE_BYTES_MAX))
        return {
            **{name: int(found[name]) for name in ("groups", "members", "lag", "in_flight")},
            "rows": [_row(row) for row in found["rows"][:GROUP_ROWS_MAX]],
            "others": {name: int(found["others"][name]) for name in ("lag", "in_flight")},
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {
            "groups": 0, "members": 0, "lag": 0, "in_flight": 0, "rows": [],
            "others": {"lag": 0, "in_flight": 0},
        }  # fmt: skip


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: int(found[name]) for name in _NUMBERS}
    lag_ms = found["lag_ms"]
    return {
        "group": str(found["group"]),
        "topic": str(found["topic"]),
        **numbers,
        "lag_ms": None if lag_ms is None else int(lag_ms),
    }
