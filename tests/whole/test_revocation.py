"""Whoever loses a user, a right, a certificate or an address is refused soon, at every end.

How each is revoked and waited for is in `scripts/security/revocation.py`, which prints the seconds.
"""

from collections.abc import Iterator

import pytest

from keelog.gateway.connection import LOGIN_S_MAX
from scripts.security import revocation
from scripts.security.revocation import CLIENTS, GuardedSite

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(300)]

SOON_S = 3.0
"""A second, by the clock of processes that other tests do not hold up."""
IDLE = "remoting: the end of an idle connection"
WAYS = [(client, how) for client, (_, ways) in CLIENTS.items() for how in ways]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedSite]:
    with revocation.guarded_site(tmp_path_factory.mktemp("revoked")) as found:
        yield found


@pytest.mark.attack(12, 13, 57)
@pytest.mark.parametrize(("client", "how"), [one for one in WAYS if one[0] != IDLE])
def test_a_request_is_refused_soon_after_its_user_or_right_is_gone(
    site: GuardedSite, client: str, how: str
) -> None:
    ask, ways = CLIENTS[client]
    assert revocation.one_round(site, ask, ways[how]) < SOON_S


def test_a_connection_of_nobody_any_more_lives_on_as_long_as_one_without_a_login(
    site: GuardedSite,
) -> None:
    ask, ways = CLIENTS[IDLE]
    seconds = revocation.one_round(site, ask, ways["user rm"])
    assert LOGIN_S_MAX - 1 < seconds < LOGIN_S_MAX + SOON_S


def test_a_follower_loses_its_stream_soon(site: GuardedSite) -> None:
    for client, how, seconds in revocation.of_followers(site, 1):
        assert seconds is not None
        assert max(seconds) < SOON_S, (client, how)
