"""What is known of all followers: how far and how late they are, and why others are gone.

Where a controller elects the master, it elects one of its sync-state set. So all of that set must
have a message before it is acknowledged, and all that the set may have become by a change that was
asked for: then whoever is elected has it.

A follower that got the lost end of another master is ahead of this one at first, and its bytes are
not this log's. A slave of RocketMQ tries again each 5 s, and would be taken as soon as the log has
grown: its report would count as an acknowledgement, and its log would be a mixture of two. So those
who were ahead are remembered, by host: nobody may follow once the log has merely grown past them.
"""

import logging
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path

from keelog.replication.followers.connection import FollowerConnection, FollowerGone, Gone
from node.runtime import run_files
from node.runtime.event_log import Seldom, fields
from node.runtime.process import now_ms

log = logging.getLogger("keelog.followers")

MOMENTS_MAX = 3_600
"""Moments, a second apart at least, of which it is known how far the log was."""
_ORDERLY = (Gone.CLOSED, Gone.STOP)

HOSTS_MAX = 256
"""Hosts that are remembered. The one that was heard last the longest ago is forgotten first."""
ENDS_MAX = 8
"""Reports that were refused, of one host. Those refused first are kept."""
TORN_BYTES_MAX = 64 * 1024 * 1024
"""A restart takes a torn end, or what was not flushed, from the log of a slave: so its report may
be lower than the one that was refused, by this much."""


class ElectedRule:
    """Follows the file that the keeper writes. `own_id`: that of this node."""

    def __init__(self, root: Path, own_id: int) -> None:
        self._root = root
        self._own_id = own_id
        self._state: run_files.SyncState | None = None

    @property
    def number(self) -> int:
        """Of the state that is followed; -1 before there is one."""
        return -1 if self._state is None else self._state.number

    def look(self) -> None:
        """Takes in what the keeper says now."""
        self._state = run_files.read_sync_state(self._root)

    def acknowledged(self, connections: Iterable[FollowerConnection], needed: int) -> int:
        """The end of the log that all who must have it have, and `needed` followers at least. 0
        while nobody has said who must have it."""
        ends: dict[int, int] = {}
        for one in connections:
            if one.acknowledged is not None and one.broker_id:
                ends[one.broker_id] = max(ends.get(one.broker_id, 0), one.acknowledged)
        ends.pop(self._own_id, None)
        if self._state is None or len(ends) < needed:
            return 0
        enough = sorted(ends.values(), reverse=True)[needed - 1]
        must = self._state.required - {self._own_id}
        return min([enough, *(ends.get(one, 0) for one in must)])


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
        self._ended: deque[tuple[str, Gone, run_files.FollowerEnd]] = deque(
            maxlen=run_files.ENDED_SHOWN_MAX
        )
        """With the host, the latest first."""
        self._served: set[str] = set()
        """The addresses of those that could follow."""
        self._said = Seldom()
        """One that cannot go on tries again each 5 s."""
        self._counted: dict[str, tuple[float, int]] = {}
        """By address: when it was looked at, and what it had been sent then."""

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
        end = run_files.FollowerEnd(connection.address, since_ms, acknowledged, gone.reason)
        self._ended.appendleft((*key, end))
        if not self._said.is_due(key, now):
            return
        why = {"acknowledged": acknowledged, "kind": gone.kind, "why": gone.reason}
        level = logging.INFO if gone.kind in _ORDERLY else logging.WARNING
        details = fields(follower=connection.address, **why)
        log.log(level, "a follower's connection ended", extra=details)

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
        self, connections: Iterable[FollowerConnection], end: int, now: float
    ) -> run_files.FollowersState:
        """All of it, for the file. `end`: where the log ends."""
        all_of_them = list(connections)
        self._look_who_is_back(all_of_them)
        return run_files.FollowersState(
            self._needed,
            self.acknowledged(all_of_them),
            tuple(self._row(one, end, now) for one in all_of_them),
            tuple(end for _, _, end in self._ended),
            -1 if self._rule is None else self._rule.number,
        )

    def _row(self, one: FollowerConnection, end: int, now: float) -> run_files.FollowerRow:
        acknowledged = one.acknowledged or 0
        lag = max(0, end - acknowledged)
        before, sent = self._counted.get(one.address, (now - 1.0, one.sent))
        self._counted[one.address] = now, one.sent
        lag_s = round(self.lag_s(acknowledged, end, now), 3)
        in_sync = one.acknowledged is not None and lag < self._gap_max
        speed = int((one.sent - sent) / max(now - before, 0.001))
        numbers = one.sent, acknowledged, lag, lag_s, in_sync, speed, one.broker_id
        return run_files.FollowerRow(one.address, one.since_ms, *numbers)


class _Host:
    """`refused`: by report, the end of this node's log when it was refused first. `sent`: the end
    of what any follower of this host was sent."""

    def __init__(self) -> None:
        self.refused: dict[int, int] = {}
        self.sent = 0


class AheadBefore:
    """For the default replication: where a controller elects the master, followers name epochs."""

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, _Host] = OrderedDict()

    def note(self, host: str, report: int, end: int) -> None:
        """A first report was beyond the `end` of this node's log."""
        refused = self._of(host).refused
        if report in refused or len(refused) < ENDS_MAX:
            refused[report] = min(end, refused.get(report, end))

    def check(self, host: str, report: int, sent: int) -> None:
        """Raises FollowerGone for a first report that may be of a follower that was refused.
        `sent`: the most that was sent on a connection of this host that is open."""
        known = self._hosts.get(host)
        if known is None or not known.refused:
            return
        self._hosts.move_to_end(host)
        sent = max(sent, known.sent)
        for refused, end in known.refused.items():
            is_it = report == refused
            # One that was sent so much from here is another one, or has begun anew.
            may_be_it = max(end, refused - TORN_BYTES_MAX, sent) < report < refused
            if is_it or may_be_it:
                raise FollowerGone(
                    Gone.DIVERGED,
                    f"its log ends at {report}; a log of its host ended at {refused} when this"
                    f" node's ended at {end}: they are not the same log. Rewind it to {end} or"
                    " less, or empty its folder",
                )

    def served(self, host: str, sent: int) -> None:
        """A connection that could follow has ended: it was sent the log up to there."""
        known = self._of(host)
        known.sent = max(known.sent, sent)

    def cut(self, offset: int) -> None:
        """This node's log was cut there: nobody was sent what it has above."""
        for known in self._hosts.values():
            known.sent = min(known.sent, offset)

    def _of(self, host: str) -> _Host:
        known = self._hosts.setdefault(host, _Host())
        self._hosts.move_to_end(host)
        if len(self._hosts) > HOSTS_MAX:
            self._hosts.popitem(last=False)
        return known
