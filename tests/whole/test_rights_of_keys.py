"""A node with keys and users: what each may do at the writer, the readers and the control socket.

Alice has a list, Bob another one, Carol none, and root is a Super user.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import zmq

import keelog
from keelog.client.transport.exchange import Call, NodeAnswer, NodeRole
from keelog.client.transport.keys import ClientKeys
from node.access.curve import make_server_keys, read_pair, write_pair
from node.access.users_file import auth_dir, write_users
from node.runtime.state_page import WorkerPage
from node.store.identity.places import create_store
from protocol.access.decision import Action, Entry, parse_resource
from protocol.access.needs import ANYBODY
from protocol.access.own_needs import OWN_NEEDS, SUPER_ALONE, own_needs
from protocol.access.users import AccessList, AccessTable, User, UserType
from protocol.errors import MqError, NotAllowed
from protocol.record.encode import NewMessage, encode_batch
from protocol.wire.frames import pack, unpack_answer
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process
TIMEOUT_S = 20.0
CONTROL, WRITER, READER = NodeRole.CONTROL, NodeRole.WRITER, NodeRole.READER
PUB, SUB, GET = Action.PUB, Action.SUB, Action.GET
FIELDS = {"topic": "walked", "group": "walkers"}


def allow(resource: str, *actions: Action) -> Entry:
    return Entry(parse_resource(resource), frozenset(actions), True)


def deny(resource: str, *actions: Action) -> Entry:
    return Entry(parse_resource(resource), frozenset(actions), False)


LISTS = {
    "alice": (
        allow("Topic:orders*", PUB, SUB, Action.CREATE),
        allow("Group:billing", SUB, Action.UPDATE),
    ),
    "bob": (
        allow("Topic:*", SUB), allow("Cluster:DefaultCluster", GET), deny("Topic:secret", SUB),
    ),
    "dave": (allow("Topic:*", SUB), allow("Cluster:DefaultCluster", GET)),
}  # fmt: skip


class GuardedNode(RunningNode):
    """Each user has a key. The support's own client, which has none, is not used."""

    def __init__(self, root: Path) -> None:
        create_store(root)
        self.server = make_server_keys(root)
        self.folder = root.parent
        names = ("root", "alice", "bob", "carol", "dave")
        self.keys = {name: write_pair(self.folder, name).public for name in names}
        self.revision = 0
        self.set_users(root)
        settings = ["mapped_file_size_commit_log=1048576", "serve.remoting=127.0.0.1:0"]
        super().__init__(root, settings, queue_workers=1, readers=1)

    def set_users(
        self, root: Path, without_key: str = "", lists: Mapping[str, tuple[Entry, ...]] = LISTS
    ) -> None:
        self.revision += 1
        users = {
            name: User(
                name, "", UserType.SUPER if name == "root" else UserType.NORMAL,
                public_keys=() if name == without_key else (key,),
            )
            for name, key in self.keys.items()
        }  # fmt: skip
        found = {name: AccessList(entries) for name, entries in lists.items()}
        write_users(root, AccessTable(users, found, self.revision))

    def connected(self, user: str) -> keelog.Client:
        key = self.folder / f"{user}.key_secret"
        return keelog.connect(self.endpoint, TIMEOUT_S, key=key, server_key=self.server.public)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    with GuardedNode(tmp_path_factory.mktemp("rights") / "store") as node:
        with node.connected("root") as root:
            for topic in ("orders", "secret"):
                root.create_topic(topic, 1)
                root.send(topic, b"first", keys="k")
        yield node


Ask = Callable[..., NodeAnswer]


@pytest.fixture
def users(node: GuardedNode) -> Iterator[dict[str, Ask]]:
    """By user: asks one process of the node for something."""
    clients = {name: node.connected(name) for name in node.keys}

    def asking(client: keelog.Client) -> Ask:
        def ask(role: NodeRole, op: str, payload: bytes | None = None, **fields: Any) -> NodeAnswer:
            deadline = time.monotonic() + TIMEOUT_S
            return client._core.ask(Call(role, op, fields, deadline, payload))

        return ask

    yield {name: asking(client) for name, client in clients.items()}
    for client in clients.values():
        client.close()


