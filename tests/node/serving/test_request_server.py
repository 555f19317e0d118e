"""The server's end of a connection, against peers that keep the rules and peers that do not."""

import os
import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.serving import request_server
from node.serving.request_server import BadFrames, Received, RequestWait, Server, bulk_socket
from protocol.errors import BadRequest, ServiceNotAvailable
from protocol.ids import Host
from protocol.wire.frames import answer, pack, unpack
from tests.support.own_host import ANY_PORT

FRAME_BYTES_MAX = 64 * 1024
WAIT_MS = 60_000
Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


LOCAL = f"ipc://@keelog-test-{os.getpid()}-serving"


@pytest.fixture
def server(context: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # On a slow machine, too, nobody is given up who will read.
    monkeypatch.setattr(request_server, "UNSENT_S_MAX", 2 * WAIT_MS / 1000)
    bulk = bulk_socket(LOCAL)
    server = Server(context, ANY_PORT, FRAME_BYTES_MAX, local=LOCAL, bulk=bulk)
    yield server
    server.close(0)


Connect = Callable[[], "zmq.Socket[bytes]"]


@pytest.fixture(params=["tcp", "local", "bulk"])
def connect(context: Context, server: Server, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """`connect()`: a client of the server, closed at the end of the test; each way in turn."""
    ways = {"tcp": server.endpoint, "local": LOCAL, "bulk": bulk_socket(LOCAL)}
    clients = []

    def new() -> "zmq.Socket[bytes]":
        client = context.socket(zmq.DEALER)
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        client.connect(ways[request.param])
        clients.append(client)
        return client

    yield new
    for client in clients:
        client.close(0)


def receive(server: Server) -> Received | BadFrames:
    wait, deadline = RequestWait(server.watched), time.monotonic() + WAIT_MS / 1000
    while (received := server.receive()) is None:
        assert time.monotonic() < deadline, "no request came"
        wait.poll(WAIT_MS)
    return received


def answered(client: "zmq.Socket[bytes]", server: Server) -> list[bytes]:
    """The next answer; until it has come the server goes on with what it owes."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not client.poll(1):
        assert server.receive() is None
        assert time.monotonic() < deadline, "no answer came"
    return client.recv_multipart()


def test_a_request_comes_with_its_header_payload_and_sender(
    connect: Connect, server: Server
) -> None:
    client = connect()
    client.send(b"head")
    client.send_multipart([b"head", b"records"])
    one, two = receive(server), receive(server)
    assert isinstance(one, Received)
    assert isinstance(two, Received)
    assert (one.header, one.payload) == (b"head", None)
    assert (two.header, two.payload) == (b"head", b"records")
    assert one.sender() == Host(bytes([127, 0, 0, 1]), 0)
    assert server.receive() is None


@pytest.mark.parametrize("host", ["*", "[::]"])
def test_at_a_socket_for_both_kinds_of_addresses_a_sender_keeps_its_ipv4_address(
    context: Context, host: str
) -> None:
    server = Server(context, f"tcp://{host}:0", FRAME_BYTES_MAX)
    port = server.endpoint.rpartition(":")[2]
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.LINGER, 0)
    client.connect(f"tcp://127.0.0.7:0;127.0.0.1:{port}")
    client.send(b"head")
    one = receive(server)
    assert isinstance(one, Received)
    assert one.sender() == Host(bytes([127, 0, 0, 7]), 0)
    client.close(0)
    server.close(0)


def test_a_name_is_in_the_error_of_a_taken_port(context: Context, server: Server) -> None:
    taken = server.endpoint
    port = taken.rpartition(":")[2]
    with pytest.raises(ServiceNotAvailable, match=f"'tcp://db7:{port}' .{taken}.:"):
        Server(context, taken, FRAME_BYTES_MAX, name=f"tcp://db7:{port}")


def test_an_answer_goes_to_who_asked_with_and_without_payload(
    connect: Connect, server: Server
) -> None:
    first, second = connect(), connect()
    first.send(b"1")
    second.send(b"2")
    for _ in range(2):
        request = receive(server)
        assert isinstance(request, Received)
        number = int(request.header)
        payload = b"x" * 100_000 if number == 2 else None
        assert server.send(request.peer, answer(number), payload)
    (header,) = answered(first, server)
    assert unpack(header)["id"] == 1
    header, payload = answered(second, server)
    assert unpack(header)["id"] == 2
    assert payload == b"x" * 100_000


def test_too_many_frames_are_a_refusal_that_names_the_request(
    connect: Connect, server: Server
) -> None:
    client = connect()
    client.send_multipart([pack({"id": 7}), *[b""] * 50])
    bad = receive(server)
    assert isinstance(bad, BadFrames)
    assert bad.request_id == 7
    assert "51 frames" in str(bad.error)
    client.send(b"next")
    following = receive(server)
    assert isinstance(following, Received)
    assert following.header == b"next"


def test_a_frame_over_the_limit_costs_the_peer_its_connection_and_nothing_else(
    connect: Connect, server: Server
) -> None:
    huge, honest = connect(), connect()
    huge.send(b"x" * (FRAME_BYTES_MAX + 1))
    honest.send(b"still here")
    request = receive(server)
    assert isinstance(request, Received)
    assert request.header == b"still here"
    assert server.receive() is None


def test_an_answer_to_a_peer_that_went_away_is_dropped(connect: Connect, server: Server) -> None:
    client = connect()
    client.send(b"")
    request = receive(server)
    client.close(0)
    deadline = time.monotonic() + WAIT_MS / 1000
    while server.send(request.peer, answer(1)):
        server.receive()
        assert time.monotonic() < deadline, "the answer never failed"
        time.sleep(0.01)
    assert not server.send(b"nobody", answer(1), b"payload")


def test_a_peer_that_reads_nothing_gets_all_its_answers_later(
    connect: Connect, server: Server
) -> None:
    client = connect()
    client.setsockopt(zmq.RCVHWM, 1)
    client.send(b"")
    request = receive(server)
    count = 6_000
    for number in range(count):
        assert server.send(request.peer, answer(number), b"x" * 4_000)
    found = [unpack(answered(client, server)[0])["id"] for _ in range(count)]
    assert found == list(range(count))
    assert server.unsent_dropped == 0


def test_an_answer_that_msgpack_cannot_hold_becomes_a_refusal(
    connect: Connect, server: Server
) -> None:
    client = connect()
    client.send(b"")
    request = receive(server)
    assert server.send(request.peer, answer(9, topic="\ud800"), b"payload")
    (packed,) = answered(client, server)
    header = unpack(packed)
    assert (header["id"], header["ok"], header["error"]["kind"]) == (9, False, "BadRequest")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_any_frames_are_received_or_refused(
    connect: Connect, server: Server, frames: list[bytes]
) -> None:
    client = connect()
    client.send_multipart(frames)
    received = receive(server)
    client.close(0)
    if isinstance(received, Received):
        assert frames == [
            received.header,
            *([received.payload] if received.payload else frames[1:]),
        ]
    else:
        assert len(frames) > 2


def test_as_many_frames_as_nobody_sends_are_one_refusal(context: Context, server: Server) -> None:
    client = context.socket(zmq.DEALER)
    client.connect(server.endpoint)
    client.send_multipart([pack({"id": 7}), *[b""] * 5_000])
    bad = receive(server)
    assert isinstance(bad, BadFrames)
    assert "5001 frames" in str(bad.error)
    assert server.receive() is None
    client.close(0)


def at_both_ends(context: Context, server: Server) -> "dict[str, zmq.Socket[bytes]]":
    """A client over the network and a local one, whose first requests have come."""
    clients = {}
    for name, end in {"far": server.endpoint, "local": LOCAL}.items():
        clients[name] = client = context.socket(zmq.DEALER)
        client.connect(end)
        client.send(b"hello")
        receive(server)
    return clients


def test_neither_side_keeps_the_other_waiting(context: Context, server: Server) -> None:
    clients = at_both_ends(context, server)
    for name, client in clients.items():
        for _ in range(40):
            client.send(name.encode())
    for one in (server.watched[0], server.watched[-1]):
        RequestWait([one]).poll(WAIT_MS)
    order = [receive(server) for _ in range(4)]
    assert [isinstance(one, Received) and one.header for one in order[:2]] in (
        [b"far", b"local"],
        [b"local", b"far"],
    )
    for client in clients.values():
        client.close(0)


def test_after_a_wait_that_found_nothing_from_afar_only_the_local_socket_is_looked_at(
    context: Context, server: Server
) -> None:
    clients = at_both_ends(context, server)
    wait = RequestWait(server.watched, server)
    assert wait.poll(0) == []
    clients["far"].send(b"far")
    assert RequestWait([server.socket]).poll(WAIT_MS), "it has come"
    assert server.receive() is None, "the last wait came before it"
    clients["local"].send(b"local")
    RequestWait(server.watched[-1:]).poll(WAIT_MS)
    one = server.receive()
    assert isinstance(one, Received)
    assert one.header == b"local"
    wait.poll(WAIT_MS)
    two = server.receive()
    assert isinstance(two, Received)
    assert two.header == b"far"
    wait.poll(0)
    clients["far"].send(b"far")
    assert RequestWait([server.socket]).poll(WAIT_MS)
    server.may_have_remote = True
    assert isinstance(server.receive(), Received)
    for client in clients.values():
        client.close(0)


def test_a_local_socket_that_cannot_be_is_a_warning(
    context: Context, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    taken = bulk_socket(LOCAL)
    second = Server(context, ANY_PORT, local=LOCAL, bulk=taken)
    assert second.endpoint != server.endpoint
    assert [record.message for record in caplog.records] == 2 * ["clients of this machine use TCP"]
    second.close(0)


def test_an_address_in_use_and_no_address_are_different_errors(
    context: Context, server: Server
) -> None:
    with pytest.raises(ServiceNotAvailable):
        Server(context, server.endpoint)
    with pytest.raises(BadRequest):
        Server(context, "nonsense")
    with pytest.raises(BadRequest):
        Server(context, "tcp://256.1.1.1:0")


def test_a_wait_looks_before_it_sleeps_if_it_may_and_has_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gave_way: list[int] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_yield", lambda: gave_way.append(1))
    reads, writes = os.pipe()
    try:
        wait = RequestWait([reads])
        assert wait.poll(1) == []
        assert wait.poll(0, looks=True) == []
        assert gave_way == []
        assert wait.poll(1, looks=True) == []
        assert gave_way != []
        gave_way.clear()
        os.write(writes, b"x")
        assert [fd for fd, _ in wait.poll(1_000, looks=True)] == [reads]
        assert gave_way == []
    finally:
        os.close(reads)
        os.close(writes)
