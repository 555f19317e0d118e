"""All ports of a node together: none is wanted twice, and each is free before anything starts."""

import errno
import time
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from node.runtime.listening import address_of, listen_at
from node.supervisor.bind import Advertised, BindAddress, parse_http
from node.supervisor.options import ServeSettings
from protocol.addresses import VIP_DISTANCE, WILDCARDS
from protocol.errors import BadRequest, RefusedError

FREED_S_MAX = 2.0
"""How long the ports of a node that has just ended may take to be free."""
_LOOK_AGAIN_S = 0.05
_HINTS = {
    errno.EADDRINUSE: "stop the process that listens there (ss -ltnp shows it), or name another",
    errno.EACCES: "ports below 1024 need a right that this process has not: name a higher one in",
}
_NO_ADDRESS = "name an address of this machine (ip addr shows them) in"
_CANNOT_BE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class Port(NamedTuple):
    """One that a node listens at. `what` says for what, after the words of its option."""

    option: str
    given: str
    host: str
    port: int
    what: str = ""

    @property
    def said(self) -> str:
        """For people: the option as it was given, and what of it the port is."""
        return f"{self.option} {self.given}{self.what}"


def planned_ports(
    serve: ServeSettings, control: BindAddress, gateway: BindAddress, ha: BindAddress
) -> list[Port]:
    """The ports that are known before the start: not those that the system is left to choose."""
    host, first = control.address or control.host, control.port
    found = [Port("--bind", serve.bind, host, first)]
    found.append(Port("--bind", serve.bind, host, first + 1, " (the writer, one port above)"))
    found += [
        Port("--bind", serve.bind, host, first + 2 + n, f" (reader {n}, {2 + n} ports above)")
        for n in range(serve.readers)
    ]
    if control.any_port:
        found.clear()
    if gateway.port:
        host, port = gateway.host, gateway.port
        found.append(Port("--remoting", serve.remoting, host, port))
        below = " (two ports below, for old clients)"
        found.append(Port("--remoting", serve.remoting, host, port - VIP_DISTANCE, below))
    if ha.port:
        found.append(Port("--ha", serve.ha_listen, ha.host, ha.port))
    http = parse_http(serve.http)
    if http is not None and http.port:
        found.append(Port("--http", serve.http, http.host, http.port))
    return found


def check_apart(ports: Sequence[Port]) -> None:
    """Raises BadRequest for a port that two ends of the node want."""
    for one, other in combinations(ports, 2):
        if one.port == other.port and _meet(one.host, other.host):
            raise BadRequest(
                f"{one.said} and {other.said} want the same port, {one.port}",
                f"name another port in {other.option}, or in {one.option}",
            )


def _meet(one: str, other: str) -> bool:
    """Whether two hosts share an address."""
    if one == other or one in WILDCARDS or other in WILDCARDS:
        return True
    try:
        return bool(address_of(one) == address_of(other))
    except (OSError, UnicodeError):
        return False  # who listens there says so


def check_published(ports: Sequence[Port], advertised: Advertised) -> None:
    """Raises BadRequest for a port of `--advertise` at which the node does not listen, and for one
    of RocketMQ's clients without a host: these do not know which they asked."""
    for own, outer in advertised.published.items():
        found = next((one for one in ports if one.port == own), None)
        if found is None:
            raise BadRequest(
                f"--advertise maps port {outer} to {own}, at which the node does not listen",
                "write PUBLISHED:OWN, as docker run -p: the node's own port is the second",
            )
        if found.option in ("--remoting", "--ha") and not advertised.host:
            raise BadRequest(
                f"--advertise maps port {own} of {found.option}, and names no host",
                f"put the host before it: --advertise db7.example.org,{outer}:{own}",
            )


def check_free(ports: Sequence[Port], wait_s: float = 0.0) -> None:
    """Raises RefusedError for a port at which somebody listens, after `wait_s`, and BadRequest for
    an address that the machine does not have."""
    deadline = time.monotonic() + wait_s
    for one in ports:
        while (error := _why_not(one)) is not None:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                kind = BadRequest if error.errno in _CANNOT_BE else RefusedError
                raise kind(
                    f"cannot listen at {one.host}:{one.port}, for {one.said}: {error.strerror}",
                    f"{_HINTS.get(error.errno or 0, _NO_ADDRESS)} {one.option}",
                )
            time.sleep(_LOOK_AGAIN_S)


def _why_not(one: Port) -> OSError | None:
    try:
        listen_at(one.host, one.port).close()
    except OSError as error:
        return error
    return None
