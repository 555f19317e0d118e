"""The address of this host that others are given: in records, and by name servers."""

import ipaddress
import socket
from contextlib import suppress
from pathlib import Path

from node.runtime.listening import address_of

LOOPBACK = "127.0.0.1"
_OUTSIDE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Of nobody (RFC 5737, RFC 3849): the way there is the default route."""
_INTERFACES = Path("/sys/class/net")


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
        address = _first(socket.AF_INET6) or LOOPBACK
    return f"[{address}]" if ":" in address else address


def first_ipv4() -> str:
    """As `first_address`, of IPv4 alone."""
    return _first(socket.AF_INET) or LOOPBACK


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
    found = ipaddress.ip_address(address.partition("%")[0])
    return not (found.is_loopback or found.is_link_local or found.is_unspecified)


def _first(family: socket.AddressFamily) -> str:
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
    real = [name for name in up if not _is_odd(name, stats[name].flags)]
    for one in (one for name in (*real, *up) for one in addresses[name]):
        if one.family == family and _is_for_others(one.address):
            return str(one.address)
    return ""


def _is_odd(name: str, flags: str) -> bool:
    """Whether a broker passes an interface over."""
    is_bridge = (_INTERFACES / name / "bridge").exists()
    return is_bridge or ":" in name or "pointopoint" in flags.split(",")
