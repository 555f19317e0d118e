"""A socket that speaks ZMTP, against libzmq's ROUTER and against peers that misbehave."""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from keelog.client.transport.direct import PullChannel, ZmtpConnection
from keelog.client.transport.exchange import Call, NodeRole, Retry
from keelog.client.transport.routes import HostNames, Routes
from protocol.wire import frames as wire
from protocol.wire import zmtp
from tests.support.own_host import ANY_PORT

WAIT_S = 60.0
Found = list[tuple[int, wire.Header, zmtp.Payload]]


@pytest.fixture
def router() -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.HEARTBEAT_IVL, 100)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(WAIT_S * 1000))
        router.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        yield router


def bound(router: "zmq.Socket[bytes]", address: str = ANY_PORT) -> str:
    router.bind(address)
    return router.getsockopt_string(zmq.LAST_ENDPOINT)


def until(
    link: ZmtpConnection, is_so: Callable[[], bool] = lambda: False, count: int = sys.maxsize
) -> Found:
    """Receives until it is so, or this number of answers has come."""
    found: Found = []
    deadline = time.monotonic() + WAIT_S
    link.wait_at_most(0.05)
    while not is_so() and len(found) < count:
        assert time.monotonic() < deadline, "it did not come"
        found += answers(link, wait=True)
    return found


def answers(link: ZmtpConnection, wait: bool = False) -> Found:
    return [(header["id"], header, payload) for header, payload in link.receive(wait)]


def up(endpoint: str) -> ZmtpConnection:
    link = ZmtpConnection(endpoint)
    until(link, lambda: link.is_up or link.is_lost)
    assert link.is_up
    return link


def sent(link: ZmtpConnection, number: int, payload: bytes | None = None) -> bool:
    """Whether the link took a request of this number."""
    if link.takes_requests:
        header = link.pack({"v": 1, "op": "append", "id": number, "n": number})
        link.send(zmtp.message(header, payload))
        return True
    return False


def answer_all(router: "zmq.Socket[bytes]", count: int) -> list[list[bytes]]:
    """Sends back what came."""
    asked = [router.recv_multipart() for _ in range(count)]
    for peer, header, *payload in asked:
        number = wire.unpack(header)["id"]
        router.send_multipart([peer, wire.pack({"v": 1, "id": number, "ok": True}), *payload])
    return asked


@pytest.mark.parametrize("address", [ANY_PORT, "tcp://[::1]:*", "ipc"], ids=["IPv4", "IPv6", "ipc"])
def test_requests_and_answers_pass_as_they_are(
    router: "zmq.Socket[bytes]", address: str, tmp_path: Path
) -> None:
    if address == "ipc":
        address = f"ipc://{tmp_path}/socket"
    router.setsockopt(zmq.IPV6, int("[" in address))
    link = up(bound(router, address))
    for number, payload in enumerate([None, b"", b"x" * 255, b"y" * 65_535, b"z" * 65_536], 1):
        assert sent(link, number, payload)
    asked = answer_all(router, 5)
    assert [wire.unpack(header)["n"] for _, header, *_ in asked] == [1, 2, 3, 4, 5]
    found = until(link, count=5)
    sizes = [len(payload) for *_, payload in found]
    assert sizes == [0, 0, 255, 65_535, 65_536]
    assert [bytes(payload[:1]) for *_, payload in found] == [b"", b"", b"x", b"y", b"z"]
    link.close()


def test_a_link_goes_over_the_local_socket_that_it_is_given(router: "zmq.Socket[bytes]") -> None:
    local = bound(router, f"ipc://@keelog-test-{os.getpid()}-link")
    link = ZmtpConnection("tcp://127.0.0.1:1", local)
    until(link, lambda: link.is_up)
    assert sent(link, 1)
    answer_all(router, 1)
    ((number, *_),) = until(link, count=1)
    assert (number, link.endpoint) == (1, "tcp://127.0.0.1:1")
    link.close()


