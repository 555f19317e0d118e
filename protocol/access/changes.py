"""Changes of users and access lists, and the answers to questions about them, as a broker gives
them (AdminBrokerProcessor, codes 3001 to 3010).

A change takes a table and returns the next one. Where a node differs from a broker, it grants
less: a user who is deleted takes the list along, short secrets are refused, and so are words that
a broker drops.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from protocol.access.decision import Entry, Resource, parse_resource
from protocol.access.users import (
    ENTRIES_MAX,
    NO_LIST,
    USERS_MAX,
    AccessList,
    AccessTable,
    PolicyType,
    User,
    UserStatus,
    UserType,
    acl_info,
    check_name,
    check_public_keys,
    check_secret,
    entry_of,
    subject_of,
    user_of,
    word_of,
)
from protocol.errors import BadRequest, NotAllowed, RefusedError, SuperUserOnly
from protocol.remoting.auth_bodies import AclInfo, PolicyInfo, UserInfo
from protocol.remoting.codes import BadCommand
from protocol.remoting.java_json import read_body, write_body

Value = TypeVar("Value")
Row = TypeVar("Row", bound=tuple[object, ...])

CREATE_USER, UPDATE_USER, DELETE_USER = "create_user", "update_user", "delete_user"
CREATE_ACL, UPDATE_ACL, DELETE_ACL = "create_acl", "update_acl", "delete_acl"
PUBLIC_KEYS = "publicKeys"
"""The field of 3005 by which a replica of Keelog's asks for the users' public keys."""


class Change(NamedTuple):
    """One request to change the table."""

    what: str
    """One of CHANGES."""
    name: str
    """A user's name, or for lists the subject: `User:alice`."""
    info: bytes = b""
    """The request's body: a UserInfo or an AclInfo."""
    policy: str = ""
    resource: str = ""
    """Both of DELETE_ACL. Without a resource the whole list goes."""

    def __repr__(self) -> str:
        """Without the body, which may hold a secret."""
        return f"Change({self.what!r}, {self.name!r}, {self.policy!r}, {self.resource!r})"


def changed(table: AccessTable, change: Change, by_super: bool, now_ms: int) -> AccessTable:
    """Returns the table after a change; the same one where nothing changes.

    `by_super`: whether a Super user asks, or the operator. Raises NotAllowed, SuperUserOnly and
    BadRequest, with the codes and, where a broker has one, the text of a broker.
    """
    apply = _CHANGES.get(change.what)
    if apply is None:
        raise BadRequest(
            f"{change.what[:40]!a} is not a change", f"use one of {', '.join(CHANGES)}"
        )
    after = apply(table, change, by_super, now_ms)
    if after is table:
        return table
    return replace(after, revision=table.revision + 1)


# -- users ----------------------------------------------------------------------------------------


def _create_user(table: AccessTable, change: Change, by_super: bool, now_ms: int) -> AccessTable:
    info, kind, status, keys = _asked_user(change, by_super, "create")
    if change.name in table.users:
        raise NotAllowed("The user is existed", f"change it: keelog user set {change.name}")
    if not (info.password or "").strip() and not keys:
        raise NotAllowed("password can not be blank", "name one, or a public key")
    check_name(change.name)
    if len(table.users) >= USERS_MAX:
        raise NotAllowed(f"there are {USERS_MAX} users already", "remove those that left")
    secret = info.password if info.password and info.password.strip() else ""
    _check_credentials(table, change.name, secret, keys or ())
    kind, status = kind or UserType.NORMAL, status or UserStatus.ENABLE
    made = User(change.name, secret, kind, status, keys or (), now_ms)
    return replace(table, users=_with(table.users, made.name, made))


def _update_user(table: AccessTable, change: Change, by_super: bool, now_ms: int) -> AccessTable:
    info, kind, status, keys = _asked_user(change, by_super, "update")
    known = table.users.get(change.name)
    if known is None:
        raise NotAllowed("The user is not exist", "see them: keelog user ls")
    _check_may_change(known, by_super)
    secret = info.password if info.password and info.password.strip() else None
    _check_credentials(table, change.name, secret or "", keys or ())
    wanted = replace(
        known,
        secret=known.secret if secret is None else secret,
        type=kind or known.type,
        status=status or known.status,
        public_keys=known.public_keys if keys is None else keys,
    )
    if wanted == known:
        return table
    if not wanted.secret and not wanted.public_keys:
        raise NotAllowed(
            f"user {change.name} would have neither a password nor a key",
            f"keep one, or disable the user: keelog user set {change.name} --disable",
        )
    changed_user = replace(wanted, changed_ms=now_ms)
    return replace(table, users=_with(table.users, change.name, changed_user))


