"""`keelog acl`: what users may do, and which entry of a list decides."""

from pathlib import Path
from typing import Any

import click

from keelog.cli.access.place import UserPlace, UserRow, known_user, name_of, opened, place_options
from keelog.cli.failures import FAILED, OK, BadValue, doing
from keelog.cli.node.topics import confirm, yes_option
from keelog.cli.options import CliGroup, options
from keelog.cli.output import Output, say
from protocol.access.changes import CREATE_ACL, DELETE_ACL, Change
from protocol.access.decision import Action, Entry, Need, deciding_entry, parse_resource
from protocol.access.users import (
    Decision,
    PolicyType,
    UserStatus,
    UserType,
    source_of,
    subject_of,
    word_of,
)
from protocol.errors import NotFound
from protocol.remoting.auth_bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from protocol.remoting.java_json import write_body

_COLUMNS = ("user", "policy", "decision", "resource", "actions", "sources")


@click.group("acl", cls=CliGroup)
def acl() -> None:
    """Says what users may do, and asks which entry of a list decides.

    The entry with the closest name decides: a whole name before a prefix (orders*), a longer prefix
    before a shorter, that before all of a kind (Topic:*), and Deny before Allow. A request that no
    entry names is refused.

    Example: keelog acl allow billing 'Topic:orders*' pub,sub

    Example: keelog acl check billing pub Topic:orders-eu
    """


user_argument = click.argument("name", metavar="USER")
resource_argument = click.argument("resource", metavar="RESOURCE")
default_option = click.option(
    "--default", "is_default", is_flag=True, help="Counts only where no other entry matches."
)
entry_options = options(
    user_argument,
    resource_argument,
    click.argument("actions", metavar="ACTIONS"),
    click.option(
        "--from",
        "sources",
        multiple=True,
        metavar="ADDRESS",
        help="Only from this address or network, 10.0.0.0/8; may be there several times.",
    ),
    default_option,
    place_options,
)


@acl.command("allow")
@entry_options
def allow(output: Output, **given: Any) -> None:
    """Allows a user some actions on a resource, in the place of what the list said of it.

    RESOURCE is Topic:orders, Topic:orders*, Group:billing, Cluster:*, or * for all. A prefix ends
    at its first *. ACTIONS are pub, sub, create, update, delete, get, list or all, with commas.

    Example: keelog acl allow billing 'Topic:orders*' pub,sub --from 10.0.0.0/8
    """
    _put(Decision.ALLOW, output, **given)


@acl.command("deny")
@entry_options
def deny(output: Output, **given: Any) -> None:
    """Refuses a user some actions on a resource, in the place of what the list said of it.

    Example: keelog acl deny billing Topic:orders-secret all
    """
    _put(Decision.DENY, output, **given)


def _put(
    decision: Decision, output: Output, name: str, resource: str, actions: str, **given: Any
) -> None:
    name, policy = name_of(name), _policy(given["is_default"])
    words = tuple(str(action) for action in _actions(actions))
    entry = PolicyEntryInfo(resource, words, tuple(given["sources"]) or None, str(decision))
    info = AclInfo(subject_of(name), (PolicyInfo(str(policy), (entry,)),))
    change = Change(CREATE_ACL, subject_of(name), write_body(info, standard=True))
    with doing(f"cannot change the list of {name}"), opened(given["node"], given["store"]) as place:
        before = known_user(place, name)
        place.change([change])
        after = known_user(place, name)
    for old in before["entries"]:
        if old not in after["entries"]:
            say(f"replaced: {_text(old)}")
    wanted = str(parse_resource(resource))
    if note := _star_note(resource):
        say(note)
    rows = _rows(after)
    output.document(
        next(row for row in rows if (row["resource"], row["policy"]) == (wanted, policy))
    )


def _star_note(resource: str) -> str:
    """What a name with a * before its end means, which is seldom what was meant; else empty."""
    found, name = parse_resource(resource), resource.partition(":")[2]
    if "*" not in name[:-1]:
        return ""
    if found.pattern == "Literal":
        return f"a * before the end of a name is a letter: this is about {resource!r} alone"
    return f"a prefix ends at its first *: {resource!r} counts as {str(found)!r}"


def _policy(is_default: bool) -> PolicyType:
    return PolicyType.DEFAULT if is_default else PolicyType.CUSTOM


def _actions(text: str) -> list[Action]:
    found = {word: word_of(Action, word.strip()) for word in text.split(",")}
    for word, action in found.items():
        if action is None:
            names = ", ".join(one.lower() for one in Action)
            raise BadValue(f"{word!r} is not an action", f"use some of {names}")
    return [action for action in found.values() if action is not None]


