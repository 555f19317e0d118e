"""Who was ahead of this node's log, by host: nobody may follow once the log has merely grown past
them.

A follower that got the lost end of another master is ahead of this one at first. Its bytes are not
this log's. A slave of RocketMQ tries again each 5 s, and would be taken as soon as the log has
grown: its report would count as an acknowledgement, and its log would be a mixture of two.
"""

from collections import OrderedDict

from keelog.replication.followers.connection import FollowerGone, Gone

HOSTS_MAX = 256
"""Hosts that are remembered. The one that was heard last the longest ago is forgotten first."""
ENDS_MAX = 8
"""Reports that were refused, of one host. Those refused first are kept."""
TORN_BYTES_MAX = 64 * 1024 * 1024
"""A restart takes a torn end, or what was not flushed, from the log of a slave: so its report may
be lower than the one that was refused, by this much."""


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

        `sent`: the most that was sent on a connection of this host that is open.
        """
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
