"""Who asks, and may they: what is looked at before the handler of a request.

A request names its user, and is signed with the secret of that user. Of a normal user the access
list then decides about everything that the request needs. Some needs only its handler finds out, of
the record that it names: it asks `check_found` before anything is answered, sent or stored.

The order is RocketMQ's: who, then what (AuthenticationPipeline, AuthorizationPipeline), and so are
the texts, with one difference. A stranger hears the same of a user that there is not as of a wrong
signature, and of a user who is disabled only with the right one.
"""

import ipaddress
import secrets
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic

from keelog.gateway.connection import RemotingConnection, Request
from keelog.gateway.login_failures import LoginFailures
from node.access.audit import DONE, REFUSED, AuditEvent, AuditLog
from node.access.rights import RESOURCE_CHARS_MAX, Rights
from node.access.user_table import UserTable
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from protocol.access.decision import Kind
from protocol.access.needs import Needs, topic_that_counts
from protocol.access.remoting_needs import record_needs, remoting_needs, unknown_fields
from protocol.access.signature import access_key, is_signed
from protocol.access.users import User
from protocol.errors import NotAllowed
from protocol.record.codec import Record
from protocol.remoting.codes import RequestCode

END = "remoting"
"""The name of this end of the node in the audit log."""
TRUST_S = 60.0
"""How long a good signature counts for later requests of its user on the same encrypted connection
(statefulAuthenticationCacheExpiredSecond). Nobody can put requests into TLS; on a plain connection
each request is looked at."""
NO_LOGIN = "Authentication failed. Please verify the credentials and try again."
NOT_PROVED = "check signature failed."
OF_USERS = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)
"""Codes about users: the rights to them count even where no others do."""
_NOBODYS_SECRET = secrets.token_hex(16)
"""In place of that of a user that there is not: the answer takes as long."""


class LoginRefused(NotAllowed):
    """A request that does not prove who sent it."""


@dataclass(slots=True, eq=False)
class AskingUser:
    """Who sent a request: the user, as that was then, and from where."""

    guard: "Guard"
    user: User
    address: str
    code: int
    needs: Needs | None = None
    """What the request needed, as far as it said so by itself; None where that was not looked at:
    of a Super user, or with rights that do not count."""

    def check(self, needs: Needs) -> None:
        """Raises NotAllowed for what the user may not do now."""
        why = self._why_not(needs)
        if why is not None:
            raise self.guard.refused(self.user.name, self.address, self.code, *why)

    def may(self, needs: Needs) -> bool:
        """As `check`, for what nobody has asked for."""
        return self._why_not(needs) is None

    def refused(self, resource: str, why: str) -> NotAllowed:
        """A refusal for a reason of its handler; it is in the audit log."""
        return self.guard.refused(self.user.name, self.address, self.code, resource, why)

    def _why_not(self, needs: Needs) -> tuple[str, str] | None:
        if not self.guard.authorizes and self.code not in OF_USERS:
            needs = ()
        return self.guard.why_not(self.user.name, needs, self.address)

    def sees(self, topic: str) -> bool:
        """Whether a list that is cut to what the user has rights to names a topic."""
        return self.guard.sees(self.user.name, Kind.TOPIC, topic, self.address)

    def refusal(self) -> NotAllowed | None:
        """Why the request, which was let in, would not be now. None: it would be."""
        user = self.guard.user(self.user.name)
        if user is None or user.secret != self.user.secret:
            return LoginRefused(NOT_PROVED)
        if self.needs is None and self.guard.authorizes and not user.is_super:
            return NotAllowed(f"User:{user.name} is no Super user any more.")
        why = self._why_not(self.needs or ())
        return None if why is None else NotAllowed(why[1])


