"""At the port for followers: TLS told from plain, certificates, and the log over TLS."""

import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from keelog.replication.followers.connection import FollowerConnection, FollowerPace, Peer
from keelog.replication.followers.loop import followers_tls
from keelog.replication.followers.newcomers import NEWCOMERS_MAX, Known, Newcomers, refusal
from node.access.tls import ServerTls
from node.access.tls_settings import HANDSHAKE_S_MAX, TlsMode
from node.runtime.settings import load_settings
from protocol.ha import LogFrameReader, encode_report
from tests.support.certificates import PASSED, Authority, Pair

REPORT = encode_report(0)
PATTERN = b"plaintext of the log. "
LOG = PATTERN * (3 * 1024 * 1024 // len(PATTERN))


def is_readable(one: socket.socket, timeout_ms: int) -> bool:
    """Not by select(), which cannot look at descriptors beyond 1,023."""
    poll = select.poll()
    poll.register(one, select.POLLIN)
    return bool(poll.poll(timeout_ms))


class Port:
    """The newcomers of a port, and what the loop of its process does with them."""

    def __init__(self, tls: ServerTls) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.epoll = select.epoll()
        self.newcomers = Newcomers(tls, self.epoll)
        self.known: list[Known] = []

    @property
    def place(self) -> tuple[str, int]:
        return cast(tuple[str, int], self.listener.getsockname())

    def take(self, now: float = 0.0) -> None:
        """One connection comes."""
        connected, peer = self.listener.accept()
        ended = self.newcomers.come(connected, Peer(*peer), now)
        if ended is not None:
            self.known.append(ended)

    def turn_until_known(self, count: int = 1) -> list[Known]:
        for _ in range(1000):
            self.known += self.newcomers.turn(dict(self.epoll.poll(0.05)), 0.0)
            if len(self.known) >= count:
                return self.known
        raise AssertionError(f"{len(self.known)} are known")

    def close(self) -> None:
        for known in self.known:
            known.connected.close()
        self.newcomers.close()
        self.epoll.close()
        self.listener.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


@pytest.fixture
def port(authority: Authority, pair: Pair) -> Iterator[Port]:
    trust = f"tls_server_trust_cert_path={authority.trust}"
    tls = followers_tls(load_settings([*pair.server, trust]))
    assert tls is not None
    with closing(Port(tls)) as opened:
        yield opened


class Client(threading.Thread):
    """Connects by TLS, sends a report and reads to the end of the connection."""

    def __init__(self, place: tuple[str, int], context: ssl.SSLContext | None) -> None:
        super().__init__(daemon=True)
        self._place, self._context = place, context
        self.read = b""
        self.start()

    def run(self) -> None:
        with suppress(OSError), socket.create_connection(self._place, timeout=20) as plain:
            made: socket.socket = plain
            if self._context is not None:
                made = self._context.wrap_socket(plain, server_hostname="localhost")
            with made:
                made.sendall(REPORT)
                while data := made.recv(1 << 16):
                    self.read += data


def test_a_replica_with_a_certificate_is_known_by_it(port: Port, authority: Authority) -> None:
    client = Client(port.place, authority.client(authority.pair("replica")))
    port.take()
    (known,) = port.turn_until_known()
    assert (known.is_encrypted, known.is_certified, known.why) == (True, True, "")
    known.connected.setblocking(True)
    assert known.connected.recv(100) == REPORT
    known.connected.close()
    client.join()


@pytest.mark.attack(65)
@pytest.mark.parametrize("shown", ["none", "of another authority", "one that has ended"])
def test_who_comes_by_tls_without_a_good_certificate_is_refused(
    port: Port, authority: Authority, tmp_path: Path, shown: str
) -> None:
    certificate = None
    if shown == "of another authority":
        certificate = Authority(tmp_path, "stranger").pair("replica")
    elif shown == "one that has ended":
        certificate = authority.pair("ended", ends=PASSED)
    client = Client(port.place, authority.client(certificate))
    port.take()
    (known,) = port.turn_until_known()
    assert known.why.startswith("no connection by TLS: ")
    assert refusal(known, TlsMode.PERMISSIVE, "", True) == known.why
    known.connected.close()
    client.join()
    assert client.read == b""


def test_a_plain_slave_keeps_its_first_byte(port: Port) -> None:
    client = Client(port.place, None)
    port.take()
    (known,) = port.turn_until_known()
    assert (known.is_encrypted, known.is_certified, known.why) == (False, False, "")
    known.connected.setblocking(True)
    assert known.connected.recv(100) == REPORT
    known.connected.close()
    client.join()


def known(is_encrypted: bool = False, is_certified: bool = False) -> Known:
    return Known(cast(Any, None), Peer("10.0.0.7", 1), is_encrypted, is_certified)


@pytest.mark.attack(64)
@pytest.mark.parametrize(
    ("who", "mode", "allowed", "is_named", "is_taken"),
    [
        # Java's slaves know no TLS here: where it is enforced, their addresses are named.
        (known(), TlsMode.ENFORCING, "10.0.0.7", True, True),
        (known(), TlsMode.ENFORCING, "10.0.0.8", False, False),
        (known(), TlsMode.ENFORCING, "", True, False),
        (known(), TlsMode.PERMISSIVE, "", True, True),
        (known(), TlsMode.PERMISSIVE, "10.0.0.8", False, False),
        # A certificate stands for itself, whatever the address.
        (known(True, True), TlsMode.ENFORCING, "10.0.0.8", False, True),
        (known(True), TlsMode.ENFORCING, "10.0.0.8", False, False),
        (known(True), TlsMode.ENFORCING, "", True, True),
    ],
)
def test_who_may_follow(
    who: Known, mode: TlsMode, allowed: str, is_named: bool, is_taken: bool
) -> None:
    assert (refusal(who, mode, allowed, is_named) == "") == is_taken


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00"])
def test_who_says_nothing_more_is_let_go(port: Port, sent: bytes) -> None:
    with socket.create_connection(port.place) as silent:
        port.take()
        silent.sendall(sent)
        assert port.newcomers.turn(dict(port.epoll.poll(0.1)), HANDSHAKE_S_MAX) == []
        port.known += port.newcomers.turn({}, HANDSHAKE_S_MAX + 0.1)
        assert "neither a report nor a handshake" in port.known[0].why


def test_nonsense_and_an_end_are_refused(port: Port) -> None:
    with socket.create_connection(port.place) as bad:
        port.take()
        bad.sendall(b"\x16" + bytes(100))
        assert "no connection by TLS" in port.turn_until_known()[0].why
    socket.create_connection(port.place).close()
    port.take()
    assert port.turn_until_known(2)[1].why == "it closed the connection"


def test_a_connection_that_openssl_has_closed_is_let_go(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrap(connected: socket.socket) -> None:
        connected.close()  # as where it was reset after its first byte was looked at
        raise ConnectionResetError(104, "reset")

    monkeypatch.setattr(port.newcomers._tls, "wrap", wrap)
    with socket.create_connection(port.place) as bad:
        port.take()
        bad.sendall(b"\x16")
        (known,) = port.turn_until_known()
    assert known.why == "no connection by TLS: reset"
    assert known.connected.fileno() == -1


def test_there_is_room_for_so_many_and_the_oldest_ends(port: Port) -> None:
    silent = []
    for _ in range(NEWCOMERS_MAX + 1):
        silent.append(socket.create_connection(port.place))
        port.take()
    assert [one.peer for one in port.known] == [silent[0].getsockname()]
    for one in silent:
        one.close()


@dataclass
class WholeLog:
    """In place of FlushedLog: a log of one segment, which is flushed."""

    path: Path
    end: int
    begin: int = 0
    is_known: bool = True
    segment_bytes: int = 1 << 30

    @property
    def appended(self) -> int:
        return self.end

    def open_segment(self, offset: int) -> tuple[int, int]:
        return os.open(self.path, os.O_RDONLY), 0


class SlowFollower:
    """By hand, so that every byte on the wire is seen."""

    def __init__(self, place: tuple[str, int], context: ssl.SSLContext) -> None:
        self.plain = socket.create_connection(place, timeout=20)
        self._out, self._in = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._reader = LogFrameReader()
        self.wire = b""
        self.copy = b""

    def shake_hands(self, port: Port) -> Known:
        """With a port, in turns."""
        while True:
            with suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
            self.plain.sendall(self._out.read())
            port.known += port.newcomers.turn(dict(port.epoll.poll(0.05)), 0.0)
            if port.known:
                return port.known[0]
            if is_readable(self.plain, 0):
                self._in.write(self.plain.recv(1 << 16))

    def report(self) -> None:
        self._tls.write(REPORT)
        self.plain.sendall(self._out.read())

    def read(self, count: int) -> None:
        data = self.plain.recv(count)
        self.wire += data
        self._in.write(data)
        with suppress(ssl.SSLWantReadError):
            while size := self._tls.read(1 << 16, cast(Any, self._reader.room())):
                for frame in self._reader.take(cast(int, size)):
                    self.copy += frame.body


def test_the_log_goes_over_tls_byte_for_byte_and_is_not_readable_on_the_wire(
    port: Port, authority: Authority, tmp_path: Path
) -> None:
    """To one that reads slowly, so that sends stop in the middle and go on."""
    (tmp_path / "segment").write_bytes(LOG)
    log, blocked = cast(Any, WholeLog(tmp_path / "segment", len(LOG))), 0
    follower = SlowFollower(port.place, authority.client(authority.pair("replica")))
    with closing(follower.plain):
        port.take()
        known = follower.shake_hands(port)
        assert known.why == ""
        known.connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        pace = FollowerPace(60, 60)
        served = FollowerConnection(
            known.connected, "10.0.0.7:1", pace, 0.0, 0, _is_encrypted=known.is_encrypted
        )
        follower.report()
        assert is_readable(known.connected, 20_000)
        served.receive(0.0)
        while len(follower.copy) < len(LOG):
            served.serve(log, 0.0)
            blocked += served.is_blocked
            follower.read(50_000)
        served.close()
    assert follower.copy == LOG
    assert blocked
    assert PATTERN not in follower.wire
