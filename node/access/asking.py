"""The ports of Keelog's own protocol ask of each request: who sent it, and may that user?

Over local sockets come the node's own user and root alone: they may do everything, and what they
say of others is believed. A request over TCP is that of the user who has the key of its connection
(CURVE), and without keys nobody's. While nobody has to log in, everybody may do everything, with
one exception: users are looked at and changed by Super users, or over a local socket.

Some operations find out what they need of records that they bring, or that are found. Their
handlers ask of the topic of each by `PortAsker.check_topic`, before anything is answered or stored.
"""

from dataclasses import dataclass
from typing import Protocol

from node.access.audit import REFUSED, AuditEvent, AuditLog
from node.access.rights import Caller, Rights
from node.runtime.process import now_ms
from protocol.access.decision import Action, Kind
from protocol.access.needs import SUPER, Needs, need
from protocol.access.own_needs import SUPER_ALONE, own_needs, own_record_needs
from protocol.errors import NotAllowed, NotLoggedIn, StoreMoved
from protocol.names import DEFAULT_CLUSTER
from protocol.wire.frames import Header

END = "zeromq"
"""The name of these ports in the audit log."""
NO_KEY = "users have to log in at this node, and this client has no key"
KEY_HINT = (
    "as the node's own user on its machine, name the store's folder in the place of an address;"
    " elsewhere: keelog key new NAME, and have the key given to a user (docs/curve.md)"
)


class Sent(Protocol):
    """A request, as far as it says who sent it."""

    @property
    def is_own(self) -> bool:
        """Whether it came over a local socket."""

    @property
    def user(self) -> str:
        """Whose key its connection has; empty without keys."""

    @property
    def key(self) -> str:
        """That key."""

    @property
    def address(self) -> str:
        """Where the connection comes from; empty where that is not known any more."""


@dataclass(slots=True, eq=False)
class PortAsker:
    """The user of a request over TCP, where users have to log in."""

    port: "PortGuard"
    user: str
    key: str
    address: str
    operation: str
    needs: Needs | None = None
    """What the request needed, as far as it said so by itself; None where that was not looked at:
    of a Super user, or with rights that do not count."""

    def check(self, needs: Needs) -> None:
        """Raises NotAllowed for what the user may not do now."""
        why = self._why_not(needs)
        if why is not None:
            raise self.port.refused(self.user, self.address, self.operation, *why)

    def check_topic(self, topic: str) -> None:
        """As `check`, of the topic of a record (`topic_that_counts`)."""
        self.check(own_record_needs(self.operation, topic))

    def refused(self, resource: str, why: str, hint: str) -> NotAllowed:
        """A refusal for a reason of its handler; it is in the audit log."""
        return self.port.refused(self.user, self.address, self.operation, resource, why, hint)

    @property
    def is_free(self) -> bool:
        """Whether neither a list nor an owner counts for the user now."""
        user = self.port.rights.user(self.user)
        return not self.port.rights.authorizes or (user is not None and user.is_super)

    @property
    def sees_all(self) -> bool:
        """Whether lists are not cut for the user."""
        return self._why_not((need(Kind.CLUSTER, self.port.cluster, Action.GET),)) is None

    def sees(self, kind: Kind, name: str) -> bool:
        """Whether a list that is cut names a topic or group: there is some right to it."""
        return self.port.rights.sees(self.user, kind, name, self.address)

    def refusal(self) -> NotAllowed | None:
        """Why the request, which was let in, would not be now. None: it would be."""
        rights = self.port.rights
        if rights.table.user_of_key(self.key) != self.user:
            return NotLoggedIn("the key of this client is nobody's any more", KEY_HINT)
        user = rights.user(self.user)
        if self.needs is None and rights.authorizes and not (user and user.is_super):
            return NotAllowed(f"User:{self.user} is not a Super user any more.")
        why = self._why_not(self.needs or ())
        return None if why is None else NotAllowed(why[1], _hint(self.user, why[0]))

    def _why_not(self, needs: Needs) -> tuple[str, str] | None:
        rights = self.port.rights
        if not rights.authorizes and self.operation not in SUPER_ALONE:
            needs = ()
        return rights.why_not(self.user, needs, self.address)


