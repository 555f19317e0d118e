"""The addresses of a node: control at the port of --bind, the writer one above, then readers."""

import errno
import random
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from node.runtime import addresses as machine
from protocol import addresses
from protocol.errors import BadRequest, RefusedError

_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):([0-9]{1,5}|\*)")
_HTTP = re.compile(r"(?:http://)?(?:(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):)?([0-9]{1,5})/?")
_PUBLISHED = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?:([0-9]{1,5})(?:-([0-9]{1,5}))?")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")
_PATH = re.compile(r"(/[A-Za-z0-9_.-]*[A-Za-z0-9_-])+")
CONSOLE_BACKLOG = 64
"""Connections that wait for the console, also while its process is started again."""
CONSOLE_READ = ("open", "key")
FREE_PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections: one of these could take a port before the
process for which it was chosen."""
FREE_PORTS_TRIES = 1_000
NAME_SERVERS_MAX = 16


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
        return self.host in addresses.WILDCARDS

    @property
    def is_loopback(self) -> bool:
        """True if only this host can connect."""
        return addresses.is_loopback(self.address or self.host)

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
        """With the first IPv4 address of its host, else the first IPv6 one. Raises BadRequest for
        a name that does not resolve."""
        host = self.host
        if host == addresses.ANY_HOST or addresses.is_numeric(host):
            return replace(self, address=host)
        try:
            _, (address, *_) = machine.address_of(host)
        except (OSError, UnicodeError) as error:
            raise BadRequest(
                f"the name {host} does not resolve: {getattr(error, 'strerror', None) or error}",
                "bind to an address of this machine, or to tcp://0.0.0.0:7850 with --advertise"
                " HOST",
            ) from None
        return replace(self, address=f"[{address}]" if ":" in address else str(address))

    def with_port_of(self, endpoint: str) -> "BindAddress":
        """The same host with the port that was bound."""
        return replace(self, port=int(endpoint.rpartition(":")[2]))

    def child(self, distance: int, before: str = "") -> "BindAddress":
        """Where a child listens: at the port that it had `before`, else `distance` ports above the
        control port, or at any free port."""
        if before:
            return self.with_port_of(before)
        return replace(self, port=0 if self.any_port else self.port + distance)


NOWHERE = BindAddress("", 0, any_port=False)


@dataclass(frozen=True, slots=True)
class Advertised:
    """What clients are given in the place of the addresses of a node: `--advertise`, parsed."""

    host: str = ""
    """Empty: that at which each end listens."""
    published: Mapping[int, int] = field(default_factory=dict)
    """By own ports: those under which clients reach them."""

    def port(self, own: int) -> int:
        """The number under which clients reach a port."""
        return self.published.get(own, own)

    def endpoint(self, endpoint: str) -> str:
        """What clients are given for `SCHEME://HOST:PORT`; nothing stays nothing. ANY_HOST means
        the host that each client asked."""
        scheme, _, place = endpoint.partition("://")
        host, _, port = place.rpartition(":")
        if not port:
            return endpoint
        given = self.host or (addresses.ANY_HOST if host in addresses.WILDCARDS else host)
        return f"{scheme}://{given}:{self.port(int(port))}"


def parse_bind(text: str) -> BindAddress:
    """Reads `tcp://HOST:PORT`, or `HOST:PORT`. Raises BadRequest for anything else."""
    match = _TCP.fullmatch(addresses.with_scheme(text))
    port = 0 if match is None or match[2] == "*" else int(match[2])
    if match is None or port > machine.PORT_MAX or not _is_host(match[1]):
        raise BadRequest(
            f"bind {text[:80]!a} is not an address",
            "write tcp://127.0.0.1:7850, tcp://[::1]:7850, or a host name of this machine",
        )
    return BindAddress(match[1], port, any_port=port == 0)


def parse_http(text: str) -> BindAddress | None:
    """Reads `PORT`, `HOST:PORT` or `http://HOST:PORT`; loopback without a host, None for nothing.
    Raises BadRequest for anything else."""
    return _parse_listener(
        text, f"http {text[:80]!a} is not an address", "7855 or 127.0.0.1:7855", True
    )


def parse_remoting(text: str) -> BindAddress | None:
    """Reads `HOST:PORT`, or `PORT` on loopback, for RocketMQ's clients; None for nothing. Raises
    BadRequest for anything else."""
    said = f"remoting {text[:80]!a}"
    place = _parse_listener(text, f"{said} cannot be listened at", "127.0.0.1:10911")
    if place is not None and 0 < place.port <= addresses.VIP_DISTANCE:
        raise BadRequest(
            f"{said} leaves no port {addresses.VIP_DISTANCE} below it",
            "write 127.0.0.1:10911, or port 0 for free ones",
        )
    return place


def parse_ha(text: str) -> BindAddress | None:
    """As `parse_remoting`, for followers. Raises BadRequest."""
    return _parse_listener(text, f"ha {text[:80]!a} cannot be listened at", "127.0.0.1:10912")


def parse_console(text: str) -> BindAddress | None:
    """As `parse_http`, for browsers. Raises BadRequest."""
    wrong = f"console {text[:80]!a} cannot be listened at"
    return _parse_listener(text, wrong, "7856 or 127.0.0.1:7856", is_url=True)


def check_console_names(read: str, hosts: str, path: str) -> None:
    """Checks the console's other settings. Raises BadRequest."""
    if read not in CONSOLE_READ:
        raise BadRequest(
            f"serve.console_read is {read[:80]!a}", f"write {' or '.join(CONSOLE_READ)}"
        )
    for name in filter(None, hosts.split(",")):
        if _NAME.fullmatch(name.strip()) is None:
            raise BadRequest(
                f"serve.console_hosts names {name[:80]!a}, no host",
                "write names with commas between, without ports: keelog.example.org",
            )
    if path and _PATH.fullmatch(path) is None:
        raise BadRequest(f"serve.console_path is {path[:80]!a}", "write it as /keelog")


