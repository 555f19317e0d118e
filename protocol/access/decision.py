"""What the access list of a user allows: RocketMQ's ACL 2.0, as one pure decision.

A request has one need or more (`Need`); all must be allowed. An entry of a list names a resource,
actions, and perhaps from where. Of the entries that match a need, one decides: `deciding_entry`
(AclAuthorizationHandler#matchPolicyEntries). A need that no entry matches is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address, ip_network

from protocol.errors import RefusedError

ALL_OF_KIND = ""
"""The name in a need of all resources of a kind: only `Topic:*`, say, and `*` match it."""


class Action(StrEnum):
    """What is done to a resource, as RocketMQ writes it in JSON."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Kind(StrEnum):
    """Of which kind a resource is. ANY is every resource of every kind."""

    ANY = "*"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


@dataclass(frozen=True, slots=True)
class Need:
    """What one request needs of one resource: any of the actions is enough."""

    kind: Kind
    name: str
    actions: frozenset[Action]


@dataclass(frozen=True, slots=True)
class Resource:
    """What an entry is about: `Topic:orders`, `Topic:orders*`, `Topic:*` or `*`."""

    kind: Kind
    name: str = ""
    """Of a prefix: without its `*`. Empty for all of the kind."""
    pattern: str = "Literal"
    """`Literal`, `Prefixed` or `Any`."""

    def covers(self, need: Need) -> bool:
        """Whether it is, or holds, what the need names."""
        if self.kind is Kind.ANY:
            return True
        if self.kind is not need.kind:
            return False
        if self.pattern == "Prefixed":
            return need.name.startswith(self.name)
        return self.pattern == "Any" or self.name == need.name

    def __str__(self) -> str:
        if self.kind is Kind.ANY:
            return "*"
        return f"{self.kind}:{self.name}" + ("" if self.pattern == "Literal" else "*")


def parse_resource(text: str) -> Resource:
    """Returns the resource that a text names (Resource#of): the kind in any case. With a `*` at its
    end it is a prefix, up to its first `*`; elsewhere that is a letter. Raises RefusedError for a
    kind that there is not."""
    if text == "*":
        return Resource(Kind.ANY, pattern="Any")
    word, colon, name = text.partition(":")
    kind = next((kind for kind in Kind if kind.lower() == word.lower()), Kind.ANY)
    if not colon or not name or kind is Kind.ANY:
        raise RefusedError(
            f"{text!r} is not a resource",
            "name one as Topic:orders, Group:billing, Cluster:DefaultCluster, or with * at its end",
        )
    if name == "*":
        return Resource(kind, pattern="Any")
    if name.endswith("*"):
        return Resource(kind, name.partition("*")[0], "Prefixed")
    return Resource(kind, name)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an access list."""

    resource: Resource
    actions: frozenset[Action]
    allow: bool
    sources: tuple[str, ...] = ()
    """Addresses or networks (`10.0.0.0/8`) from which it counts. Empty: from everywhere."""

    def matches(self, need: Need, source: str) -> bool:
        """Whether it says something about the need of somebody at that address."""
        return self.resource.covers(need) and self._counts(need, source)

    def excepts(self, need: Need, source: str) -> bool:
        """Whether it denies somebody at that address a part of what a need of ALL_OF_KIND names."""
        is_part = self.resource.kind is need.kind and self.resource.pattern != "Any"
        return is_part and not self.allow and self._counts(need, source)

    def _counts(self, need: Need, source: str) -> bool:
        if Action.ALL not in self.actions and not self.actions & need.actions:
            return False
        return not self.sources or any(_is_from(one, source) for one in self.sources)

    @property
    def rank(self) -> tuple[bool, int, int, bool]:
        """The least one of those that match decides: the closest name, then Deny."""
        resource = self.resource
        pattern = ("Literal", "Prefixed", "Any").index(resource.pattern)
        length = len(resource.name) if resource.pattern == "Prefixed" else 0
        return resource.kind is Kind.ANY, pattern, -length, self.allow


def deciding_entry(
    custom: Sequence[Entry], default: Sequence[Entry], need: Need, source: str
) -> Entry | None:
    """The entry that decides about a need, or None where no entry says anything: refused.

    `default` entries count only where none of `custom` matches. To have all of a kind is to
    have each of it: a Deny of a single name decides about a need of ALL_OF_KIND.
    """
    known: list[Entry] = []
    for entries in (custom, default):
        known += entries
        found = [entry for entry in entries if entry.matches(need, source)]
        if found:
            chosen = min(found, key=lambda entry: entry.rank)
            if need.name == ALL_OF_KIND and chosen.allow:
                return next((entry for entry in known if entry.excepts(need, source)), chosen)
            return chosen
    return None


@lru_cache(maxsize=1024)
def plain_address(text: str) -> str:
    """An address as lists name it: an IPv4 one in IPv6 form (`::ffff:10.0.0.1`) in its own form.

    Raises ValueError for a text that is not an address.
    """
    found = ip_address(text)
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


@lru_cache(maxsize=4096)
def _is_from(network: str, source: str) -> bool:
    try:
        address = ip_address(plain_address(source))
    except ValueError:
        return False  # a local socket has no address
    return address in ip_network(network, strict=False)
