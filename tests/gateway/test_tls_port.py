"""A port that takes TLS and plain connections: modes, silence and nonsense, what is on the wire."""

import asyncio
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from keelog.gateway import tls_port
from keelog.gateway.connection import (
    ConnectionBuffers,
    EndReason,
    RemotingConnection,
    Reply,
    Request,
)
from keelog.gateway.tls_port import TlsPort
from node.access.tls import ServerTls
from node.access.tls_settings import TlsMode
from node.runtime.settings import load_settings
from tests.support.certificates import Authority, Pair
from tests.support.remoting import RemotingPeer

PATTERN = b"plaintext of a message. "
ANSWER = PATTERN * (1024 * 1024 // len(PATTERN))
SHORT_S = 0.1


@dataclass
class Service:
    """In place of the gateway's: answers each request with a megabyte."""

    buffers: ConnectionBuffers = field(default_factory=ConnectionBuffers)
    connections: list[RemotingConnection] = field(default_factory=list)
    ends: list[EndReason] = field(default_factory=list)

    def take(self, request: Request) -> None:
        request.answer(Reply(body=ANSWER))

    def count(self, code: int, outcome: int) -> None:
        assert not outcome

    def count_end(self, reason: EndReason) -> None:
        self.ends.append(reason)

    def came(self, connection: RemotingConnection) -> None:
        self.connections.append(connection)

    def went(self, connection: RemotingConnection) -> None:
        self.connections.remove(connection)


@dataclass
class Site:
    """An open port."""

    service: Service
    port: TlsPort
    tls: ServerTls
    failed: list[BaseException]

    @property
    def place(self) -> tuple[str, int]:
        return cast(tuple[str, int], self.port.sockets[0].getsockname())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


@asynccontextmanager
async def opened(pair: Pair, *settings: str, handshake_s: float = 10.0) -> AsyncIterator[Site]:
    service, loop = Service(), asyncio.get_running_loop()
    tls = ServerTls(load_settings([*pair.server, *settings]))
    failed: list[BaseException] = []
    listener = socket.create_server(("127.0.0.1", 0))
    port = TlsPort(
        listener,
        tls,
        lambda: RemotingConnection(cast(Any, service), loop),
        failed.append,
        handshake_s,
    )
    try:
        yield Site(service, port, tls, failed)
    finally:
        port.close()
        for connection in service.connections:
            connection.close()
        while service.connections or port.newcomers:
            await asyncio.sleep(0.01)
        assert failed == []


def encrypted(place: tuple[str, int], context: ssl.SSLContext) -> RemotingPeer:
    """A client by TLS. Raises SSLError."""
    peer = RemotingPeer(place)
    try:
        peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
    except OSError:
        peer.close()
        raise
    return peer


def is_served(peer: RemotingPeer) -> bool:
    """Whether a request is answered; the connection ends."""
    with closing(peer):
        try:
            return peer.ask(105, {}).body == ANSWER
        except OSError:
            return False


@pytest.mark.attack(47)
@pytest.mark.parametrize(
    ("mode", "plain"), [(TlsMode.PERMISSIVE, True), (TlsMode.ENFORCING, False)]
)
def test_a_mode_says_who_is_served(
    authority: Authority, pair: Pair, mode: TlsMode, plain: bool
) -> None:
    async def scenario() -> None:
        async with opened(pair, f"tls_server_mode={mode}") as site:
            by_tls = await asyncio.to_thread(encrypted, site.place, authority.client())
            assert await asyncio.to_thread(is_served, by_tls)
            by_itself = await asyncio.to_thread(RemotingPeer, site.place)
            assert await asyncio.to_thread(is_served, by_itself) == plain

    asyncio.run(scenario())


def test_a_connection_knows_whether_it_came_by_tls(authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with opened(pair, "tls_server_mode=permissive") as site:
            for is_tls in (True, False):
                make = encrypted if is_tls else RemotingPeer
                given = (site.place, authority.client()) if is_tls else (site.place,)
                with closing(await asyncio.to_thread(cast(Any, make), *given)) as peer:
                    await asyncio.to_thread(peer.ask, 105, {})
                    (connection,) = site.service.connections
                    assert connection.is_encrypted == is_tls
                    assert (connection._descriptor == -1) == is_tls
                    assert connection.peer.port == peer.socket.getsockname()[1]
                    assert connection.address == "127.0.0.1:" + str(site.place[1])
                while site.service.connections:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


@pytest.mark.attack(49)
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16" + random.Random(1).randbytes(300),
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x01\x00\x05hello",
    ],
    ids=["any bytes", "a long record", "no hello"],
)
def test_nonsense_behind_the_first_byte_of_tls_ends_its_connection_alone(
    authority: Authority, pair: Pair, sent: bytes
) -> None:
    async def scenario() -> None:
        async with opened(pair) as site:
            good = await asyncio.to_thread(encrypted, site.place, authority.client())
            bad = await asyncio.to_thread(RemotingPeer, site.place)
            with suppress(ConnectionError):
                bad.socket.sendall(sent)
            with closing(bad):
                assert await asyncio.to_thread(closed_in_the_end, bad)
            assert await asyncio.to_thread(is_served, good)

    asyncio.run(scenario())