class PortGuard:
    """One for each process, for the thread of its loop."""

    def __init__(self, rights: Rights, audit: AuditLog, cluster: str = DEFAULT_CLUSTER) -> None:
        self.rights = rights
        self.cluster = cluster
        """The name of the node's own; its owner may set it."""
        self.users = rights.table
        self.audit = audit
        self.is_on = rights.is_on
        """Whether requests over TCP must be of a user: `asker_of` need not be called while it is
        False."""
        self._revision = self.users.revision

    def look(self, now: float) -> bool:
        """Takes in that users have changed; `now` is of the monotonic clock. True if they have
        since the last call. Call it in each turn that serves requests, or several times a
        second."""
        try:
            self.users.look(now)
        except StoreMoved:
            return False  # its process finds that out by itself
        return self.take_in()

    def take_in(self) -> bool:
        """Of the table as it is: True if it is another one than at the last call."""
        if self.users.revision == self._revision:
            return False
        self._revision, self.is_on = self.users.revision, self.rights.is_on
        return True

    def asker_of(self, sent: Sent, operation: str, header: Header) -> PortAsker | None:
        """The user of a request, who may make it as far as it says itself what it needs. None for
        one that may do everything: the node's own, and all while nobody has to log in.

        Raises NotLoggedIn, NotAllowed, and OSError for an audit log that cannot be written.
        """
        if not self.is_on or sent.is_own:
            return None
        name, address = sent.user, sent.address
        if not name:
            self._note("", address, operation, "", NO_KEY)
            raise NotLoggedIn(NO_KEY, KEY_HINT)
        if not address:
            # Entries of lists may name addresses, and nobody would get the answer.
            raise self.refused(name, "", operation, "", "the connection is gone")
        asker = PortAsker(self, name, sent.key, address, operation)
        user = self.rights.user(name)
        if user is None or not (user.is_super or self._is_free(operation)):
            try:
                asker.needs = own_needs(operation, header, self.cluster)
            except NotAllowed as error:
                self._note(name, address, operation, "", f"{error.reason} {error.hint}")
                raise
        asker.check(asker.needs or ())
        return asker

    def _is_free(self, operation: str) -> bool:
        return not self.rights.authorizes and operation not in SUPER_ALONE

    def caller_of(self, sent: Sent, operation: str) -> Caller | None:
        """The user who asks for users, or for a change of them. None: one at a local socket, who
        says in whose name.

        Super users and local sockets alone may, also while nobody has to log in: then an address
        proves nothing, and the first user ends that everybody may do everything. Raises as
        `asker_of`.
        """
        if sent.is_own:
            return None
        if not sent.user:
            why = "users are looked at and changed by Super users, or over a local socket"
            self._note("", sent.address, operation, "", why)
            raise NotLoggedIn(why, KEY_HINT)
        PortAsker(self, sent.user, sent.key, sent.address, operation).check(SUPER)
        return Caller(sent.user, sent.address)

    def refused(
        self, user: str, address: str, operation: str, resource: str, why: str, hint: str = ""
    ) -> NotAllowed:
        """The refusal of a request, which is in the audit log now."""
        self._note(user, address, operation, resource, why)
        return NotAllowed(why, hint or _hint(user, resource))

    def _note(self, user: str, address: str, operation: str, resource: str, why: str) -> None:
        event = AuditEvent(END, user, address, operation, resource, REFUSED, why)
        self.audit.write(event, now_ms())

    def close(self) -> None:
        """Closes the audit log."""
        self.audit.close()


def _hint(user: str, resource: str) -> str:
    if not resource:
        return "see the user: keelog user show NAME"
    return f"keelog acl check {user} ACTION '{resource}'  says why; keelog acl allow adds an entry"