def _rows(row: UserRow) -> list[dict[str, Any]]:
    return [{"user": row["name"], **entry} for entry in row["entries"]]


def _text(entry: dict[str, Any]) -> str:
    sources = f" from {', '.join(entry['sources'])}" if entry["sources"] else ""
    actions = ", ".join(entry["actions"])
    default = " by default" if entry["policy"] == PolicyType.DEFAULT else ""
    return f"{entry['decision']} {actions} of {entry['resource']}{sources}{default}"


@acl.command("ls")
@click.argument("name", metavar="[USER]", required=False)
@place_options
def ls(name: str | None, node: str, store: Path | None, output: Output) -> None:
    """Lists the entries of all lists, or of one user's.

    Example: keelog acl ls billing
    """
    with doing("cannot list the entries"), opened(node, store) as place:
        found = place.users() if name is None else [known_user(place, name_of(name))]
    output.rows([entry for row in found for entry in _rows(row)], _COLUMNS)


@acl.command("rm")
@user_argument
@click.argument("resource", metavar="[RESOURCE]", required=False)
@default_option
@yes_option
@place_options
def remove(name: str, resource: str | None, yes: bool, output: Output, **given: Any) -> None:
    """Removes the entry of a resource from a list, or the whole list; asks first, on a terminal.

    Example: keelog acl rm billing 'Topic:orders*' --yes
    """
    name, policy = name_of(name), _policy(given["is_default"])
    with doing(f"cannot change the list of {name}"), opened(given["node"], given["store"]) as place:
        gone = _gone(place, name, resource, policy)
        confirm(f"keelog acl rm {name}", f"{len(gone)} of its entries", yes)
        policy_word = str(policy) if resource else ""
        place.change([Change(DELETE_ACL, subject_of(name), b"", policy_word, resource or "")])
    output.document({"user": name, "deleted": len(gone)})


def _gone(
    place: UserPlace, name: str, resource: str | None, policy: PolicyType
) -> list[dict[str, Any]]:
    """The entries that go. Raises NotFound for none."""
    gone: list[dict[str, Any]] = known_user(place, name)["entries"]
    if resource is not None:
        wanted = str(parse_resource(resource)), str(policy)
        gone = [one for one in gone if (one["resource"], one["policy"]) == wanted]
    if not gone:
        raise NotFound(f"the list of {name} has no such entry", f"keelog acl ls {name}")
    return gone


@acl.command("check")
@user_argument
@click.argument("action", metavar="ACTION")
@resource_argument
@click.option("--from", "source", default="", metavar="ADDRESS", help="Where the request is from.")
@place_options
def check(name: str, action: str, resource: str, source: str, output: Output, **given: Any) -> int:
    """Says whether a user may do something, and which entry decides. Ends with 1 for no.

    With several ACTIONS, any of them is enough, as for requests that take one of several rights.

    Example: keelog acl check billing pub Topic:orders --from 10.1.2.3
    """
    name = name_of(name)
    wanted = parse_resource(resource)
    if wanted.pattern != "Literal":
        raise BadValue(f"{resource!r} names several", "name one topic, group or cluster")
    need = Need(wanted.kind, wanted.name, frozenset(_actions(action)))
    source = source_of(source) if source else ""
    with (
        doing(f"cannot look at the list of {name}"),
        opened(given["node"], given["store"]) as place,
    ):
        row = known_user(place, name)
    allowed, why, entry = _decided(row, need, source)
    document = {"user": name, "allowed": allowed, "why": why, "entry": entry}
    output.document(document, [{"allowed": allowed, "why": why}])
    return OK if allowed else FAILED


def _decided(row: UserRow, need: Need, source: str) -> tuple[bool, str, dict[str, Any] | None]:
    """Whether it is allowed, why, and the entry that decides."""
    if row["status"] == UserStatus.DISABLE:
        return False, "the user is disabled", None
    if row["type"] == UserType.SUPER:
        return True, "a Super user may do all", None
    entries = {
        kind: [_entry(one) for one in row["entries"] if one["policy"] == kind]
        for kind in PolicyType
    }
    found = deciding_entry(entries[PolicyType.CUSTOM], entries[PolicyType.DEFAULT], need, source)
    if found is None:
        return False, "no entry matches", None
    shown = next(one for one in row["entries"] if _entry(one) == found)
    return found.allow, _text(shown), shown


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(
        parse_resource(row["resource"]),
        frozenset(map(Action, row["actions"])),
        row["decision"] == Decision.ALLOW,
        tuple(row["sources"]),
    )
