"""The address of this host that is stored in its records."""

import socket

_NOT_FOR_OTHERS = ("127.", "169.254.")


def first_address() -> str:
    """The first IPv4 address of this host that is neither loopback nor link-local; else 127.0.0.1.

    It is read from the interfaces: on Debian the host's own name means 127.0.1.1.
    """
    # Only here: writers at one address do without it.
    import psutil

    running = {name for name, one in psutil.net_if_stats().items() if one.isup}
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses if name in running else ():
            if one.family == socket.AF_INET and not one.address.startswith(_NOT_FOR_OTHERS):
                return one.address
    return "127.0.0.1"
