"""A takeover among nodes whose users log in, with TLS between them, and one that a controller
decides: the promoted replica has users, lists and messages, and sees its old master."""

import json
import ssl
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

import keelog
from keelog.client.client import Client, connect
from keelog.client.users import change_at
from keelog.replication.roles import MasterLives, promote
from node.access.users_file import read_users
from node.runtime.run_files import FOLLOWING, read_follow_state
from node.runtime.settings import load_settings
from protocol.access.changes import CREATE_ACL, CREATE_USER, UPDATE_USER, Change
from protocol.access.credentials import INNER_FORM, Credentials
from protocol.status import HealthCheck
from tests.soak.harness import SMALL_FILES
from tests.support.certificates import Authority
from tests.support.controller import FakeController
from tests.support.elected_node import await_true, elected_nodes, master_of
from tests.support.follower import HA, followers_place
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, SignedPeer, remoting_place, send_fields

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

INNER = Credentials("inner", "secret-of-inner")
ALICE = keelog.Credentials("alice", "secret-of-alice")
WAIT_S = 60.0


class Site(NamedTuple):
    """Who signs certificates, and what all nodes are told."""

    authority: Authority
    settings: Sequence[str]

    def ask(self, node: RunningNode, own: Credentials) -> SignedPeer:
        """A client of a node, by TLS."""
        peer = SignedPeer(remoting_place(node.stderr), own.access_key, own.secret)
        peer.socket = self.authority.client().wrap_socket(peer.socket, server_hostname="localhost")
        return peer


def inner_setting(folder: Path) -> str:
    path = folder / "inner.json"
    path.touch(0o600)
    path.write_bytes(INNER_FORM.text(INNER))
    return f"inner_client_authentication_credentials_file={path}"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    authority = Authority(tmp_path)
    pair = authority.pair("node")
    settings = (
        HA, *SMALL_FILES, *pair.server, *pair.client, inner_setting(tmp_path),
        f"tls_server_trust_cert_path={authority.trust}", "tls_enable=true",
        f"tls_client_trust_cert_path={authority.trust}", "auth_follow_master=true",
    )  # fmt: skip
    return Site(authority, settings)


def make_alice(client: Client) -> None:
    change_at(client, Change(CREATE_USER, "alice", json.dumps({"password": ALICE.secret}).encode()))
    entries = [
        {"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"},
        {"resource": "Group:billing", "actions": ["Sub"], "decision": "Allow"},
    ]
    policies = [{"policyType": "Custom", "entries": entries}]
    listed = json.dumps({"subject": "User:alice", "policies": policies}).encode()
    change_at(client, Change(CREATE_ACL, "User:alice", listed))


def read_all(endpoint: str, count: int, tls: ssl.SSLContext | None) -> list[bytes]:
    """What a member of the group gets who logs in as alice."""
    came: list[bytes] = []
    with (
        connect(endpoint, credentials=ALICE) as client,
        client.consumer("billing", "orders", start="earliest", tls=tls) as consumer,
    ):
        while len(came) < count:
            message = consumer.get(WAIT_S)
            assert message is not None, f"{len(came)} of {count} came"
            came.append(message.body)
            message.ack()
    return sorted(came)


def masters(client: Client) -> HealthCheck:
    """Whether the node knows of another master."""
    return next(check for check in client.health().checks if check.name == "masters")


def send_hundred(site: Site, master: RunningNode) -> None:
    """As alice, who is known at the port within a second."""
    wait_until(lambda: may_send(site, master), "alice may not send")
    with closing(site.ask(master, ALICE)) as peer:
        for number in range(1, 100):
            assert peer.ask(310, send_fields("orders"), b"%03d" % number).code == 0


def may_send(site: Site, master: RunningNode) -> bool:
    with closing(site.ask(master, ALICE)) as peer:
        return peer.ask(310, send_fields("orders"), b"000").code == 0


