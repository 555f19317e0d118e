"""Where the processes of a node listen, as its control socket reports.

Threads of their own look up the names of hosts: that may take seconds, and nobody shall wait.
ZeroMQ looks up the names that it connects to by itself. The addresses that are found here are for
connections that their owner carries, and the errors say why nothing is reached.
"""

import os
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

from protocol.addresses import at_host, fill_host, host_of, is_numeric
from protocol.errors import MqError, NotAllowed, NotConnected
from protocol.names import DEFAULT_MAX_MESSAGE_BYTES
from protocol.wire.frames import refusal_error

FRESH_S = 30.0
"""An older result is looked up again; it counts until that is done."""
SEND_BUFFER_BYTES = 1024 * 1024
"""Of a local socket: the kernel's usual 208 KiB hold seven batches of 100 messages. A request that
does not fit is copied, and waits for another turn."""
_PEER_CREDENTIALS = struct.Struct("iII")
"""C's `struct ucred`: process, user, group."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The answer to `routes`. `writer` is None while there is none, for the reason `writer_error`.

    `crc` says whether appended records must leave room for the whole-record checksum.
    """

    writer: str | None
    readers: tuple[str, ...]
    crc: bool
    max_message_bytes: int
    epoch: int
    node: str
    writer_error: MqError | None = None
    local: Mapping[str, str] = field(default_factory=dict)
    """Sockets that reach the same processes from this machine, by their endpoints."""
    bulk: Mapping[str, str] = field(default_factory=dict)
    """As `local`, for many large answers."""
    remoting: str | None = None
    """The gateway, where RocketMQ's clients connect; empty while it is not up, None without one."""
    control: str = ""
    """The local socket of the supervisor, for clients of its machine."""
    remoting_tls: str = ""
    """`permissive` or `enforcing` where the gateway speaks TLS, too, or alone; else empty."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Routes":
        """From the header of the answer; what is missing gets the node's defaults."""
        error = fields.get("writer_error")
        return cls(
            writer=fields.get("writer") or None,
            readers=tuple(endpoint for endpoint in fields.get("readers") or () if endpoint),
            crc=bool(fields.get("crc", True)),
            max_message_bytes=int(fields.get("max_message_size") or DEFAULT_MAX_MESSAGE_BYTES),
            epoch=int(fields.get("epoch") or 0),
            node=str(fields.get("node", "")),
            writer_error=refusal_error({"error": error}) if isinstance(error, dict) else None,
            local=_local(fields.get("local")),
            bulk=_local(fields.get("bulk")),
            remoting=fields.get("remoting"),
            control=str(fields.get("control") or ""),
            remoting_tls=str(fields.get("remoting_tls") or ""),
        )

    def endpoints(self) -> set[str]:
        """Every address that is in use."""
        return {*self.readers, *([self.writer] if self.writer else [])}


def fill_in(header: dict[str, Any], asked: str) -> None:
    """Puts the host of `asked`, the control address, into the addresses of an answer to `routes` or
    `status` that leave it out."""
    host = host_of(asked)
    rows = header.get("processes")
    processes = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    for fields, name in (
        *((header, name) for name in ("writer", "http", "remoting")),
        *((row, "endpoint") for row in processes),
    ):
        if isinstance(fields.get(name), str):
            fields[name] = fill_host(fields[name], host)
    if isinstance(header.get("readers"), list):
        header["readers"] = [
            fill_host(one, host) if isinstance(one, str) else one for one in header["readers"]
        ]


def _local(fields: Any) -> dict[str, str]:
    """Empty for nodes of earlier versions, which have none."""
    found = fields if isinstance(fields, dict) else {}
    return {str(endpoint): str(local) for endpoint, local in found.items()}


NO_ROUTES = Routes.of({})
"""The defaults, until the node has sent its routes."""


class HostNames:
    """All names that one client uses. Any thread may call it."""

    def __init__(self) -> None:
        self._found: dict[str, _LookUp] = {}

    def look_up(self, endpoint: str) -> None:
        """Begins to look up the host of an endpoint, if it has a name."""
        host = host_of(endpoint)
        if is_numeric(host):
            return
        known = self._found.get(host)
        if known is None or monotonic() - known.began > FRESH_S:
            self._found[host] = _LookUp(host, () if known is None else known.addresses)

    def numeric(self, endpoint: str, attempt: int) -> str:
        """The endpoint by one of its addresses, another one at each attempt. Raises ValueError
        while there is none."""
        host = host_of(endpoint)
        if is_numeric(host):
            return endpoint
        self.look_up(endpoint)
        addresses = self._found[host].addresses
        if not addresses:
            raise ValueError(f"{host} has no address yet")
        return at_host(endpoint, addresses[attempt % len(addresses)])

    def error(self, endpoint: str) -> str:
        """Why the host of an endpoint has no address; empty if it has, or nobody knows yet."""
        known = self._found.get(host_of(endpoint))
        return "" if known is None else known.error


