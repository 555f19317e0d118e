"""Users and their access lists: one immutable value, and its JSON.

Users and lists are in one value and in one file: no crash can come between the two, and whoever
holds a table never sees a user with the list of another. The words of types, states and decisions
are RocketMQ's (UserType, UserStatus, PolicyType, Decision).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from ipaddress import ip_network
from types import MappingProxyType
from typing import Any, TypeVar

from protocol.access.decision import (
    Action,
    Entry,
    Need,
    deciding_entry,
    parse_resource,
    plain_address,
)
from protocol.errors import NotAllowed, RefusedError
from protocol.remoting.auth_bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from protocol.remoting.codes import BadCommand
from protocol.remoting.java_json import java_class, write_body

FORMAT = 1
SUBJECT_PREFIX = "User:"
NAME_CHARS_MAX = 255
SECRET_CHARS_MIN = 8
SECRET_CHARS_MAX = 256
PUBLIC_KEYS_MAX = 16
USERS_MAX = 5_000
ENTRIES_MAX = 1_000
"""Entries of one user's list."""
SOURCES_MAX = 100
"""Addresses of one entry."""
_PUBLIC_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""Z85, as ZeroMQ writes CURVE keys."""
_NETWORK = re.compile(r"[0-9a-fA-F.:]+(/[0-9]{1,3})?")


class UserType(StrEnum):
    """SUPER is allowed everything, NORMAL what its list allows."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """DISABLE: every request of the user is refused."""

    ENABLE = "enable"
    DISABLE = "disable"


class PolicyType(StrEnum):
    """DEFAULT entries count only where no CUSTOM one matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Decision(StrEnum):
    """What an entry says about what it matches."""

    ALLOW = "Allow"
    DENY = "Deny"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may log in, by a secret, or by the secret half of a CURVE key."""

    name: str
    secret: str = field(repr=False)
    """Empty for a user who has keys alone."""
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE
    public_keys: tuple[str, ...] = ()
    changed_ms: int = 0
    """When the user was made or changed last, in ms since 1970."""

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE


@dataclass(frozen=True, slots=True)
class AccessList:
    """What one user may do."""

    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()

    def of(self, policy: PolicyType) -> tuple[Entry, ...]:
        """The entries of one type."""
        return self.custom if policy is PolicyType.CUSTOM else self.default


NO_LIST = AccessList()


@dataclass(frozen=True)
class AccessTable:
    """All users and their lists. `revision` rises with each change."""

    users: Mapping[str, User] = field(default_factory=dict)
    lists: Mapping[str, AccessList] = field(default_factory=dict)
    """By the user's name; without those that are empty."""
    revision: int = 0

    @cached_property
    def by_public_key(self) -> Mapping[str, User]:
        """Whose key it is."""
        keys = {key: user for user in self.users.values() for key in user.public_keys}
        return MappingProxyType(keys)

    def list_of(self, name: str) -> AccessList:
        """Empty for a user without one."""
        return self.lists.get(name, NO_LIST)

    def deciding(self, name: str, need: Need, source: str) -> Entry | None:
        """The entry that decides about a need of a normal user; None: refused, no entry matches.
        `source` is the address that the request came from."""
        entries = self.list_of(name)
        return deciding_entry(entries.custom, entries.default, need, source)


EMPTY = AccessTable()


def subject_of(name: str) -> str:
    """A user as lists name it."""
    return f"{SUBJECT_PREFIX}{name}"


def user_of(subject: str) -> str:
    """The user that a subject names. Raises NotAllowed."""
    if not subject.startswith(SUBJECT_PREFIX) or subject == SUBJECT_PREFIX:
        raise NotAllowed(f"{subject[:80]!a} names no user", "name one as User:alice")
    return subject.removeprefix(SUBJECT_PREFIX)


def check_name(name: str) -> None:
    """Raises NotAllowed for what cannot be the name of a user."""
    if not name.isprintable() or " " in name or not 0 < len(name) <= NAME_CHARS_MAX:
        raise NotAllowed(
            f"{name[:80]!a} is not a name of a user",
            f"use 1 to {NAME_CHARS_MAX} characters without blanks",
        )