def _delete_user(table: AccessTable, change: Change, by_super: bool, _now_ms: int) -> AccessTable:
    _check_named(change)
    known = table.users.get(change.name)
    if known is None:
        return table
    _check_may_change(known, by_super)
    users, lists = _with(table.users, change.name, None), _with(table.lists, change.name, None)
    return replace(table, users=users, lists=lists)


def _asked_user(
    change: Change, by_super: bool, verb: str
) -> tuple[UserInfo, UserType | None, UserStatus | None, tuple[str, ...] | None]:
    _check_named(change)
    info = _body(UserInfo, change)
    kind, status = (
        word_of(UserType, info.user_type or ""),
        word_of(UserStatus, info.user_status or ""),
    )
    for words, word, found in (
        (UserType, info.user_type, kind),
        (UserStatus, info.user_status, status),
    ):
        if word and found is None:
            raise BadRequest(f"{word[:40]!a} is none of {', '.join(words)}")
    if kind is UserType.SUPER and not by_super:
        raise SuperUserOnly(f"The super user can only be {verb} by super user")
    keys = None if info.public_keys is None else check_public_keys(info.public_keys)
    return info, kind, status, keys


def _body(row: type[Row], change: Change) -> Row:
    """Raises BadRequest, which crosses the wire as it is."""
    try:
        return read_body(row, change.info)
    except BadCommand as error:
        raise BadRequest(error.reason, error.hint) from None


def _check_named(change: Change) -> None:
    if not change.name.strip():
        raise BadRequest("The username is blank", "name a user")


def _check_may_change(known: User, by_super: bool) -> None:
    if known.is_super and not by_super:
        raise NotAllowed("The super user can only be update by super user")


def _check_credentials(table: AccessTable, name: str, secret: str, keys: tuple[str, ...]) -> None:
    if secret:
        check_secret(secret)
    for key in keys:
        owner = table.by_public_key.get(key)
        if owner is not None and owner.name != name:
            raise NotAllowed(f"user {owner.name} has this public key", "give each user an own one")


# -- lists ----------------------------------------------------------------------------------------


def _put_acl(table: AccessTable, change: Change, _by_super: bool, _now_ms: int) -> AccessTable:
    """A broker does the same for both codes: entries of a resource replace those it had."""
    info = _body(AclInfo, change)
    # A broker believes the body. Here who was asked about is who is changed.
    if info.subject and change.name and info.subject != change.name:
        raise NotAllowed(f"{info.subject[:80]!a} is not {change.name[:80]!a}", "name one subject")
    name = user_of(change.name or info.subject or "")
    wanted = [_asked_policy(policy) for policy in info.policies or ()]
    if not wanted:
        raise NotAllowed("The policies is empty.")
    if name not in table.users:
        raise NotAllowed(f"The subject of {subject_of(name)} is not exist.", "make the user first")
    known = table.list_of(name)
    for kind, entries in wanted:
        known = _with_policy(known, kind, _merged(known.of(kind), entries))
    count = len(known.custom) + len(known.default)
    if count > ENTRIES_MAX:
        raise NotAllowed(
            f"the list of {subject_of(name)} would have {count} entries, {ENTRIES_MAX} are allowed",
            "name several resources by one prefix: Topic:orders*",
        )
    if known == table.list_of(name):
        return table
    return replace(table, lists=_with(table.lists, name, known))


def _asked_policy(policy: PolicyInfo) -> tuple[PolicyType, list[Entry]]:
    if not policy.entries:
        raise NotAllowed("The policy entries is empty.")
    return _policy_of(policy.policy_type or ""), [entry_of(one) for one in policy.entries]


def _delete_acl(table: AccessTable, change: Change, _by_super: bool, _now_ms: int) -> AccessTable:
    name = user_of(change.name)
    if name not in table.users:
        raise NotAllowed("The subject is not exist.", "see the users: keelog user ls")
    if name not in table.lists:
        raise NotAllowed("The acl is not exist.", f"keelog acl ls {subject_of(name)}")
    left = NO_LIST
    if change.resource:
        kind, gone = _policy_of(change.policy), _resource(change.resource)
        known = table.lists[name]
        kept = tuple(entry for entry in known.of(kind) if entry.resource != gone)
        left = _with_policy(known, kind, kept)
        if left == known:
            return table
    return replace(table, lists=_with(table.lists, name, None if left == NO_LIST else left))