class Guard(Rights):
    """One for each gateway, in the thread of its loop, for all its ports."""

    def __init__(
        self,
        table: UserTable,
        settings: Settings,
        cluster: str,
        audit: AuditLog,
        not_served: Set[int] = frozenset(),
    ) -> None:
        """`cluster`: the name of the node's own. `not_served`: codes that are answered with 3,
        whoever asks."""
        super().__init__(table, settings)
        self._cluster = cluster
        self._audit = audit
        self._not_served = not_served
        self.failures = LoginFailures(settings)

    def close(self) -> None:
        """Closes the audit log."""
        self._audit.close()

    def admit(self, request: Request) -> None:
        """Finds out who sent a request, and whether that user may. Raises LoginRefused, NotAllowed,
        and OSError for an audit log that cannot be written."""
        code = request.header.code
        if code in self._not_served:
            return
        address = address_of(request.connection.peer.ip)
        user = self._proved(request, address)
        request.asker = asker = AskingUser(self, user, address, code)
        if unknown := unknown_fields(code, request.header.ext):
            names = ", ".join(unknown)[:RESOURCE_CHARS_MAX]
            why = f"nobody sends code {code} with the fields {names}."
            raise self.refused(user.name, address, code, "", why)
        if user.is_super or not (self.authorizes or code in OF_USERS):
            return
        try:
            asker.needs = needs = remoting_needs(request.header, request.body, self._cluster)
        except NotAllowed as error:
            raise self.refused(user.name, address, code, "", error.reason) from None
        asker.check(needs)

    def _proved(self, request: Request, address: str) -> User:
        """The user who signed a request. Raises LoginRefused."""
        connection, header = request.connection, request.header
        name = access_key(header.ext)
        if not name:
            raise self._stranger("", address, header.code, NO_LOGIN)
        user = self.user(name)
        if user is None or not user.secret:
            is_signed(_NOBODYS_SECRET, header.ext, request.body, header.version)
            raise self._stranger(name, address, header.code, NOT_PROVED)
        if not self._is_trusted(connection, name):
            if not is_signed(user.secret, header.ext, request.body, header.version):
                raise self._stranger(name, address, header.code, NOT_PROVED)
            if user.is_enabled:
                self._logged_in(connection, name, address)
        if not user.is_enabled:
            raise self._stranger(name, address, header.code, f"User:{name} is disabled.")
        return user

    def _is_trusted(self, connection: RemotingConnection, name: str) -> bool:
        """Whether a signature of the user on this connection was good a short time ago, and no user
        has changed since."""
        if not connection.is_encrypted:
            return False
        until, revision = connection.logins.get(name, (0.0, -1))
        return revision == self.table.revision and monotonic() < until

    def _logged_in(self, connection: RemotingConnection, name: str, address: str) -> None:
        until = monotonic() + TRUST_S if connection.is_encrypted else 0.0
        if name not in connection.logins:
            event = AuditEvent(END, name, address, "login", "", DONE)
            self._audit.write(event, now_ms())
            connection.logged_in()
        elif not until:
            return
        connection.logins[name] = until, self.table.revision

    def refused(self, name: str, address: str, code: int, resource: str, why: str) -> NotAllowed:
        """The refusal of a request, which is in the audit log now."""
        self._note(name, address, code, resource, why)
        return NotAllowed(why)

    def _stranger(self, name: str, address: str, code: int, why: str) -> LoginRefused:
        self._note(name, address, code, "", why)
        return LoginRefused(why)

    def _note(self, name: str, address: str, code: int, resource: str, why: str) -> None:
        event = AuditEvent(END, name, address, _operation(code), resource, REFUSED, why)
        self._audit.write(event, now_ms())


@lru_cache(maxsize=1024)
def address_of(ip: bytes) -> str:
    """An address as access lists name it. That of a connection is plain already."""
    return str(ipaddress.ip_address(ip))


def _operation(code: int) -> str:
    try:
        return RequestCode(code).name.lower()
    except ValueError:
        return str(code)


# What handlers ask. Without an asker everything is allowed: nobody has to say who asks.


def check_found(request: Request, record: Record) -> None:
    """Of a record that the handler of a request found. Raises NotAllowed."""
    if request.asker is not None:
        topic = topic_that_counts(record.topic, record.properties_raw)
        request.asker.check(record_needs(request.header.code, topic))


def check_topics(request: Request, topics: Iterable[str]) -> None:
    """Of topics that the request does not name, and its handler found. Raises NotAllowed."""
    if request.asker is not None:
        for topic in topics:
            request.asker.check(record_needs(request.header.code, topic))


def check_needs(request: Request, needs: Needs) -> None:
    """Of what only the handler knows. Raises NotAllowed."""
    if request.asker is not None:
        request.asker.check(needs)


def seen_topics(request: Request, topics: Iterable[str]) -> tuple[str, ...]:
    """The topics of a list that the asker may see: those to which there is any right."""
    asker = request.asker
    return tuple(topics) if asker is None else tuple(filter(asker.sees, topics))
