"""What a replica with a controller finds out before it copies: up to where both logs are the same.

The master's greeting names its epochs, and the replica's own are in `epochFileCheckpoint`.
"""

import socket
from pathlib import Path

from keelog.replication.replica.stops import FollowStopped
from node.runtime.addresses import split_place
from node.store.identity.roles import load_master_epochs, save_master_epochs
from protocol.errors import BadRequest
from protocol.ha import (
    GreetingReader,
    MasterEpoch,
    MasterGreeting,
    common_point,
    encode_greeting,
    with_epoch,
)

_RECEIVED_AT_ONCE = 64 * 1024


class LogsPart(FollowStopped):
    """Our log goes on where the master's went another way, or ends."""


class NoCommonEpoch(FollowStopped):
    """No elected master wrote both logs."""


def same_up_to(root: Path, end: int, greeting: MasterGreeting) -> int:
    """The end of what our log, which ends at `end`, has in common with the master's.

    Raises NoCommonEpoch, StoreDamaged.
    """
    ours = load_master_epochs(root)
    point = common_point(ours, end, greeting.epochs, greeting.end)
    if point is None:
        theirs = ", ".join(f"{one.number} from {one.start}" for one in greeting.epochs[-3:])
        own = ", ".join(f"{one.number} from {one.start}" for one in ours[-3:]) or "none"
        raise NoCommonEpoch(
            f"no elected master wrote both logs; epochs here: {own}, at the master: {theirs}",
            "follow with an empty directory; keep this one as long as you need it",
        )
    return point


def check_same(root: Path, end: int, greeting: MasterGreeting) -> None:
    """Raises LogsPart unless all of our log is in the master's; NoCommonEpoch, StoreDamaged."""
    point = same_up_to(root, end, greeting)
    if point < end:
        raise LogsPart(
            f"our log ends at {end}, and is the master's up to {point} alone",
            "keelog serve --controller cuts the rest when it starts the node again",
        )


def note_epoch(root: Path, epoch: MasterEpoch) -> None:
    """Saves the epoch of bytes that come, before one of them is written: an epoch that was missing
    would make the log look shorter than it is. Raises OSError, StoreDamaged."""
    known = load_master_epochs(root)
    if epoch not in known:
        save_master_epochs(root, with_epoch(known, epoch))


def ask_greeting(place: str, broker_id: int, timeout_s: float) -> MasterGreeting:
    """Connects to the replication at HOST:PORT for its greeting alone. Raises OSError."""
    with socket.create_connection(split_place(place), timeout_s) as connected:
        connected.sendall(encode_greeting(broker_id))
        reader = GreetingReader()
        while data := connected.recv(_RECEIVED_AT_ONCE):
            try:
                greeting = reader.feed(data)
            except BadRequest as error:
                raise ConnectionError(error.reason) from None
            if greeting is not None:
                return greeting
    raise ConnectionResetError("the master closed the connection before its greeting")
