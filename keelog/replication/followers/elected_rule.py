"""Who must have a message before it is acknowledged, where a controller elects the master.

A controller elects one of its sync-state set. So all of that set must have a message, and all that
the set may have become by a change that was asked for: then whoever is elected has it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from node.runtime.run_files import SyncState, read_sync_state


class Acknowledging(Protocol):
    """A connection, as far as it matters here."""

    @property
    def broker_id(self) -> int:
        """Who follows."""

    acknowledged: int | None


class ElectedRule:
    """Follows the file that the keeper writes. `own_id`: that of this node."""

    def __init__(self, root: Path, own_id: int) -> None:
        self._root = root
        self._own_id = own_id
        self._state: SyncState | None = None

    @property
    def number(self) -> int:
        """Of the state that is followed; -1 before there is one."""
        return -1 if self._state is None else self._state.number

    def look(self) -> None:
        """Takes in what the keeper says now."""
        self._state = read_sync_state(self._root)

    def acknowledged(self, connections: Iterable[Acknowledging], needed: int) -> int:
        """The end of the log that all who must have it have, and `needed` followers at least.

        0 while nobody has said who must have it.
        """
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
