"""Who may follow a node."""

import pytest

from node.runtime.addresses import AllowedPeers
from node.runtime.settings import load_settings
from protocol.errors import BadRequest


def test_without_names_everybody_may() -> None:
    assert AllowedPeers("").allow("203.0.113.9")


def test_addresses_and_networks_of_both_families_are_told_apart() -> None:
    peers = AllowedPeers("192.0.2.7, 10.1.0.0/16,2001:db8::/32")
    allowed = ("192.0.2.7", "10.1.255.1", "::ffff:10.1.0.1", "2001:db8::1")
    others = ("192.0.2.8", "10.2.0.1", "::ffff:10.2.0.1", "2001:db9::1", "fe80::1%eth0")
    assert all(peers.allow(host) for host in allowed)
    assert not any(peers.allow(host) for host in others)


@pytest.mark.parametrize(
    "text", ["10.1.0.1/16", "somewhere", "10.1.0.0/40", " , ", "file:followers", "file:"]
)
def test_what_names_no_network_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(BadRequest, match="ha_allowed_peers"):
        load_settings([f"ha_allowed_peers={text}"])