def test_a_promoted_replica_has_users_and_messages_and_sees_its_old_master(
    site: Site, tmp_path: Path
) -> None:
    tls = site.authority.client()
    first = (REMOTING, *site.settings)
    with RunningNode(tmp_path / "a", first, queue_workers=1, readers=1) as master:
        make_alice(master.client)
        ha, remoting = followers_place(master), remoting_place(master.stderr)
        place = f"{remoting[0]}:{remoting[1]}"
        follow = f"follow={ha[0]}:{ha[1]}", f"follow_remoting={place}"
        with RunningNode(
            tmp_path / "b", (*follow, REMOTING, *site.settings), queue_workers=1, readers=1
        ) as copy:
            send_hundred(site, master)
            end = master.log_state().appended
            wait_until(lambda: copy.log_state().flushed >= end, "the log did not come")
            wait_until(lambda: read_follow_state(copy.root).state == FOLLOWING, "not following")
            wait_until(lambda: "alice" in read_users(copy.root)[0].users, "the users did not come")
            wait_until(lambda: not any(read_follow_state(copy.root).metadata.values()), "no tables")
            with closing(site.ask(copy, INNER)) as peer:
                assert peer.ask(28, {}).code == 0, "who logs in at the master, does so here"
        settings = load_settings(site.settings[1:])
        with pytest.raises(MasterLives, match=f"its log ends at {end}"):
            promote(tmp_path / "b", settings)
        with pytest.raises(MasterLives):
            promote(tmp_path / "b", load_settings(SMALL_FILES))
        master.kill_all()
    assert promote(tmp_path / "b", settings).lacks_bytes == 0
    with RunningNode(tmp_path / "b", first, queue_workers=1, readers=1) as promoted:
        assert read_all(promoted.endpoint, 100, tls) == [b"%03d" % one for one in range(100)]
        with closing(site.ask(promoted, ALICE)) as peer:
            assert peer.ask(310, send_fields("orders"), b"new").code == 0
            assert peer.ask(310, send_fields("foreign"), b"new").code == 16
        # Somebody starts the old master beside it, as systemd does after a boot.
        again = (f"serve.remoting={place}", *site.settings)
        with RunningNode(tmp_path / "a", again, queue_workers=1, readers=1):
            wait_until(lambda: not masters(promoted.client).ok, "it was not noticed")
            assert f"{place} is a master" in masters(promoted.client).detail
        wait_until(lambda: masters(promoted.client).ok, "it is gone, and not forgotten")


def test_an_elected_master_has_the_users_of_the_one_that_was_killed(tmp_path: Path) -> None:
    settings = (
        *SMALL_FILES, "slave_timeout=5000", inner_setting(tmp_path), "auth_follow_master=true",
    )  # fmt: skip
    with FakeController() as controller:
        nodes = elected_nodes(tmp_path, 2, controller.place, "127.0.0.1:9", settings)
        try:
            nodes[0].begin()
            await_true(lambda: nodes[0].leads, "it does not lead", nodes[:1], WAIT_S)
            with connect(nodes[0].endpoint, timeout=30.0) as client:
                make_alice(client)
            nodes[1].begin()
            await_true(
                lambda: (
                    len(controller.in_sync.members) == 2
                    and nodes[1].follows
                    and "alice" in read_users(nodes[1].root)[0].users
                ),
                "not in sync, or without users",
                nodes,
                WAIT_S,
            )
            with connect(nodes[0].endpoint, timeout=30.0) as client:
                sent = [client.send("orders", b"%d" % one, acks="flushed") for one in range(20)]
                assert {one.status for one in sent} == {"PUT_OK"}
                off = json.dumps({"password": "second-of-alice"}).encode()
                change_at(client, Change(UPDATE_USER, "alice", off))
            await_true(
                lambda: read_users(nodes[1].root)[0].users["alice"].secret == "second-of-alice",
                "the change did not come",
                nodes,
                WAIT_S,
            )
            nodes[0].kill()
            await_true(lambda: master_of(nodes[1:]) is not None, "nobody leads", nodes[1:], WAIT_S)
            assert set(read_users(nodes[1].root)[0].users) == {"inner", "alice"}
            host, _, port = nodes[1].remoting.partition(":")
            with closing(SignedPeer((host, int(port)), "alice", "second-of-alice")) as peer:
                assert peer.ask(105, {"topic": "orders"}).code == 0
            with closing(SignedPeer((host, int(port)), "alice", ALICE.secret)) as peer:
                assert peer.ask(105, {"topic": "orders"}).code == 16
        finally:
            for node in nodes:
                if node.is_running:
                    node.kill()
