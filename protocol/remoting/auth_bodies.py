"""The bodies of RocketMQ's requests about users and access lists, codes 3001 to 3010.

The names on the wire are those of its classes UserInfo, AclInfo, PolicyInfo and PolicyEntryInfo.
`publicKeys` is Keelog's own: RocketMQ ignores it, and an answer to its tools leaves it out.
"""

from typing import NamedTuple


class UserInfo(NamedTuple):
    """A user as requests and answers have it; None for what is not said."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None
    public_keys: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        """Without the password."""
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntryInfo(NamedTuple):
    """An entry of an access list."""

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class PolicyInfo(NamedTuple):
    """The entries of one type, `Custom` or `Default`."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


class AclInfo(NamedTuple):
    """The access list of a subject, as `User:alice`."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None
