"""The viewers of the console, and what of the node each of them may see.

A node without users shows itself to everybody who reaches its console, or to those alone who have
shown its key. A node with users asks for a login, by name and password, and a page shows what the
access list of its user allows. A viewer who has shown the key is the operator of the node: whoever
can read it could change the store anyway.
"""

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from node.access.user_table import UserTable
from node.runtime.settings import AUTO, ON, Settings
from protocol.access.decision import Kind, Need
from protocol.access.needs import Needs, Super, sight_need, topic_that_counts
from protocol.access.own_needs import own_needs, own_record_needs
from protocol.access.users import EMPTY, AccessTable, User
from protocol.errors import NotAllowed
from protocol.names import RETRY_PREFIX
from protocol.record.codec import Record

_NOBODYS_PASSWORD = secrets.token_hex(16)
"""In place of that of a user that there is not: the answer takes as long."""


class Standing(Enum):
    """GUEST: nobody asks who it is. STRANGER: somebody asks, and it has not been said yet."""

    GUEST = auto()
    STRANGER = auto()
    USER = auto()
    OPERATOR = auto()


class Door:
    """Decides who may come to the console of one node. `look` is called now and then.

    `table` None: the console is not on the node's machine, and the node itself decides what its
    client may do.
    """

    def __init__(
        self, table: UserTable | None, settings: Settings, reads_by_key: bool, cluster: str
    ) -> None:
        self.cluster = cluster
        self.reads_by_key = reads_by_key
        self._table = table
        self._asked = settings.authentication_enabled
        self.authorizes = settings.authorization_enabled in (AUTO, ON)

    @property
    def table(self) -> AccessTable:
        """The users and lists that count now."""
        return EMPTY if self._table is None else self._table.table

    @property
    def has_users(self) -> bool:
        """Whether users have to log in."""
        return self._asked == ON or (self._asked == AUTO and bool(self.table.users))

    @property
    def is_closed(self) -> bool:
        """Whether somebody who has not said who it is sees nothing."""
        return self.has_users or self.reads_by_key

    def look(self, now: float) -> None:
        """Takes over a file of users that has changed. Raises StoreMoved."""
        if self._table is not None:
            self._table.look(now)

    def user_of(self, name: str, password: str) -> User | None:
        """The user who proves to be it; None for anybody else, and for one who is disabled."""
        user = self.table.users.get(name)
        own = user.secret if user is not None and user.secret else _NOBODYS_PASSWORD
        is_right = hmac.compare_digest(own.encode(), password.encode())
        if user is None or not user.secret or not is_right or not user.is_enabled:
            return None
        return user


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who asks for a page, from where, and in which session."""

    door: Door
    standing: Standing
    name: str
    """Of a user; for people of all others, too."""
    address: str
    session: str = ""
    """The id of the session; empty without one, and then nothing can be changed."""

    @property
    def may_act(self) -> bool:
        """Whether it may change anything at all; a user's list then says what."""
        return bool(self.session) and self.standing in (Standing.USER, Standing.OPERATOR)

    def may(self, needs: Needs) -> bool:
        """As `check`, for what nobody has asked for."""
        return self._refusal(needs) is None

    def check(self, needs: Needs) -> None:
        """Raises NotAllowed for what a user has no right to."""
        why = self._refusal(needs)
        if why is not None:
            raise NotAllowed(why, "ask who keeps the users: keelog acl show")

    def may_ask(self, operation: str, **header: str) -> bool:
        """Whether it may ask the node this, itself."""
        return self.may(own_needs(operation, header, self.door.cluster))

    def check_record(self, record: Record) -> None:
        """Of a message that was found. Raises NotAllowed."""
        topic = topic_that_counts(record.topic, record.properties_raw)
        self.check(own_record_needs("get", topic))

    def may_read(self, record: Record) -> bool:
        """As `check_record`, for messages of a list."""
        topic = topic_that_counts(record.topic, record.properties_raw)
        return self.may(own_record_needs("get", topic))

    def sees_topic(self, topic: str) -> bool:
        """Whether a list shows a topic to it: a retry topic counts as its group."""
        if topic.startswith(RETRY_PREFIX):
            return self.sees_group(topic.removeprefix(RETRY_PREFIX))
        return self.may((sight_need(Kind.TOPIC, topic),))

    def sees_group(self, group: str) -> bool:
        """Whether a list shows a group to it."""
        return self.may((sight_need(Kind.GROUP, group),))

    def seen_topics(self, topics: Iterable[str]) -> list[str]:
        """Those of a list that it sees."""
        return [one for one in topics if self.sees_topic(one)]

    def _refusal(self, needs: Needs) -> str | None:
        if self.standing is not Standing.USER:
            return None
        table = self.door.table
        user = table.users.get(self.name)
        if user is None or not user.is_enabled:
            return f"User:{self.name} is disabled."
        if user.is_super or not self.door.authorizes:
            return None
        return next((why for one in needs if (why := self._why_not(table, one))), None)

    def _why_not(self, table: AccessTable, need: Need | Super) -> str:
        if isinstance(need, Super):
            return "" if need.user == self.name else f"User:{self.name} is not a Super user."
        entry = table.deciding(self.name, need, self.address)
        if entry is not None and entry.allow:
            return ""
        return f"User:{self.name} has no permission to {need.kind}:{need.name or '*'}."
