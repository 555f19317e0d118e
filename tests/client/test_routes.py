"""Addresses that leave out their host, and host names, on the client's side."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
import zmq

from keelog.client.client import Client, connect
from keelog.client.transport.exchange import Exchange, Retry
from keelog.client.transport.io_thread import ZmqConnection
from keelog.client.transport.routes import HostNames, Routes, fill_in
from protocol.errors import NotConnected
from tests.support.fake_node import FakeNode, Header, Reply
from tests.support.node import wait_until

NO_NAME = "a" * 64 + ".invalid"
"""A label may have 63 characters: this name is refused without asking anybody."""


@pytest.mark.parametrize(
    ("asked", "host"),
    [
        ("tcp://db7:7850", "db7"),
        ("tcp://[2001:db8::7]:7850", "[2001:db8::7]"),
        ("tcp://10.0.0.7:9", "10.0.0.7"),
        ("ipc:///run/keelog", "127.0.0.1"),
    ],
)
def test_the_host_that_was_asked_takes_the_place_of_a_star(asked: str, host: str) -> None:
    processes: list[Any] = [{"endpoint": "tcp://*:7851"}, {"endpoint": ""}, {"endpoint": None}, 7]
    header = {
        "writer": "tcp://*:7851",
        "readers": ["tcp://*:7852", "tcp://10.0.0.9:1", 7],
        "http": "http://*:7855",
        "processes": processes,
    }
    fill_in(header, asked)
    assert header["writer"] == f"tcp://{host}:7851"
    assert header["readers"] == [f"tcp://{host}:7852", "tcp://10.0.0.9:1", 7]
    assert header["http"] == f"http://{host}:7855"
    assert processes[:2] == [{"endpoint": f"tcp://{host}:7851"}, {"endpoint": ""}]


def test_fields_of_other_types_are_left_alone() -> None:
    header = {"writer": 7, "readers": None, "http": None, "processes": {"endpoint": "tcp://*:1"}}
    fill_in(before := dict(header), "tcp://db7:1")
    assert before == header


class AnywhereNode(FakeNode):
    """It listens at all addresses of its machine."""

    def _control_routes(self, header: Header, payload: bytes, identity: bytes) -> Reply:
        fields = super()._control_routes(header, payload, identity).fields
        fields["writer"] = fields["writer"].replace("127.0.0.1", "*")
        fields["readers"] = [one.replace("127.0.0.1", "*") for one in fields["readers"]]
        return Reply(fields)


@pytest.fixture
def anywhere() -> Iterator[Client]:
    with closing(AnywhereNode()) as node:
        port = node.endpoints["control"].rpartition(":")[2]
        with connect(f"tcp://localhost:{port}", timeout=60.0) as client:
            yield client


def test_a_client_reaches_a_node_that_names_no_host_by_the_name_that_it_asked(
    anywhere: Client,
) -> None:
    receipt = anywhere.send("t", b"x", queue_id=0)
    assert anywhere.pull("t", 0, receipt.queue_offset).messages[0].body == b"x"
    routes = anywhere.routes()
    assert str(routes.writer).startswith("tcp://localhost:")
    assert all(one.startswith("tcp://localhost:") for one in routes.readers)


def test_a_lone_send_to_a_name_is_carried_by_the_caller(anywhere: Client) -> None:
    """As to an address: names are looked up beside it."""

    def is_direct() -> bool:
        anywhere.send("t", b"x", queue_id=0)
        return any(link._link is not None for link in anywhere._core._direct.links)

    wait_until(is_direct, "a connection of the caller's own")
    receipt = anywhere.send("t", b"y", queue_id=0)
    assert is_direct(), "a send by it ended it"
    assert anywhere.pull("t", 0, receipt.queue_offset).messages[0].body == b"y"


def test_a_name_that_does_not_resolve_is_another_error_than_a_node_that_is_away() -> None:
    began = time.monotonic()
    with pytest.raises(NotConnected, match=f"the name {NO_NAME} does not resolve") as unknown:
        connect(f"tcp://{NO_NAME}:7850", timeout=60.0)
    assert "check the name" in unknown.value.hint
    assert time.monotonic() - began < 30.0, "it waited for the timeout"
    with pytest.raises(NotConnected, match="nobody answers at tcp://localhost:1"):
        connect("tcp://localhost:1", timeout=60.0)


def test_an_advertised_name_that_does_not_resolve_is_named() -> None:
    class Elsewhere(FakeNode):
        def _control_routes(self, header: Header, payload: bytes, identity: bytes) -> Reply:
            fields = super()._control_routes(header, payload, identity).fields
            return Reply({**fields, "writer": f"tcp://{NO_NAME}:7851"})

    with closing(Elsewhere()) as node, connect(node.url, timeout=2.0) as client:
        with pytest.raises(NotConnected, match=f"the name {NO_NAME} does not resolve") as refused:
            client.send("t", b"x")
        assert "--advertise" in refused.value.hint


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, None])
def test_somebody_else_at_the_address_is_said_as_that(words: bytes | None) -> None:
    """One who closes at once, one who speaks something else, and one who is silent."""
    with closing(socket.create_server(("127.0.0.1", 0))) as stranger:

        def answer() -> None:
            with suppress(OSError):
                while words is not None:
                    with stranger.accept()[0] as peer:
                        peer.recv(64)
                        peer.sendall(words)

        threading.Thread(target=answer, daemon=True).start()
        url = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        with pytest.raises(NotConnected, match=f"somebody listens at {url}, but") as found:
            connect(url, timeout=60.0 if words is not None else 3.0)
        assert "the word ready of keelog serve" in found.value.hint
        stranger.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("role", ["writer", "readers"])
def test_a_node_that_names_addresses_which_nobody_reaches_is_said_as_that(role: str) -> None:
    class Behind(FakeNode):
        def _control_routes(self, header: Header, payload: bytes, identity: bytes) -> Reply:
            fields = super()._control_routes(header, payload, identity).fields
            return Reply(
                {**fields, "writer": "tcp://127.0.0.1:1", "readers": ["tcp://127.0.0.1:2"]}
            )

    with closing(Behind()) as node, connect(node.url, timeout=1.0) as client:
        with pytest.raises(NotConnected, match=f"{node.url} answered, but named tcp") as refused:
            if role == "writer":
                client.send("t", b"x")
            else:
                client.pull("t", 0, 0)
        assert "--advertise" in refused.value.hint


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_a_name_is_tried_by_its_addresses_of_both_kinds(address: str) -> None:
    known = {place[0] for *_, place in socket.getaddrinfo("localhost", None)}
    if address.strip("[]") not in known:
        pytest.skip("localhost has no such address here")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = context.socket(zmq.ROUTER)
    server.setsockopt(zmq.IPV6, 1)
    server.setsockopt(zmq.LINGER, 0)
    server.bind(f"tcp://{address}:*")
    port = server.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
    link = ZmqConnection(context, f"tcp://localhost:{port}", Exchange(Retry()))
    wait_until(lambda: link.news()[0], "the other kind of address is not tried")
    assert link.ever_connected
    link.close()
    server.close()
    context.term()


def test_names_are_looked_up_once_and_each_attempt_takes_another_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def look_up(host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [
            (socket.AF_INET6, 0, 0, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, 0, 0, "", ("127.0.0.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    names = HostNames()
    assert names.numeric("tcp://10.0.0.7:1", 0) == "tcp://10.0.0.7:1"
    assert names.numeric("tcp://[::1]:1", 0) == "tcp://[::1]:1"
    names.look_up("tcp://db7:1")
    wait_until(lambda: names._found["db7"].addresses != (), "no address")
    found = [names.numeric("tcp://db7:1", attempt) for attempt in range(3)]
    assert found == ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://127.0.0.1:1"]
    assert (asked, names.error("tcp://db7:1")) == (["db7"], "")


def test_routes_hold_what_was_filled_in() -> None:
    header = {"writer": "tcp://*:1", "readers": ["tcp://*:2"]}
    fill_in(header, "tcp://db7:9")
    assert Routes.of(header).endpoints() == {"tcp://db7:1", "tcp://db7:2"}