def _parse_listener(
    text: str, wrong: str, example: str, is_url: bool = False
) -> BindAddress | None:
    if not text:
        return None
    match = _HTTP.fullmatch(text)
    if match is None or ("/" in text and not is_url) or int(match[2]) > machine.PORT_MAX:
        raise BadRequest(wrong, f"write {example}")
    port = int(match[2])
    return BindAddress(match[1] or machine.LOOPBACK, port, any_port=port == 0 and not is_url)


def ha_place(text: str, avoid: Collection[int] = ()) -> BindAddress:
    """Where followers connect: port 0 becomes a free one, as name servers get it; NOWHERE without a
    text. Raises BadRequest and RefusedError."""
    return _with_port(parse_ha(text), 0, avoid)


def remoting_place(text: str, avoid: Collection[int] = ()) -> BindAddress:
    """As `ha_place`, for RocketMQ's clients, which connect to a port below it, too.

    The port is chosen here, as records hold it, and the writer starts before the gateway.
    """
    return _with_port(parse_remoting(text), addresses.VIP_DISTANCE, avoid)


def _with_port(place: BindAddress | None, below: int, avoid: Collection[int]) -> BindAddress:
    if place is None:
        return NOWHERE
    first = place.port - below if place.port else free_ports(below + 1, place.host, avoid)
    return replace(place, port=first + below)


def free_ports(count: int, host: str = "", avoid: Collection[int] = ()) -> int:
    """The first of `count` neighbouring ports of a host, else of loopback, that nobody uses now and
    that are none of `avoid`. Raises RefusedError."""
    host = host or machine.loopback()
    why = ""
    for _ in range(FREE_PORTS_TRIES):
        first = random.choice(FREE_PORTS)
        found = range(first, first + count)
        if set(found) & set(avoid):
            continue
        try:
            for port in found:
                machine.listen_at(host, port).close()
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno != errno.EADDRINUSE:
                break  # no other port will do either
            continue
        return first
    raise RefusedError(
        f"no port of {host} is free: {why}", "name a port and an address of this machine"
    )


