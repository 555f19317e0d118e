"""Decides who is in sync, as the master: whom the controller is asked to add, and whom to take out.

At each moment all from whom the controller may elect are among `required`. So an addition is
required before it is asked for, and one that may have been taken out stays required until the
controller has said so.
"""

from collections.abc import Mapping

from node.runtime.run_files import FollowerRow, FollowersState, SyncState
from protocol.remoting.controller import SyncStateSet

GONE_S = 1.0
"""A follower without a connection for so long is taken out: a killed one delays sends by that."""
NEAR_S = 1.0
"""A follower that is late by less is added."""
NEAR_BYTES = 8 * 1024 * 1024
ADDING_S = 5.0
"""How long an addition is awaited, which delays all sends meanwhile."""


class SyncSet:
    """For one master's epoch. It has no clock, no files and no sockets."""

    def __init__(self, own_id: int, found: SyncStateSet, number: int, late_s: float) -> None:
        """`number`: that of the first state. A follower that was late for `late_s` goes."""
        self._own_id = own_id
        self.found = SyncStateSet(found.members | {own_id}, found.epoch)
        self._late_s = late_s
        self._number = number
        self._wish: frozenset[int] | None = None
        self._unsure: frozenset[int] = frozenset()
        """Of changes that were asked for, and of which nobody knows whether they were made."""
        self._is_asked = False
        self._until_end: int | None = None
        self._give_up_at = 0.0
        self._gone_at: dict[int, float] = {}

    @property
    def state(self) -> SyncState:
        """Who must have a message before it is acknowledged."""
        return SyncState(self._number, self.found.members | (self._wish or set()) | self._unsure)

    def adopt(self, found: SyncStateSet) -> None:
        """Takes what the controller says; what is older changes nothing."""
        if found.epoch > self.found.epoch:
            self.found = SyncStateSet(found.members | {self._own_id}, found.epoch)
            self._unsure = frozenset()
            self.drop_wish()

    def turn(self, now: float, followers: FollowersState, end: int) -> frozenset[int] | None:
        """The set that the controller is to be asked for now; None: no change. `followers` is how
        they are, and `end` where the log ends now."""
        if followers.sync_state != self._number:
            return None  # of an older state, or of a process that ended
        rows = {row.broker_id: row for row in followers.followers if row.broker_id}
        if self._wish is not None:
            return self._adding(self._wish, now, rows, end)
        late = self._late(now, rows)
        if late:
            self._wish, self._is_asked = self.found.members - late, True
            return self._wish
        near = frozenset(
            one
            for one, row in rows.items()
            if one not in self.found.members and row.lag_s < NEAR_S and row.lag_bytes < NEAR_BYTES
        )
        if near:
            self._wish, self._is_asked, self._until_end = self.found.members | near, False, None
            self._give_up_at = now + ADDING_S
            self._number += 1
        return None

    def _adding(
        self, wish: frozenset[int], now: float, rows: Mapping[int, FollowerRow], end: int
    ) -> frozenset[int] | None:
        if self._is_asked:
            return wish
        if self._until_end is None:
            # Whatever was acknowledged before they had to have it ends here.
            self._until_end = end
        added = wish - self.found.members
        if all(one in rows and rows[one].acknowledged >= self._until_end for one in added):
            self._is_asked = True
            return wish
        if now >= self._give_up_at:
            self.drop_wish()
        return None

    def _late(self, now: float, rows: Mapping[int, FollowerRow]) -> frozenset[int]:
        others = self.found.members - {self._own_id}
        self._gone_at = {one: self._gone_at.get(one, now) for one in others if one not in rows}
        gone = {one for one, since in self._gone_at.items() if now - since >= GONE_S}
        slow = {one for one in others if one in rows and rows[one].lag_s > self._late_s}
        return frozenset(gone | slow)

    def unanswered(self) -> None:
        """Nobody knows whether it makes the change: it is asked again."""
        self._unsure |= self._wish or frozenset()

    def drop_wish(self) -> None:
        """The controller makes no such change, as it has answered, or is not asked for it."""
        self._wish, self._is_asked, self._until_end = None, False, None
        self._number += 1
