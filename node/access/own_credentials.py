"""Whom this node says it is where it asks others by RocketMQ's protocol: a master, name servers,
controllers. And the users that it makes at its start.

Both are in files, which nobody else may read: a setting has only their names, so that no list of
settings, no command line and no variable shows a secret.
"""

import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from node.access.audit import DONE, AuditEvent, AuditLog
from node.access.tls_settings import client_tls
from node.access.user_table import replace_user_table
from node.access.users_file import read_users
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.store_paths import held_open
from protocol.access.changes import CREATE_USER, Change
from protocol.access.credentials import (
    FIRST_USER_FORM,
    INNER_FORM,
    Credentials,
    CredentialsForm,
)
from protocol.access.users import UserType
from protocol.errors import BadRequest, NotAllowed, RefusedError
from protocol.remoting.auth_bodies import UserInfo
from protocol.remoting.java_json import write_body

if TYPE_CHECKING:
    from node.access.tls import ClientTls

log = logging.getLogger("keelog.access")

FILE_BYTES_MAX = 4_096
INNER, FIRST_USER = "inner_client_authentication_credentials_file", "init_authentication_user_file"
NOT_KNOWN_THERE = f"{INNER} has to name a Super user of that node (docs/security.md)"
"""The hint where another node does not let this one log in."""
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_OTHERS = 0o077
_OTHERS_OF_ROOT = 0o037
"""A file of root may be read by a group that root has given it to, as with keys of TLS."""


class CredentialsRefused(RefusedError):
    """A file of credentials is missing, is open to others, or holds none."""


_Stamp = tuple[int, ...] | None


class OwnCredentials:
    """Those with which this node signs its requests, as the file has them now. For any thread."""

    def __init__(self, path: str) -> None:
        """Raises CredentialsRefused."""
        self._path = path
        self._held = _stamp(path), read_credentials(path, INNER, INNER_FORM)
        self._trouble = ""

    def now(self) -> Credentials:
        """A file that has changed counts for the next connection. While it cannot be used the old
        credentials stay, and the log says so once."""
        stamp = _stamp(self._path)
        if stamp != self._held[0]:
            try:
                self._held = stamp, read_credentials(self._path, INNER, INNER_FORM)
                self._trouble = ""
            except CredentialsRefused as error:
                if error.reason != self._trouble:
                    self._trouble = error.reason
                    extra = fields(why=error.reason, hint=error.hint)
                    log.warning("new credentials of the node are not used", extra=extra)
        return self._held[1]


class OwnLogin(NamedTuple):
    """How this node comes to others."""

    tls: "ClientTls | None"
    credentials: OwnCredentials | None

    @classmethod
    def of(cls, settings: Settings) -> "OwnLogin":
        """Raises TlsRefused, CredentialsRefused, BadRequest."""
        path = settings.inner_client_authentication_credentials_file
        return cls(client_tls(settings), OwnCredentials(path) if path else None)


class FirstUsers(NamedTuple):
    """Super users from the start on. A user that is there stays as it is
    (AuthenticationMetadataManagerImpl#initUser)."""

    inner: Credentials | None
    """Its own user: a replica of this node, or this node as a replica, logs in with it."""
    first: Credentials | None
    """Of whoever administers the node."""

    @classmethod
    def of(cls, settings: Settings) -> "FirstUsers":
        """Reads the files. Raises BadRequest, so that a node does not start with another one."""
        try:
            inner = _read(settings.inner_client_authentication_credentials_file, INNER, INNER_FORM)
            first = _read(settings.init_authentication_user_file, FIRST_USER, FIRST_USER_FORM)
        except CredentialsRefused as error:
            raise BadRequest(error.reason, error.hint) from None
        if inner and first and inner.access_key == first.access_key and inner != first:
            raise BadRequest(
                f"{INNER} and {FIRST_USER} give the user {inner.access_key} two secrets",
                "name two users, or write one secret in both",
            )
        return cls(inner, first)

    def make(self, root: Path, settings: Settings, now_ms: int) -> None:
        """Makes those that are not there, in a store whose lock is held and whose processes do not
        run yet. Users that are there stay as they are. Raises as `replace_user_table`.

        Where a master says who is a user, they are made only while there is nobody at all: one whom
        the master has removed does not come back with a start.
        """
        table, _ = read_users(root)
        if settings.follow and settings.auth_follow_master and table.users:
            return
        wanted = {one.access_key: one for one in self if one is not None}
        changes = [_creation(one) for name, one in wanted.items() if name not in table.users]
        if not changes:
            return
        replace_user_table(root, changes, now_ms)
        audit = AuditLog(root)
        for one in changes:
            audit.write(AuditEvent("start", "", "", one.what, one.name, DONE), now_ms)
            log.info("a Super user was made", extra=fields(user=one.name))
        audit.close()


def _creation(wanted: Credentials) -> Change:
    info = UserInfo(wanted.access_key, wanted.secret, UserType.SUPER)
    return Change(CREATE_USER, wanted.access_key, write_body(info, standard=True))


def read_credentials(path: str, setting: str, form: CredentialsForm) -> Credentials:
    """The credentials of a file. Raises CredentialsRefused, which names setting and file."""
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
        with held_open(descriptor):
            found = os.fstat(descriptor)
            _check_private(path, setting, found)
            data = os.read(descriptor, FILE_BYTES_MAX + 1)
    except OSError as error:
        hint = f"it has this text, and mode 0600: {form.example}"
        raise CredentialsRefused(f"{setting}: {path}: {error.strerror}", hint) from None
    if len(data) > FILE_BYTES_MAX:
        raise CredentialsRefused(f"{setting}: {path} has more than {FILE_BYTES_MAX} bytes")
    try:
        return form.parse(data)
    except (BadRequest, NotAllowed) as error:
        hint = error.hint if isinstance(error, BadRequest) else f"write {form.example}"
        raise CredentialsRefused(f"{setting}: {path}: {error.reason}", hint) from None


def _read(path: str, setting: str, form: CredentialsForm) -> Credentials | None:
    return read_credentials(path, setting, form) if path else None


def _check_private(path: str, setting: str, found: os.stat_result) -> None:
    """Raises CredentialsRefused for a folder and its like, and for a file that others may use."""
    if not stat.S_ISREG(found.st_mode):
        raise CredentialsRefused(f"{setting}: {path} is not a file")
    if found.st_uid not in (0, os.geteuid()):
        raise CredentialsRefused(
            f"{setting}: {path} belongs to the user {found.st_uid}, who may change it",
            "give it to the user of the node: chown",
        )
    if found.st_mode & (_OTHERS if found.st_uid else _OTHERS_OF_ROOT):
        raise CredentialsRefused(
            f"{setting}: {path} may be read or changed by others: its mode is"
            f" {stat.S_IMODE(found.st_mode):04o}",
            f"chmod 600 {path}  and, if others could read it, change the secret",
        )


def _stamp(path: str) -> _Stamp:
    """Of what a name leads to; None where it leads to nothing. A change of a mode shows, too."""
    try:
        found = os.stat(path)  # noqa: PTH116  (one call for each connection)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
