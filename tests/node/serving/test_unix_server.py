"""The node's end of local sockets: clients that keep to ZMTP, that do not, and that leave."""

import itertools
import os
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.serving import request_server
from node.serving.request_server import (
    ROOM_BYTES,
    ZERO_COPY_BYTES_MIN,
    LocalConnection,
    LocalEnd,
    Owed,
    Request,
)
from protocol.wire import zmtp
from tests.support.single_process import is_readable

NAME = f"keelog-test-{os.getpid()}-end"
FRAME_BYTES_MAX = 1 << 20
ANSWERS_MAX = 10
UNSENT_S_MAX = 120.0
"""Longer than a slow machine keeps a client from reading."""
WAIT_S = 60.0
HELLO = zmtp.GREETING + zmtp.ready(b"DEALER")


@pytest.fixture
def end() -> Iterator[LocalEnd]:
    end = LocalEnd(f"ipc://@{NAME}", FRAME_BYTES_MAX, ANSWERS_MAX, UNSENT_S_MAX, Owed())
    yield end
    end.close()


def connected(*said: bytes) -> socket.socket:
    """A client that says this, and never waits for long."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(WAIT_S)
    client.connect(f"\0{NAME}")
    client.sendall(b"".join(said))
    return client


def frame(data: bytes, more: bool = False) -> bytes:
    return zmtp.head(len(data), more) + data


def taken(end: LocalEnd) -> Request | None:
    """As the server takes requests: it reads when no earlier one is left."""
    if not end.ready:
        end.turn()
    return end.ready.popleft() if end.ready else None


def next_of(end: LocalEnd) -> Request:
    """The next request."""
    deadline = time.monotonic() + WAIT_S
    while (request := taken(end)) is None:
        assert time.monotonic() < deadline, "no request came"
        is_readable(end.fd, 0.1)
    return request


def asked(end: LocalEnd) -> tuple[socket.socket, LocalConnection]:
    """A client whose request was taken, and its connection."""
    client = connected(HELLO, frame(b"asked"))
    peer, _ = next_of(end)
    connection = end.peers.get(peer)
    assert connection is not None
    return client, connection


def is_ended(client: socket.socket, end: LocalEnd) -> bool:
    """Whether the end hangs up before long."""
    deadline = time.monotonic() + WAIT_S
    client.settimeout(0.02)
    while time.monotonic() < deadline:
        assert taken(end) is None
        try:
            if not client.recv(1 << 16):
                return True
        except TimeoutError:
            continue
        except ConnectionResetError:
            return True
    return False


def test_requests_that_came_together_are_all_there_and_said_to_be(end: LocalEnd) -> None:
    client = connected(HELLO, *[frame(b"%d" % number) for number in range(5)])
    peer, first = next_of(end)
    assert end.ready
    rest = [next_of(end) for _ in range(4)]
    assert [first, *(frames for _, frames in rest)] == [[b"%d" % number] for number in range(5)]
    assert {who for who, _ in rest} == {peer}
    assert not end.ready
    client.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.integers(0, 3 * ROOM_BYTES) | st.sampled_from([65_535, 65_536, 300_000]),
        min_size=1,
        max_size=2,
    ),
    st.none() | st.integers(0, 300_000),
)
def test_libzmq_and_the_end_take_each_others_messages_whatever_their_sizes(
    end: LocalEnd, sizes: list[int], answer_bytes: int | None
) -> None:
    context = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.connect(f"ipc://@{NAME}")
    sent = [os.urandom(size) for size in sizes]
    client.send_multipart(sent)
    peer, frames = next_of(end)
    assert [bytes(one) for one in frames] == sent
    assert all(isinstance(one, bytes) for one in frames if len(one) < zmtp.BYTES_FRAME_MIN)
    payload = None if answer_bytes is None else os.urandom(answer_bytes)
    connection = end.peers.get(peer)
    assert connection is not None
    end.send(connection, b"header", payload)
    deadline = time.monotonic() + WAIT_S
    while not client.poll(1):
        end.turn()
        assert time.monotonic() < deadline
    assert client.recv_multipart() == [b"header", *([] if payload is None else [payload])]
    context.destroy(linger=0)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        zmtp.GREETING.replace(b"NULL", b"CURV"),
        zmtp.GREETING + frame(b"a request before READY"),
        HELLO + zmtp.head(FRAME_BYTES_MAX + 1, more=False),
        HELLO + zmtp.command(b"ERROR", b"\x00"),
        HELLO + frame(b"", more=True) * zmtp.FRAMES_MAX,
    ],
    ids=["http", "mechanism", "no_ready", "too_large", "error", "frames"],
)
def test_who_breaks_the_protocol_is_left_and_nobody_else(end: LocalEnd, said: bytes) -> None:
    honest = connected(HELLO)
    assert taken(end) is None
    bad = connected(said)
    assert is_ended(bad, end)
    honest.sendall(frame(b"still here"))
    assert next_of(end)[1] == [b"still here"]
    for client in (honest, bad):
        client.close()


def test_who_does_not_say_who_it_is_is_left(end: LocalEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_server, "HANDSHAKE_S", 0.1)
    monkeypatch.setattr(request_server, "SWEEP_S", 0.05)
    silent, honest = connected(), connected(HELLO)
    assert is_ended(silent, end)
    honest.sendall(frame(b"later"))
    assert next_of(end)[1] == [b"later"]
    for client in (silent, honest):
        client.close()


def test_a_loop_that_was_held_up_blames_no_client_for_it(
    end: LocalEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0.0, 10 * request_server.HANDSHAKE_S)
    monkeypatch.setattr(request_server, "monotonic", lambda: next(times))
    client = connected(HELLO, frame(b"said at once"))
    assert next_of(end)[1] == [b"said at once"]
    client.close()


def test_a_ping_is_answered_with_its_context(end: LocalEnd) -> None:
    ping = zmtp.command(b"PING", b"\x00\x00context")
    client = connected(HELLO, ping, frame(b"behind it"))
    next_of(end)
    expected = zmtp.GREETING + zmtp.ready(b"ROUTER") + zmtp.command(b"PONG", b"context")
    assert client.recv(1_000) == expected
    client.close()


def test_who_pings_and_reads_nothing_is_left(end: LocalEnd) -> None:
    client = connected(HELLO)
    end.turn()
    client.settimeout(0.0)
    pings = zmtp.command(b"PING", b"\x00\x00context") * 1_000
    deadline = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline, "it is answered without end"
        try:
            client.send(pings)
        except BlockingIOError:
            pass
        except OSError:
            break
        end.turn()
    client.close()


def test_who_reads_nothing_for_long_is_left_with_what_is_kept(
    end: LocalEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_server, "SWEEP_S", 0.05)
    monkeypatch.setattr(end, "_unsent_s_max", 0.3)
    client, connection = asked(end)
    payload = bytes(1 << 22)
    assert end.send(connection, b"header", payload)
    (kept,) = connection.unsent.kept
    assert end.has_unread
    deadline = time.monotonic() + WAIT_S
    while end.peers.get(connection.peer) is not None:
        assert not kept.done
        assert time.monotonic() < deadline, "it is kept without end"
        end.turn()
    assert kept.done
    assert not end.has_unread
    client.close()


def test_no_more_is_kept_for_a_client_than_was_said(end: LocalEnd) -> None:
    client, connection = asked(end)
    payload = bytes(100_000)
    in_kernel_max = connection.end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // len(payload)
    count = 0
    while end.send(connection, b"header", payload) is not None:
        count += 1
    assert ANSWERS_MAX <= count <= ANSWERS_MAX + in_kernel_max
    client.close()


def test_a_copy_is_kept_of_memory_that_is_not_lent(end: LocalEnd) -> None:
    client, connection = asked(end)
    size, count = ZERO_COPY_BYTES_MIN - 1, 0
    reused = bytearray(b"x" * size)
    while not connection.unsent.kept:
        end.send(connection, b"header", reused)
        count += 1
    reused[:] = b"y" * size
    found = bytearray()
    while len(found) < count * size:
        end.turn()
        found += client.recv(1 << 20)
    assert b"y" not in found.replace(b"READY", b"").replace(b"Socket-Type", b"")
    client.close()


def heard(client: socket.socket, size: int) -> bytes:
    """What a client has received after the end's greeting and READY, `size` bytes of it."""
    hello = len(zmtp.GREETING + zmtp.ready(b"ROUTER"))
    found = bytearray()
    while len(found) < hello + size:
        found += client.recv(1 << 16)
    return bytes(found[hello:])


