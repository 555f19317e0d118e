"""The users and lists of a master, as its replies to 3005 and 3010 have them, and the table of a
replica that has the same.

A user or list that a node would not take is left out with a word: a user who cannot log in has no
rights. An entry alone is never left out of a list, as without it the list could allow more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from protocol.access.credentials import Credentials
from protocol.access.users import (
    USERS_MAX,
    AccessList,
    AccessTable,
    User,
    UserStatus,
    UserType,
    check_name,
    check_public_keys,
    check_secret,
    read_list,
    word_of,
)
from protocol.errors import NotAllowed, RefusedError
from protocol.remoting.auth_bodies import UserInfo
from protocol.remoting.codes import BadCommand
from protocol.remoting.java_json import java_class, parse_java_json

NO_PASSWORDS = "its answer has no passwords"


@dataclass(frozen=True, slots=True)
class MasterUsers:
    """Users and lists of one moment."""

    users: Mapping[str, User]
    lists: Mapping[str, AccessList]
    says_keys: bool
    """Whether the master says which public keys its users have: one of RocketMQ has none."""
    left_out: tuple[str, ...] = ()
    """Whom or what this node does not take over, and why."""

    def over(self, table: AccessTable, now_ms: int) -> AccessTable:
        """The table of a replica after them; the same one where nothing changes. Where the master
        knows no keys, users keep those that they have here."""
        users = {name: self._after(table.users.get(name), one, now_ms) for name, one in
                 self.users.items()}  # fmt: skip
        if users == table.users and self.lists == table.lists:
            return table
        return AccessTable(MappingProxyType(users), self.lists, table.revision + 1)

    def _after(self, known: User | None, found: User, now_ms: int) -> User:
        if known is None:
            return replace(found, changed_ms=now_ms)
        keys = found.public_keys if self.says_keys else known.public_keys
        after = replace(found, public_keys=keys, changed_ms=known.changed_ms)
        return known if after == known else replace(after, changed_ms=now_ms)


def master_users(users: bytes, lists: bytes, own: Credentials) -> MasterUsers:
    """Reads both replies. Raises NotAllowed for one that is not as it should be, and for one in
    which the user with whom it was asked is not as it must be: only a Super user gets passwords,
    and who does not know this one's is not the master."""
    left_out: list[str] = []
    rows = _rows(users, "users")
    found, says_keys = dict[str, User](), False
    for row in rows:
        info = _info(row)
        says_keys = says_keys or info.public_keys is not None
        try:
            user = _user(info)
        except RefusedError as error:
            left_out.append(f"user {(info.username or '')[:80]!a}: {error.reason}")
        else:
            found[user.name] = user
    _check_own(found.get(own.access_key), own)
    taken = dict[str, AccessList]()
    for row in _rows(lists, "lists"):
        try:
            name, entries = read_list(row)
        except (KeyError, TypeError, AttributeError, RefusedError, BadCommand) as error:
            why = error.reason if isinstance(error, RefusedError) else "it makes no sense"
            left_out.append(f"list of {_subject(row)[:80]!a}: {why}")
        else:
            if name in found and entries != AccessList():
                taken[name] = entries
    return MasterUsers(MappingProxyType(found), MappingProxyType(taken), says_keys, tuple(left_out))


def _rows(data: bytes, what: str) -> list[Any]:
    try:
        rows = parse_java_json(data.decode()) if data else []
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        raise NotAllowed(f"its answer holds no {what}")
    if len(rows) > USERS_MAX:
        raise NotAllowed(f"it has {len(rows)} {what}, {USERS_MAX} are allowed here")
    return rows


def _info(row: Any) -> UserInfo:
    try:
        return java_class(UserInfo).read(row)
    except (KeyError, TypeError, AttributeError, RefusedError) as error:
        raise NotAllowed(
            f"its answer has a user who makes no sense ({type(error).__name__})"
        ) from None


def _user(info: UserInfo) -> User:
    """Raises RefusedError for one that this node would not make."""
    name, secret = info.username or "", info.password or ""
    check_name(name)
    if secret:
        check_secret(secret)
    kind, status = (
        word_of(UserType, info.user_type or ""),
        word_of(UserStatus, info.user_status or ""),
    )
    if kind is None or status is None:
        raise NotAllowed("its type or status is none")
    return User(name, secret, kind, status, check_public_keys(info.public_keys or ()))


def _check_own(user: User | None, own: Credentials) -> None:
    """Raises NotAllowed."""
    if user is None:
        raise NotAllowed(f"it does not name the user {own.access_key}, with whom it was asked")
    if not user.secret:
        raise NotAllowed(
            f"{NO_PASSWORDS}: a master gives them to Super users by TLS or on one machine, and to"
            " nobody while none must log in there"
        )
    if user.secret != own.secret or not (user.is_super and user.is_enabled):
        raise NotAllowed(f"its user {own.access_key} is another one than that of this node")


def _subject(row: Any) -> str:
    found = row.get("subject") if isinstance(row, dict) else None
    return found if isinstance(found, str) else ""
