"""Who may follow a node, as the setting `ha_allowed_peers` says it."""

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from protocol.errors import BadRequest


class AllowedPeers:
    """Addresses and networks. RocketMQ's replication has no password: the address is all that a
    node learns of a follower."""

    def __init__(self, text: str) -> None:
        """`text`: separated by commas; empty allows everybody. Raises BadRequest."""
        self._networks = tuple(
            _network(one, text) for part in text.split(",") if (one := part.strip())
        )

    @property
    def are_all(self) -> bool:
        """Whether everybody may."""
        return not self._networks

    def allow(self, host: str) -> bool:
        """Whether a connection from this address is taken."""
        address = ip_address(host.partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return self.are_all or any(address in network for network in self._networks)


def _network(one: str, text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(one)
    except ValueError as error:
        raise BadRequest(
            f"ha_allowed_peers is {text[:80]!a}: {error}",
            "write addresses and networks, as 192.0.2.7,10.1.0.0/16",
        ) from None
