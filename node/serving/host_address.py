"""The address of this host that its clients on other hosts can use."""

import socket


def first_address() -> str:
    """An IPv4 address of this host that is not loopback, for a wildcard bind."""
    name = socket.gethostname()
    for *_, place in socket.getaddrinfo(name, None, socket.AF_INET):
        if not str(place[0]).startswith("127."):
            return str(place[0])
    return "127.0.0.1"
