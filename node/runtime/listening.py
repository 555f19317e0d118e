"""One way to listen, for all ends of a node but ZeroMQ sockets, and to look for a port."""

import os
import socket
from typing import Any

from protocol.addresses import ANY_HOST
from protocol.errors import RefusedError

_BOTH_KINDS = (ANY_HOST, "[::]")
"""The hosts that mean all addresses of a machine, by IPv4 and by IPv6, as for ZeroMQ."""
_LOOPBACKS = ("127.0.0.1", "[::1]")


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
