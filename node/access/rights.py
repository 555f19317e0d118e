"""One decision for all ends of a node: who has to log in, and what a user may do.

The ends differ in how they know who asks: `keelog.gateway.guard` by signatures,
`node.access.asking` by keys. Here is the decision that they share, by the table of users.
"""

from typing import NamedTuple

from node.access.user_table import UserTable
from node.runtime.settings import AUTO, ON, Settings
from protocol.access.decision import Kind, Need
from protocol.access.needs import Needs, Super, sight_need
from protocol.access.users import User
from protocol.names import RETRY_PREFIX

RESOURCE_CHARS_MAX = 300
"""Of a name in a refusal."""
SIGHTS_MAX = 100_000
"""Users' sights of topics that are remembered; then all are forgotten."""


class Caller(NamedTuple):
    """A user who asks for users or for a change of them, and from where."""

    user: str
    address: str


class Rights:
    """Of one process, by the table that it holds; its owner looks at the file.

    `is_on`: whether requests must prove who sent them. `authorizes`: whether access lists count.
    """

    def __init__(self, table: UserTable, settings: Settings) -> None:
        self.table = table
        self._asked = settings.authentication_enabled
        self.authorizes = settings.authorization_enabled in (AUTO, ON)
        self._sights: dict[tuple[str, str, Kind, str], bool] = {}
        """By user, address, kind and name: whether the user sees it, as of a revision of the
        table. A list of all topics is asked for again and again, and each one would be decided
        each time."""
        self._sights_of = 0

    @property
    def is_on(self) -> bool:
        """Whether requests must say who sent them, and prove it."""
        return self._asked == ON or (self._asked == AUTO and bool(self.table.table.users))

    def user(self, name: str) -> User | None:
        """The user of this name, as of the last look."""
        return self.table.table.users.get(name)

    def why_not(self, name: str, needs: Needs, address: str) -> tuple[str, str] | None:
        """The resource of which a user lacks a right, and the text that says so; None where the
        user may do all of it."""
        table = self.table.table
        user = table.users.get(name)
        if user is None or not user.is_enabled:
            return "", f"User:{name} is disabled."
        if user.is_super:
            return None
        for need in needs:
            if isinstance(need, Super):
                if need.user == name:
                    continue
                return "", f"User:{name} has no permission from {address}, only Super users have."
            entry = table.deciding(name, need, address)
            if entry is None or not entry.allow:
                which = "no matched policies" if entry is None else "the decision is deny"
                resource = _shown(need)
                text = f"User:{name} has no permission to access {resource} from {address}"
                return resource, f"{text}, {which}."
        return None

    def sees(self, name: str, kind: Kind, resource: str, address: str) -> bool:
        """Whether a list that is cut to what a user has rights to names a topic or group. A retry
        topic counts as its group."""
        if kind is Kind.TOPIC and resource.startswith(RETRY_PREFIX):
            kind, resource = Kind.GROUP, resource.removeprefix(RETRY_PREFIX)
        if self._sights_of != self.table.revision or len(self._sights) >= SIGHTS_MAX:
            self._sights_of = self.table.revision
            self._sights.clear()
        key = name, address, kind, resource
        known = self._sights.get(key)
        if known is None:
            needs = (sight_need(kind, resource),) if self.authorizes else ()
            known = self._sights[key] = self.why_not(name, needs, address) is None
        return known


def _shown(need: Need) -> str:
    return f"{need.kind}:{need.name[:RESOURCE_CHARS_MAX] or '*'}"
