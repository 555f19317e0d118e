"""What is known of all followers: how far they are, how late, and why others are gone."""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from keelog.replication.followers.connection import FollowerConnection, FollowerGone, Gone
from keelog.replication.followers.elected_rule import ElectedRule
from keelog.replication.followers.flushed_log import FlushedLog
from node.runtime.event_log import Seldom, fields
from node.runtime.process import now_ms
from node.runtime.run_files import ENDED_SHOWN_MAX, FollowerEnd, FollowerRow, FollowersState

log = logging.getLogger("keelog.followers")

MOMENTS_MAX = 3_600
"""Moments, a second apart at least, of which it is known how far the log was."""
_ORDERLY = (Gone.CLOSED, Gone.STOP)


class FollowerBook:
    """For one thread. Times are seconds of the monotonic clock."""

    def __init__(self, needed: int, gap_max: int, rule: ElectedRule | None = None) -> None:
        """`needed` followers must acknowledge; one is in sync if its lag is less than `gap_max`
        bytes. `rule`: who else must, where a controller elects the master."""
        self._needed = needed
        self._rule = rule
        self._gap_max = gap_max
        self._moments: deque[tuple[float, int]] = deque(maxlen=MOMENTS_MAX)
        """When the log was found to end where; both ascend."""
        self._ended: deque[tuple[str, Gone, FollowerEnd]] = deque(maxlen=ENDED_SHOWN_MAX)
        """With the host, the latest first."""
        self._served: set[str] = set()
        """The addresses of those that could follow."""
        self._said = Seldom()
        """One that cannot go on tries again each 5 s."""
        self._counted: dict[str, tuple[float, int]] = {}
        """By address: when it was looked at, and what it had been sent then."""

    def came(self, connection: FollowerConnection) -> None:
        """Logs a connection."""
        log.info("a follower connected", extra=fields(follower=connection.address))

    def went(self, connection: FollowerConnection, gone: FollowerGone, now: float) -> None:
        """Notes and logs an end. One that tries again and again is gone since its first try."""
        acknowledged = connection.acknowledged or 0
        self._counted.pop(connection.address, None)
        key, since_ms = (connection.host, gone.kind), now_ms()
        self._look_who_is_back([connection])
        if connection.address not in self._served:
            before = next((one for one in self._ended if one[:2] == key), None)
            if before is not None:
                self._ended.remove(before)
                since_ms = before[2].at_ms
        self._served.discard(connection.address)
        end = FollowerEnd(connection.address, since_ms, acknowledged, gone.reason)
        self._ended.appendleft((*key, end))
        if not self._said.is_due(key, now):
            return
        extra = fields(
            follower=connection.address, acknowledged=acknowledged, kind=gone.kind, why=gone.reason
        )
        log.log(
            logging.INFO if gone.kind in _ORDERLY else logging.WARNING,
            "a follower's connection ended",
            extra=extra,
        )

    def _look_who_is_back(self, connections: Iterable[FollowerConnection]) -> None:
        """A host has as many ends fewer as followers of it came back."""
        for one in connections:
            if one.acknowledged is None or one.address in self._served:
                continue
            self._served.add(one.address)
            before = next((end for end in self._ended if end[0] == one.host), None)
            if before is not None:
                self._ended.remove(before)

    def note_end(self, end: int, now: float) -> None:
        """The log ends here now."""
        if not self._moments or (end > self._moments[-1][1] and now - self._moments[-1][0] >= 1.0):
            self._moments.append((now, end))

    def lag_s(self, acknowledged: int, end: int, now: float) -> float:
        """How long ago the log ended at what is acknowledged; a lag before the first moment that
        is known counts from there."""
        if acknowledged >= end or not self._moments:
            return 0.0
        after = bisect_right(self._moments, acknowledged, key=lambda moment: moment[1])
        if after >= len(self._moments):
            return 0.0
        return max(0.0, now - self._moments[after][0])

    def acknowledged(self, connections: Iterable[FollowerConnection]) -> int:
        """The end of the log that enough followers have; each connection counts, as in a broker
        (GroupTransferService)."""
        if self._rule is not None:
            return self._rule.acknowledged(connections, self._needed)
        ends = sorted(
            (one.acknowledged for one in connections if one.acknowledged is not None), reverse=True
        )
        return ends[self._needed - 1] if len(ends) >= self._needed else 0

    def state(
        self, connections: Iterable[FollowerConnection], flushed: FlushedLog, now: float
    ) -> FollowersState:
        """All of it, for the file."""
        all_of_them = list(connections)
        self._look_who_is_back(all_of_them)
        return FollowersState(
            self._needed,
            self.acknowledged(all_of_them),
            tuple(self._row(one, flushed.appended, now) for one in all_of_them),
            tuple(end for _, _, end in self._ended),
            -1 if self._rule is None else self._rule.number,
        )

    def _row(self, one: FollowerConnection, end: int, now: float) -> FollowerRow:
        acknowledged = one.acknowledged or 0
        lag = max(0, end - acknowledged)
        before, sent = self._counted.get(one.address, (now - 1.0, one.sent))
        self._counted[one.address] = now, one.sent
        return FollowerRow(
            one.address,
            one.since_ms,
            one.sent,
            acknowledged,
            lag,
            round(self.lag_s(acknowledged, end, now), 3),
            one.acknowledged is not None and lag < self._gap_max,
            int((one.sent - sent) / max(now - before, 0.001)),
            one.broker_id,
        )
