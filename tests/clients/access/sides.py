"""The two sides with users: RocketMQ's broker with ACL 2.0 and a name server, and a node.

Users are made by the same requests at both, as mqadmin makes them. A broker takes its first user
from its configuration; at a node the first one is made from the same machine.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from protocol.remoting.codes import RequestCode
from scripts.rivals.rocketmq import Addresses
from tests.clients.sides import (
    BROKER_AT_REST,
    Side,
    place_of,
    running_broker,
    running_node,
    topic_fields,
)
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, SignedPeer

_AUTH = "org.apache.rocketmq.auth"
CREATE_USER, UPDATE_USER, CREATE_ACL = 3001, 3002, 3006
GOOD, REFUSED = 0, 16
ALLOW, DENY = "Allow", "Deny"
MANY_FAILURES = "auth_failures_max=1000000"
"""All clients of these tests have one address, and some fail to log in again and again."""
Rights = Mapping[str, str]
"""Actions, with spaces between, by resource."""


class Credentials(NamedTuple):
    """A user and its secret."""

    user: str
    secret: str

    def file(self, folder: Path) -> Path:
        """A file for the scenarios (CREDENTIALS_FILE), for its owner alone."""
        path = folder / f"{self.user}.credentials"
        path.touch(0o600)
        path.write_text(f"{self.user}\n{self.secret}\n")
        return path

    def tools_yml(self, folder: Path) -> Path:
        """The file that mqadmin reads below its home."""
        path = folder / "conf" / "tools.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_text(f"accessKey: {self.user}\nsecretKey: {self.secret}\n")
        return path


ROOT = Credentials("root", "secret-of-root")
INNER = Credentials("inner", "secret-of-inner")
"""As which a broker signs its own requests."""


def _as_json(credentials: Credentials, user: str, secret: str) -> str:
    return json.dumps({user: credentials.user, secret: credentials.secret})


ACL_2: Mapping[str, object] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authenticationMetadataProvider": (
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationMetadataProvider": (
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
    "initAuthenticationUser": _as_json(ROOT, "username", "password"),
    "innerClientAuthenticationCredentials": _as_json(INNER, "accessKey", "secretKey"),
}
"""A broker's settings of users and access lists."""


class LoginSide(NamedTuple):
    """One side. Its users and lists are changed as ROOT, and count when a method returns."""

    side: Side

    def signed(self, who: Credentials) -> SignedPeer:
        """A connection to the broker or node whose requests a user signs."""
        return SignedPeer(place_of(self.side.broker), *who)

    def ask(self, code: int, ext: Mapping[str, object], told: Mapping[str, object]) -> None:
        """As ROOT; it must succeed."""
        with closing(self.signed(ROOT)) as root:
            answered = root.ask(code, ext, json.dumps(told).encode())
        assert answered.code == GOOD, answered.header.remark

    def make_user(self, who: Credentials, rights: Rights, kind: str = "Normal") -> None:
        """A user who may do that and no more."""
        self.ask(CREATE_USER, {"username": who.user}, {"password": who.secret, "userType": kind})
        if rights:
            self.put_list(who, rights, ALLOW)

    def put_list(self, who: Credentials, rights: Rights, decision: str) -> None:
        """Entries of a user's list."""
        subject = f"User:{who.user}"
        entries = [
            {"resource": resource, "actions": actions.split(), "decision": decision}
            for resource, actions in rights.items()
        ]
        told = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
        self.ask(CREATE_ACL, {"subject": subject}, told)

    def create_topic(self, name: str, queues: int) -> None:
        """Its route is known afterwards."""
        self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues), {})

        def is_known() -> bool:
            with closing(SignedPeer(place_of(self.side.name_server), *ROOT)) as root:
                found = root.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
            return found.code == GOOD

        wait_until(is_known, f"no route for {name}")

    def change_status(self, who: Credentials, status: str) -> None:
        """`enable`, or `disable`: then the user may do nothing."""
        self.ask(UPDATE_USER, {"username": who.user}, {"userStatus": status})


@contextmanager
def broker_with_users(
    home: Path,
    addresses: Addresses | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[LoginSide]:
    """A broker with ACL 2.0, whose name server asks nobody who it is. `more`: its settings."""
    with running_broker(home, addresses, {**BROKER_AT_REST, **ACL_2, **more}) as side:
        yield LoginSide(side)


@contextmanager
def node_with_users(
    root: Path,
    settings: Sequence[str] = (),
    remoting: str = REMOTING,
) -> Iterator[tuple[LoginSide, RunningNode]]:
    """A node with ROOT among its users. `settings` are the node's own."""
    with running_node(root, remoting, settings=(MANY_FAILURES, *settings)) as (side, node):
        told = {"password": ROOT.secret, "userType": "Super"}
        with closing(RemotingPeer(place_of(side.broker))) as first:
            made = first.ask(CREATE_USER, {"username": ROOT.user}, json.dumps(told).encode())
        assert made.code == GOOD, made.header.remark
        login = LoginSide(side)
        wait_until(lambda: _asks_for_a_login(side), "the node asks for no login")
        yield login, node


def _asks_for_a_login(side: Side) -> bool:
    with closing(RemotingPeer(place_of(side.broker))) as stranger:
        return stranger.ask(UPDATE_USER, {"username": "nobody"}, b"{}").code == REFUSED
