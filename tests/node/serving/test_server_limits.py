"""Peers that take and do not give: silent ones, ones that never read, ones that are gone."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import zmq

from node.serving import request_server
from node.serving.request_server import OWED_BYTES_MAX_OF_PEER, RequestWait, Server
from protocol.wire import zmtp
from protocol.wire.frames import answer, unpack
from tests.support.own_host import ANY_PORT, OWN_HOST

WAIT_MS = 60_000
MIB = 1024 * 1024
Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


LOCAL = f"ipc://@keelog-test-{os.getpid()}-limits"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, too, nobody is given up whom a test means to come back to."""
    monkeypatch.setattr(request_server, "UNSENT_S_MAX", 2 * WAIT_MS / 1000)


@pytest.fixture
def server(context: Context) -> Iterator[Server]:
    server = Server(context, ANY_PORT, 64 * 1024, local=LOCAL)
    yield server
    server.close(0)


Connect = Callable[[], "tuple[zmq.Socket[bytes], bytes]"]


class Behind(NamedTuple):
    """A client that has asked and not read any of the `answers`."""

    server: Server
    client: "zmq.Socket[bytes]"
    answers: int


@pytest.fixture(params=["tcp", "local"])
def connect(context: Context, server: Server, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """`connect()`: a client that keeps one answer and reads no more, and its name at the server."""
    endpoint = LOCAL if request.param == "local" else server.endpoint
    clients = []

    def new() -> "tuple[zmq.Socket[bytes], bytes]":
        client = context.socket(zmq.DEALER)
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        client.setsockopt(zmq.RCVHWM, 1)
        client.connect(endpoint)
        client.send(b"")
        clients.append(client)
        return client, asked_by(server)

    yield new
    for client in clients:
        client.close(0)


def asked_by(server: Server) -> bytes:
    """Who sends the next request."""
    wait, deadline = RequestWait(server.watched), time.monotonic() + WAIT_MS / 1000
    while (received := server.receive()) is None:
        assert time.monotonic() < deadline
        wait.poll(WAIT_MS)
    return received.peer


def read(client: "zmq.Socket[bytes]", server: Server) -> tuple[str, int]:
    """What an answer says (`ok` or the kind of its error), and the bytes of its payload."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not client.poll(1):
        assert server.receive() is None
        assert time.monotonic() < deadline
    header = unpack(client.recv())
    size = len(client.recv()) if client.getsockopt(zmq.RCVMORE) else 0
    return ("ok" if header["ok"] else header["error"]["kind"]), size


def send_until_read(
    server: Server, client: "zmq.Socket[bytes]", peer: bytes, payload: bytes
) -> None:
    """Who has read all is served. ZeroMQ lets go of what was read in a thread of its own."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while True:
        assert server.send(peer, answer(99), payload)
        if read(client, server) == ("ok", len(payload)):
            return
        assert time.monotonic() < deadline, "who has read all is not served"


def test_who_does_not_read_large_answers_is_told_so_and_nobody_else_suffers(
    connect: Connect, server: Server
) -> None:
    """ZeroMQ's own limit counts answers, not bytes: 1,000 of 16 MiB would be allowed."""
    slow, slow_peer = connect()
    honest, honest_peer = connect()
    payload = bytes(4 * MIB)
    count = 40
    for number in range(count):
        assert server.send(slow_peer, answer(number), payload)
        send_until_read(server, honest, honest_peer, payload)
    found = [read(slow, server) for _ in range(count)]
    taken = sum(size for _, size in found)
    # What the kernel's buffers hold is not owed any more.
    assert OWED_BYTES_MAX_OF_PEER <= taken <= OWED_BYTES_MAX_OF_PEER + 32 * MIB
    assert {kind for kind, _ in found} == {"ok", "NodeBusy"}
    send_until_read(server, slow, slow_peer, payload)


def test_all_peers_together_are_owed_a_bounded_number_of_bytes(
    connect: Connect, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_server, "OWED_BYTES_MAX", 16 * MIB)
    payload = bytes(8 * MIB)
    clients = [connect() for _ in range(12)]

    def answers_to_all() -> list[str]:
        for _, peer in clients:
            assert server.send(peer, answer(1), payload)
        return [read(client, server)[0] for client, _ in clients]

    kinds = answers_to_all()
    assert kinds[:2] == ["ok", "ok"]
    deadline = time.monotonic() + WAIT_MS / 1000
    while "NodeBusy" not in kinds:  # ZeroMQ's threads may have sent each before the next came
        assert time.monotonic() < deadline, "all are owed as much as they ask for"
        kinds = answers_to_all()
    client, peer = connect()
    while server.send(peer, answer(2), payload) and read(client, server)[0] != "ok":
        assert time.monotonic() < deadline, "room never came back"


def deaf(server: Server, way: str) -> "tuple[socket.socket, bytes]":
    """A client that takes nothing out of the kernel's buffers, and its name at the server."""
    hello = zmtp.GREETING + zmtp.ready(b"DEALER")
    if way == "local":
        client = socket.socket(socket.AF_UNIX)
        client.connect(LOCAL.replace("ipc://@", "\0"))
        client.sendall(hello)
    else:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect((OWN_HOST, int(server.endpoint.rpartition(":")[2])))
        client.sendall(hello)
        client.recv(zmtp.GREETING_BYTES, socket.MSG_WAITALL)
    client.sendall(zmtp.head(0, more=False))
    return client, asked_by(server)


@pytest.mark.parametrize("way", ["tcp", "local"])
def test_who_reads_nothing_for_long_is_given_up(
    way: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_server, "UNSENT_S_MAX", 0.2)
    client, peer = deaf(server, way)
    count = 0
    deadline = time.monotonic() + WAIT_MS / 1000
    while not server.unsent:
        assert server.send(peer, answer(count), b"x" * 30_000)
        count += 1
        assert time.monotonic() < deadline, "ZeroMQ keeps answers without end"
    for _ in range(10):
        server.send(peer, answer(0), b"x" * 30_000)
    while server.unsent:
        server.receive()
        assert time.monotonic() < deadline, "answers are kept without end"
    assert server.unsent_dropped == 11
    client.close()


def test_answers_kept_here_are_bounded_in_bytes(
    connect: Connect, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_server, "UNSENT_BYTES_MAX", 1 * MIB)
    _, peer = connect()
    kept = 0
    for number in range(5_000):
        if server.send(peer, answer(number), b"x" * 60_000) and server.unsent:
            kept += 1
    assert 10 <= kept <= 1 * MIB // 60_000
    assert server.unsent_dropped > 1_000


def test_a_connection_that_says_nothing_is_closed(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_server, "HANDSHAKE_MS", 300)
    server = Server(context, ANY_PORT)
    port = int(server.endpoint.rpartition(":")[2])
    silent = [socket.create_connection((OWN_HOST, port), timeout=WAIT_MS / 1000) for _ in range(20)]
    for connection in silent:
        greeting = b""
        while part := connection.recv(4_096):  # ends when the server hangs up
            greeting += part
        assert len(greeting) < 100
        connection.close()
    server.close(0)


def test_a_peer_whose_host_fell_silent_is_forgotten(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats: half-open connections of vanished hosts end, and with them what they are owed."""
    monkeypatch.setattr(request_server, "HANDSHAKE_MS", WAIT_MS)
    monkeypatch.setattr(request_server, "HEARTBEAT_MS", 100)
    monkeypatch.setattr(request_server, "HEARTBEAT_TIMEOUT_MS", 300)
    server = Server(context, ANY_PORT)
    port = int(server.endpoint.rpartition(":")[2])
    # A ZMTP 3.1 peer by hand: greeting, READY as a DEALER, one message; then not a byte more.
    peer = socket.create_connection((OWN_HOST, port), timeout=WAIT_MS / 1000)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    peer.sendall(greeting)
    answered = 0
    while answered < 64:
        part = peer.recv(64 - answered)
        assert part, "no whole greeting"
        answered += len(part)
    peer.sendall(bytes([4, len(ready)]) + ready + b"\x00\x02hi")
    assert server.socket.poll(WAIT_MS)
    received = server.receive()
    assert received is not None
    deadline = time.monotonic() + WAIT_MS / 1000
    while server.send(received.peer, answer(1)):
        assert time.monotonic() < deadline, "the silent peer is still there"
        time.sleep(0.02)
    peer.close()
    server.close(0)


@pytest.fixture(params=["tcp", "local"])
def behind(context: Context, request: pytest.FixtureRequest) -> Iterator[Behind]:
    """A server that keeps answers itself, as its client has read none of them yet."""
    server = Server(context, ANY_PORT, answers_max=1, local=LOCAL)
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.RCVTIMEO, WAIT_MS)
    client.setsockopt(zmq.RCVHWM, 1)
    client.setsockopt(zmq.RCVBUF, 65_536)  # else the network may take all of it
    client.connect(LOCAL if request.param == "local" else server.endpoint)
    client.send(b"")
    peer = asked_by(server)
    count = 0
    while not server.unsent or count < 500:  # ends when network and ZeroMQ take no more
        assert server.send(peer, answer(count), bytes(20_000))
        count += 1
    yield Behind(server, client, count)
    client.close(0)
    server.close(0)


def test_who_reads_gets_all_answers_of_a_server_that_closes(behind: Behind) -> None:
    """They may be more than are taken at once: a stopping reader answers all that it holds."""
    with ThreadPoolExecutor(1) as readers:
        found = readers.submit(
            lambda: [unpack(behind.client.recv_multipart()[0])["id"] for _ in range(behind.answers)]
        )
        behind.server.close(linger_ms=2 * WAIT_MS)
        assert found.result() == list(range(behind.answers))
    assert behind.server.unsent_dropped == 0


def test_a_server_that_closes_does_not_wait_for_who_reads_nothing(behind: Behind) -> None:
    begin = time.monotonic()
    behind.server.close(linger_ms=200)
    assert 0.1 <= time.monotonic() - begin < 10.0
    assert behind.server.unsent_dropped > 0