def test_answers_together_are_one_write_for_each_client_in_their_order(
    end: LocalEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, to_one), (two, to_two) = asked(end), asked(end)
    writes: list[LocalConnection] = []
    write = LocalConnection.write

    def counted(
        connection: LocalConnection, parts: Sequence[zmtp.Sendable], lends: bool = True
    ) -> zmtp.KeptMessage | None:
        writes.append(connection)
        return write(connection, parts, lends)

    monkeypatch.setattr(LocalConnection, "write", counted)
    with end.together():
        for answer in (b"a", b"b", b"c"):
            end.send(to_one, answer, None)
        end.send(to_two, b"d", None)
        assert writes == []
    assert writes == [to_one, to_two]
    wanted = frame(b"a") + frame(b"b") + frame(b"c")
    assert heard(one, len(wanted)) == wanted
    assert heard(two, len(frame(b"d"))) == frame(b"d")
    end.send(to_one, b"e", None)
    assert len(writes) == 3, "afterwards each goes at once"
    one.close()
    two.close()


def test_an_answer_with_a_payload_goes_after_those_before_it(end: LocalEnd) -> None:
    client, connection = asked(end)
    with end.together():
        end.send(connection, b"a", None)
        end.send(connection, b"b", b"payload")
        end.send(connection, b"c", None)
    wanted = frame(b"a") + frame(b"b", more=True) + frame(b"payload") + frame(b"c")
    assert heard(client, len(wanted)) == wanted
    client.close()


