"""The accounts of RocketMQ's first access lists (`plain_acl.yml`, up to 5.3.2) as changes.

They become what RocketMQ's AuthMigrator makes of them: an account is a user, its permissions are
Custom entries, its defaults are Default entries of all topics and all groups. White addresses have
nothing to become: a request from one needed no signature. A permission that AuthMigrator passes
over, or takes for All, is refused.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from protocol.access.changes import CREATE_ACL, CREATE_USER, Change
from protocol.access.users import Decision, PolicyType, UserType, subject_of
from protocol.errors import BadRequest
from protocol.remoting.auth_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from protocol.remoting.codes import BadCommand
from protocol.remoting.java_json import read_body, write_body

_PERMISSIONS: dict[str, tuple[str, ...]] = {
    "DENY": ("All",),
    "PUB": ("Pub",),
    "SUB": ("Sub",),
    "PUB|SUB": ("Pub", "Sub"),
    "SUB|PUB": ("Pub", "Sub"),
}
_NOT_JSON = "is not JSON; Keelog has no reader for YAML"
_TO_JSON = "yq -o json plain_acl.yml > plain_acl.json  and import that"


class PlainAccount(NamedTuple):
    """One account, as RocketMQ's PlainAccessConfig has it."""

    access_key: str
    secret_key: str
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without the secret."""
        return f"PlainAccount({self.access_key!r})"


class PlainAcl(NamedTuple):
    """The whole file."""

    accounts: tuple[PlainAccount, ...]
    global_white_remote_addresses: tuple[str, ...] = ()


class Import(NamedTuple):
    """What a file becomes: changes in their order, by user, and what is lost."""

    changes: dict[str, list[Change]]
    warnings: list[str]


def read_plain_acl(data: bytes) -> Import:
    """Returns the changes that make users and lists of the accounts. `data` is the JSON of the
    file. Raises BadRequest."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequest(f"the file {_NOT_JSON}", _TO_JSON) from None
    try:
        found = read_body(PlainAcl, data)
    except BadCommand as error:
        raise BadRequest(f"the file is not a plain_acl: {error.reason}") from None
    warnings = [_white(f"the white address {one}") for one in found.global_white_remote_addresses]
    changes: dict[str, list[Change]] = {}
    for account in found.accounts:
        name = account.access_key
        if name in changes:
            raise BadRequest(f"account {name[:80]!a} is there twice")
        if account.white_remote_address:
            warnings.append(_white(f"the white address {account.white_remote_address} of {name}"))
        changes[name] = list(_changes(account))
    return Import(changes, warnings)


def _white(what: str) -> str:
    return f"{what} counts no more: every request is to be signed"


def _changes(account: PlainAccount) -> Iterator[Change]:
    name = account.access_key
    kind = UserType.SUPER if account.admin else UserType.NORMAL
    info = UserInfo(name, account.secret_key, str(kind))
    yield Change(CREATE_USER, name, write_body(info, standard=True))
    named = (("Topic", account.topic_perms), ("Group", account.group_perms))
    custom = tuple(_named(name, kind, text) for kind, texts in named for text in texts)
    defaults = (("Topic", account.default_topic_perm), ("Group", account.default_group_perm))
    default = tuple(
        _entry(name, f"{kind}:*", text.strip()) for kind, text in defaults if text.strip()
    )
    policies = tuple(
        PolicyInfo(str(kind), entries)
        for kind, entries in ((PolicyType.CUSTOM, custom), (PolicyType.DEFAULT, default))
        if entries
    )
    if policies:
        acl = AclInfo(subject_of(name), policies)
        yield Change(CREATE_ACL, subject_of(name), write_body(acl, standard=True))


def _named(account: str, kind: str, text: str) -> PolicyEntryInfo:
    name, equals, permission = (part.strip() for part in text.partition("="))
    if not equals or not name or "*" in name:
        raise BadRequest(f"account {account[:80]!a}: {text[:80]!a} is not NAME=PUB|SUB")
    return _entry(account, f"{kind}:{name}", permission)


def _entry(account: str, resource: str, permission: str) -> PolicyEntryInfo:
    actions = _PERMISSIONS.get(permission)
    if actions is None:
        raise BadRequest(
            f"account {account[:80]!a}: {permission[:40]!a} is not a permission ({resource[:60]})",
            f"use one of {', '.join(_PERMISSIONS)}",
        )
    decision = Decision.DENY if permission == "DENY" else Decision.ALLOW
    return PolicyEntryInfo(resource, actions, None, str(decision))
