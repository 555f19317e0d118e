"""Addresses as people see them and as clients use them, and who came to the wrong one.

People see them without their credentials. A client fills in the host where a node leaves it to its
client. `foreign_client` finds out by the first bytes of a connection who came to the wrong port.
"""

import ipaddress
import re
from typing import NamedTuple

DEFAULT_PORT = 7850
"""Of a node's control socket; the writer listens one port above, then the readers."""
REMOTING_PORT, REPLICATION_PORT = 10_911, 10_912
"""Where RocketMQ's clients and its slaves expect a broker (BrokerConfig, MessageStoreConfig)."""
DEFAULT_NODE = f"tcp://127.0.0.1:{DEFAULT_PORT}"
VIP_DISTANCE = 2
"""RocketMQ's old clients and slaves connect so much below the port of a broker
(MixAll#brokerVIPChannel)."""
ANY_HOST = "*"
"""The host in an address of a process that listens at all addresses of its machine: the client puts
the one there under which it asked."""
WILDCARDS = (ANY_HOST, "0.0.0.0", "[::]")
"""The hosts that mean all addresses of a machine."""

_USER = re.compile(
    # A path keeps one slash of two. A secret that nobody has quoted may hold slashes itself.
    r"(\w:/|//)(/?)(?:[^/\s]+|[^/\s@:]+:(?!\d+/)[^\s@]+)@"
)
_BARE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}):[0-9]{1,5}")
_PARAMETER = re.compile(
    r"(?i)([?&][\w.-]*(?:secret|passw(?:or)?d|token|credential|key|sig)[\w.-]*=)[^&\s\"']+"
)
_ZMTP_SIZE_AT = slice(1, 9)
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH ")
_JSON_HEADER_AT = 8


def without_credentials(text: str) -> str:
    """Text whose URLs show `***` for users, passwords, and parameters that are named like secrets.

    For showing alone: what is opened is the address as it was given.
    """
    if "@" in text:
        text = _USER.sub(r"\1\2***@", text)
    return _PARAMETER.sub(r"\1***", text) if "=" in text else text


def with_scheme(address: str) -> str:
    """The address of a node, with `tcp://` before a bare `HOST:PORT`, which means nothing else."""
    return f"tcp://{address}" if _BARE.fullmatch(address) else address


def host_of(endpoint: str) -> str:
    """The host of `tcp://HOST:PORT`, an IPv6 address in brackets; loopback for a local socket."""
    scheme, _, place = endpoint.partition("://")
    return place.rpartition(":")[0] if scheme == "tcp" else "127.0.0.1"


def is_numeric(host: str) -> bool:
    """Whether a host is an address, with or without brackets, and not a name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only programs of the same machine can connect to a host."""
    if host == "localhost":
        return True
    return is_numeric(host) and ipaddress.ip_address(host.strip("[]")).is_loopback


def at_host(address: str, host: str) -> str:
    """Scheme and port of an address at another host. Nothing stays nothing."""
    scheme, _, place = address.partition("://")
    return f"{scheme}://{host}:{place.rpartition(':')[2]}" if address else ""


def fill_host(address: str, host: str) -> str:
    """An address as a node reports it, with `host` in the place of ANY_HOST."""
    return at_host(address, host) if f"://{ANY_HOST}:" in address else address


class ForeignClient(NamedTuple):
    """Whose client speaks, and what to do about it."""

    what: str
    hint: str


KEELOG_CLIENT = ForeignClient(
    "a client of Keelog", "give it the address after the word ready, as tcp://HOST:7850"
)
TLS_CLIENT = ForeignClient(
    "a client with TLS, as RocketMQ 5's gRPC clients",
    "use RocketMQ's remoting client (rocketmq-client); with TLS once the node has a certificate",
)
GRPC_CLIENT = ForeignClient(
    "a gRPC client, as those of RocketMQ 5", "use RocketMQ's remoting client (rocketmq-client)"
)
HTTP_CLIENT = ForeignClient(
    "an HTTP client", "pages for browsers and probes are at the address of --http"
)
REMOTING_CLIENT = ForeignClient("a client of RocketMQ", "give it the address of --remoting")


def foreign_client(first: bytes) -> ForeignClient | None:
    """Who begins a connection so; None for anybody else. A dozen bytes say it."""
    if first[:1] == b"\xff" and not any(first[_ZMTP_SIZE_AT][:7]) and first[9:10] == b"\x7f":
        return KEELOG_CLIENT
    if first[:2] == b"\x16\x03":
        return TLS_CLIENT
    if first.startswith(b"PRI * HTTP/2"):
        return GRPC_CLIENT
    if first.startswith(_METHODS):
        return HTTP_CLIENT
    if first[_JSON_HEADER_AT:].startswith(b'{"'):
        return REMOTING_CLIENT
    return None
