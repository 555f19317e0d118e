"""`keelog/role`: whether a store is a replica of somebody, or was one and was promoted.

A store that never followed anybody has no such file. It keeps a node from taking messages into a
replica, and from following again with a log that went its own way, without anybody's decision.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

from node.store.checkpoints import own_dir, save_sealed, unseal
from protocol.errors import StoreDamaged, StoreError

ROLE_FILE = "role"
REPLICA, MASTER = "replica", "master"
_NUMBERS = ("epoch", "offset", "acknowledged")
_HINT = "move it aside, and start the node in the role it had: a replica with --follow"


class StoreRole(NamedTuple):
    """`epoch` and `offset`: the epoch and the end of the log when the role began. `source`: whom a
    replica follows, or followed. `acknowledged`: up to here the master knew the log to be
    on this disk, when the file was written last."""

    role: str
    source: str = ""
    epoch: int = 0
    offset: int = 0
    acknowledged: int = 0


class WrongRole(StoreError):
    """The store has another role than the one in which it was to be served."""


def load_role(root: Path) -> StoreRole | None:
    """None for a store that never followed anybody. Raises StoreDamaged.

    Nothing else says that a store is a replica. So a file that cannot be trusted is refused: as if
    there were none, the replica would take messages of its own.
    """
    path = own_dir(root) / ROLE_FILE
    text = unseal(root, path)
    if text is None:
        if os.path.lexists(path):
            found = "its checksum does not agree, or it belongs to another store"
            raise StoreDamaged(str(path), 0, found, _HINT)
        return None
    try:
        found = json.loads(text)
        role = StoreRole(
            str(found["role"]), str(found["source"]), *(int(found[name]) for name in _NUMBERS)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(str(path), 0, f"makes no sense ({error})", _HINT) from None
    return role


def save_role(root: Path, role: StoreRole) -> None:
    """Replaces the file, durably."""
    text = json.dumps(role._asdict(), separators=(",", ":")) + "\n"
    save_sealed(root, own_dir(root) / ROLE_FILE, text)


def check_role(root: Path, follows: str) -> None:
    """Raises WrongRole where a node with the setting `follow` must not serve this store."""
    role = load_role(root)
    if role is None:
        return
    if role.role == REPLICA and not follows:
        raise WrongRole(
            f"the store {root} is a replica of {role.source}",
            f"keelog serve {root} --follow {role.source}; to make it a master, first: keelog"
            f" replica promote {root}",
        )
    if role.role == MASTER and follows:
        raise WrongRole(
            f"the store {root} was promoted to a master at log offset {role.offset}",
            f"serve it without --follow; to make it a replica again, first: keelog replica demote"
            f" {root}",
        )