def closed_in_the_end(peer: RemotingPeer) -> bool:
    """Whether it is closed, perhaps after a last word of TLS."""
    with suppress(ConnectionError):
        while peer.socket.recv(1000):
            pass
    return True


@pytest.mark.attack(49)
@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x02\x00"])
def test_who_says_nothing_more_is_let_go_and_others_are_served(
    authority: Authority, pair: Pair, said: bytes
) -> None:
    async def scenario() -> None:
        async with opened(pair, handshake_s=SHORT_S) as site:
            silent = await asyncio.to_thread(RemotingPeer, site.place)
            silent.socket.sendall(said)
            with closing(silent):
                assert await asyncio.to_thread(closed_in_the_end, silent)
            assert site.port.newcomers == 0
            assert site.service.connections == []
        async with opened(pair) as site:
            good = await asyncio.to_thread(encrypted, site.place, authority.client())
            assert await asyncio.to_thread(is_served, good)

    asyncio.run(scenario())


@pytest.mark.attack(23)
def test_many_who_say_nothing_leave_room_for_a_user(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_port, "NEWCOMERS_MAX", 8)

    async def scenario() -> None:
        async with opened(pair) as site:
            silent = [await asyncio.to_thread(RemotingPeer, site.place) for _ in range(20)]
            for one in silent[::2]:
                one.socket.sendall(b"\x16\x03")
            good = await asyncio.to_thread(encrypted, site.place, authority.client())
            assert await asyncio.to_thread(is_served, good)
            assert site.port.newcomers <= 8
            for one in silent:
                one.close()

    asyncio.run(scenario())


def test_handshakes_that_never_end_make_room_before_a_user_who_came_later(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_port, "NEWCOMERS_MAX", 4)

    async def scenario() -> None:
        async with opened(pair) as site:

            async def stranger() -> RemotingPeer:
                peer = await asyncio.to_thread(RemotingPeer, site.place)
                peer.socket.sendall(b"\x16\x03")
                return peer

            there = [await stranger() for _ in range(4)]
            user = await asyncio.to_thread(socket.create_connection, site.place, 20)
            later = [await stranger() for _ in range(3)]
            wrapped = partial(authority.client().wrap_socket, user, server_hostname="localhost")
            peer = there.pop()
            peer.close()
            peer.socket = await asyncio.to_thread(wrapped)
            assert await asyncio.to_thread(is_served, peer)
            for one in (*there, *later):
                one.close()

    asyncio.run(scenario())


