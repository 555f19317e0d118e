"""A node with keys: its clients, its own processes, and programs of its machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import keelog
from keelog.cli.main import run
from node.access.curve import make_server_keys, new_pair, write_pair
from node.access.users_file import auth_dir, read_users, write_users
from node.runtime.run_files import read_control
from node.store.identity.places import create_store
from protocol.access.users import AccessTable, User, UserType
from protocol.errors import NotAllowed, NotConnected
from protocol.names import TRANSACTIONS_GROUP
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process
TIMEOUT_S = 60.0


class NodeWithKeys(RunningNode):
    """Alice's key is known. The support's own client, which has no keys, is not used."""

    def __init__(self, root: Path) -> None:
        create_store(root)
        self.server = make_server_keys(root)
        self.key = root.parent / "alice.key_secret"
        self.users(write_pair(root.parent, "alice").public, root)
        settings = ["mapped_file_size_commit_log=1048576", "serve.remoting=127.0.0.1:0"]
        super().__init__(root, settings, queue_workers=1, readers=1)

    def users(self, key: str, root: Path) -> None:
        """Alice has this key from now on, and nobody has another."""
        keys = (key,) if key else ()
        alice = User("alice", "", UserType.SUPER, public_keys=keys)
        write_users(root, AccessTable({"alice": alice}, {}))

    def connected(self) -> keelog.Client:
        return keelog.connect(self.endpoint, TIMEOUT_S, key=self.key, server_key=self.server.public)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithKeys]:
    with NodeWithKeys(tmp_path_factory.mktemp("keys") / "store") as node:
        with node.connected() as client:
            client.create_topic("figs", 1)
        yield node


def test_a_known_client_sends_and_reads_everything_over_tcp(node: NodeWithKeys) -> None:
    with node.connected() as client:
        client.create_topic("dates", 1)
        receipt = client.send("dates", b"x" * 100_000, keys="k")
        with client.producer() as producer:
            futures = [producer.send_nowait("dates", b"%d" % number) for number in range(100)]
        assert all(future.result().status == "PUT_OK" for future in futures)
        bodies = [message.body for message in client.tail("dates", "earliest", until_end=True)]
        assert bodies == [b"x" * 100_000, *(b"%d" % number for number in range(100))]
        assert client.get(receipt.msg_id).body == bodies[0]
        assert client.routes().local


@pytest.mark.attack(55, 56)
def test_others_are_refused_at_every_end_of_the_node(node: NodeWithKeys, tmp_path: Path) -> None:
    with node.connected() as client:
        routes = client.routes()
    write_pair(tmp_path, "mallory")
    mallory = tmp_path / "mallory.key_secret"
    for endpoint in (node.endpoint, str(routes.writer), *routes.readers):
        with pytest.raises(NotConnected, match="does not answer as a node"):
            keelog.connect(endpoint, 2.0)
        with pytest.raises(NotAllowed, match="does not know the key"):
            keelog.connect(endpoint, TIMEOUT_S, key=mallory, server_key=node.server.public)


@pytest.mark.attack(60)
def test_a_far_client_with_the_right_of_the_node_gets_nothing(node: NodeWithKeys) -> None:
    right = (node.root / "keelog" / "run" / "right").read_text()
    with node.connected() as client:
        asked = keelog.client.operations.commit_cursor(
            "figs", TRANSACTIONS_GROUP, {0: 0}, client._core.deadline(None), right=right
        )
        with pytest.raises(NotAllowed, match="the right is not this node's"):
            keelog.client.client.run(client._core, asked)


def test_the_nodes_own_user_needs_no_key_on_its_machine(
    node: NodeWithKeys, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["health", "--node", str(node.root)]) == 0
    assert run(["topic", "ls", "--node", str(node.root), "--json"]) == 0
    assert "figs" in capsys.readouterr().out
    with keelog.connect(read_control(node.root), TIMEOUT_S) as client:
        assert client.send("figs", b"local").status == "PUT_OK"
        assert client.routes().readers[0].startswith("ipc://@")


@pytest.mark.attack(57)
def test_a_key_that_was_taken_away_is_refused_where_it_is_connected(node: NodeWithKeys) -> None:
    with node.connected() as client:
        table, _ = read_users(node.root)
        assert client.send("figs", b"1").status == "PUT_OK"
        node.users(new_pair().public, node.root)

        def is_refused() -> bool:
            try:
                client.send("figs", b"2")
            except NotAllowed as error:
                return "nobody's any more" in str(error)
            return False

        wait_until(is_refused, "the refusal")
        node.users(table.users["alice"].public_keys[0], node.root)
        wait_until(lambda: not is_refused(), "the key is back")


def test_a_secret_that_others_may_read_keeps_the_node_from_starting(tmp_path: Path) -> None:
    root = tmp_path / "store"
    create_store(root)
    make_server_keys(root)
    (auth_dir(root) / "server.key_secret").chmod(0o644)
    serve = [sys.executable, "-m", "keelog", "serve", str(root), "--bind", "tcp://127.0.0.1:0"]
    done = subprocess.run(serve, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "is open to other users, with mode 0644" in done.stderr
    assert "chmod 600" in done.stderr
