"""Who sees the pages at `--http`, beside the bare verdicts: users and programs that are known.

A user comes with name and password (Basic), and needs what the operation `status` needs; a program
comes with the token of `http_token_file` (Bearer). A password over a plain connection from another
host is refused before it is looked at: who reads along has it then.
"""

import base64
import hmac
import secrets
import time
from collections.abc import Callable
from enum import Enum, auto
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import NamedTuple

from node.access.audit import DONE, REFUSED, AuditEvent, AuditLog
from node.access.login_failures import AnswerPace, FailureCounts
from node.access.tls_settings import TlsRefused
from node.access.token_file import read_token
from node.access.user_table import UserTable
from node.runtime.process import now_ms
from node.runtime.settings import AUTO, ON, Settings
from protocol.access.decision import plain_address
from protocol.access.needs import Super
from protocol.access.own_needs import own_needs
from protocol.access.users import AccessTable
from protocol.errors import BadRequest

END = "http"
"""The name of this end of the node in the audit log."""
HTTP_AUDIT_FILE = "audit.http.log"
LATE_MAX = 4
"""Refusals that wait to be sent, each with a connection: instead of a further one its connection
ends. A quarter of all, so that probes get through."""
NOTED_MAX = 1_000
"""Users at addresses whose login is in the audit log; then all are forgotten."""
BEARER, BOTH = "Bearer", 'Basic realm="keelog", Bearer'
"""How to log in, as a browser reads it: it asks for a password where it sees `Basic`."""
_NOBODYS_PASSWORD = secrets.token_hex(16)
"""In place of that of a user that there is not: the answer takes as long."""


class PageRequest(NamedTuple):
    """Who asks for a page."""

    authorization: str
    """The header of that name; empty without one."""
    address: str
    is_encrypted: bool
    path: str
    is_open: bool = False
    """Whether it has an answer for those, too, who do not say who they are."""

    @property
    def is_private(self) -> bool:
        """Whether nobody between reads a password along."""
        return self.is_encrypted or ip_address(self.address).is_loopback


class Login(Enum):
    """Whether somebody is known. STRANGER: came without credentials."""

    KNOWN = auto()
    STRANGER = auto()


class PageRefusal(NamedTuple):
    """The answer to somebody whose credentials do not count."""

    status: HTTPStatus
    text: str


class ConnectionOver(OSError):
    """It failed so often that it gets no answer any more."""


NOT_KNOWN = PageRefusal(
    HTTPStatus.UNAUTHORIZED, "log in as a user of the node, or with the token of http_token_file\n"
)
_PLAIN = PageRefusal(
    HTTPStatus.FORBIDDEN,
    "a password does not go over plain HTTP, where others read along: use https, or the token of"
    " http_token_file\n",
)
_NO_RIGHT = PageRefusal(HTTPStatus.FORBIDDEN, "this user may not look: it takes Cluster get\n")


class HttpLogin:
    """One for each HTTP end; its threads call it."""

    def __init__(
        self,
        root: Path,
        settings: Settings,
        login: str,
        cluster: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`login`: `authentication_enabled` as it is for this end. `cluster`: the name of the
        node's own. Raises as `read_users`."""
        self._token_file = settings.http_token_file
        self._table = UserTable(root)
        self._login = login
        self._authorizes = settings.authorization_enabled in (AUTO, ON)
        self._needs = own_needs("status", {}, cluster)
        self._audit = AuditLog(root, HTTP_AUDIT_FILE)
        self._failures = FailureCounts(settings)
        self._late = BoundedSemaphore(LATE_MAX)
        self._noted: set[tuple[str, str]] = set()
        self._sleep = sleep
        self._lock = Lock()

    def look(self, asked: PageRequest) -> Login | PageRefusal:
        """Who it is. A failure is counted, and its answer may come late. Raises ConnectionOver,
        StoreMoved, and OSError for an audit log that cannot be written."""
        now = time.monotonic()
        with self._lock:
            self._table.look(now)
            table = self._table.table
            if self._login != ON and not (self._login == AUTO and table.users):
                return Login.KNOWN
            if not asked.authorization and asked.is_open:
                return Login.STRANGER
            name, found = self._judged(table, asked)
            self._note(name, asked, found)
            # A browser asks once without a password: that is not a failure.
            if found is not NOT_KNOWN or not asked.authorization:
                return found
            pace = self._failures.pace(ip_address(asked.address).packed, now)
        self._wait(pace)
        return found

    def _judged(self, table: AccessTable, asked: PageRequest) -> tuple[str, Login | PageRefusal]:
        """The name that was given, if any, and what follows from it."""
        scheme, _, given = asked.authorization.partition(" ")
        given = given.strip()
        if scheme.lower() == "bearer":
            return "", Login.KNOWN if self._is_token(given) else NOT_KNOWN
        if scheme.lower() != "basic":
            return "", NOT_KNOWN
        if not asked.is_private:
            return "", _PLAIN
        try:
            name, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except ValueError:
            return "", NOT_KNOWN
        user = table.users.get(name)
        secret = (user and user.secret) or _NOBODYS_PASSWORD
        is_right = hmac.compare_digest(secret.encode(), password.encode())
        if user is None or not user.secret or not is_right or not user.is_enabled:
            return name, NOT_KNOWN
        return name, Login.KNOWN if self._may_look(table, name, asked.address) else _NO_RIGHT

    def _may_look(self, table: AccessTable, name: str, address: str) -> bool:
        if table.users[name].is_super or not self._authorizes:
            return True
        for need in self._needs:
            entry = None if isinstance(need, Super) else table.deciding(name, need, address)
            if entry is None or not entry.allow:
                return False
        return True

    def _is_token(self, given: str) -> bool:
        """False, too, while the file cannot be used: who takes it away ends the token."""
        if not self._token_file:
            return False
        try:
            token = read_token(self._token_file)
        except (TlsRefused, BadRequest):
            return False
        return hmac.compare_digest(token.encode(), given.encode())

    def _note(self, name: str, asked: PageRequest, found: Login | PageRefusal) -> None:
        if isinstance(found, PageRefusal):
            reason = found.text.strip()
            event = AuditEvent(END, name, asked.address, "get", asked.path, REFUSED, reason)
        elif (name, asked.address) not in self._noted:
            if len(self._noted) >= NOTED_MAX:
                self._noted.clear()
            self._noted.add((name, asked.address))
            event = AuditEvent(END, name or "token", asked.address, "login", "", DONE)
        else:
            return
        self._audit.write(event, now_ms())

    def _wait(self, pace: AnswerPace) -> None:
        """Raises ConnectionOver."""
        if pace is AnswerPace.AT_ONCE:
            return
        if pace is AnswerPace.NEVER or not self._late.acquire(blocking=False):
            raise ConnectionOver("too many logins failed")
        try:
            self._sleep(self._failures.delay_s)
        finally:
            self._late.release()

    def close(self) -> None:
        """Closes the audit log."""
        with self._lock:
            self._audit.close()


def peer_address(address: str) -> str:
    """That of a connection as access lists name it."""
    return plain_address(address.partition("%")[0])
