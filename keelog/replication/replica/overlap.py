"""Holds the last part of our log against the master's, before anything is added to it.

RocketMQ's replication has no check of its own: a master that lost its tail and went on would be
copied on, and nobody would notice. So a follower first asks for bytes that it has.
"""

from collections.abc import Callable

from keelog.replication.replica.master_facts import MasterFacts
from keelog.replication.replica.stops import REWIND, MasterShorter, MasterTrimmed, OtherBytes
from protocol.ha import LogFrame

OVERLAP_BYTES = 64 * 1024
"""What is compared; at least the last record."""
Read = Callable[[int, int], bytes]


def _same_bytes(ours: bytes, theirs: bytes) -> int:
    """How many bytes at the begin of both are the same."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (own, other) in pairs if own != other), min(len(ours), len(theirs)))


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

    def take(self, frame: LogFrame) -> memoryview:
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
        """The master has nothing to send, though we want bytes below our end.

        Raises FollowStopped.
        """
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