def test_a_local_socket_that_nobody_has_is_refused_at_once() -> None:
    with pytest.raises(ConnectionRefusedError):
        ZmtpConnection("tcp://127.0.0.1:1", f"ipc://@keelog-test-{os.getpid()}-nobody")


LISTENER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1].replace("@", chr(0)))
listener.listen()
print("here", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
def test_a_local_socket_that_another_user_has_taken_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names are free while a process of the node starts again."""
    name = f"@keelog-test-{os.getpid()}-taken"
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER, name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        monkeypatch.setattr(os, "geteuid", lambda: 1234)
        with pytest.raises(PermissionError, match="of user 65534"):
            ZmtpConnection(ANY_PORT, f"ipc://{name}")
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
        ZmtpConnection(ANY_PORT, f"ipc://{name}").close()
        other.communicate()


def test_a_local_socket_takes_ten_batches_that_the_node_has_not_read() -> None:
    name = f"keelog-test-{os.getpid()}-unread"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(f"\0{name}")
        server.listen()
        link = ZmtpConnection("tcp://127.0.0.1:1", f"ipc://@{name}")
        peer, _ = server.accept()
        with peer:
            peer.sendall(zmtp.GREETING + zmtp.ready(b"ROUTER"))
            until(link, lambda: link.is_up)
            assert all(sent(link, number, bytes(27_000)) for number in range(1, 11))
            assert not link.wants_to_send, "the kernel has all of them, so nothing was copied"
        link.close()


def test_what_the_network_does_not_take_at_once_is_sent_later(
    router: "zmq.Socket[bytes]",
) -> None:
    router.setsockopt(zmq.RCVHWM, 1)
    link = up(bound(router))
    payload = b"0123456789abcdef" * (4 << 16)
    numbers = range(1, 13)
    taken = [number for number in numbers if sent(link, number, payload)]
    assert link.wants_to_send
    assert 0 < len(taken) < len(numbers), "all of that is not kept"
    found: Found = []
    for _ in taken:
        while not router.poll(0):
            found += answers(link)
        ((_, _, came),) = answer_all(router, 1)
        assert came == payload
    found += until(link, count=len(taken) - len(found))
    assert [number for number, *_ in found] == taken
    assert all(came == payload for *_, came in found)
    link.close()


def test_a_peer_that_pings_hears_something_while_answers_are_awaited(
    router: "zmq.Socket[bytes]",
) -> None:
    """The router ends a connection from which it hears nothing for 2.5 s."""
    router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2_500)
    link = up(bound(router))
    sent(link, 1)
    (asked,) = [router.recv_multipart()]
    begun = time.monotonic()
    until(link, lambda: time.monotonic() > begun + 4.0)
    router.send_multipart([asked[0], wire.pack({"v": 1, "id": 1, "ok": True})])
    ((number, *_),) = until(link, count=1)
    assert number == 1
    link.close()


def test_who_was_silent_for_long_is_stale(
    router: "zmq.Socket[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmtp, "STALE_S", 0.3)
    begun = time.monotonic()
    link = up(bound(router))
    later = time.monotonic() + 0.4
    assert not link.is_stale(begun)
    assert link.is_stale(later)
    until(link, lambda: not link.is_stale(time.monotonic()))  # a PING came, and was answered
    link.close()


def test_a_stale_link_stays_while_somebody_waits_for_an_answer(
    router: "zmq.Socket[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = Routes.of({"readers": [bound(router)]})
    io = SimpleNamespace(retry=Retry(), routes=routes, names=HostNames(), keys=None)
    channel = PullChannel(cast(Any, io), takes_much=False)
    deadline = time.monotonic() + WAIT_S
    while (link := channel._link_up()) is None:
        assert time.monotonic() < deadline
    monkeypatch.setattr(zmtp, "STALE_S", 0.0)
    time.sleep(0.01)
    channel._exchange.sent(Call(NodeRole.READER, "pull", {}, deadline), 1)
    assert channel._link_up() is link
    channel._exchange.under_way.clear()
    assert channel._link_up() is None
    assert link.closed
    channel.close()


def test_a_peer_that_has_gone_is_noticed_with_its_calls(router: "zmq.Socket[bytes]") -> None:
    link = up(bound(router))
    assert sent(link, 1)
    assert sent(link, 2)
    answer_all(router, 1)
    time.sleep(0.2)
    router.close(1_000)
    found = until(link, lambda: link.is_lost)
    assert [number for number, *_ in found] == [1]
    assert not sent(link, 3)
    link.close()


def test_a_peer_that_answers_no_ping_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmtp, "PING_S", 0.1)
    monkeypatch.setattr(zmtp, "PONG_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = ZmtpConnection(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        peer, _ = server.accept()
        with peer:
            peer.sendall(zmtp.GREETING + zmtp.ready(b"ROUTER"))
            until(link, lambda: link.is_up)
            sent(link, 1)
            begun = time.monotonic()
            while not link.is_lost:
                assert time.monotonic() < begun + WAIT_S
                link.keep_alive(time.monotonic())
                time.sleep(0.02)
            assert time.monotonic() > begun + 0.3
            said = peer.recv(4096)
            assert said.endswith(zmtp.PING)
        link.close()


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        zmtp.GREETING + zmtp.command(b"ERROR", b"\x03bad"),
        zmtp.GREETING + zmtp.ready(b"ROUTER") + zmtp.head(2**40, more=False),
    ],
)
def test_a_peer_that_is_no_node_is_left(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = ZmtpConnection(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        peer, _ = server.accept()
        with peer:
            peer.sendall(said)
            found = until(link, lambda: link.is_lost)
        assert (found, link.is_up) == ([], False)
        assert not sent(link, 1)
        link.close()


def test_frames_that_are_no_answer_are_passed_over(router: "zmq.Socket[bytes]") -> None:
    link = up(bound(router))
    sent(link, 1)
    peer, _ = router.recv_multipart()
    router.send_multipart([peer, b"no msgpack"])
    router.send_multipart([peer, wire.pack({"v": 1, "id": 77, "ok": True})])
    router.send_multipart([peer, wire.pack({"v": 1, "id": 1, "ok": True}), b"a", b"b"])
    _, (number, _, payload) = until(link, count=2)
    assert (number, payload) == (1, b"b")
    link.close()


@pytest.mark.parametrize("endpoint", ["udp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:x"])
def test_what_cannot_be_connected_to_at_once_is_left_to_others(endpoint: str) -> None:
    """Names, too: looking them up takes time."""
    with pytest.raises((OSError, ValueError)):
        ZmtpConnection(endpoint)


def test_where_nobody_listens_a_link_is_lost_at_once() -> None:
    begun = time.monotonic()
    link = ZmtpConnection("tcp://127.0.0.1:1")
    assert until(link, lambda: link.is_lost) == []
    assert time.monotonic() < begun + WAIT_S / 2
    assert not sent(link, 1)
    link.close()


def test_the_end_of_a_connection_is_seen_behind_what_came_before_it(
    router: "zmq.Socket[bytes]",
) -> None:
    link = up(bound(router))
    time.sleep(0.3)  # a PING or two wait to be read
    router.close(0)
    poller = select.poll()
    poller.register(link.fd, select.POLLRDHUP)
    assert poller.poll(WAIT_S * 1_000)
    answers(link)
    assert link.is_lost
    link.close()


@pytest.mark.parametrize("moment", ["send", "receive"])
def test_a_link_that_was_interrupted_is_lost(
    router: "zmq.Socket[bytes]", monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Nobody knows then how much of a frame was sent, or taken."""
    link = up(bound(router))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    real = link._socket
    broken = SimpleNamespace(sendmsg=interrupt, recv_into=interrupt, close=real.close)
    monkeypatch.setattr(link, "_socket", broken)
    with pytest.raises(KeyboardInterrupt):
        if moment == "send":
            sent(link, 1)
        else:
            answers(link)
    assert link.is_lost
    link.close()
