"""The process and the store of a node that replied, proved by the machine and not by the reply.

Any process at the address may reply anything, and the zip goes to other people. So no path of a
reply is opened. Files are those that a process of the caller's own user has open, when that
process listens at the address that was asked; what the machine shows proves it, not the answer.
"""

import http.client
import ipaddress
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from node.supervisor.child_process import UNKNOWN
from protocol.errors import MqError
from protocol.names import LOCK_FILE

METRICS_BYTES_MAX = 4 * 1024 * 1024
HTTP_S_MAX = 5.0
"""From the connection to the last byte of the answer."""
_LOCALHOST = ("127.0.0.1", "::1")
_EVERYWHERE = ("0.0.0.0", "::")
_OURS = b"keelog_"


class Unproven(MqError):
    """A node names a thing that is not proved to be its own."""


def node_here(asked: str, status: Mapping[str, Any]) -> tuple[Path, Path | None, list[int]]:
    """The store of the node that answered at the address `asked`, if it runs here as the caller's
    user; the file that its stderr is, if it is one; the pids of its processes. Raises Unproven.

    Of its status the supervisor's pid is taken, as a hint.
    """
    host, port = _place(asked)
    if not _is_of_this_machine(host):
        raise Unproven(f"{host} is not localhost or an IP address of this machine")
    supervisor = status.get("supervisor")
    pid = supervisor.get("pid") if isinstance(supervisor, Mapping) else None
    if not isinstance(pid, int):
        raise Unproven("the node names no process")
    try:
        process = psutil.Process(pid)
        if process.uids().real != os.geteuid():
            raise Unproven(f"process {pid} is of user {process.username()}: ask as that user")
        if not _listens(process, _LOCALHOST if host == "localhost" else (host,), port):
            raise Unproven(f"process {pid} does not listen at {host}, port {port}")
        children = process.children(recursive=True)
    except (psutil.Error, OSError, OverflowError, *UNKNOWN) as error:
        raise Unproven(f"process {pid} is not seen here: {error}") from None
    store = _held_store(pid)
    if store is None:
        raise Unproven(f"process {pid} holds no store of this machine")
    log_file, link = None, Path(f"/proc/{pid}/fd/2")
    with suppress(OSError):
        log_file = link if link.is_file() else None
    return store, log_file, [pid, *(child.pid for child in children)]


def metrics_text(asked: str, named: object) -> bytes:
    """Reads `/metrics` at the port that the node names. Raises Unproven, OSError."""
    host, port = _metrics_place(asked, named)
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_S_MAX)
    connection.connect()
    # The answer takes the socket out of the connection.
    end = _End(connection.sock)
    try:
        connection.request("GET", "/metrics")
        with connection.getresponse() as answer:
            status, text = answer.status, answer.read(METRICS_BYTES_MAX + 1)
    except http.client.HTTPException as error:
        raise Unproven(f"the answer is not HTTP: {type(error).__name__}") from None
    finally:
        end.cancel()
        connection.close()
    if end.has_come:
        raise Unproven(f"the answer took more than {HTTP_S_MAX:.0f} s")
    if status != HTTPStatus.OK:
        raise Unproven(f"the answer is {status}")
    if len(text) > METRICS_BYTES_MAX:
        raise Unproven(f"the answer has more than {METRICS_BYTES_MAX} bytes")
    if not any(line.startswith(_OURS) for line in text.splitlines()):
        raise Unproven("the answer holds no metric of Keelog")
    return text


class _End:
    """Ends a connection after HTTP_S_MAX.

    A timeout of the socket alone would let an answer come byte by byte, for ever.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.has_come = False
        self._connection = connection
        self._timer = threading.Timer(HTTP_S_MAX, self._end)
        self._timer.start()

    def _end(self) -> None:
        self.has_come = True
        with suppress(OSError):  # closed at this moment
            self._connection.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        """The answer is there; waits until the connection is not touched any more."""
        self._timer.cancel()
        self._timer.join()


def _metrics_place(asked: str, named: object) -> tuple[str, int]:
    """The host that was asked, or this machine's loopback where both are on this machine."""
    host, _ = _place(asked)
    try:
        parts = urlsplit(named if isinstance(named, str) else "")
        there, port = parts.hostname, parts.port
    except ValueError:
        there = port = None
    if not there or not port or parts.scheme != "http":
        raise Unproven("the node names no http://HOST:PORT")
    if there == host or there in _EVERYWHERE:
        return host, port
    if there in (*_LOCALHOST, "localhost") and _is_of_this_machine(host):
        return there, port
    raise Unproven(f"the node was asked at {host}, and names another host")


def _place(asked: str) -> tuple[str, int]:
    try:
        parts = urlsplit(asked)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise Unproven("the node was not asked at a host and a port")
    return host, port


def _is_of_this_machine(host: str) -> bool:
    """A name may resolve to one address for the question and to another one for this look."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    ours: set[str] = set()
    with suppress(OSError, *UNKNOWN):
        ours = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    return address.is_loopback or host in ours


def _listens(process: psutil.Process, hosts: tuple[str, ...], port: int) -> bool:
    return any(
        one.status == psutil.CONN_LISTEN
        and one.laddr.port == port
        and one.laddr.ip in (*hosts, *_EVERYWHERE)
        for one in process.net_connections("tcp")
    )


def _held_store(pid: int) -> Path | None:
    """The folder whose lock the process has open."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                file = link.readlink()
                if file.name == LOCK_FILE and os.path.samestat(link.stat(), file.lstat()):
                    return file.parent
    return None
