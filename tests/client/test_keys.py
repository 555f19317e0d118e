"""A client with keys: who it connects to, and one error that says what to try."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import keelog
import keelog.aio
from keelog.client.transport.keys import client_keys
from node.access.curve import CurveGate, make_server_keys, new_pair, write_pair
from node.serving.curve_server import open_server
from node.serving.request_server import Received, RequestWait, serve_waiting
from protocol.access.key_files import BadKey, KeyPair, key_file
from protocol.errors import BadRequest, MqError, NotAllowed, NotConnected
from protocol.wire import frames
from tests.support.own_host import ANY_PORT

TIMEOUT_S = 10.0


class NodeWithKeys:
    """A control socket that answers `routes`, for known keys, in a thread."""

    def __init__(self, gate: CurveGate | None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._server = open_server(gate, self._context, ANY_PORT)
        self.endpoint = self._server.endpoint
        self.users: list[str] = []
        self._ends = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        wait = RequestWait(self._server.watched, self._server)
        while not self._ends:
            wait.poll(20)
            serve_waiting(self._server, 100, "here", self._reply)
        self._server.close(0)

    def _reply(self, operation: str, header: dict[str, Any], received: Received) -> dict[str, Any]:
        self.users.append(received.user)
        place = {"writer": self.endpoint, "readers": [self.endpoint], "local": {}, "bulk": {}}
        return frames.answer(frames.request_id(header), **place)

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        self._context.term()


@pytest.fixture
def known() -> dict[str, str]:
    return {}


@pytest.fixture
def server(tmp_path: Path) -> KeyPair:
    return make_server_keys(tmp_path)


@pytest.fixture
def node(known: dict[str, str], server: KeyPair) -> Iterator[NodeWithKeys]:
    node = NodeWithKeys(CurveGate(server, known.get))
    yield node
    node.close()


@pytest.mark.parametrize("is_text", [True, False])
def test_a_client_whose_key_is_known_is_served(
    node: NodeWithKeys, known: dict[str, str], server: KeyPair, tmp_path: Path, is_text: bool
) -> None:
    known[write_pair(tmp_path, "me").public] = "alice"
    server_key = server.public if is_text else tmp_path / "keelog" / "auth" / "server.key"
    key = tmp_path / "me.key_secret"
    with keelog.connect(node.endpoint, TIMEOUT_S, key=key, server_key=server_key) as client:
        assert client.routes().writer == node.endpoint
    assert set(node.users) == {"alice"}


def test_a_client_of_asyncio_comes_with_keys_too(
    node: NodeWithKeys, known: dict[str, str], server: KeyPair, tmp_path: Path
) -> None:
    known[write_pair(tmp_path, "me").public] = "alice"
    key = tmp_path / "me.key_secret"

    async def writer() -> str | None:
        client = keelog.aio.connect(node.endpoint, TIMEOUT_S, key=key, server_key=server.public)
        async with client:
            return (await client.routes()).writer

    assert asyncio.run(writer()) == node.endpoint
    assert set(node.users) == {"alice"}


def refusal(endpoint: str, **keys: Any) -> MqError:
    """What connecting raises, well before the time is up."""
    with pytest.raises(MqError) as found, keelog.connect(endpoint, TIMEOUT_S, **keys):
        raise AssertionError("connected")
    return found.value


def test_a_key_that_is_nobodys_is_one_error_that_says_so(
    node: NodeWithKeys, server: KeyPair, tmp_path: Path
) -> None:
    write_pair(tmp_path, "me")
    error = refusal(node.endpoint, key=tmp_path / "me.key_secret", server_key=server.public)
    assert isinstance(error, NotAllowed)
    assert "does not know the key of this client" in error.reason
    assert ".key file" in error.hint


def test_a_server_key_of_another_node_is_one_error_that_says_so(
    node: NodeWithKeys, known: dict[str, str], tmp_path: Path
) -> None:
    known[write_pair(tmp_path, "me").public] = "alice"
    key = tmp_path / "me.key_secret"
    error = refusal(node.endpoint, key=key, server_key=new_pair().public)
    assert isinstance(error, NotAllowed)
    assert "secret key to server_key" in error.reason
    assert "keelog key show" in error.hint
    assert not node.users


def test_a_client_without_keys_learns_that_the_node_may_ask_for_some(node: NodeWithKeys) -> None:
    error = refusal(node.endpoint)
    assert isinstance(error, NotConnected)
    assert "key= and server_key=" in error.hint
    assert not node.users


def test_a_client_with_keys_sends_nothing_to_a_node_without(tmp_path: Path) -> None:
    write_pair(tmp_path, "me")
    node = NodeWithKeys(None)
    try:
        error = refusal(node.endpoint, key=tmp_path / "me.key_secret", server_key=new_pair().public)
        assert isinstance(error, NotAllowed)
        assert "a node without keys" in error.reason
        assert not node.users
    finally:
        node.close()


def test_files_that_are_not_what_they_should_be_are_refused(tmp_path: Path) -> None:
    pair, key = write_pair(tmp_path, "me"), tmp_path / "me.key_secret"
    assert client_keys(None, None) is None
    found = client_keys(key, tmp_path / "me.key")
    assert found == (pair, pair.public)
    assert pair.secret not in repr(found)
    with pytest.raises(BadRequest, match="server_key is missing"):
        client_keys(key, None)
    with pytest.raises(BadRequest, match="key is missing"):
        client_keys(None, pair.public)
    for wrong in (tmp_path / "me.key", tmp_path / "absent", tmp_path):
        with pytest.raises(BadKey):
            client_keys(wrong, pair.public)
    (tmp_path / "link").symlink_to(key)
    with pytest.raises(BadKey, match="it is a link"):
        client_keys(tmp_path / "link", pair.public)
    key.write_bytes(key_file(new_pair().public, pair.secret))
    with pytest.raises(BadKey, match="not a pair"):
        client_keys(key, pair.public)
    key.chmod(0o640)
    with pytest.raises(BadKey, match="open to other users"):
        client_keys(key, pair.public)
