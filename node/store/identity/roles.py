"""The role of a store beside other copies of its log: who is master, as files of the store keep it.

`keelog/role` says whether a store is a replica of somebody, or was one and was promoted. A store
that never followed anybody has no such file. It keeps a node from taking messages into a replica,
and from following again with a log that went its own way, without anybody's decision.

Where controllers elect the master, two files are as RocketMQ keeps them. `brokerIdentity` has the
id that a controller gave to the store. `brokerIdentity-temp` is there while the controller is asked
for the id: a node that is killed in between asks for the same one again, with the same check code.
`epochFileCheckpoint` has the epochs of elected masters of the store's log.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.store_paths import SMALL_FILE_BYTES_MAX, read_bounded
from node.store.checkpoints import own_dir, save_sealed, unseal
from protocol.errors import BadRequest, StoreDamaged, StoreError
from protocol.ha import MasterEpochs, encode_epochs, parse_epochs
from protocol.names import BROKER_IDENTITY_FILE, MASTER_EPOCHS_FILE

ROLE_FILE = "role"
REPLICA, MASTER = "replica", "master"

_ROLE_NUMBERS = ("epoch", "offset", "acknowledged")
_ROLE_HINT = "move it aside, and start the node in the role it had: a replica with --follow"
_ASKED_FILE = f"{BROKER_IDENTITY_FILE}-temp"
_IDENTITY_FIELDS = 3


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
            raise StoreDamaged(str(path), 0, found, _ROLE_HINT)
        return None
    try:
        found = json.loads(text)
        role = StoreRole(
            str(found["role"]), str(found["source"]), *(int(found[name]) for name in _ROLE_NUMBERS)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(str(path), 0, f"makes no sense ({error})", _ROLE_HINT) from None
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


class BrokerIdentity(NamedTuple):
    """`check_code`: with it a controller knows who asked for the id; only while it is asked."""

    cluster: str
    broker: str
    broker_id: int
    check_code: str = ""


def load_identity(root: Path) -> BrokerIdentity | None:
    """None for a store that no controller has given an id. Raises StoreDamaged."""
    return _read_identity(root / BROKER_IDENTITY_FILE)


def load_asked_identity(root: Path) -> BrokerIdentity | None:
    """The id that is asked for; None where none is. Raises StoreDamaged."""
    found = _read_identity(root / _ASKED_FILE)
    return found if found is not None and found.check_code else None


def save_asked_identity(root: Path, identity: BrokerIdentity) -> None:
    """Before a controller is asked."""
    disk.write_atomically(root / _ASKED_FILE, "#".join(map(str, identity)).encode())


def forget_asked_identity(root: Path) -> None:
    """A controller has refused it."""
    disk.unlink(root / _ASKED_FILE, missing_ok=True)
    disk.sync_dir(root)


def save_identity(root: Path, identity: BrokerIdentity) -> None:
    """A controller has given it."""
    text = "#".join(map(str, identity[:_IDENTITY_FIELDS]))
    disk.write_atomically(root / BROKER_IDENTITY_FILE, text.encode())
    forget_asked_identity(root)


def _read_identity(path: Path) -> BrokerIdentity | None:
    try:
        text = read_bounded(path, SMALL_FILE_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    fields = text.strip().split("#")
    if len(fields) < _IDENTITY_FIELDS or not fields[2].isdigit():
        hint = "move it away: the node then gets a new id, and follows with what it has"
        raise StoreDamaged(str(path), 0, f"it holds {text[:80]!a}, no identity", hint)
    return BrokerIdentity(fields[0], fields[1], int(fields[2]), "#".join(fields[_IDENTITY_FIELDS:]))


def load_master_epochs(root: Path) -> MasterEpochs:
    """None of them for a log that no elected master wrote. Raises StoreDamaged."""
    path = root / MASTER_EPOCHS_FILE
    try:
        return parse_epochs(read_bounded(path, SMALL_FILE_BYTES_MAX).decode("ascii", "replace"))
    except FileNotFoundError:
        return ()
    except BadRequest as error:
        hint = "move it away; the node then follows with an empty directory alone"
        raise StoreDamaged(str(path), 0, error.reason, hint) from None


def save_master_epochs(root: Path, epochs: MasterEpochs) -> None:
    """Replaces the file, durably. RocketMQ takes a file without epochs for none."""
    disk.write_atomically(root / MASTER_EPOCHS_FILE, encode_epochs(epochs))