def parse_name_servers(text: str) -> tuple[str, ...]:
    """Reads `HOST:PORT;HOST:PORT`, each of which is in the outcome once. Raises BadRequest for
    anything else."""
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
            or match[1] in (None, *addresses.WILDCARDS)
            or not _is_host(match[1])
            or not 0 < int(match[2]) <= machine.PORT_MAX
        ):
            raise BadRequest(f"{said} names {place[:80]!a}, not a {what}", f"write {example}")
    if len(places) > NAME_SERVERS_MAX:
        raise BadRequest(f"{said} names {len(places)} {what}s", f"name up to {NAME_SERVERS_MAX}")
    return tuple(dict.fromkeys(places))


def announced_address(gateway: BindAddress, advertised: Advertised, name_server: str) -> str:
    """The address for name servers: each of them hands on the same one to everybody. At a wildcard
    it is the one of this machine on the way to the first `name_server`. Raises BadRequest where the
    node listens everywhere, but nobody else reaches this machine."""
    host = advertised.host or gateway.host
    if host in addresses.WILDCARDS:
        host = machine.first_address(name_server.rpartition(":")[0])
        if gateway.host == "0.0.0.0" and ":" in host:
            host = machine.first_ipv4()  # nothing listens at an address of IPv6
        if addresses.is_loopback(host):
            raise BadRequest(
                f"--remoting {gateway.host}:{gateway.port} has no address to register: this machine"
                " has only those that others cannot reach",
                "name the host with --advertise, as --advertise db7.example.org",
            )
    return f"{host}:{advertised.port(gateway.port)}"


def announced_ha(announced: str, ha: BindAddress, advertised: Advertised) -> str:
    """The address for followers that name servers get, with the host of `announced` where the node
    listens everywhere; empty where nobody may follow."""
    if not ha.port:
        return ""
    host = advertised.host or ha.host
    if host in addresses.WILDCARDS and announced:
        host = announced.rpartition(":")[0]
    return f"{host}:{advertised.port(ha.port)}"


def parse_advertise(text: str) -> Advertised:
    """Reads `HOST`, `PUBLISHED:OWN` for each port that is forwarded under another number, or both
    with commas between. An IPv6 address gets its brackets, nothing stays nothing. Raises BadRequest
    for anything else."""
    hosts: list[str] = []
    published: dict[int, int] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        if (match := _PUBLISHED.fullmatch(part)) is not None:
            published |= _published(match, text)
        else:
            hosts.append(
                f"[{part.strip('[]')}]" if ":" in part and addresses.is_numeric(part) else part
            )
    if len(hosts) > 1 or any(one in addresses.WILDCARDS or not _is_host(one) for one in hosts):
        raise BadRequest(
            f"advertise {text[:80]!a}: no client can connect to that host",
            "write one host, as db7.example.org, 192.0.2.7 or 2001:db8::7, and after it each port"
            " that is forwarded under another number, as db7.example.org,20911:10911",
        )
    return Advertised(hosts[0] if hosts else "", published)


def _published(match: re.Match[str], text: str) -> dict[int, int]:
    """The outer port of each own one. Raises BadRequest."""
    outer, own = (
        range(int(first), int(last or first) + 1)
        for first, last in (match.group(1, 2), match.group(3, 4))
    )
    ends = (*outer[:1], *outer[-1:], *own[:1], *own[-1:])
    if not outer or len(outer) != len(own) or not all(0 < one <= machine.PORT_MAX for one in ends):
        raise BadRequest(
            f"advertise {text[:80]!a}: {match[0]} maps no ports",
            "write PUBLISHED:OWN, as docker run -p: 20911:10911, or 17850-17852:7850-7852",
        )
    return dict(zip(own, outer, strict=True))


def _is_host(host: str) -> bool:
    """True for what may be a host: brackets hold an IPv6 address, digits and dots an IPv4 one."""
    if host == addresses.ANY_HOST:
        return True
    if host.startswith("[") or not host.strip("0123456789."):
        return addresses.is_numeric(host) and host.startswith("[") == (":" in host)
    return _NAME.fullmatch(host) is not None
