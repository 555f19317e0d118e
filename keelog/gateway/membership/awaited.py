"""Members of groups that were there before the gateway started, and are awaited.

Clients divide the queues of a group among those whom 38 names. After a restart they come back one
by one, and the first would take all queues, also those that others still consume. So 38 names the
awaited ones too, until they are back, or their time is over.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from protocol.remoting.codes import Language

REJOIN_S = 10.0
"""For a client that beats as soon as it is connected again: a Java client pulls again after 3 s."""
BEAT_S = 35.0
"""For every other one: it beats each 30 s, whether its connection is new or not."""
REJOINS_SINCE = 473
"""Java's clients of 5.3.0 and later beat on a new connection (MQClientInstance)."""
AWAITED_MAX = 100_000
"""Of all groups; of further ones nobody knows."""


class AwaitedMembers:
    """Client ids by group, each with the moment until which it is awaited. Times are seconds of the
    caller's monotonic clock."""

    def __init__(self, before: Mapping[str, Any] | None = None, now: float = 0.0) -> None:
        """`before`: the file of the members as the last gateway left it; what it should not hold
        is passed over."""
        self._now = now
        self._groups: dict[str, dict[str, float]] = {}
        for group, client_id, wait_s in islice(_members(before or {}), AWAITED_MAX):
            self._groups.setdefault(group, {})[client_id] = now + wait_s

    def __bool__(self) -> bool:
        return bool(self._groups)

    def of(self, group: str) -> Iterable[str]:
        """Those of one group."""
        return self._groups.get(group, {})

    def left(self, group: str) -> dict[str, float]:
        """For how many seconds each of a group is awaited still, as of the last look."""
        awaited = self._groups.get(group, {})
        return {one: round(max(0.0, until - self._now), 1) for one, until in awaited.items()}

    def forget(self, group: str, client_id: str) -> bool:
        """A member is back, or has left for good; whether it was awaited."""
        awaited = self._groups.get(group, {})
        if awaited.pop(client_id, None) is None:
            return False
        if not awaited:
            del self._groups[group]
        return True

    def drop_due(self, now: float) -> list[str]:
        """Awaits those no longer whose time is over; returns their groups."""
        self._now = now
        changed = []
        for group, awaited in list(self._groups.items()):
            due = [client_id for client_id, until in awaited.items() if until <= now]
            for client_id in due:
                self.forget(group, client_id)
            changed += [group] if due else []
        return changed

    def groups(self) -> Iterable[str]:
        """Groups with awaited members."""
        return self._groups


def _members(before: Mapping[str, Any]) -> Iterable[tuple[str, str, float]]:
    """Group, client id and seconds to wait of those who were there, and of those awaited then."""
    for group, entry in before.items():
        if not isinstance(entry, dict):
            continue
        awaited, members = entry.get("awaited"), entry.get("members")
        for client_id, left_s in awaited.items() if isinstance(awaited, dict) else ():
            # No longer than the first wait allowed, however often the gateway starts.
            if isinstance(left_s, int | float) and left_s > 0:
                yield group, client_id, min(float(left_s), BEAT_S)
        for member in members if isinstance(members, list) else ():
            if isinstance(member, dict) and isinstance(member.get("client_id"), str):
                yield group, member["client_id"], _wait_s(member)


def _wait_s(member: Mapping[str, Any]) -> float:
    language, version = member.get("language"), member.get("version")
    number = version if isinstance(version, int) else 0
    is_java = language == Language.JAVA.name
    rejoins = language == Language.PYTHON.name or (is_java and number >= REJOINS_SINCE)
    return REJOIN_S if rejoins else BEAT_S
