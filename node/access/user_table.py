"""The table of users that a process holds, and how it follows the file.

A process looks at the file several times a second, and swaps whole tables: who holds one sees no
half change. A file that cannot be used, or is gone, changes nothing: the old table stays, and the
log says so once. A node that has users never becomes one without because a file is lost.
"""

import logging
from pathlib import Path

from node.access.users_file import read_users, stamp_of, users_path, write_users
from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.shortage import refusal_for
from protocol.access.changes import Change, changed
from protocol.access.users import AccessTable
from protocol.errors import MqError, NotAllowed, StoreError, StoreMoved

log = logging.getLogger("keelog.access")

LOOK_EVERY_S = 0.25
"""A right that is taken away counts nowhere a second later: an idle process sleeps for half of
one."""


class UserTable:
    """Of one process. `look` is called in its loop."""

    def __init__(self, root: Path) -> None:
        """Reads the file. Raises as `read_users`: a node does not start with a broken one."""
        self._root = root
        self.table, self._stamp = read_users(root)
        self._looked_at = float("-inf")
        self.revision = 0
        """How often the table was swapped: what was decided by an earlier one is to be decided
        again."""
        self.problem = ""
        """Why the file cannot be used now; empty while it can."""

    def look(self, now: float) -> bool:
        """Takes over a file that has changed; `now` is of the monotonic clock. True if it did.
        Raises StoreMoved."""
        if now - self._looked_at < LOOK_EVERY_S:
            return False
        self._looked_at = now
        try:
            return self._take_over()
        except StoreMoved:
            raise
        except (MqError, OSError) as error:
            self._keep(str(error))
            return False

    def user_of_key(self, key: str) -> str | None:
        """The name of the user who has this public key (Z85) and is enabled, as of the last
        look."""
        user = self.table.by_public_key.get(key)
        return user.name if user is not None and user.is_enabled else None

    def current(self) -> AccessTable:
        """The table as the file has it now; the old one while the file cannot be used. Raises
        StoreMoved."""
        self._looked_at = float("-inf")
        self.look(0.0)
        return self.table

    def _take_over(self) -> bool:
        """As `look`. Raises as `read_users`."""
        stamp = stamp_of(self._root)
        if stamp == self._stamp and not self.problem:
            return False
        if stamp is None:
            self._keep(f"{users_path(self._root)} is gone")
            return False
        table, self._stamp = read_users(self._root)
        self._mended()
        return self._swap(table)

    def _swap(self, table: AccessTable) -> bool:
        if table == self.table:
            return False
        self.table = table
        self.revision += 1
        return True

    def _keep(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            log.warning("the users stay as they were", extra=fields(why=problem))

    def _mended(self) -> None:
        if self.problem:
            self.problem = ""
            log.info("the file of users can be used again")


class OwnedUserTable(UserTable):
    """Of the process that owns the store: it alone changes the table, and writes the file."""

    def change(self, wanted: Change, by: str | None, now_ms: int) -> AccessTable:
        """Applies a change and saves it; returns the table after it.

        `by` is the user who asks; None for the operator of the node, who may do all. Raises as
        `changed`, ServiceNotAvailable for a disk without room, StoreError for a file that cannot be
        used now, other OSErrors; nothing is changed then.
        """
        self._take_over()
        if self.problem:
            raise StoreError(self.problem, "mend the file first: nothing of it is overwritten")
        after = changed(self.table, wanted, self._is_super(by), now_ms)
        if after is self.table:
            return after
        try:
            write_users(self._root, after)
        except OSError as error:
            if error.errno not in disk.PASSING:
                raise
            raise refusal_for(error, str(users_path(self._root))) from None
        self._stamp = stamp_of(self._root)
        self._swap(after)
        return after

    def _is_super(self, by: str | None) -> bool:
        if by is None:
            return True
        user = self.table.users.get(by)
        if user is None or not user.is_enabled:
            raise NotAllowed(f"user {by[:80]!a} is not there, or disabled")
        return user.is_super


def replace_user_table(root: Path, wanted: list[Change], now_ms: int) -> AccessTable:
    """Applies changes to a store at rest, whose lock the caller holds, with one write: all of them
    or none. Raises as `OwnedUserTable.change`."""
    table, stamp = read_users(root)
    after = table
    for one in wanted:
        after = changed(after, one, True, now_ms)
    if after is not table or stamp is None:
        write_users(root, after)
    return after
