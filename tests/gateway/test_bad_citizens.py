"""Clients that do not read, do not end, or come in crowds: a bounded cost, and nobody else's."""

import ast
import asyncio
import logging
import resource
import socket
import struct
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from keelog.gateway.connection import (
    FRAME_S_MAX,
    IDLE_S_MAX,
    LOGIN_S_MAX,
    PAUSE_BYTES,
    ConnectionBuffers,
    EndReason,
    RemotingConnection,
    Reply,
    Request,
)
from keelog.gateway.pulls import PULL_BYTES_MAX
from keelog.gateway.service import CONNECTIONS_MAX
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import RemotingHeader
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING, RemotingPeer, pull_fields, remoting_place, send_fields

ROOT = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024
SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


def gateway_of(node: RunningNode) -> psutil.Process:
    (pid,) = node.pids()["gateway"]
    return psutil.Process(pid)


def fill(node: RunningNode, topic: str, size: int) -> None:
    """Messages of 64 KiB in queue 0, so many bytes."""
    node.client.create_topic(topic, 1)
    for number in range(size // (64 * 1024)):
        node.client.send(topic, b"%5d" % number * (64 * 1024 // 5), queue_id=0)
    node.wait_dispatched()


@pytest.mark.process
def test_who_asks_for_much_and_reads_nothing_costs_little_and_gets_all_of_it_later(
    node: RunningNode,
) -> None:
    fill(node, "large", 2 * MIB)
    place, count = remoting_place(node.stderr), 150
    with closing(RemotingPeer(place)) as slow, closing(RemotingPeer(place)) as friend:
        fields = pull_fields("large", 0, 0, maxMsgNums=1000, maxMsgBytes=PULL_BYTES_MAX)
        friend.ask(PULL, fields)
        before = gateway_of(node).memory_info().rss
        asked = [slow.send(PULL, fields) for _ in range(count)]
        deadline, grown = time.monotonic() + 1.5, 0
        while time.monotonic() < deadline:
            grown = max(grown, gateway_of(node).memory_info().rss - before)
            assert friend.ask(SEND, send_fields("friends"), b"x").code == ResponseCode.SUCCESS
        assert grown < 24 * MIB, f"{count} MiB were asked for, and {grown / MIB:.0f} are kept"
        answers = [slow.answer_to(opaque) for opaque in asked]
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert all(len(answer.body) > PULL_BYTES_MAX - 64 * 1024 for answer in answers)


@dataclass(eq=False)
class Transport(asyncio.Transport):
    """In place of a socket."""

    unsent: int = 0
    is_reading_: bool = True
    is_aborted: bool = False
    written: list[bytes] = field(default_factory=list)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == PAUSE_BYTES

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return default
        return SimpleNamespace(fileno=lambda: -1) if name == "socket" else ("127.0.0.1", 5)

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted, self.unsent = True, 0

    def pause_reading(self) -> None:
        self.is_reading_ = False

    def resume_reading(self) -> None:
        self.is_reading_ = True


@dataclass
class Handler:
    """In place of the service: it answers at once."""

    buffers: ConnectionBuffers = field(default_factory=ConnectionBuffers)
    taken: list[int] = field(default_factory=list)
    ends: list[EndReason] = field(default_factory=list)

    def take(self, request: Request) -> None:
        self.taken.append(request.header.opaque)
        request.answer(Reply())

    def count(self, code: int, outcome: int) -> None:
        assert not outcome

    def count_end(self, reason: EndReason) -> None:
        self.ends.append(reason)

    def answered(
        self, connection: RemotingConnection, header: RemotingHeader, body: memoryview
    ) -> None: ...

    def came(self, connection: RemotingConnection) -> None: ...

    def went(self, connection: RemotingConnection) -> None: ...


async def connected(handler: Handler) -> tuple[RemotingConnection, Transport]:
    connection = RemotingConnection(cast(Any, handler), asyncio.get_running_loop())
    transport = Transport()
    connection.connection_made(transport)
    return connection, transport


def receive(connection: RemotingConnection, data: bytes) -> None:
    while data:
        room = connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


def frame(opaque: int, body: bytes = b"") -> bytes:
    return frame_head(RemotingHeader(SEND, opaque), len(body)) + body


def test_requests_wait_while_their_client_does_not_read() -> None:
    async def run() -> None:
        handler = Handler()
        connection, transport = await connected(handler)
        connection.pause_writing()
        receive(connection, frame(1) + frame(2) + frame(3) + frame(4)[:-3])
        assert (handler.taken, transport.is_reading_) == ([1], False), "one, then it is noticed"
        connection.resume_writing()
        connection.pause_writing()
        await asyncio.sleep(0)
        assert handler.taken == [1]
        connection.resume_writing()
        await asyncio.sleep(0)
        assert (handler.taken, transport.is_reading_) == ([1, 2, 3], True)
        receive(connection, frame(4)[-3:])
        await asyncio.sleep(0)
        assert handler.taken == [1, 2, 3, 4]
        assert (connection.buffered_bytes, handler.buffers.held) == (0, 0)

    asyncio.run(run())


def test_a_connection_without_a_frame_that_has_begun_costs_no_buffer() -> None:
    async def run() -> None:
        handler = Handler()
        crowd = [await connected(handler) for _ in range(3)]
        for number, (connection, _) in enumerate(crowd):
            receive(connection, frame(number) + frame(100 + number, b"x" * 900)[:-1])
        assert handler.buffers.held == 3 * 4096, "a frame has begun in each"
        for number, (connection, _) in enumerate(crowd):
            receive(connection, b"x" + frame(200 + number)[:5])
            receive(connection, frame(200 + number)[5:])
        assert handler.taken == [0, 1, 2, 100, 200, 101, 201, 102, 202], "none took another's bytes"
        assert handler.buffers.held == 0

    asyncio.run(run())


def test_beyond_the_limit_of_all_connections_those_end_that_hold_most() -> None:
    async def run() -> None:
        handler = Handler(ConnectionBuffers(limit=1_000_000))
        small, of_small = await connected(handler)
        large, of_large = await connected(handler)
        receive(small, frame(1, b"x" * 200_000)[:-1])
        receive(large, frame(2, b"x" * 600_000)[:-1])
        assert not handler.ends
        of_large.unsent = 150_000
        large.send(RemotingHeader(0, 3), b"y")
        await asyncio.sleep(0)
        assert handler.ends == []
        other, _ = await connected(handler)
        receive(other, frame(4, b"x" * 300_000)[:-1])
        assert (handler.ends, of_large.is_aborted) == ([EndReason.MEMORY], True)
        assert not of_small.is_aborted
        assert handler.buffers.held == small.buffered_bytes + other.buffered_bytes < 1_000_000
        # What was sent in the meantime does not count.
        of_small.unsent = 400_000
        small.send(RemotingHeader(0, 5), b"y")
        await asyncio.sleep(0)
        of_small.unsent = 0
        third, _ = await connected(handler)
        receive(third, frame(6, b"x" * 200_000)[:-1])
        assert handler.ends == [EndReason.MEMORY]

    asyncio.run(run())


def test_who_has_not_logged_in_ends_no_connection_of_a_user() -> None:
    async def run() -> None:
        handler = Handler(ConnectionBuffers(limit=1_000_000))
        handler.buffers.strangers_limit = 500_000
        user, of_user = await connected(handler)
        receive(user, frame(1, b"x" * 400_000)[:-1])
        user.logged_in()
        small, of_small = await connected(handler)
        large, of_large = await connected(handler)
        receive(small, frame(2, b"x" * 100_000)[:-1])
        receive(large, frame(3, b"x" * 450_000)[:-1])
        assert (of_user.is_aborted, of_small.is_aborted, of_large.is_aborted) == (
            False, False, True,
        )  # fmt: skip
        assert handler.ends == [EndReason.MEMORY]
        assert handler.buffers.held == user.buffered_bytes + small.buffered_bytes

    asyncio.run(run())


def test_where_users_log_in_a_connection_without_one_ends_soon() -> None:
    async def run() -> None:
        handler = Handler()
        stranger, _ = await connected(handler)
        user, _ = await connected(handler)
        user.logged_in()
        late = stranger.came_at + LOGIN_S_MAX + 1
        stranger.close_if_idle(late)
        assert handler.ends == [], "nobody must log in"
        for one in (stranger, user):
            one.close_if_idle(stranger.came_at + LOGIN_S_MAX, must_log_in=True)
            assert not one.is_closed
            one.close_if_idle(late, must_log_in=True)
        assert (stranger.is_closed, user.is_closed) == (True, False)
        assert handler.ends == [EndReason.LOGIN]

    asyncio.run(run())


def test_who_came_to_the_wrong_port_is_named_once_and_not_at_each_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        handler = Handler()
        for first in (b"\xff\0\0\0\0\0\0\0\x01\x7f", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 12):
            for _ in range(3):
                connection, transport = await connected(handler)
                receive(connection, first)
                assert transport.is_aborted
        assert handler.ends == [EndReason.BROKEN] * 9

    asyncio.run(run())
    said = [vars(one)["fields"]["why"] for one in caplog.records]
    assert len(said) == 3
    assert "a client of Keelog: give it the address after the word ready" in said[0]
    assert "an HTTP client" in said[1]
    assert said[2] == "a frame with the length -1"


def test_a_frame_that_does_not_end_and_a_silent_client_are_ended_and_a_reading_one_is_not() -> None:
    async def run() -> None:
        handler = Handler()
        drip, _ = await connected(handler)
        began = time.monotonic()
        receive(drip, frame(1)[:4])
        drip.heard_at += FRAME_S_MAX  # as of a byte now and then
        drip.close_if_idle(began + FRAME_S_MAX - 1)
        assert not drip.is_closed
        drip.close_if_idle(began + FRAME_S_MAX + 1)
        assert drip.is_closed
        silent, _ = await connected(handler)
        silent.close_if_idle(silent.heard_at + IDLE_S_MAX)
        assert not silent.is_closed
        silent.close_if_idle(silent.heard_at + IDLE_S_MAX + 0.1)
        assert handler.ends == [EndReason.SILENT, EndReason.SILENT]
        reading, _ = await connected(handler)
        reading.heard_at -= IDLE_S_MAX
        reading.pause_writing()
        reading.resume_writing()
        reading.close_if_idle(time.monotonic())
        assert not reading.is_closed, "it takes its replies"

    asyncio.run(run())


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(300)
def test_frames_that_begin_large_and_never_end_are_bounded_together(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", (REMOTING,), queue_workers=1, readers=1) as node:
        check_large_frames(node)


def check_large_frames(node: RunningNode) -> None:
    place = remoting_place(node.stderr)
    gateway = gateway_of(node)
    before = gateway.memory_info().rss
    with ExitStack() as stack, closing(RemotingPeer(place)) as friend:
        for _ in range(60):
            one = stack.enter_context(socket.create_connection(place, timeout=20))
            head = struct.pack(">iI", 16 * MIB - 4, 20)
            try:
                one.sendall(head + b"{" + b" " * (8 * MIB))
            except OSError:
                continue
            assert friend.ask(SEND, send_fields("friends"), b"x").code == ResponseCode.SUCCESS
            assert gateway.memory_info().rss - before < 320 * MIB
    assert "a connection holds too much memory" in node.stderr


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_ten_thousand_idle_connections_cost_little_memory_and_time(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(CONNECTIONS_MAX, hard - 500) - 1
    try:
        with RunningNode(tmp_path / "store", (REMOTING,), queue_workers=1, readers=1) as node:
            check_crowd(node, count)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def check_crowd(node: RunningNode, count: int) -> None:
    place = remoting_place(node.stderr)
    gateway = gateway_of(node)
    with ExitStack() as stack, closing(RemotingPeer(place)) as friend:
        friend.ask(SEND, send_fields("friends"), b"x")
        first = gateway.memory_info().rss
        for _ in range(count):
            peer = stack.enter_context(closing(RemotingPeer(place)))
            peer.tell(RequestCode.HEART_BEAT, {}, b'{"clientID":"c"}')
        friend.ask(SEND, send_fields("friends"), b"x")
        each = (gateway.memory_info().rss - first) / count
        times = gateway.cpu_times()
        time.sleep(5)
        after = gateway.cpu_times()
        share = (after.user + after.system - times.user - times.system) / 5
        began = time.monotonic()
        assert friend.ask(SEND, send_fields("friends"), b"x").code == ResponseCode.SUCCESS
        took = time.monotonic() - began
        cost = f"{count} connections: {each:.0f} bytes each, {share:.1%} of a core, {took:.3f} s"
        logging.getLogger("keelog.tests").info(cost)
        assert each < 8_192, cost
        assert share < 0.1, cost
        assert took < 1, cost
        if count == CONNECTIONS_MAX - 1:
            with closing(socket.create_connection(place, timeout=20)) as one_more:
                assert one_more.recv(1) == b"", "it is one too many"
    assert "Traceback" not in node.stderr


def test_nothing_that_expires_looks_at_the_wall_clock() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "keelog" / "gateway").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if getattr(call, "id", "") == "now_ms"
    }
    sources = "".join(path.read_text() for path in (ROOT / "keelog" / "gateway").rglob("*.py"))
    assert "time.time" not in sources
    assert "datetime" not in sources
    # Times that are shown, or that a file keeps; and timers, whose times are of the wall clock.
    # Delay levels and the ages of open transactions are counted by the steady one (Arrivals).
    assert users == {
        "keelog/gateway/admin/broker_info.py",
        "keelog/gateway/admin/groups.py",
        "keelog/gateway/admin/topics.py",
        "keelog/gateway/groups.py",
        "keelog/gateway/guard.py",
        "keelog/gateway/members.py",
        "keelog/gateway/sending/sends.py",
        "keelog/gateway/service.py",
        "keelog/gateway/tasks/delay_level.py",
        "keelog/gateway/tasks/timer_records.py",
        "keelog/gateway/tasks/timer_files.py",
        "keelog/gateway/to_clients.py",
        "keelog/gateway/transaction_ends.py",
    }


def test_a_reader_that_shares_its_room_gives_the_same_frames() -> None:
    shared = memoryview(bytearray(64 * 1024))
    one, two = FrameReader(shared=shared), FrameReader(shared=shared)
    streams = {
        reader: b"".join(frame(n, bytes([n]) * size) for n, size in enumerate(sizes))
        for reader, sizes in ((one, (5, 70_000, 0, 3_000, 9)), (two, (200_000, 1, 60_000)))
    }
    found: dict[FrameReader, list[tuple[int, bytes]]] = {one: [], two: []}
    at = dict.fromkeys(streams, 0)
    step = 0
    while any(at[reader] < len(data) for reader, data in streams.items()):
        for reader, data in streams.items():
            step += 7_919
            room = reader.room()
            piece = data[at[reader] : at[reader] + min(len(room), step % 9_000 + 1)]
            room[: len(piece)] = piece
            at[reader] += len(piece)
            for header, body in reader.received(len(piece)):
                found[reader].append((header.opaque, bytes(body)))
            reader.keep(len(piece))
    for reader, data in streams.items():
        assert b"".join(frame(opaque, body) for opaque, body in found[reader]) == data
        assert reader.buffer_bytes == 0


@pytest.mark.parametrize("room", [4_096, 1024 * 1024])
def test_replies_arrive_whole_and_in_order_whatever_the_network_takes_at_once(room: int) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate([0, 9, 300_000, 1, 70_000, 5])]
    bodies *= 4
    frames = [frame(number, body) for number, body in enumerate(bodies)]
    size = sum(map(len, frames))

    async def run() -> bytes:
        loop, handler = asyncio.get_running_loop(), Handler()
        connection = RemotingConnection(cast(Any, handler), loop)
        server = await loop.create_server(lambda: connection, "127.0.0.1", 0)
        server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        found = b""
        with closing(socket.socket()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            while not connection.address:
                await asyncio.sleep(0.001)
            for number, body in enumerate(bodies):
                with handler.buffers.gathering:
                    connection.send(RemotingHeader(SEND, number), body)
                with suppress(BlockingIOError):
                    found += client.recv(1 << 20)  # there is room before the loop knows
            while len(found) < size:
                found += await loop.sock_recv(client, 1 << 20)
        server.close()
        return found

    assert asyncio.run(asyncio.wait_for(run(), 20)) == b"".join(frames)
