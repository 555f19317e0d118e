"""The addresses of a node: where it listens, which others are given, and whom it follows.

All ends of a node but ZeroMQ sockets listen in one way, which also looks for a port. The address of
this host that others are given is in records, and at name servers. Whom a node follows is as
`--follow` says it; who may follow a node, as the setting `ha_allowed_peers` says it.
"""

import os
import re
import socket
from contextlib import suppress
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, NamedTuple

from protocol.addresses import ANY_HOST
from protocol.errors import BadRequest, RefusedError, ServiceNotAvailable

_BOTH_KINDS = (ANY_HOST, "[::]")
"""The hosts that mean all addresses of a machine, by IPv4 and by IPv6, as for ZeroMQ."""
LOOPBACK = "127.0.0.1"
_LOOPBACKS = (LOOPBACK, "[::1]")
_OUTSIDE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Of nobody (RFC 5737, RFC 3849): the way there is the default route."""
_INTERFACES = Path("/sys/class/net")

NAME_SERVERS_PREFIX = "namesrv:"
_PEERS_FILE = "file:"
"""Before the path of a file, in `ha_allowed_peers`."""
_PEERS_HINT = "write addresses and networks, as 192.0.2.7,10.1.0.0/16"
_PLACE_FORM = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/;\s]+):([0-9]{1,5})")
PORT_MAX = 65_535
_FOLLOW_HINT = (
    "write --follow HOST:PORT, with the master's replication port (10912 in RocketMQ), or "
    "--follow 'namesrv:HOST:PORT;HOST:PORT/BROKERNAME'"
)


def listen_at(host: str, port: int, backlog: int = 1) -> socket.socket:
    """A socket that listens at the first IPv4 address of a host, else at its first IPv6 address.

    Raises OSError, with a text for people in `strerror`.
    """
    is_both = host in _BOTH_KINDS and socket.has_dualstack_ipv6()
    try:
        family, address = address_of("::" if is_both else host.replace(ANY_HOST, "0.0.0.0"), port)
        return socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=is_both)
    except UnicodeError as error:
        raise OSError(None, f"the name {host} does not resolve: {error}") from None
    except socket.gaierror:
        raise
    except OSError as error:
        # The words of `create_server` hold an address as Python writes it.
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None


def open_port(host: str, port: int, backlog: int) -> socket.socket:
    """As `listen_at`. Raises ServiceNotAvailable."""
    try:
        return listen_at(host, port, backlog)
    except OSError as error:
        raise ServiceNotAvailable(
            f"cannot listen at {host}:{port}: {error.strerror or error}",
            "stop who listens there, or name another port",
        ) from None


def address_of(host: str, port: int = 0) -> tuple[int, Any]:
    """The family and address of a host: its first IPv4 address, else its first IPv6 address.

    Raises OSError or UnicodeError for a name without one.
    """
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, address


def loopback() -> str:
    """127.0.0.1, or [::1] on a machine without IPv4. Raises RefusedError without both."""
    for host in _LOOPBACKS:
        try:
            listen_at(host, 0).close()
        except OSError:
            continue
        return host
    raise RefusedError(
        "this machine has neither 127.0.0.1 nor ::1", "bring its loopback up: ip link set lo up"
    )


def first_address(towards: str = "") -> str:
    """The address of this host on the way to the host `towards`, else on its default route.

    Without such a way it is the first one that others can reach, of the interfaces that are up, and
    neither bridges nor aliases nor from point to point, as a broker takes it (RocketMQ:
    NetworkUtil#getLocalAddress); then of all that are up. IPv4 before IPv6, which has its brackets.
    Else 127.0.0.1.
    """
    address = local_address(towards) if towards else ""
    if not _is_for_others(address):
        address = first_ipv4()
    if not _is_for_others(address):
        address = _first_address(socket.AF_INET6) or LOOPBACK
    return f"[{address}]" if ":" in address else address


def first_ipv4() -> str:
    """As `first_address`, of IPv4 alone."""
    return _first_address(socket.AF_INET) or LOOPBACK


def local_address(host: str) -> str:
    """The address of this host on the way to another one, IPv4 before IPv6; empty without a way.

    No packet is sent but to look up a name: connecting a datagram socket only chooses.
    """
    with suppress(OSError, UnicodeError):
        family, place = address_of(host, 9)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    return ""


def _is_for_others(address: str) -> bool:
    if not address:
        return False
    found = ip_address(address.partition("%")[0])
    return not (found.is_loopback or found.is_link_local or found.is_unspecified)


def _first_address(family: socket.AddressFamily) -> str:
    """Empty without one that others can reach."""
    routed = local_address(_OUTSIDE[family])
    if _is_for_others(routed):
        return routed
    # Only here: writers at one address do without it.
    import psutil

    try:
        stats, addresses = psutil.net_if_stats(), psutil.net_if_addrs()
    except OSError:  # a sandbox that does not say: --advertise does
        return ""
    up = [name for name in addresses if name in stats and stats[name].isup]
    real = [
        name  # a broker passes bridges, aliases and links from point to point over, too
        for name in up
        if not ((_INTERFACES / name / "bridge").exists() or ":" in name)
        and "pointopoint" not in stats[name].flags.split(",")
    ]
    for one in (one for name in (*real, *up) for one in addresses[name]):
        if one.family == family and _is_for_others(one.address):
            return str(one.address)
    return ""


class MasterSource(NamedTuple):
    """Either `ha`, the master's replication address, or name servers that know the master of
    `broker`."""

    ha: str = ""
    name_servers: tuple[str, ...] = ()
    broker: str = ""

    def __str__(self) -> str:
        return self.ha or f"{NAME_SERVERS_PREFIX}{';'.join(self.name_servers)}/{self.broker}"


def parse_follow(text: str) -> MasterSource:
    """Reads the setting `follow`. Raises BadRequest for what names no master."""
    if text.startswith(NAME_SERVERS_PREFIX):
        places, _, broker = text.removeprefix(NAME_SERVERS_PREFIX).rpartition("/")
        servers = tuple(place for one in places.split(";") if (place := one.strip()))
        source = MasterSource("", servers, broker)
        is_good = broker and servers and all(map(_is_place, servers))
    else:
        source, is_good = MasterSource(ha=text), _is_place(text)
    if not is_good:
        raise BadRequest(f"follow names {text[:80]!a}, not a master", _FOLLOW_HINT)
    return source


def parse_listen(text: str, usual_port: int) -> tuple[str, int]:
    """Reads the HOST:PORT at which a process listens. Raises BadRequest."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > PORT_MAX:
        raise BadRequest(f"cannot listen at {text[:80]!a}", f"write 127.0.0.1:{usual_port}")
    return host, int(port)


def split_place(place: str) -> tuple[str, int]:
    """The host, without brackets, and the port of a HOST:PORT that was checked before."""
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def remoting_beside(ha: str) -> str:
    """Where a master of RocketMQ's defaults takes requests: at the port below that of its
    replication (haListenPort); nothing where there is none."""
    host, _, port = ha.rpartition(":")
    return f"{host}:{int(port) - 1}" if int(port) > 1 else ""


def check_place(name: str, place: str) -> None:
    """Raises BadRequest unless the setting `name` holds a HOST:PORT."""
    if not _is_place(place):
        raise BadRequest(f"{name} is {place[:80]!a}", "write HOST:PORT, as 192.0.2.7:10911")


def _is_place(text: str) -> bool:
    match = _PLACE_FORM.fullmatch(text)
    return match is not None and 0 < int(match[2]) <= PORT_MAX


def peers_file(text: str) -> Path | None:
    """The file that `ha_allowed_peers` names, None where it names addresses. Raises BadRequest."""
    if not text.startswith(_PEERS_FILE):
        return None
    path = Path(text.removeprefix(_PEERS_FILE))
    if not path.is_absolute():
        raise BadRequest(
            f"ha_allowed_peers is {text[:80]!a}, and the path does not begin with /",
            "write it whole, as file:/etc/keelog/followers",
        )
    return path


class AllowedPeers:
    """Addresses and networks. RocketMQ's replication has no password: the address is all that a
    node learns of a follower."""

    def __init__(self, text: str) -> None:
        """`text`: separated by commas; empty allows everybody. Raises BadRequest, also for a text
        that is not empty and names nobody."""
        self._allows_all = not text
        try:
            self._networks = tuple(
                ip_network(one) for part in text.split(",") if (one := part.strip())
            )
        except ValueError as error:
            raise BadRequest(f"ha_allowed_peers is {text[:80]!a}: {error}", _PEERS_HINT) from None
        if text and not self._networks:
            raise BadRequest(f"ha_allowed_peers is {text[:80]!a}, which names nobody", _PEERS_HINT)

    @property
    def are_everybody(self) -> bool:
        """Whether nobody is left out."""
        return not self._networks or not all(one.prefixlen for one in self._networks)

    def allow(self, host: str) -> bool:
        """Whether a follower may come from this address."""
        address = ip_address(host.partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return self._allows_all or any(address in network for network in self._networks)
