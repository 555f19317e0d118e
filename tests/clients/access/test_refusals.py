"""The same requests of the same users at a broker with ACL 2.0 and at a node: code and text of what
is refused. Where a node differs from RocketMQ 5.5.0 it asks for more, and a table here says why."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from keelog.gateway.guard import NO_LOGIN, NOT_PROVED
from protocol.access.needs import UNCLEAR
from scripts.rivals.rocketmq import missing
from tests.clients.access.requests import GROUP, OTHER_GROUP, REPLIES, REQUESTS, TOPIC, AskedRequest
from tests.clients.access.sides import (
    DENY,
    GOOD,
    REFUSED,
    Credentials,
    LoginSide,
    broker_with_users,
    node_with_users,
)
from tests.clients.sides import CLUSTER, place_of
from tests.support.remoting import RemotingPeer, SignedPeer

pytestmark = [
    pytest.mark.access,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
POOR, DENIED, OFF, OWNER, ALL = (
    Credentials(name, f"secret-of-{name}") for name in ("poor", "denied", "off", "owner", "all")
)
"""Users with a list that is about something else, with one that denies everything, who is disabled,
with rights to what the requests are about, and with rights to everything."""
BAD_SECRET = "secret-of-nobody"
SOMEBODY = Credentials("somebody", "secret-12")
"""Of whom the requests about users are."""
ONLY_SUPER = "only Super users have"
NOTHING_ASKED: Mapping[str, str] = {
    "a reply": f"Topic:{REPLIES}",
    "a lite pull": f"Topic:{TOPIC}",
    "a client's subscription": f"Group:{GROUP}",
    "new topics": "Topic:made-too",
    "settings of a group": "Group:made-group",
    "settings": f"Cluster:{CLUSTER}",
    "figures": f"Cluster:{CLUSTER}",
    "all topics": f"Cluster:{CLUSTER}",
    "all groups": f"Cluster:{CLUSTER}",
    "all offsets": f"Cluster:{CLUSTER}",
    "changed settings": ONLY_SUPER,
    "cleaning": ONLY_SUPER,
}
"""What 5.5.0 does for everybody who logs in, and what a node asks for: what the same costs by
another request, and for settings of the node a Super user."""
SUPER_ALONE = frozenset({
    "a new user", "a changed user", "the end of a user", "a user", "users", "a new list",
    "the end of a list", "a list", "lists",
})  # fmt: skip
"""5.5.0 asks for Cluster Update or Get. With those a user would give itself all rights."""
OTHER_RIGHT: Mapping[str, str] = {
    "a pull of another group's retry topic": f"Group:{OTHER_GROUP}",
    "a group's copy": f"Group:{GROUP}",
    "a reset": f"Topic:{TOPIC}",
}
"""Both refuse, and name another of several missing rights: 5.5.0 asks nothing about the group whose
retries are read, or whose offsets are copied. A reset needs two, and a node names the topic."""


class Answer(NamedTuple):
    """What a request came to."""

    code: int
    text: str | None


class Asked(NamedTuple):
    """A request, and both answers."""

    request: AskedRequest
    theirs: Answer
    ours: Answer


class Sides(NamedTuple):
    """Both, with the same users."""

    broker: LoginSide
    node: LoginSide

    def ask_all(self, who: Credentials | None, requests: list[AskedRequest]) -> Iterator[Asked]:
        """Asks both sides as a user, or as nobody."""
        with ExitStack() as ends:
            peers = [_connected(login, who, ends) for login in self]
            for request in requests:
                theirs, ours = (_answer(peer, request) for peer in peers)
                yield Asked(request, theirs, ours)


def _connected(login: LoginSide, who: Credentials | None, ends: ExitStack) -> RemotingPeer:
    place = place_of(login.side.broker)
    peer = RemotingPeer(place) if who is None else SignedPeer(place, *who)
    ends.callback(peer.close)
    return peer


def _answer(peer: RemotingPeer, request: AskedRequest) -> Answer:
    came = peer.ask(request.code, request.ext, request.body)
    return Answer(came.code, came.header.remark)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder: Path = tmp_path_factory.mktemp("sides")
    more = {"enablePropertyFilter": "true", "recallMessageEnable": "true"}
    with (
        broker_with_users(folder / "rocketmq", more=more) as broker,
        node_with_users(folder / "store", ["recall_message_enable=true"]) as (node, _),
    ):
        for login in (broker, node):
            login.create_topic(TOPIC, 1)
            login.make_user(POOR, {"Topic:elsewhere": "All"})
            login.make_user(DENIED, {})
            login.put_list(DENIED, {"*": "All"}, DENY)
            login.make_user(OFF, {"*": "All"})
            login.change_status(OFF, "disable")
            rights = {f"{one}:{name}": "All" for one, name in (("Topic", TOPIC), ("Group", GROUP))}
            login.make_user(OWNER, {**rights, f"Cluster:{CLUSTER}": "All"})
            login.make_user(ALL, {"*": "All"})
            login.make_user(SOMEBODY, {})
        yield Sides(broker, node)


def refused(text: str) -> Answer:
    return Answer(REFUSED, text)


@pytest.mark.parametrize(
    ("who", "theirs", "ours"),
    [
        (None, NO_LOGIN, NO_LOGIN),
        (POOR._replace(secret=BAD_SECRET), NOT_PROVED, NOT_PROVED),
        (OFF, "User:off is disabled.", "User:off is disabled."),
        # Who does not know the secret of a user does not hear whether there is one.
        (Credentials("nosuch", BAD_SECRET), "User:nosuch is not found.", NOT_PROVED),
        (OFF._replace(secret=BAD_SECRET), "User:off is disabled.", NOT_PROVED),
    ],
    ids=["no user", "wrong secret", "disabled", "unknown user", "disabled, wrong secret"],
)
def test_who_proves_nothing_hears_the_brokers_code_and_text_whatever_is_asked(
    sides: Sides, who: Credentials | None, theirs: str, ours: str
) -> None:
    for asked in sides.ask_all(who, list(REQUESTS)):
        assert asked[1:] == (refused(theirs), refused(ours)), asked


@pytest.mark.parametrize("who", [POOR, DENIED], ids=["no entry", "a denying entry"])
def test_a_user_without_a_right_hears_the_brokers_code_and_text_or_is_refused_what_a_broker_allows(
    sides: Sides, who: Credentials
) -> None:
    for asked in sides.ask_all(who, list(REQUESTS)):
        name, said = asked.request.name, str(asked.ours.text)
        assert asked.ours.code == REFUSED, asked
        if name in NOTHING_ASKED:
            assert asked.theirs.code != REFUSED, asked
            assert NOTHING_ASKED[name] in said, asked
        elif name in SUPER_ALONE:
            assert asked.theirs.code == REFUSED, asked
            assert ONLY_SUPER in said, asked
        elif name in OTHER_RIGHT:
            assert asked.theirs.code == REFUSED, asked
            assert OTHER_RIGHT[name] in said, asked
        else:
            assert asked.ours == asked.theirs, asked


def test_the_differences_are_of_requests_that_are_asked() -> None:
    assert {*NOTHING_ASKED, *SUPER_ALONE, *OTHER_RIGHT} <= {one.name for one in REQUESTS}


def test_a_request_without_what_it_is_about_is_refused_before_its_handler(sides: Sides) -> None:
    """A broker asks for a right to the topic `null`, and where a list gives rights to all topics
    its handler fails. A node says what a broker says of a header that it cannot read."""
    for asked in sides.ask_all(OWNER, [one.incomplete() for one in REQUESTS if one.missing]):
        assert asked.ours == refused(UNCLEAR), asked


def test_a_list_that_allows_everything_lets_in_what_a_broker_lets_in_but_for_super_users_alone(
    sides: Sides,
) -> None:
    for asked in sides.ask_all(ALL, list(REQUESTS)):
        name = asked.request.name
        is_for_super = name in SUPER_ALONE or NOTHING_ASKED.get(name) == ONLY_SUPER
        assert (asked.ours.code == REFUSED) == is_for_super, asked
        if not is_for_super:
            assert asked.theirs.code != REFUSED or asked.theirs == asked.ours, asked


def test_entries_that_allow_a_request_and_no_more_let_it_in_at_both_sides(sides: Sides) -> None:
    """The twin of the refusals: the owner's requests about the topic and the group."""
    names = {"a send", "a pull", "an offset", "a commit", "members", "a topic's settings"}
    wanted = [one for one in REQUESTS if one.name in names]
    for asked in sides.ask_all(OWNER, wanted):
        assert asked.theirs.code != REFUSED, asked
        assert asked.ours.code == asked.theirs.code or asked.ours.code == GOOD, asked
