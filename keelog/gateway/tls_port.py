"""A port that takes TLS and plain connections, told apart by their first byte.

It is in the place of asyncio's own server where the node has a certificate. The first byte is
looked at and left in the socket, so that a handshake finds it (RocketMQ: TlsModeHandler). A client
that sends none, or does not end the handshake, loses the connection after a while.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from time import monotonic
from typing import NamedTuple

from keelog.client.event_loop import pass_on_error
from node.access.tls import ServerTls
from node.access.tls_settings import FIRST_BYTE, HANDSHAKE_S_MAX, TlsMode
from node.runtime.event_log import Seldom, fields

log = logging.getLogger("keelog.gateway")

NEWCOMERS_MAX = 1_024
"""Connections without a first byte, or in a handshake; beyond it, the oldest ends."""
ACCEPTED_AT_ONCE = 64
"""In one turn of the loop: then it does other things."""
SHORTAGE_S = 1.0
"""The pause after a connection could not be taken for want of a descriptor."""
SHUTDOWN_S = 2.0
"""How long the end of a connection waits for the client's word of farewell."""


class Newcomer(NamedTuple):
    """A connection that is not at the service yet."""

    connected: socket.socket
    peer: str
    number: int
    """Those who came later have higher ones."""
    timer: asyncio.TimerHandle


class TlsPort:
    """One listening socket. All runs in the loop's thread."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ServerTls,
        protocol: Callable[[], asyncio.BufferedProtocol],
        fail: Callable[[BaseException], None],
        handshake_s: float = HANDSHAKE_S_MAX,
    ) -> None:
        """Owns the socket. `fail` gets an unexpected error."""
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._protocol = protocol
        self._fail = fail
        self._handshake_s = handshake_s
        self._said = Seldom()
        self._silent: dict[socket.socket, Newcomer] = {}
        """In the order in which they came."""
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Handshakes, with the numbers of the newcomers, in the order in which they began."""
        self._numbers = count()
        self._is_closed = False
        self._listener = listener
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    @property
    def sockets(self) -> tuple[socket.socket]:
        """As an asyncio.Server has them."""
        return (self._listener,)

    @property
    def newcomers(self) -> int:
        """Connections that are not at the service yet."""
        return len(self._silent) + len(self._tasks)

    def close(self) -> None:
        """Ends the socket, and all who are not at the service yet."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for newcomer in list(self._silent.values()):
            self._let_go(newcomer).close()
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Of the connection, or no descriptor is free.
                log.warning("a connection was not taken", extra=fields(why=error))
                self._loop.remove_reader(self._listener)
                self._loop.call_later(SHORTAGE_S, self._resume)
                return
            connected.setblocking(False)
            self._make_room()
            timer = self._loop.call_later(self._handshake_s, self._is_late, connected)
            newcomer = Newcomer(connected, address[0], next(self._numbers), timer)
            self._silent[connected] = newcomer
            self._loop.add_reader(connected, self._look, connected)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def _make_room(self) -> None:
        """The oldest goes, whether it says nothing or has begun a handshake: one that has just
        come has not had the time for either."""
        if self.newcomers < NEWCOMERS_MAX:
            return
        silent = next(iter(self._silent.values()), None)
        task, number = next(iter(self._tasks.items()), (None, 0))
        if silent is not None and (task is None or silent.number < number):
            self._refuse(silent, f"{NEWCOMERS_MAX} others came after it")
        elif task is not None:
            del self._tasks[task]
            task.cancel()

    def _is_late(self, connected: socket.socket) -> None:
        self._refuse(self._silent[connected], f"not a byte came within {self._handshake_s:.0f} s")

    def _look(self, connected: socket.socket) -> None:
        newcomer = self._silent[connected]
        try:
            first = connected.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._let_go(newcomer).close()
        elif first == FIRST_BYTE:
            self._begin(newcomer, is_tls=True)
        elif self._tls.mode is TlsMode.ENFORCING:
            self._refuse(newcomer, "it is plain, and tls_server_mode is enforcing")
        else:
            self._begin(newcomer, is_tls=False)

    def _begin(self, newcomer: Newcomer, is_tls: bool) -> None:
        connected = self._let_go(newcomer)
        task = self._loop.create_task(self._connect(connected, newcomer.peer, is_tls))
        self._tasks[task] = newcomer.number
        task.add_done_callback(partial(self._ended, connected))

    def _ended(self, connected: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            connected.close()  # it may not have begun
        pass_on_error(task, self._fail)

    async def _connect(self, connected: socket.socket, peer: str, is_tls: bool) -> None:
        """Gives it to the service, after the handshake. Only this connection fails."""
        try:
            if is_tls:
                await self._loop.connect_accepted_socket(
                    self._protocol,
                    connected,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=self._handshake_s,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
            else:
                await self._loop.connect_accepted_socket(self._protocol, connected)
        except OSError as error:
            self._say(peer, getattr(error, "reason", "") or str(error) or type(error).__name__)

    def _let_go(self, newcomer: Newcomer) -> socket.socket:
        del self._silent[newcomer.connected]
        newcomer.timer.cancel()
        self._loop.remove_reader(newcomer.connected)
        return newcomer.connected

    def _refuse(self, newcomer: Newcomer, why: str) -> None:
        self._let_go(newcomer).close()
        self._say(newcomer.peer, why)

    def _say(self, peer: str, why: str) -> None:
        if self._said.is_due((peer, why), monotonic()):
            log.warning("a connection was refused", extra=fields(peer=peer, why=why))
