"""The addresses of a node: control at the port of --bind, the writer one above, then readers."""

import random
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, replace

from node.serving.host_address import first_address
from protocol.addresses import ANY_HOST, VIP_DISTANCE, is_loopback, is_numeric
from protocol.errors import BadRequest

_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):([0-9]{1,5}|\*)")
_HTTP = re.compile(r"(?:http://)?(?:(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):)?([0-9]{1,5})/?")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")
_PORT_MAX = 65_535
FREE_PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections: one of these could take a port before the
process for which it was chosen."""
NAME_SERVERS_MAX = 16
WILDCARDS = (ANY_HOST, "0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True)
class BindAddress:
    """The host and port of the control socket; `any_port`: the children take free ones too."""

    host: str
    """As it was given: a name, an address, or a wildcard. People and clients get this one."""
    port: int
    any_port: bool
    address: str = ""
    """The address of the host, once it was looked up: sockets are bound to it."""

    @property
    def is_wildcard(self) -> bool:
        """True for all addresses of this machine."""
        return self.host in WILDCARDS

    @property
    def is_loopback(self) -> bool:
        """True if only this host can connect."""
        return is_loopback(self.address or self.host)

    @property
    def takes_local(self) -> bool:
        """True if every client connects from 127.0.0.1, so that a message over a local socket has
        the same born host."""
        return self.is_loopback and not (self.address or self.host).startswith("[")

    @property
    def endpoint(self) -> str:
        """The control socket's, for people and clients."""
        return f"tcp://{self.host}:{self.port}"

    @property
    def bound(self) -> str:
        """The control socket's, for `bind`."""
        return f"tcp://{self.address or self.host}:{self.port}"

    def resolved(self) -> "BindAddress":
        """With the address of its host. Raises BadRequest for a name that does not resolve."""
        return replace(self, address=_address_of(self.host))

    def with_port_of(self, endpoint: str) -> "BindAddress":
        """The same host with the port that was bound."""
        return replace(self, port=int(endpoint.rpartition(":")[2]))

    def child(self, distance: int, before: str = "") -> "BindAddress":
        """Where a child listens: at the port that it had `before`, else `distance` ports above the
        control port, or at any free port."""
        if before:
            return self.with_port_of(before)
        return replace(self, port=0 if self.any_port else self.port + distance)


def parse_bind(text: str) -> BindAddress:
    """Reads `tcp://HOST:PORT`. Raises BadRequest for anything else."""
    match = _TCP.fullmatch(text)
    port = 0 if match is None or match[2] == "*" else int(match[2])
    if match is None or port > _PORT_MAX or not _is_host(match[1]):
        raise BadRequest(
            f"bind {text[:80]!a} is not an address",
            "write tcp://127.0.0.1:7850, tcp://[::1]:7850, or a host name of this machine",
        )
    return BindAddress(match[1], port, any_port=port == 0)


def parse_http(text: str) -> BindAddress | None:
    """Reads `PORT`, `HOST:PORT` or `http://HOST:PORT`; loopback without a host, None for nothing.

    Raises BadRequest for anything else.
    """
    if not text:
        return None
    match = _HTTP.fullmatch(text)
    if match is None or int(match[2]) > _PORT_MAX:
        raise BadRequest(f"http {text[:80]!a} is not an address", "write 7855 or 127.0.0.1:7855")
    return BindAddress(match[1] or "127.0.0.1", int(match[2]), any_port=False)


def parse_remoting(text: str) -> BindAddress | None:
    """Reads `HOST:PORT`, or `PORT` on loopback, for RocketMQ's clients; None for nothing.

    Raises BadRequest for anything else.
    """
    if not text:
        return None
    match = _HTTP.fullmatch(text)
    if match is None or "/" in text or int(match[2]) > _PORT_MAX:
        raise BadRequest(f"remoting {text[:80]!a} cannot be listened at", "write 127.0.0.1:10911")
    port = int(match[2])
    if 0 < port <= VIP_DISTANCE:
        raise BadRequest(
            f"remoting {text[:80]!a} leaves no port {VIP_DISTANCE} below it",
            "write 127.0.0.1:10911, or port 0 for free ones",
        )
    return BindAddress(match[1] or "127.0.0.1", port, any_port=port == 0)


def parse_ha(text: str) -> BindAddress | None:
    """Reads `HOST:PORT`, or `PORT` on loopback, for followers; None for nothing.

    Raises BadRequest for anything else.
    """
    if not text:
        return None
    match = _HTTP.fullmatch(text)
    if match is None or "/" in text or int(match[2]) > _PORT_MAX:
        raise BadRequest(f"ha {text[:80]!a} cannot be listened at", "write 127.0.0.1:10912")
    port = int(match[2])
    return BindAddress(match[1] or "127.0.0.1", port, any_port=port == 0)


