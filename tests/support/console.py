"""A console in a thread, over a real socket, and a small HTTP client that hides nothing."""

import asyncio
import http.client
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlencode

from keelog.client.core import ClientCore
from keelog.client.results import Health, NodeStatus
from keelog.console.app import Console, ConsoleOptions
from keelog.console.node_link import Look, NodeLink, State
from keelog.console.server import serve
from keelog.console.sessions import Sessions
from keelog.console.viewers import Door
from node.runtime.settings import Settings
from protocol.errors import NotConnected

KEY = "the-key-of-this-start"
WAIT_S = 10.0


class AwayNode(NodeLink):
    """A node that does not answer: pages are made of what is known, which is nothing."""

    def __init__(self) -> None:
        super().__init__("tcp://127.0.0.1:1")
        self.is_asked = 0

    @property
    def core(self) -> ClientCore:
        raise NotConnected("nobody listens there")

    def state(self) -> State:
        self.is_asked += 1
        return State(None, None, 0.0, NotConnected("nobody listens there"))


class KnownNode(AwayNode):
    """A node that answered once."""

    def state(self) -> State:
        status = NodeStatus.of({"ready": True, "store": "/data/known"})
        return State(Look(status, Health(True, (), {}), 0.0, 1_000), None, 0.0, None)


class Reply(NamedTuple):
    """The reply to a request."""

    status: int
    headers: dict[str, str]
    text: str
    data: bytes = b""


class Site(NamedTuple):
    """A console that is served."""

    port: int
    console: Console
    sessions: Sessions
    node: NodeLink

    def ask(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        method: str = "",
    ) -> Reply:
        """One request, as a browser that follows nothing."""
        return ask(self.port, path, headers, form, method)

    def raw(self, data: bytes, wait_s: float = WAIT_S) -> bytes:
        """Sends bytes as they are; all that comes back until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), wait_s) as connection:
            connection.sendall(data)
            return read_to_end(connection)

    def session(self) -> dict[str, str]:
        """The header of somebody who has shown the key."""
        reply = self.ask("/unlock", SAME, {"key": KEY})
        assert reply.status == 303, reply
        return {"Cookie": reply.headers["set-cookie"].partition(";")[0]}


SAME = {"Sec-Fetch-Site": "same-origin"}
"""The header that a browser sends with a form of the console itself."""
HTML = {"Accept": "text/html,*/*"}


def ask(
    port: int,
    path: str,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    method: str = "",
) -> Reply:
    """One request to a console at loopback."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    sent = dict(headers or {})
    body = None
    if form is not None:
        body = urlencode(form)
        sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
    try:
        connection.request(method or ("GET" if form is None else "POST"), path, body, sent)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return Reply(answer.status, found, data.decode("utf-8", "replace"), data)


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    found = b""
    while True:
        try:
            part = connection.recv(65_536)
        except ConnectionResetError:
            return found
        if not part:
            return found
        found += part


@contextmanager
def served(
    node: NodeLink | None = None,
    door: Door | None = None,
    settings: ConsoleOptions | None = None,
) -> Iterator[Site]:
    """A console over a socket of its own, within the context."""
    node = AwayNode() if node is None else node
    door = Door(None, Settings(), False, "DefaultCluster") if door is None else door
    sessions = Sessions(KEY)
    console = Console(node, door, sessions, settings or ConsoleOptions())
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    ready = threading.Event()
    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        stop = asyncio.Event()
        stops.append((asyncio.get_running_loop(), stop))
        ready.set()
        await serve(console, listener, stop)

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield Site(listener.getsockname()[1], console, sessions, node)
    finally:
        loop, stop = stops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_S)
        listener.close()
        node.close()


CONSOLE = "serve.console=127.0.0.1:0"
_URL = re.compile(r"console (https?)://[^:]+:(\d+)(/\S*?)[,)]")


def console_port(stderr: str) -> int:
    """The port that a node's ready line names."""
    found = _URL.search(stderr)
    assert found is not None, stderr
    return int(found[2])