def check_secret(secret: str) -> None:
    """Raises NotAllowed, which does not show it, for a secret that is too short or too long."""
    if not SECRET_CHARS_MIN <= len(secret) <= SECRET_CHARS_MAX:
        raise NotAllowed(
            f"the password has {len(secret)} characters, {SECRET_CHARS_MIN} to "
            f"{SECRET_CHARS_MAX} are allowed",
            "leave it out, and a long one is made",
        )
    if not secret.isprintable():
        raise NotAllowed("the password has characters that cannot be printed", "use others")


def check_public_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Returns CURVE keys of a user. Raises NotAllowed for a text that is none, and for too many."""
    found = tuple(dict.fromkeys(keys))
    if len(found) > PUBLIC_KEYS_MAX:
        raise NotAllowed(f"{len(found)} public keys, {PUBLIC_KEYS_MAX} are allowed")
    for key in found:
        if not _PUBLIC_KEY.fullmatch(key):
            raise NotAllowed(
                f"a public key has {len(key)} characters, or some that none has",
                "give the 40 characters of a CURVE public key",
            )
    return found


Word = TypeVar("Word", bound=StrEnum)


def word_of(words: type[Word], text: str) -> Word | None:
    """The word that a text is, in any case; None for no such word."""
    return next((word for word in words if word.lower() == text.lower()), None)


def source_of(text: str) -> str:
    """Returns an address or network as lists have it. Raises NotAllowed."""
    found = _plain_source(text) if _NETWORK.fullmatch(text) else None
    if found is None:
        hint = f"{text[:80]!a} is not an address: write 10.0.0.1 or 10.0.0.0/8"
        raise NotAllowed("The source ip is invalid.", hint)
    return found


def _plain_source(text: str) -> str | None:
    """None for a text that is not an address, and for a network of IPv4 addresses in IPv6 form."""
    try:
        if "/" not in text:
            return plain_address(text)
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    is_mapped = getattr(network.network_address, "ipv4_mapped", None) is not None
    return None if is_mapped else text


def entry_of(info: PolicyEntryInfo) -> Entry:
    """Returns the entry that RocketMQ's form describes. Raises NotAllowed, in RocketMQ's words
    (AuthorizationMetadataManagerImpl#validate)."""
    try:
        resource = parse_resource(info.resource or "")
    except RefusedError as error:
        raise NotAllowed("The resource is null.", f"{error.reason}; {error.hint}") from None
    named = info.actions or ()
    if not named:
        raise NotAllowed("The actions is empty.", f"name some of {', '.join(Action)}")
    if any(word.lower() == "any" for word in named):
        raise NotAllowed("The actions can not be Any.", "All is every action")
    actions = {word_of(Action, word): word for word in named}
    if None in actions:
        # RocketMQ drops the word, and the entry says something else than who wrote it.
        raise NotAllowed(
            f"{actions[None][:40]!a} is not an action", f"name some of {', '.join(Action)}"
        )
    sources = info.source_ips or ()
    if len(sources) > SOURCES_MAX:
        raise NotAllowed(f"an entry has {len(sources)} addresses, {SOURCES_MAX} are allowed")
    decision = word_of(Decision, info.decision or "")
    if decision is None:
        raise NotAllowed("The decision is null or illegal.", "say Allow or Deny")
    return Entry(
        resource,
        frozenset(action for action in actions if action is not None),
        decision is Decision.ALLOW,
        tuple(map(source_of, sources)),
    )


def entry_info(entry: Entry) -> PolicyEntryInfo:
    """An entry in RocketMQ's form; its actions in the order of RocketMQ's Action."""
    return PolicyEntryInfo(
        str(entry.resource),
        tuple(str(action) for action in Action if action in entry.actions),
        entry.sources or None,
        str(Decision.ALLOW if entry.allow else Decision.DENY),
    )


def acl_info(name: str, entries: AccessList) -> AclInfo:
    """A list in RocketMQ's form."""
    policies = (PolicyInfo(str(one), tuple(map(entry_info, entries.of(one)))) for one in PolicyType)
    return AclInfo(subject_of(name), tuple(one for one in policies if one.entries))


# -- the JSON of a table --------------------------------------------------------------------------


def table_json(table: AccessTable) -> bytes:
    """A table as the file of it holds it, secrets among it: one line for each user and list."""
    users = [
        json.dumps(
            {
                "name": user.name,
                "type": user.type,
                "status": user.status,
                "secret": user.secret,
                "public_keys": list(user.public_keys),
                "changed_ms": user.changed_ms,
            }
        )
        for _, user in sorted(table.users.items())
    ]
    lists = [
        write_body(acl_info(name, entries), standard=True).decode()
        for name, entries in sorted(table.lists.items())
    ]
    head = f'{{"format":{FORMAT},"revision":{table.revision},'
    return f'{head}\n"users":[{_lines(users)}],\n"lists":[{_lines(lists)}]}}\n'.encode()


def _lines(rows: list[str]) -> str:
    return "".join(["\n", ",\n".join(rows), "\n"]) if rows else ""


def read_table(data: bytes) -> AccessTable:
    """Returns the table that a file holds. Raises ValueError, whose text names what is wrong and
    shows nothing of a secret."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"is not a table of users of format {FORMAT}")
    revision = document.get("revision")
    if type(revision) is not int:
        raise ValueError("has no revision")
    users = _by_name(document, "users", _user)
    lists = _by_name(document, "lists", read_list)
    for name in lists:
        if name not in users:
            raise ValueError(f"has a list of {name[:80]!a}, and no such user")
    keys = [key for user in users.values() for key in user.public_keys]
    if len(keys) != len(set(keys)):
        raise ValueError("names one public key for two users")
    return AccessTable(MappingProxyType(users), MappingProxyType(lists), revision)


Value = TypeVar("Value")


def _by_name(
    document: dict[str, Any], what: str, read: Callable[[Any], tuple[str, Value]]
) -> dict[str, Value]:
    rows = document.get(what)
    if not isinstance(rows, list) or len(rows) > USERS_MAX:
        raise ValueError(f"has no {what}, or more than {USERS_MAX}")
    found: dict[str, Value] = {}
    for number, row in enumerate(rows, 1):
        try:
            name, value = read(row)
        except (KeyError, TypeError, AttributeError) as error:
            kind = type(error).__name__
            raise ValueError(f"number {number} of {what} makes no sense ({kind})") from None
        except (RefusedError, BadCommand) as error:
            raise ValueError(f"number {number} of {what}: {error.reason}") from None
        if name in found:
            raise ValueError(f"has {name[:80]!a} twice in {what}")
        found[name] = value
    return found


def _user(row: Any) -> tuple[str, User]:
    name, secret, changed_ms = row["name"], row["secret"], row["changed_ms"]
    if type(name) is not str or type(secret) is not str or type(changed_ms) is not int:
        raise TypeError
    check_name(name)
    if secret:
        check_secret(secret)
    kind, status = word_of(UserType, row["type"]), word_of(UserStatus, row["status"])
    if kind is None or status is None:
        raise TypeError
    return name, User(name, secret, kind, status, check_public_keys(row["public_keys"]), changed_ms)


def read_list(row: Any) -> tuple[str, AccessList]:
    """The user's name and the list that an AclInfo holds. Raises TypeError and its like for what is
    none, RefusedError, BadCommand."""
    info = java_class(AclInfo).read(row)
    entries: dict[PolicyType, tuple[Entry, ...]] = {}
    for policy in info.policies or ():
        kind = word_of(PolicyType, policy.policy_type or "")
        if kind is None or kind in entries:
            raise TypeError
        entries[kind] = tuple(map(entry_of, policy.entries or ()))
    found = AccessList(entries.get(PolicyType.CUSTOM, ()), entries.get(PolicyType.DEFAULT, ()))
    return user_of(info.subject or ""), found
