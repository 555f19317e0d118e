"""Clients of the node's own machine carry lone requests and pulls over local sockets."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from keelog import connect
from keelog.client.transport.routes import Routes
from protocol.errors import SendTimeout
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process
CONNECTED = "03"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "store", readers=1) as node:
        node.client.create_topic("figs", 1)
        yield node


def connections(local: str) -> int:
    """How many clients are connected to a local socket, as the kernel has it."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    name = local.removeprefix("ipc://")
    # By their numbers: a row may be there twice when sockets come and go meanwhile.
    return len({row[6] for row in rows if row[5] == CONNECTED and row[-1] == name})


def test_sends_look_ups_and_followers_go_over_local_sockets(node: RunningNode) -> None:
    routes = node.client.routes()
    writer, reader = routes.local[str(routes.writer)], routes.local[routes.readers[0]]
    with connect(node.endpoint, timeout=60.0) as client:
        assert (connections(writer), connections(reader)) == (0, 0)
        wait_until(lambda: bool(client.send("figs", b"1") and connections(writer)), "the writer's")
        wait_until(
            lambda: bool(list(client.find("figs", "k")) or connections(reader)), "a reader's"
        )
        before = connections(reader)
        follower = client.tail("figs", "earliest")
        message = next(follower)
        assert (message.body, message.born_host) == (b"1", "127.0.0.1:0")
        wait_until(lambda: connections(reader) > before, "the follower's")
    wait_until(lambda: connections(writer) + connections(reader) == 0, "their end")


def test_a_writer_that_is_started_again_has_the_same_local_socket(node: RunningNode) -> None:
    before = node.client.routes()
    writer = before.local[str(before.writer)]
    with connect(node.endpoint, timeout=60.0) as client:
        wait_until(lambda: bool(client.send("figs", b"1") and connections(writer)), "connected")
        node.kill("writer")

        def is_connected() -> bool:
            with suppress(SendTimeout):  # nobody knows of what was under way, on each connection
                return bool(client.send("figs", b"2")) and connections(writer) > 0
            return False

        wait_until(is_connected, "again")
        assert client.routes().local == before.local


def test_where_the_local_socket_is_on_another_machine_clients_use_the_address(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As through a tunnel to a node elsewhere, or from a container."""
    real = Routes.of

    def elsewhere(fields: dict[str, object]) -> Routes:
        local = fields["local"]
        assert isinstance(local, dict)
        return real({**fields, "local": {of: f"{name}-elsewhere" for of, name in local.items()}})

    routes = node.client.routes()
    monkeypatch.setattr(Routes, "of", elsewhere)
    with connect(node.endpoint, timeout=60.0) as client:
        for number in range(20):
            client.send("figs", b"%d" % number)
        assert client.routes().local != routes.local
        assert len(list(client.tail("figs", "earliest", until_end=True))) == 20
        assert [connections(local) for local in routes.local.values()] == [0, 0]
