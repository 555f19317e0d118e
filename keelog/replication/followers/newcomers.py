"""Connections at the port for followers before it is known how they speak: by TLS, or plainly.

Only where the node has a certificate. The first byte says it, then comes the handshake; a loop
that serves others meanwhile waits for both. A certificate lets its owner follow. Others must come
from an address that is named: RocketMQ's slaves know no TLS here.
"""

import select
import socket
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLWantReadError, SSLWantWriteError
from typing import NamedTuple

from keelog.replication.followers.connection import Peer
from node.access.tls import ServerTls, TlsSocket
from node.access.tls_settings import FIRST_BYTE, HANDSHAKE_S_MAX, TlsMode

NEWCOMERS_MAX = 64
"""Beyond it, the oldest one ends."""


class Known(NamedTuple):
    """A connection that can be served, or why it is not; its socket may be closed then."""

    connected: socket.socket
    peer: Peer
    is_encrypted: bool
    is_certified: bool = False
    """It showed a certificate that was verified."""
    why: str = ""
    """Why it is refused; empty: it may speak."""


@dataclass(eq=False)
class _Newcomer:
    connected: socket.socket
    peer: Peer
    until: float


class Newcomers:
    """In the thread of a loop, which polls `epoll` and gives what it has found to `turn`."""

    def __init__(self, tls: ServerTls, epoll: select.epoll) -> None:
        self._tls = tls
        self._epoll = epoll
        self._waiting: dict[int, _Newcomer] = {}
        """By descriptor, in the order in which they came."""

    def come(self, connected: socket.socket, peer: Peer, now: float) -> Known | None:
        """Takes a connection; returns the one that ends for it, if there are too many."""
        connected.setblocking(False)
        ended = None
        if len(self._waiting) >= NEWCOMERS_MAX:
            oldest = next(iter(self._waiting))
            ended = self._known(oldest, why=f"{NEWCOMERS_MAX} others came after it")
        fd = connected.fileno()
        self._waiting[fd] = _Newcomer(connected, peer, now + HANDSHAKE_S_MAX)
        self._epoll.register(fd, select.EPOLLIN)
        return ended

    def turn(self, found: "dict[int, int]", now: float) -> list[Known]:
        """Those who are known now; none of them is watched any more."""
        made = []
        for fd, one in list(self._waiting.items()):
            known = self._go_on(fd, one) if fd in found else None
            if known is None and now > one.until:
                why = f"neither a report nor a handshake within {HANDSHAKE_S_MAX:.0f} s"
                known = self._known(fd, why=why)
            if known is not None:
                made.append(known)
        return made

    def close(self) -> None:
        """Ends all of them."""
        for fd in list(self._waiting):
            self._known(fd, why="the node stops").connected.close()

    def _go_on(self, fd: int, one: _Newcomer) -> Known | None:
        """One step. None: it needs more time."""
        try:
            if isinstance(one.connected, TlsSocket):
                return self._shake_hands(fd, one.connected)
            first = one.connected.recv(1, socket.MSG_PEEK)
            if not first:
                return self._known(fd, why="it closed the connection")
            if first != FIRST_BYTE:
                return self._known(fd)
            one.connected = self._tls.wrap(one.connected)
            return self._shake_hands(fd, one.connected)
        except BlockingIOError:
            return None
        except OSError as error:
            words = getattr(error, "reason", "") or error.strerror or str(error)
            return self._known(fd, why=f"no connection by TLS: {words}")

    def _shake_hands(self, fd: int, connected: TlsSocket) -> Known | None:
        try:
            connected.do_handshake()
        except SSLWantReadError:
            self._epoll.modify(fd, select.EPOLLIN)
            return None
        except SSLWantWriteError:
            self._epoll.modify(fd, select.EPOLLOUT)
            return None
        return self._known(fd)

    def _known(self, fd: int, why: str = "") -> Known:
        with suppress(OSError):  # OpenSSL closes a socket that was reset in this moment
            self._epoll.unregister(fd)
        one = self._waiting.pop(fd)
        is_encrypted = isinstance(one.connected, TlsSocket)
        is_certified = False
        if isinstance(one.connected, TlsSocket) and not why:
            is_certified = bool(one.connected.getpeercert())
        return Known(one.connected, one.peer, is_encrypted, is_certified, why)


def refusal(known: Known, mode: TlsMode, allowed: str, is_named: bool) -> str:
    """Why a connection may not follow; empty: it may. `allowed` is `ha_allowed_peers`, `is_named`
    whether that lets its address in: an empty one lets in everybody."""
    if known.why or known.is_certified:
        return known.why
    if not is_named:
        return f"ha_allowed_peers does not name {known.peer.host}"
    if mode is TlsMode.ENFORCING and not known.is_encrypted and not allowed:
        return "it is plain, tls_server_mode is enforcing, and ha_allowed_peers names nobody"
    return ""
