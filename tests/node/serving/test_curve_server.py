"""A server that asks for keys: who comes in, whose each request is, and who gets nothing."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from node.access.curve import KEY_PROPERTY, ZAP_ENDPOINT, CurveGate, ask_for_keys, new_pair
from node.serving.curve_server import CurveServer, open_server
from node.serving.request_server import BadFrames, Received, RequestWait, Server, bulk_socket
from protocol.access.key_files import KeyPair
from protocol.errors import NotAllowed, ServiceNotAvailable
from protocol.wire import zmtp
from protocol.wire.frames import answer, pack, unpack
from tests.support.own_host import ANY_PORT

WAIT_S = 60.0
REFUSED_S = 0.3
"""How long a peer that must not come in is watched: an allowed one needs a hundredth of it."""
NODE, ALICE, BOB, STRANGER = (new_pair() for _ in range(4))
LOCAL = f"ipc://@keelog-test-{os.getpid()}-curve"
NOBODY = 65534
Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def known() -> dict[str, str]:
    """The users by their keys; a test may take one away."""
    return {ALICE.public: "alice", BOB.public: "bob"}


@pytest.fixture
def server(context: Context, known: dict[str, str]) -> Iterator[Server]:
    gate, bulk = CurveGate(NODE, known.get), bulk_socket(LOCAL)
    server = open_server(gate, context, ANY_PORT, local=LOCAL, bulk=bulk)
    yield server
    server.close(0)


Connect = Callable[..., Socket]


def nobody(_key: str) -> None:
    """A table without users."""


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """`connect(keys, …)`: a client in a context of its own, as another process has."""
    context: Context = zmq.Context()
    clients: list[Socket] = []

    def new(
        keys: KeyPair | None,
        server_key: str = NODE.public,
        endpoint: str = "",
        **options: bytes | int,
    ) -> Socket:
        client = context.socket(zmq.DEALER)
        if keys is not None:
            client.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
            client.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
            client.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        for name, value in options.items():
            client.setsockopt(getattr(zmq, name), value)
        client.connect(endpoint or server.endpoint)
        clients.append(client)
        return client

    yield new
    for client in clients:
        client.close(0)
    context.term()


def received(server: Server, seconds: float = WAIT_S) -> Received | BadFrames | None:
    """The next request, as a loop takes it."""
    wait, deadline = RequestWait(server.watched, server), time.monotonic() + seconds
    while (found := server.receive()) is None and time.monotonic() < deadline:
        wait.poll(10)
    return found


def asked(server: Server, client: Socket, number: int = 1) -> Received:
    client.send(pack({"v": 1, "op": "ping", "id": number}))
    found = received(server)
    assert isinstance(found, Received)
    return found


def test_a_user_with_a_key_comes_in_and_gets_answers(server: Server, connect: Connect) -> None:
    client = connect(ALICE)
    request = asked(server, client)
    assert (request.user, request.is_own) == ("alice", False)
    assert str(request.sender()).startswith("127.")
    assert server.send(request.peer, answer(1), b"x" * 100_000)
    client.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
    header, payload = client.recv_multipart()
    assert (unpack(header)["ok"], len(payload)) == (True, 100_000)


def test_clients_without_keys_and_with_passwords_get_nothing(
    server: Server, connect: Connect
) -> None:
    plain = connect(None)
    named = connect(None, PLAIN_USERNAME=b"alice", PLAIN_PASSWORD=b"alice")
    for client in (plain, named):
        client.send(pack({"v": 1, "op": "ping", "id": 1}))
    assert received(server, REFUSED_S) is None
    assert asked(server, connect(ALICE)).user == "alice"


def test_a_key_that_is_nobodys_and_one_for_another_node_get_nothing(
    server: Server, connect: Connect
) -> None:
    stranger = connect(STRANGER)
    astray = connect(ALICE, server_key=BOB.public)
    for client in (stranger, astray):
        client.send(pack({"v": 1, "op": "ping", "id": 1}))
    assert received(server, REFUSED_S) is None
    assert asked(server, connect(BOB)).user == "bob"


def test_a_key_that_was_taken_away_while_it_is_connected_is_refused_at_the_next_request(
    server: Server, connect: Connect, known: dict[str, str]
) -> None:
    client = connect(ALICE)
    assert asked(server, client).user == "alice"
    del known[ALICE.public]
    client.send(pack({"v": 1, "op": "ping", "id": 7}))
    refused = received(server)
    assert isinstance(refused, BadFrames)
    assert (refused.request_id, type(refused.error)) == (7, NotAllowed)
    assert ALICE.secret not in f"{refused.error!r} {refused.error.hint}"
    known[ALICE.public] = "carol"
    assert asked(server, client, 8).user == "carol"


def test_each_of_two_users_who_take_turns_with_one_routing_id_is_known_by_the_key(
    server: Server, connect: Connect
) -> None:
    for keys, name in ((ALICE, "alice"), (BOB, "bob"), (ALICE, "alice")):
        client = connect(keys, ROUTING_ID=b"the same")
        request = asked(server, client)
        assert (request.peer, request.user) == (b"the same", name)
        client.close(0)
        time.sleep(0.05)  # until the server has seen the end, the id is taken


def test_what_a_client_says_of_its_own_key_does_not_count(server: Server, connect: Connect) -> None:
    said = b"X-%s:%s" % (KEY_PROPERTY.encode(), BOB.public.encode())
    request = asked(server, connect(ALICE, METADATA=said))
    assert request.user == "alice"


def test_without_somebody_who_looks_at_keys_there_is_no_server(context: Context) -> None:
    taken = context.socket(zmq.REP)
    taken.bind(ZAP_ENDPOINT)
    with pytest.raises(ServiceNotAvailable, match="nobody can look at the keys"):
        CurveServer(CurveGate(NODE, nobody), context, ANY_PORT)
    taken.unbind(ZAP_ENDPOINT)
    taken.close(0)
    CurveServer(CurveGate(NODE, nobody), context, ANY_PORT).close(0)


def test_a_socket_whose_handler_is_missing_lets_nobody_in(connect: Connect) -> None:
    other: Context = zmq.Context()
    with other, other.socket(zmq.ROUTER) as alone:
        ask_for_keys(alone, NODE)
        alone.bind(ANY_PORT)
        client = connect(ALICE, endpoint=alone.getsockopt_string(zmq.LAST_ENDPOINT))
        client.send(b"hello")
        assert not alone.poll(int(REFUSED_S * 1000))


@pytest.mark.parametrize("endpoint", [LOCAL, bulk_socket(LOCAL)])
def test_local_sockets_take_this_user_without_a_key(
    server: Server, connect: Connect, endpoint: str
) -> None:
    request = asked(server, connect(None, endpoint=endpoint))
    assert (request.user, request.is_own) == ("", True)


def test_where_a_request_came_in_says_whether_it_is_of_this_machine(context: Context) -> None:
    """Without keys too; nothing that a peer says of itself makes it one of the node's own."""
    bulk = bulk_socket(LOCAL)
    server = open_server(None, context, ANY_PORT, local=LOCAL, bulk=bulk)
    clients = []
    for endpoint, is_own in ((server.endpoint, False), (LOCAL, True), (bulk, True)):
        client: Socket = zmq.Context.instance().socket(zmq.DEALER)
        client.setsockopt(zmq.METADATA, b"X-Peer-Address:127.0.0.9")
        client.setsockopt(zmq.ROUTING_ID, b"the same")
        client.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        client.connect(endpoint)
        clients.append(client)
        request = asked(server, client)
        assert (request.is_own, server.is_own(request.peer)) == (is_own, is_own)
        assert request.address == ("" if is_own else "127.0.0.1")
        assert server.send(request.peer, answer(1), b"x" * 100_000)
        assert len(client.recv_multipart()[1]) == 100_000
    for client in clients:
        client.close(0)
    server.close(0)


