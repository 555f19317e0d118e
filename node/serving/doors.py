"""Where a process listens, and whom it lets in while descriptors are short.

New connections stay out then, so that the store still gets some. ZeroMQ accepts each connection
until no descriptor is left. So `Doors` holds spare descriptors back. When connections have taken
all others, a filter lets the kernel drop requests for new connections, and the spares are given
back for the store. Connections that are there stay, and the port stays ours.
"""

import ctypes
import errno
import logging
import os
import socket
import struct
import time

import zmq

from node.runtime.event_log import Seldom, fields
from node.runtime.shortage import STORE_SPARES, Spares
from protocol.errors import BadRequest, ServiceNotAvailable
from protocol.wire.zmtp import parse_socket_event

log = logging.getLogger("keelog.serving")

SAID_AGAIN_S = 10.0
LOOK_AGAIN_S = 0.5
"""How long doors stay closed: a look needs descriptors itself, for a moment."""
_LISTENING_MS_MAX = 1_000
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_RETURN = 0x06
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
"""A program of one instruction for the kernel's packet filter: zero bytes of any packet pass."""
_PROGRAM = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))
_PEER_CREDENTIALS = struct.Struct("iII")
"""C's `struct ucred`: process, user, group."""
_BAD_ADDRESS = frozenset(
    (zmq.EINVAL, zmq.EPROTONOSUPPORT, errno.ENODEV, zmq.ENOCOMPATPROTO, zmq.EADDRNOTAVAIL)
)


class Doors:
    """Lets clients in at one ZeroMQ socket, or keeps them out. For the socket's own thread."""

    def __init__(self, bound: "zmq.Socket[bytes]", backlog: int) -> None:
        """`backlog`: connections that may wait; ZeroMQ accepts these even after the doors close."""
        self.are_open = True
        self._socket = bound
        self._listener: socket.socket | None = None
        self._spares = Spares(STORE_SPARES + backlog)
        self._said = Seldom(SAID_AGAIN_S)
        self._look_at = 0.0

    def bind(self, endpoint: str, name: str) -> str:
        """Binds, remembers the descriptor that listens, and returns the address with the real port.

        Raises BadRequest for an address that cannot be, ServiceNotAvailable for one in use. `name`:
        the endpoint as people gave it, or nothing.
        """
        said = f"{name!r} ({endpoint})" if name else repr(endpoint)
        # An ipc socket is a file, and only its owner may write to it.
        mask = os.umask(0o077) if endpoint.startswith("ipc://") else None
        monitor = self._socket.get_monitor_socket(int(zmq.EVENT_LISTENING))
        try:
            self._socket.bind(endpoint)
            if endpoint.startswith("tcp://") and monitor.poll(_LISTENING_MS_MAX):
                _, descriptor = parse_socket_event(monitor.recv_multipart()[0])
                self._listener = socket.socket(fileno=os.dup(descriptor))
        except zmq.ZMQError as error:
            if error.errno in _BAD_ADDRESS:
                raise BadRequest(
                    f"cannot bind {said}: {error.strerror}",
                    "write tcp://127.0.0.1:7850, or another address of this machine",
                ) from None
            raise ServiceNotAvailable(
                f"cannot bind {said}: {error.strerror}", "use another port, or 0 for a free one"
            ) from None
        finally:
            self._socket.disable_monitor()
            monitor.close(0)
            if mask is not None:
                os.umask(mask)
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def turn(self) -> None:
        """Closes when descriptors are short, opens when they are free. Call it now and then."""
        now = time.monotonic()
        if now < self._look_at:
            return
        has_room = self._spares.take()
        if has_room and not self.are_open:
            self.are_open = self._filter(_SO_DETACH_FILTER)
        elif not has_room:
            if self.are_open and self._filter(_SO_ATTACH_FILTER):
                self.are_open = False
                if self._said.is_due("", now):
                    why = (
                        "no descriptor is free for them: raise the limit of open files, LimitNOFILE"
                    )
                    log.warning("new connections wait", extra=fields(why=why))
            self._spares.give_back()
            self._look_at = now + LOOK_AGAIN_S

    def _filter(self, option: int) -> bool:
        if self._listener is not None:
            try:
                self._listener.setsockopt(socket.SOL_SOCKET, option, _PROGRAM)
            except OSError as error:
                log.warning("connections cannot be kept out", extra=fields(why=error))
                return False
        return True

    def close(self) -> None:
        """Gives the descriptors back; its owner closes the socket."""
        self._spares.give_back()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def is_v6(endpoint: str) -> bool:
    """True for an IPv6 address, and for all addresses of a machine, where ZeroMQ does with IPv4 if
    IPv6 is missing."""
    return endpoint.startswith(("tcp://[", "tcp://*:"))


def listen(endpoint: str) -> socket.socket:
    """A listening local socket of an abstract name, `ipc://@NAME`. Raises OSError."""
    scheme, _, name = endpoint.partition("://@")
    if scheme != "ipc" or not name:
        raise OSError(f"{endpoint!r} is no abstract name, as ipc://@name is")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(f"\0{name}")
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def user_of(end: socket.socket) -> int:
    """The user id of the process at the other end of a local connection (SO_PEERCRED)."""
    found = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    _, user, _ = _PEER_CREDENTIALS.unpack(found)
    return int(user)


def is_own(user: int) -> bool:
    """Whether a user may connect to local sockets: the one that this process runs as, and root."""
    return user in (os.geteuid(), 0)


def take_own_users(bound: "zmq.Socket[bytes]") -> None:
    """At local sockets that ZeroMQ binds from now on, it closes the connections of other users."""
    for user in {os.geteuid(), 0}:
        # ZeroMQ takes it as a signed number.
        bound.setsockopt(zmq.IPC_FILTER_UID, ctypes.c_int(user).value)