def batch(*topics: str) -> tuple[bytes, dict[str, int]]:
    """Records with unique keys, and what a header says of them."""
    found = [NewMessage(one, b"x", queue_id=0, unique_key=f"K{n}") for n, one in enumerate(topics)]
    records = bytes(encode_batch(found, crc=True).records)
    return records, {"count": len(topics), "bytes": len(records), "crc": crc32(records)}


def ends(ask: Ask) -> int:
    return int(ask(READER, "layout").header["readable"])


@pytest.mark.attack(72)
@pytest.mark.parametrize("role", NodeRole)
@pytest.mark.parametrize("operation", [*OWN_NEEDS, *sorted(SUPER_ALONE), "format"])
def test_each_handler_of_each_process_asks(
    users: dict[str, Ask], role: NodeRole, operation: str
) -> None:
    is_open = own_needs(operation, FIELDS, "DefaultCluster") == ANYBODY
    for user in ("carol", "root"):
        try:
            users[user](role, operation, **FIELDS)
        except MqError as error:
            is_refused = "User:carol has no permission" in error.reason
            assert is_refused == (user == "carol" and not is_open), error.reason
        else:
            assert user == "root" or is_open


def test_a_user_with_a_list_does_all_its_own_things(node: GuardedNode) -> None:
    with node.connected("alice") as client:
        client.create_topic("orders-eu", 1)
        receipt = client.send("orders-eu", b"1", keys="mine")
        with client.producer() as producer:
            futures = [producer.send_nowait("orders-eu", b"%d" % n) for n in range(2, 50)]
        assert all(future.result().status == "PUT_OK" for future in futures)
        bodies = [b"%d" % number for number in range(1, 50)]
        found = client.tail("orders-eu", "earliest", until_end=True)
        assert [message.body for message in found] == bodies
        bulk = client.consume("orders-eu", "earliest", until_end=True)
        assert [message.body for part in bulk for message in part.messages] == bodies
        assert client.get(receipt.msg_id).body == b"1"
        wait_until(lambda: bool(list(client.find("orders-eu", "mine"))), "the index has it")
        client.commit_cursor("orders-eu", "billing", {0: 7})
        assert client.cursor("orders-eu", "billing") == {0: 7}
        named = {topic.topic for topic in client.topics()}
        assert "orders-eu" in named
        assert not [name for name in named if not name.startswith("orders")]
        assert client.send("orders-made-by-it", b"1").status == "PUT_OK"


@pytest.mark.attack(41)
def test_one_foreign_record_keeps_a_whole_batch_out(users: dict[str, Ask]) -> None:
    alice, before = users["alice"], ends(users["root"])
    for topics in (("orders", "secret"), ("secret",), ("orders", "%RETRY%foreign"), ("new-topic",)):
        for op, more in (
            ("append", {}),
            ("stage", {"query": "q-foreign", "batch": 0, "stage": "s", "frame": 0}),
        ):
            payload, fields = batch(*topics)
            with pytest.raises(NotAllowed, match="has no permission"):
                alice(WRITER, op, payload, **fields, **more)
    payload, fields = batch("secret")
    for queue in ({}, {"queue": -1}):
        with pytest.raises(NotAllowed, match="has no permission to access Topic:secret"):
            alice(WRITER, "append", payload, **fields, **queue)
    assert ends(users["root"]) == before
    names = [row["topic"] for row in users["root"](WRITER, "topics").header["topics"]]
    assert "new-topic" not in names
    payload, fields = batch("orders", "orders")
    assert alice(WRITER, "append", payload, **fields).header["ok"]


@pytest.mark.attack(26, 29)
@pytest.mark.parametrize("later", [{"delay_level": 3}, {"delay": 600.0}])
def test_a_message_that_waits_needs_the_right_to_where_it_will_go(
    node: GuardedNode, later: dict[str, Any]
) -> None:
    with node.connected("alice") as client:
        with pytest.raises(NotAllowed, match="has no permission to access Topic:secret"):
            client.send("secret", b"later", **later)
        assert client.send("orders", b"later", **later).status == "PUT_OK"


