"""`brokerIdentity`: the id that a controller gave to a store, as RocketMQ keeps it.

The file `brokerIdentity-temp` is there while the controller is asked for the id: a node that is
killed in between asks for the same one again, with the same check code.
"""

from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.regular_file import SMALL_FILE_BYTES_MAX, read_bounded
from protocol.errors import StoreDamaged
from protocol.names import BROKER_IDENTITY_FILE

_TEMPORARY = f"{BROKER_IDENTITY_FILE}-temp"
_FIELDS = 3


class BrokerIdentity(NamedTuple):
    """`check_code`: with it a controller knows who asked for the id; only while it is asked."""

    cluster: str
    broker: str
    broker_id: int
    check_code: str = ""


def load_identity(root: Path) -> BrokerIdentity | None:
    """None for a store that no controller has given an id. Raises StoreDamaged."""
    return _load(root / BROKER_IDENTITY_FILE)


def load_asked_identity(root: Path) -> BrokerIdentity | None:
    """The id that is asked for; None where none is. Raises StoreDamaged."""
    found = _load(root / _TEMPORARY)
    return found if found is not None and found.check_code else None


def save_asked_identity(root: Path, identity: BrokerIdentity) -> None:
    """Before a controller is asked."""
    disk.write_atomically(root / _TEMPORARY, "#".join(map(str, identity)).encode())


def forget_asked_identity(root: Path) -> None:
    """A controller has refused it."""
    disk.unlink(root / _TEMPORARY, missing_ok=True)
    disk.sync_dir(root)


def save_identity(root: Path, identity: BrokerIdentity) -> None:
    """A controller has given it."""
    text = "#".join(map(str, identity[:_FIELDS]))
    disk.write_atomically(root / BROKER_IDENTITY_FILE, text.encode())
    forget_asked_identity(root)


def _load(path: Path) -> BrokerIdentity | None:
    try:
        text = read_bounded(path, SMALL_FILE_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    fields = text.strip().split("#")
    if len(fields) < _FIELDS or not fields[2].isdigit():
        hint = "move it away: the node then gets a new id, and follows with what it has"
        raise StoreDamaged(str(path), 0, f"it holds {text[:80]!a}, no identity", hint)
    return BrokerIdentity(fields[0], fields[1], int(fields[2]), "#".join(fields[_FIELDS:]))