INTRUDER = f"""
import os, sys, zmq
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
client = zmq.Context().socket(zmq.DEALER)
client.connect(sys.argv[1])
client.send(b"hello")
print("here", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
@pytest.mark.parametrize("endpoint", [LOCAL, bulk_socket(LOCAL)])
@pytest.mark.parametrize("kind", [Server, CurveServer])
def test_another_user_gets_nothing_at_local_sockets(
    context: Context, endpoint: str, kind: type[Server], caplog: pytest.LogCaptureFixture
) -> None:
    gate = CurveGate(NODE, nobody) if kind is CurveServer else None
    server = open_server(gate, context, ANY_PORT, local=LOCAL, bulk=bulk_socket(LOCAL))
    intruder = subprocess.Popen(
        [sys.executable, "-c", INTRUDER, endpoint],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert intruder.stdout is not None
    assert intruder.stdout.readline() == "here\n"
    assert received(server, REFUSED_S) is None
    if endpoint == LOCAL:
        assert [record.message for record in caplog.records] == [
            "a local socket is for this user and root alone"
        ]
    intruder.communicate()
    server.close(0)


def test_a_far_peer_cannot_take_the_name_of_a_local_connection(context: Context) -> None:
    """It would have its answers sent to that client, under a number of its choice."""
    server = Server(context, ANY_PORT, local=LOCAL)
    local: Socket = zmq.Context.instance().socket(zmq.DEALER)
    local.connect(LOCAL)
    first = asked(server, local)
    host, _, port = server.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port))) as far:
        peers = [b"\0local" + (1).to_bytes(8, "big"), (1).to_bytes(8, "big")]
        assert first.peer not in peers
        assert len(first.peer) == 24
        identity = b"\x08Identity" + len(peers[0]).to_bytes(4, "big") + peers[0]
        socket_type = b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
        far.sendall(zmtp.GREETING + zmtp.command(b"READY", socket_type + identity))
        while not far.recv(1000).endswith(b"Identity\0\0\0\0"):
            pass
        far.sendall(b"\0\4evil")
        request = received(server)
        assert isinstance(request, Received)
        assert (request.peer, request.is_own) == (peers[0], False)
        assert server.send(request.peer, answer(1))
        assert not local.poll(50)
    local.close(0)
    server.close(0)


def test_known_clients_connect_while_others_flood_the_port_with_beginnings(
    server: Server, connect: Connect
) -> None:
    host, _, port = server.endpoint.removeprefix("tcp://").rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32)
    hello = b"\4\xc8\5HELLO\1\0" + bytes(72) + os.urandom(32) + bytes(8) + os.urandom(80)
    flood = []
    for _ in range(200):
        one = socket.create_connection((host, int(port)))
        one.sendall(greeting + hello)
        flood.append(one)
    began = time.monotonic()
    assert asked(server, connect(ALICE)).user == "alice"
    assert time.monotonic() - began < 2.0
    for one in flood:
        one.close()


def test_a_node_without_keys_has_the_plain_server(context: Context) -> None:
    """So a request costs it what it did: not one look more."""
    server = open_server(None, context, ANY_PORT)
    assert type(server) is Server
    assert server.watched == (server.socket,)
    server.close(0)