@pytest.mark.attack(26)
def test_a_foreign_message_is_not_got_however_it_is_named(node: GuardedNode) -> None:
    with node.connected("root") as root, node.connected("alice") as alice:
        foreign, own = (
            root.send("secret", b"body", keys="found"),
            root.send("orders", b"body", keys="found"),
        )
        wait_until(lambda: bool(list(root.find("secret", "found"))), "the index has it")
        for named in (
            {"physical_offset": foreign.physical_offset},
            {"topic": "secret", "unique_key": foreign.unique_key},
            {"topic": "secret", "queue_id": 0, "queue_offset": foreign.queue_offset},
        ):
            with pytest.raises(NotAllowed, match="no permission to access Topic:secret"):
                alice.get(**named)
        with pytest.raises(NotAllowed):
            alice.get(foreign.msg_id)
        with pytest.raises(NotAllowed):
            list(alice.find("secret", "found"))
        assert alice.get(own.msg_id).body == b"body"
        assert alice.get(physical_offset=own.physical_offset).body == b"body"


@pytest.mark.attack(61)
def test_raw_files_need_every_topic_and_one_that_is_denied_is_enough(
    users: dict[str, Ask],
) -> None:
    fetch = {"kind": "log", "offset": 0, "bytes": 1000}
    assert users["dave"](READER, "fetch", **fetch).payload
    assert users["dave"](READER, "layout").header["queues"]
    for user in ("bob", "alice", "carol"):
        for op, fields in (("fetch", fetch), ("layout", {})):
            with pytest.raises(NotAllowed):
                users[user](READER, op, **fields)
    assert users["bob"](READER, "offsets", topic="orders").header["queues"]


@pytest.mark.attack(42, 61)
def test_a_cursor_of_a_foreign_group_does_not_move(users: dict[str, Ask]) -> None:
    there = {"topic": "secret", "group": "foreign", "offsets": [[0, 1]]}
    assert users["root"](WRITER, "cursor_commit", **there).header["ok"]
    place = {"topic": "orders", "group": "foreign", "offsets": [[0, 0]]}
    for fields in (place, {**place, "topic": "secret", "group": "billing"}):
        with pytest.raises(NotAllowed):
            users["alice"](WRITER, "cursor_commit", **fields)
    with pytest.raises(NotAllowed):
        users["alice"](WRITER, "groups", group="foreign")
    found = users["root"](WRITER, "cursor_get", topic="secret", group="foreign").header
    assert found["offsets"] == [[0, 1]]
    rows = users["alice"](WRITER, "groups").header["groups"]
    assert "foreign" not in {row["group"] for row in rows}
    rows = users["bob"](WRITER, "groups").header["groups"]
    assert "foreign" in {row["group"] for row in rows}


@pytest.mark.attack(58)
def test_two_users_who_take_turns_with_one_name_of_a_connection_stay_apart(
    node: GuardedNode,
) -> None:
    """ZeroMQ's clients choose the name of their connection, and may choose that of another."""
    routes = node.connected("root")
    with routes:
        writer = str(routes.routes().writer)
    for user, is_allowed in (("alice", True), ("carol", False), ("alice", True)):
        keys = read_pair(node.folder / f"{user}.key_secret")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        client = context.socket(zmq.DEALER)
        client.setsockopt(zmq.ROUTING_ID, b"the same")
        client.setsockopt(zmq.RCVTIMEO, 5_000)
        ClientKeys(keys, node.server.public).apply(client)
        client.connect(writer)
        client.send(pack({"v": 1, "op": "send", "id": 1, "topic": "orders", "body": b"x"}))
        (header,) = client.recv_multipart()
        assert unpack_answer(header)["ok"] is is_allowed
        client.close(0)
        context.term()
        time.sleep(0.1)  # until the node has seen the end, the name is taken