def ha_place(text: str) -> BindAddress:
    """Where followers connect: port 0 becomes a free one, as name servers get it; without a text,
    it stays 0."""
    place = parse_ha(text)
    if place is None:
        return BindAddress("", 0, any_port=False)
    return place if place.port else replace(place, port=free_ports(1))


def remoting_place(text: str) -> BindAddress:
    """Where RocketMQ's clients connect: port 0 becomes a free one; without a text, it stays 0.

    The port is chosen here, as records hold it, and the writer starts before the gateway.
    """
    place = parse_remoting(text)
    if place is None:
        return BindAddress("", 0, any_port=False)
    if place.port:
        return place
    return replace(place, port=free_ports(VIP_DISTANCE + 1) + VIP_DISTANCE)


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that nobody uses now."""
    while True:
        first = random.choice(FREE_PORTS)
        with suppress(OSError):
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
            return first


def parse_name_servers(text: str) -> tuple[str, ...]:
    """Reads `HOST:PORT;HOST:PORT`, each of which is in the outcome once.

    Raises BadRequest for anything else.
    """
    said = "broker.namesrv_addr (--namesrv)"
    return _parse_places(text, said, "name server", "--namesrv 'ns1:9876;ns2:9876'")


def parse_controllers(text: str) -> tuple[str, ...]:
    """As `parse_name_servers`, for the addresses of controllers. Raises BadRequest."""
    said = "broker.controller_addr (--controller)"
    return _parse_places(text, said, "controller", "--controller 'ns1:9878;ns2:9878;ns3:9878'")


def _parse_places(text: str, said: str, what: str, example: str) -> tuple[str, ...]:
    places = [place for one in text.split(";") if (place := one.strip())]
    for place in places:
        match = _HTTP.fullmatch(place)
        if (
            match is None
            or "/" in place
            or match[1] in (None, *WILDCARDS)
            or not _is_host(match[1])
            or not 0 < int(match[2]) <= _PORT_MAX
        ):
            raise BadRequest(f"{said} names {place[:80]!a}, not a {what}", f"write {example}")
    if len(places) > NAME_SERVERS_MAX:
        raise BadRequest(f"{said} names {len(places)} {what}s", f"name up to {NAME_SERVERS_MAX}")
    return tuple(dict.fromkeys(places))


def announced_address(gateway: BindAddress, advertise: str) -> str:
    """The address for name servers: each of them hands on the same one to everybody.

    Raises BadRequest where the node listens everywhere, but nobody else reaches this machine.
    """
    host = parse_advertise(advertise) or gateway.host
    if host in WILDCARDS:
        host = first_address()
        if is_loopback(host):
            raise BadRequest(
                f"--remoting {gateway.host}:{gateway.port} has no address to register: this machine"
                " has only those that others cannot reach",
                "name the host with --advertise, as --advertise db7.example.org",
            )
    return f"{host}:{gateway.port}"


def announced_ha(announced: str, ha: BindAddress, advertise: str) -> str:
    """The address for followers that name servers get, with the host of `announced` where the node
    listens everywhere; empty where nobody may follow."""
    if not ha.port:
        return ""
    host = parse_advertise(advertise) or ha.host
    if host in WILDCARDS and announced:
        host = announced.rpartition(":")[0]
    return f"{host}:{ha.port}"


def parse_advertise(text: str) -> str:
    """Reads a host name or an address; an IPv6 address gets its brackets, nothing stays nothing.

    Raises BadRequest for anything else.
    """
    host = f"[{text.strip('[]')}]" if ":" in text and is_numeric(text) else text
    if not host:
        return ""
    if host in WILDCARDS or not _is_host(host):
        raise BadRequest(
            f"advertise {text[:80]!a}: no client can connect to that host",
            "write the host alone, as db7.example.org, 192.0.2.7 or 2001:db8::7: the ports are"
            " those of --bind",
        )
    return host


def _is_host(host: str) -> bool:
    """True for what may be a host: brackets hold an IPv6 address, digits and dots an IPv4 one."""
    if host == ANY_HOST:
        return True
    if host.startswith("[") or not host.strip("0123456789."):
        return is_numeric(host) and host.startswith("[") == (":" in host)
    return _NAME.fullmatch(host) is not None


def _address_of(host: str) -> str:
    """The first IPv4 address of a name, else its first IPv6 address. Raises BadRequest."""
    if host == ANY_HOST or is_numeric(host):
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BadRequest(
            f"the name {host} does not resolve: {getattr(error, 'strerror', None) or error}",
            "bind to an address of this machine, or to tcp://0.0.0.0:7850 with --advertise HOST",
        ) from None
    families = {family: str(place[0]) for family, *_, place in reversed(found)}
    if socket.AF_INET in families:
        return families[socket.AF_INET]
    return f"[{families[socket.AF_INET6]}]"