def _policy_of(word: str) -> PolicyType:
    kind = word_of(PolicyType, word) if word else PolicyType.CUSTOM
    if kind is None:
        raise NotAllowed(f"{word[:40]!a} is not a policy type", "say Custom or Default")
    return kind


def _resource(text: str) -> Resource:
    try:
        return parse_resource(text)
    except RefusedError as error:
        raise NotAllowed("The resource is null.", f"{error.reason}; {error.hint}") from None


def _merged(known: Iterable[Entry], wanted: list[Entry]) -> tuple[Entry, ...]:
    """Those of one request stay together, also two of one resource, so that a copied list keeps
    its refusals."""
    named = {entry.resource for entry in wanted}
    return (*(entry for entry in known if entry.resource not in named), *wanted)


def _with_policy(known: AccessList, kind: PolicyType, entries: tuple[Entry, ...]) -> AccessList:
    if kind is PolicyType.CUSTOM:
        return AccessList(entries, known.default)
    return AccessList(known.custom, entries)


def _with(known: Mapping[str, Value], name: str, value: Value | None) -> Mapping[str, Value]:
    """A copy with another value of one name, or without it."""
    others = {one: held for one, held in known.items() if one != name}
    return MappingProxyType(others if value is None else {**others, name: value})


_CHANGES: dict[str, Callable[[AccessTable, Change, bool, int], AccessTable]] = {
    CREATE_USER: _create_user,
    UPDATE_USER: _update_user,
    DELETE_USER: _delete_user,
    CREATE_ACL: _put_acl,
    UPDATE_ACL: _put_acl,
    DELETE_ACL: _delete_acl,
}
CHANGES = tuple(_CHANGES)


# -- answers --------------------------------------------------------------------------------------


def user_info(user: User, with_secret: bool, with_keys: bool = False) -> UserInfo:
    """A user in RocketMQ's form. `with_secret`: only for who may copy users to another node.
    `with_keys`: for a replica of Keelog's."""
    secret = (user.secret or None) if with_secret else None
    keys = user.public_keys if with_keys else None
    return UserInfo(user.name, secret, str(user.type), str(user.status), keys)


def user_answer(table: AccessTable, name: str, with_secret: bool) -> bytes | None:
    """The body of the answer to 3004; None without such a user. Raises BadRequest."""
    if not name.strip():
        raise BadRequest("The username is blank", "name a user")
    user = table.users.get(name)
    return None if user is None else write_body(user_info(user, with_secret), standard=True)


def users_answer(
    table: AccessTable, filter: str, with_secret: bool, with_keys: bool = False
) -> bytes | None:
    """The body of the answer to 3005: users whose name has `filter` in it; None for none."""
    found = [
        user_info(user, with_secret, with_keys)
        for name, user in sorted(table.users.items())
        if filter in name
    ]
    return write_body(found, standard=True) if found else None


def acl_answer(table: AccessTable, subject: str) -> bytes | None:
    """The body of the answer to 3009; None without a list. Raises NotAllowed."""
    name = user_of(subject)
    if name not in table.users:
        raise NotAllowed("The subject is not exist.", "see the users: keelog user ls")
    found = table.lists.get(name)
    return None if found is None else write_body(acl_info(name, found), standard=True)


def acls_answer(table: AccessTable, subject_filter: str, resource_filter: str) -> bytes | None:
    """The body of the answer to 3010: lists whose subject has the one text in it, cut to entries
    whose resource has the other; None for none."""
    cut = {name: _only(entries, resource_filter) for name, entries in sorted(table.lists.items())}
    found = [
        acl_info(name, shown)
        for name, shown in cut.items()
        if subject_filter in subject_of(name) and shown != NO_LIST
    ]
    return write_body(found, standard=True) if found else None


def _only(entries: AccessList, resource: str) -> AccessList:
    custom, default = (
        tuple(entry for entry in entries.of(kind) if resource in str(entry.resource))
        for kind in PolicyType
    )
    return AccessList(custom, default)