@pytest.mark.attack(61)
def test_a_query_is_its_first_users(users: dict[str, Ask]) -> None:
    alice, root, payload, fields = users["alice"], users["root"], *batch("orders")
    place = {"query": "of-alice", "batch": 0}
    staged = {**place, "stage": "s", "frame": 0, **fields}
    assert alice(WRITER, "stage", payload, **staged).header["frames"] == 1
    line = f"s 1 1 {len(payload)}\n".encode()
    for op, more in (("publish", {"stages": 1}), ("unstage", {})):
        part = line if op == "publish" else None
        with pytest.raises(NotAllowed, match="was begun by alice, not by carol"):
            users["carol"](WRITER, op, part, **place, **more)
    assert alice(WRITER, "publish", line, **place, stages=1).header["records"] == 1
    of_root = {"query": "of-root", "batch": 0}
    root(WRITER, "stage", payload, **{**staged, **of_root})
    with pytest.raises(NotAllowed, match="was begun by the operator"):
        alice(WRITER, "stage", payload, **{**staged, **of_root, "frame": 1})
    assert root(WRITER, "unstage", **of_root).header["dropped"] == 1
    # The first batch of a query may be empty: nothing was staged.
    assert alice(WRITER, "publish", b"", query="empty", batch=0, stages=0).header["ok"]
    with pytest.raises(NotAllowed, match="was begun by alice"):
        users["carol"](WRITER, "publish", b"", query="empty", batch=1, stages=0)
    assert root(WRITER, "publish", b"", query="empty", batch=1, stages=0).header["ok"]


@pytest.mark.attack(36)
def test_users_are_a_matter_of_super_users(users: dict[str, Ask], node: GuardedNode) -> None:
    made = {
        "change": "create_user", "name": "eve", "info": b'{"password":"canary-secret"}',
    }  # fmt: skip
    for user in ("alice", "carol"):
        for op, fields in (("users", {}), ("change_users", made)):
            with pytest.raises(NotAllowed, match="only Super users have"):
                users[user](WRITER, op, **fields)
    with pytest.raises(NotAllowed, match="asks in another's name"):
        users["root"](WRITER, "change_users", **made, by="alice")
    assert users["root"](WRITER, "change_users", **made).header["changed"]
    users["root"](WRITER, "change_users", change="delete_user", name="eve")
    lines = (auth_dir(node.root) / "audit.log").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    (row,) = [one for one in found if (one["operation"], one["outcome"]) == ("create_user", "done")]
    assert (row["user"], row["end"], row["address"]) == ("root", "zeromq", "127.0.0.1")
    assert "canary-secret" not in "\n".join(lines)


@pytest.mark.attack(13)
def test_a_held_pull_ends_within_a_second_when_its_right_is_gone(
    node: GuardedNode, users: dict[str, Ask]
) -> None:
    """And so does that of a user whose key was taken away."""
    taken: tuple[dict[str, Any], ...] = ({"lists": {}}, {"without_key": "alice"})
    for less in taken:
        end = users["root"](READER, "offsets", topic="orders").header["queues"][0]["max_offset"]
        ended: list[tuple[float, MqError]] = []

        def pull(end: int = end, ended: list[tuple[float, MqError]] = ended) -> None:
            try:
                place = {"topic": "orders", "queue": 0, "offset": end}
                users["alice"](READER, "pull", **place, wait_ms=15_000, stream=True)
            except MqError as error:
                ended.append((time.monotonic(), error))

        puller = threading.Thread(target=pull)
        puller.start()
        wait_until(lambda: holds_a_pull(node.root), "the pull is held")
        began = time.monotonic()
        node.set_users(node.root, **less)
        puller.join(TIMEOUT_S)
        node.set_users(node.root)
        ((at, refusal),) = ended
        assert at - began < 1.0
        assert isinstance(refusal, NotAllowed)
        wait_until(lambda: is_back(users["alice"]), "alice may again")


def holds_a_pull(root: Path) -> bool:
    with WorkerPage.open(root, "reader-0") as page:
        return page.read().held > 0


def is_back(ask: Ask) -> bool:
    try:
        return bool(ask(READER, "offsets", topic="orders").header["queues"])
    except NotAllowed:
        return False
