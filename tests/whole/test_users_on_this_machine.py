"""A node with users and without keys: the node's own user on its machine needs neither."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

import keelog
import keelog.aio
from keelog.cli.main import run
from node.access.users_file import users_path
from protocol.errors import NotAllowed, NotLoggedIn
from protocol.wire.frames import pack, unpack_answer
from tests.support.node import RunningNode, wait_until

pytestmark = pytest.mark.process
TIMEOUT_S = 20.0
NOBODY = 65534
STRANGER = f"""
import os, sys, zmq
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
client = zmq.Context().socket(zmq.DEALER)
client.setsockopt(zmq.RCVTIMEO, 10_000)
client.connect(sys.argv[1])
client.send(bytes.fromhex(sys.argv[2]))
print(client.recv().hex(), flush=True)
os._exit(0)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        yield node


def make_user(node: RunningNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["user", "create", "operator", "--super", "--node", node.endpoint]) == 0
    capsys.readouterr()
    wait_until(lambda: is_asked_for(node.endpoint), "the supervisor has seen the user")


def is_asked_for(endpoint: str) -> bool:
    """Whether a client over TCP is refused at the control socket."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.DEALER) as client:
        client.setsockopt(zmq.RCVTIMEO, 10_000)
        client.connect(endpoint)
        client.send(pack({"v": 1, "op": "ping", "id": 1}))
        answer = unpack_answer(client.recv())
    context.term()
    return not answer["ok"]


def test_programs_of_the_nodes_user_go_on_when_there_are_users(
    node: RunningNode, capsys: pytest.CaptureFixture[str]
) -> None:
    with keelog.connect(node.endpoint, TIMEOUT_S) as before:
        before.create_topic("figs", 1)
        producer = before.producer()
        assert before.send("figs", b"0").status == "PUT_OK"
        assert producer.send_nowait("figs", b"1").result().status == "PUT_OK"
        bodies: list[bytes] = []

        def follow() -> None:
            for message in before.tail("figs", "earliest"):
                bodies.append(message.body)
                if len(bodies) == 6:
                    return

        follower = threading.Thread(target=follow)
        follower.start()
        wait_until(lambda: len(bodies) == 2, "the first messages")
        make_user(node, capsys)
        assert before.send("figs", b"2").status == "PUT_OK"
        assert producer.send_nowait("figs", b"3").result().status == "PUT_OK"
        assert before.offsets("figs")[0].max_offset == 4
        with keelog.connect(node.endpoint, TIMEOUT_S) as after:
            assert after.send("figs", b"4").status == "PUT_OK"
            assert after.endpoint == node.endpoint
            assert after.health().ready
        asyncio.run(send_by_an_event_loop(node.endpoint))
        follower.join(TIMEOUT_S)
        assert bodies == [b"%d" % number for number in range(6)]
        producer.close()


async def send_by_an_event_loop(endpoint: str) -> None:
    client = await keelog.aio.connect(endpoint, TIMEOUT_S)
    async with client:
        receipt = await client.send("figs", b"5")
        assert (await client.get(receipt.msg_id)).body == b"5"


def test_the_command_line_goes_on_when_there_are_users(
    node: RunningNode, capsys: pytest.CaptureFixture[str]
) -> None:
    make_user(node, capsys)
    for words in (["status"], ["health"], ["topic", "ls"], ["user", "ls"], ["group", "ls"]):
        assert run([*words, "--node", node.endpoint]) == 0, words
    assert run(["user", "create", "billing", "--node", node.endpoint]) == 0
    assert run(["acl", "allow", "billing", "Topic:figs", "pub", "--node", node.endpoint]) == 0


def test_a_client_finds_the_node_again_after_its_next_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its local socket has another name then."""
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        make_user(node, capsys)
        client = keelog.connect(node.endpoint, TIMEOUT_S)
        client.create_topic("figs", 1)
        assert client.send("figs", b"1").status == "PUT_OK"
    again = RunningNode(tmp_path / "store", queue_workers=1, readers=1, bind=node.endpoint)
    with again, client:
        assert client.send("figs", b"2").status == "PUT_OK"
        assert client.health().ready


@pytest.mark.attack(62)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
def test_another_user_of_the_machine_hears_that_it_has_to_log_in(
    node: RunningNode, capsys: pytest.CaptureFixture[str]
) -> None:
    with keelog.connect(node.endpoint, TIMEOUT_S) as client:
        client.create_topic("figs", 1)
        routes = client.routes()
    made = {"change": "create_user", "name": "mallory", "info": b'{"password":"x"}'}
    writer = str(routes.writer)
    error = refusal_to_a_stranger(writer, "change_users", **made)
    assert "over a local socket" in error["reason"]
    make_user(node, capsys)
    for endpoint, op in ((node.endpoint, "routes"), (writer, "send"), (routes.readers[0], "pull")):
        error = refusal_to_a_stranger(endpoint, op, topic="figs", body=b"x", queue=0, offset=0)
        assert error["kind"] == NotLoggedIn.__name__
        assert "keelog key new" in error["hint"]
    assert "mallory" not in users_path(node.root).read_text()


def refusal_to_a_stranger(endpoint: str, op: str, **fields: object) -> dict[str, str]:
    request = pack({"v": 1, "op": op, "id": 1, **fields})
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, endpoint, request.hex()],
        capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    found: dict[str, str] = unpack_answer(bytes.fromhex(done.stdout.strip()))["error"]
    return found


def test_a_client_that_finds_no_local_socket_of_that_name_gets_the_refusal(
    node: RunningNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one at the other end of a tunnel."""
    make_user(node, capsys)
    monkeypatch.setattr(keelog.client.transport.io_thread, "is_own_socket", lambda _endpoint: False)
    with pytest.raises(NotAllowed, match="users have to log in at this node"):
        keelog.connect(node.endpoint, TIMEOUT_S)


@pytest.mark.attack(70)
def test_a_file_of_users_that_cannot_be_used_is_a_failing_check(
    node: RunningNode, capsys: pytest.CaptureFixture[str]
) -> None:
    make_user(node, capsys)
    with keelog.connect(node.endpoint, TIMEOUT_S) as client:

        def check() -> tuple[bool, bool, str]:
            health = client.health()
            (found,) = [one for one in health.checks if one.name == "users"]
            return health.ready, found.ok, found.detail

        assert check()[:2] == (True, True)
        users_path(node.root).chmod(0o644)
        wait_until(lambda: not check()[1], "the check fails")
        assert check()[0]
        assert "others may use" in check()[2]
        users_path(node.root).chmod(0o600)
        wait_until(lambda: check()[1], "the check is good again")
