"""Holds our log against the master's before anything is added to it, and says why not to follow.

RocketMQ's replication has no check of its own: a master that lost its tail and went on would be
copied on, and nobody would notice. So a follower first asks for bytes that it has: the last part of
our log. With a controller it finds out first up to where both logs are the same: the master's
greeting names its epochs, and the replica's own are in `epochFileCheckpoint`.

Each reason why a node stops following its master is for people to decide. Nothing is changed then.
The node goes on serving what it has, and looks again when it is started again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from keelog.replication.replica.master_link import MasterFacts, connect_to
from node.store.identity.roles import load_master_epochs, save_master_epochs
from protocol import ha
from protocol.errors import BadRequest, RefusedError

if TYPE_CHECKING:
    from node.access.tls import ClientTls

REWIND = "keelog replica rewind DIR --to OFFSET shows what would be cut"

OVERLAP_BYTES = 64 * 1024
"""What is compared; at least the last record."""
Read = Callable[[int, int], bytes]

_RECEIVED_AT_ONCE = 64 * 1024


class FollowStopped(RefusedError):
    """The node cannot follow this master as both logs are."""


class MasterShorter(FollowStopped):
    """The master's log ends before ours does: it lost a part that this node has."""


class MasterTrimmed(FollowStopped):
    """The master has deleted what follows the end of our log."""


class OtherBytes(FollowStopped):
    """The master's log has other bytes than ours at the same offset."""


class OtherSegments(FollowStopped):
    """The master's segments have another length than ours."""


class WrongRecord(FollowStopped):
    """The master sent something else than a whole record of its place."""


class LogsPart(FollowStopped):
    """Our log goes on where the master's went another way, or ends."""


class NoCommonEpoch(FollowStopped):
    """No elected master wrote both logs."""


class Overlap:
    """The comparison of [start, end) on one connection. `read` returns our bytes."""

    def __init__(self, start: int, end: int, read: Read, facts: MasterFacts | None) -> None:
        self.start = self.wanted = start
        self._end = end
        self._read = read
        self._facts = facts

    @property
    def is_done(self) -> bool:
        """Whether all of it was the same."""
        return self.wanted >= self._end

    def take(self, frame: ha.LogFrame) -> memoryview:
        """Compares a frame at `wanted`; returns what of it is new. Raises FollowStopped."""
        size = min(len(frame.body), self._end - self.wanted)
        ours = self._read(self.wanted, self.wanted + size)
        theirs = bytes(frame.body[:size])
        if ours != theirs:
            at = self.wanted + _same_bytes(ours, theirs)
            raise OtherBytes(
                f"the master's log differs from ours at offset {at}, {self._end - at} bytes before"
                f" our end at {self._end}",
                f"find where they part, then: {REWIND}",
            )
        self.wanted += size
        return frame.body[size:]

    def heard_beat(self) -> None:
        """The master has nothing to send, though we want more. Raises FollowStopped."""
        if self.wanted > self.start:
            self._shorter(self.wanted)
        self.check_trimmed()
        self.check_shorter()
        raise MasterShorter(
            f"the master has nothing at offset {self.start}, and our log ends at {self._end}: it "
            "ends before that, or begins after it",
            f"if it lost its end: {REWIND}; if it deleted old segments, follow with an empty"
            " directory",
        )

    def check_trimmed(self) -> None:
        """Raises MasterTrimmed where the master says that its log begins after our end."""
        facts = self._facts
        if facts is not None and facts.begin > self.start:
            raise MasterTrimmed(
                f"the master's log begins at {facts.begin}, ours ends at {self._end}",
                "follow with an empty directory; keep this one as long as you need it",
            )

    def check_shorter(self) -> None:
        """Raises MasterShorter where the master says that its log ends before ours."""
        facts = self._facts
        if facts is not None and facts.end < self._end:
            self._shorter(facts.end)

    def _shorter(self, end: int) -> None:
        raise MasterShorter(
            f"the master's log ends at {end}, ours at {self._end}: it lost what comes after",
            f"if that is meant to be lost: {REWIND}",
        )


def _same_bytes(ours: bytes, theirs: bytes) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (own, other) in pairs if own != other), min(len(ours), len(theirs)))


def same_up_to(root: Path, end: int, greeting: ha.MasterGreeting) -> int:
    """The end of what our log, which ends at `end`, has in common with the master's. Raises
    NoCommonEpoch, StoreDamaged."""
    ours = load_master_epochs(root)
    point = ha.common_point(ours, end, greeting.epochs, greeting.end)
    if point is None:
        theirs = ", ".join(f"{one.number} from {one.start}" for one in greeting.epochs[-3:])
        own = ", ".join(f"{one.number} from {one.start}" for one in ours[-3:]) or "none"
        raise NoCommonEpoch(
            f"no elected master wrote both logs; epochs here: {own}, at the master: {theirs}",
            "follow with an empty directory; keep this one as long as you need it",
        )
    return point


def check_same(root: Path, end: int, greeting: ha.MasterGreeting) -> None:
    """Raises LogsPart unless all of our log is in the master's; NoCommonEpoch, StoreDamaged."""
    point = same_up_to(root, end, greeting)
    if point < end:
        raise LogsPart(
            f"our log ends at {end}, and is the master's up to {point} alone",
            "keelog serve --controller cuts the rest when it starts the node again",
        )


def note_epoch(root: Path, epoch: ha.MasterEpoch) -> None:
    """Saves the epoch of bytes that come, before one of them is written: an epoch that was missing
    would make the log look shorter than it is. Raises OSError, StoreDamaged."""
    known = load_master_epochs(root)
    if epoch not in known:
        save_master_epochs(root, ha.with_epoch(known, epoch))


def ask_greeting(
    place: str, broker_id: int, timeout_s: float, tls: "ClientTls | None" = None
) -> ha.MasterGreeting:
    """Connects to the replication at HOST:PORT for its greeting alone. Raises OSError."""
    with connect_to(place, timeout_s, tls) as connected:
        connected.sendall(ha.encode_greeting(broker_id))
        reader = ha.GreetingReader()
        while data := connected.recv(_RECEIVED_AT_ONCE):
            try:
                greeting = reader.feed(data)
            except BadRequest as error:
                raise ConnectionError(error.reason) from None
            if greeting is not None:
                return greeting
    raise ConnectionResetError("the master closed the connection before its greeting")