class _LookUp:
    """The addresses of one name, once they are known, or why there is none."""

    def __init__(self, host: str, known: tuple[str, ...]) -> None:
        """`known`: the addresses of an earlier look-up, which count until this one is done."""
        self.addresses = known
        self.error = ""
        self.began = monotonic()
        self._host = host
        threading.Thread(target=self._run, name="keelog-names", daemon=True).start()

    def _run(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            self.error = f"the name {self._host} does not resolve: {why}"
            return
        # IPv4 first, as ZeroMQ does.
        places = sorted(found, key=lambda one: one[0] != socket.AF_INET)
        self.addresses = tuple(
            str(place[0]) if family == socket.AF_INET else f"[{place[0]}]"
            for family, *_, place in places
        )


def check_gateway(routes: Routes, endpoint: str, by_tls: bool = False) -> str:
    """The address of the gateway of the node at `endpoint`; empty while it is not up.

    Raises NotAllowed for a node that was started without one, or with one that does not speak as
    the client does, `by_tls` or plainly.
    """
    if routes.remoting is None:
        raise NotAllowed(
            f"the node at {endpoint} has no gateway, which consumer groups need",
            "start the node with --remoting 127.0.0.1:10911; a reader alone needs none of it:"
            " keelog consume TOPIC --cursor NAME, or client.tail(topic, cursor=NAME)",
        )
    if by_tls and not routes.remoting_tls:
        raise NotAllowed(
            f"the gateway of the node at {endpoint} has no certificate",
            "leave tls out, or start the node with a certificate",
        )
    if not by_tls and routes.remoting_tls == "enforcing":
        raise NotAllowed(
            f"the gateway of the node at {endpoint} speaks TLS alone",
            "give the consumer tls=ssl.create_default_context(cafile=...)",
        )
    return routes.remoting


def gateway_place(routes: Routes, endpoint: str, by_tls: bool = False) -> tuple[str, int]:
    """As `check_gateway`, its host and port. Raises NotConnected while it is not up."""
    address = check_gateway(routes, endpoint, by_tls)
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        raise NotConnected(
            f"the gateway of the node at {endpoint} is not up yet", "see keelog health"
        )
    return host.strip("[]"), int(port)


def local_ip(endpoint: str) -> bytes:
    """The IPv4 address of this machine towards a node; without one, four bytes of the clock.

    No packet is sent: connecting a datagram socket only chooses the address. A local socket counts
    as loopback.
    """
    if endpoint.startswith("ipc://"):
        return bytes([127, 0, 0, 1])
    parts = urlsplit(endpoint)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 9))
            return socket.inet_aton(probe.getsockname()[0])
    except (OSError, ValueError):
        return (int(time() * 1000) & 0xFFFFFFFF).to_bytes(4, "big")


def local_address(name: str) -> str:
    """The address of `ipc://NAME` for a socket; a name with `@` is an abstract one of Linux."""
    return f"\0{name[1:]}" if name.startswith("@") else name


def is_own_socket(endpoint: str) -> bool:
    """Whether a process of this user, or of root, listens at an `ipc://NAME`."""
    scheme, _, name = endpoint.partition("://")
    if scheme != "ipc":
        return False
    try:
        connecting_socket(socket.AF_UNIX, local_address(name)).close()
    except (OSError, ValueError):
        return False
    return True


def connecting_socket(family: int, address: Any) -> socket.socket:
    """A socket that connects. Raises OSError."""
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setblocking(False)
        if family == socket.AF_UNIX:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            found.connect(address)  # at once, or not at all: EAGAIN where too many wait
            _check_owner(found)
        else:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(BlockingIOError):
                found.connect(address)
        # Waits are asked for where they are wanted: `_NOW`, or SO_RCVTIMEO.
        found.setblocking(True)
    except OSError:
        found.close()
        raise
    return found


def _check_owner(connected: socket.socket) -> None:
    """Raises PermissionError where the process that listens is another user's: a node takes its own
    user and root alone, and any user may take a name while no node has it."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    owner, own = _PEER_CREDENTIALS.unpack(found)[1], os.geteuid()
    if own and owner not in (own, 0):
        raise PermissionError(f"the local socket is of user {owner}")