@pytest.mark.attack(51)
def test_a_client_shows_its_certificate_where_it_must(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").pair("client", "c")

    async def scenario() -> None:
        asks = "tls_server_need_client_auth=require"
        trust = f"tls_server_trust_cert_path={authority.trust}"
        async with opened(pair, asks, trust) as site:
            known = authority.client(authority.pair("client", "c"))
            good = await asyncio.to_thread(encrypted, site.place, known)
            assert await asyncio.to_thread(is_served, good)
            for other in (authority.client(), authority.client(stranger)):
                with suppress(ssl.SSLError):  # TLS 1.3 says it after the handshake
                    peer = await asyncio.to_thread(encrypted, site.place, other)
                    assert not await asyncio.to_thread(is_served, peer)
            assert site.service.connections == []

    asyncio.run(scenario())


@pytest.mark.attack(53)
def test_new_connections_get_the_new_certificate_and_old_ones_live(
    authority: Authority, tmp_path: Path
) -> None:
    own = Authority(tmp_path)
    pair = own.pair("server")

    async def scenario() -> None:
        async with opened(pair) as site:
            before = await asyncio.to_thread(encrypted, site.place, own.client())
            own.pair("server")
            site.tls.look(100.0)
            after = await asyncio.to_thread(encrypted, site.place, own.client())
            numbers = [cast(ssl.SSLSocket, one.socket).getpeercert() for one in (before, after)]
            assert numbers[0] != numbers[1]
            for peer in (before, after):
                assert await asyncio.to_thread(is_served, peer)

    asyncio.run(scenario())


class Tap:
    """Passes connections on to a port, and keeps every byte of both directions."""

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self._listener.getsockname()
        self.seen = bytearray()
        self._threads = [threading.Thread(target=self._run)]
        self._threads[0].start()

    def _run(self) -> None:
        with self._listener:
            near, _ = self._listener.accept()
        with near, socket.create_connection(self._place) as far:
            back = threading.Thread(target=self._pass, args=(far, near))
            back.start()
            self._pass(near, far)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


ANSWERS = 20


@pytest.mark.attack(52)
@pytest.mark.parametrize("is_tls", [True, False])
def test_no_byte_of_an_answer_is_readable_on_the_wire(
    authority: Authority, pair: Pair, is_tls: bool
) -> None:
    """Megabytes go to a client that reads slowly, so that every way of writing is taken."""

    def talk(place: tuple[str, int]) -> None:
        context = authority.client()
        peer = encrypted(place, context) if is_tls else RemotingPeer(place)
        with closing(peer):
            sent = [peer.send(105, {"topic": "TBW102"}) for _ in range(ANSWERS)]
            for opaque in sent:
                assert peer.answer_to(opaque).body == ANSWER

    async def scenario() -> bytes:
        async with opened(pair, "tls_server_mode=permissive") as site:
            tap = Tap(site.place)
            await asyncio.to_thread(talk, tap.place)
            await asyncio.to_thread(tap.join)
            assert site.service.ends == []
        return bytes(tap.seen)

    seen = asyncio.run(scenario())
    assert len(seen) > ANSWERS * len(ANSWER)
    # What would be seen otherwise is seen on a plain connection.
    assert (PATTERN in seen) == (not is_tls)
    assert (b"TBW102" in seen) == (not is_tls)
    assert (b"flag" in seen) == (not is_tls)


def test_a_port_that_is_closed_lets_everybody_go(authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with opened(pair) as site:
            silent = await asyncio.to_thread(RemotingPeer, site.place)
            begun = await asyncio.to_thread(RemotingPeer, site.place)
            begun.socket.sendall(b"\x16\x03\x01")
            while site.port.newcomers < 2:
                await asyncio.sleep(0.01)
            place = site.place
            site.port.close()
            for one in (silent, begun):
                with closing(one):
                    assert await asyncio.to_thread(closed_in_the_end, one)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.to_thread(RemotingPeer, place)

    asyncio.run(scenario())