def test_answers_together_go_though_something_fails_and_somebody_left(end: LocalEnd) -> None:
    (one, to_one), (two, to_two) = asked(end), asked(end)
    one.close()
    with pytest.raises(RuntimeError, match="in between"), end.together():
        end.send(to_one, b"a", None)
        end.send(to_two, b"b", None)
        raise RuntimeError("in between")
    assert heard(two, len(frame(b"b"))) == frame(b"b")
    assert end.peers.get(to_one.peer) is None
    two.close()
    with end.together():
        for payload in (None, b"payload"):
            end.send(to_two, b"c", payload)
    assert end.peers.get(to_two.peer) is None


def test_what_a_client_does_not_take_of_answers_together_is_kept(end: LocalEnd) -> None:
    client, connection = asked(end)
    long = [bytes([number]) * 60_000 for number in range(20)]
    with end.together():
        for answer in long:
            end.send(connection, answer, None)
    assert connection.unsent.kept
    with end.together():
        end.send(connection, b"last", None)
    wanted = b"".join(map(frame, long)) + frame(b"last")
    client.settimeout(0.01)
    found, deadline = bytearray(), time.monotonic() + WAIT_S
    hello = len(zmtp.GREETING + zmtp.ready(b"ROUTER"))
    while len(found) < hello + len(wanted):
        assert time.monotonic() < deadline, "the rest never came"
        end.turn()
        with suppress(TimeoutError):
            found += client.recv(1 << 20)
    assert bytes(found[hello:]) == wanted
    client.close()


def test_who_left_is_forgotten_and_what_it_asked_is_still_there(end: LocalEnd) -> None:
    client = connected(HELLO, frame(b"asked"))
    peer, frames = next_of(end)
    client.sendall(frame(b"asked again"))
    client.close()
    assert frames == [b"asked"]
    assert next_of(end) == (peer, [b"asked again"])
    deadline = time.monotonic() + WAIT_S
    while end.peers.get(peer) is not None:
        assert taken(end) is None
        assert time.monotonic() < deadline


def test_an_answer_to_who_left_says_so(end: LocalEnd) -> None:
    client, connection = asked(end)
    client.close()
    end.send(connection, b"header", None)
    assert connection.is_gone
    assert end.peers.get(connection.peer) is None


def test_without_descriptors_clients_wait_and_come_in_later(
    end: LocalEnd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_server, "SWEEP_S", 0.05)
    client = connected(HELLO, frame(b"asked"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # whatever is closed meanwhile
    try:
        end.turn()
        assert taken(end) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "a client of this machine has to wait" in [one.message for one in caplog.records]
    assert next_of(end)[1] == [b"asked"]
    client.close()


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/a-file", "tcp://127.0.0.1:0", "ipc://@", ""])
def test_other_addresses_are_refused(endpoint: str) -> None:
    with pytest.raises(OSError, match="abstract name"):
        LocalEnd(endpoint, FRAME_BYTES_MAX, ANSWERS_MAX, UNSENT_S_MAX, Owed())
