"""RocketMQ 5.5.0 and nodes where users log in: a broker with ACL whose log and users a node copies,
and a slave behind a node, with innerClientAuthenticationCredentials and without."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from keelog.replication.replica.master_link import MasterFacts, ask_facts
from keelog.replication.replica.tables import PARTS, fetch_tables
from keelog.replication.roles import MasterLives, promote
from node.access.own_credentials import OwnCredentials
from node.access.users_file import read_users
from node.runtime.run_files import read_follow_state
from node.runtime.settings import load_settings
from node.store.config.topics_file import TopicsFile
from protocol.access.credentials import FIRST_USER_FORM, INNER_FORM, Credentials
from scripts.rivals.rocketmq import Addresses, RocketMQ, class_path, missing, start_name_server
from tests.clients.sides import BROKER_AT_REST, BROKER_OPTIONS
from tests.cluster.java_slave import JavaSlave, Site
from tests.soak.cluster.java_master import MASTER_SIZES
from tests.soak.harness import SMALL_FILES
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import SignedPeer, send_fields

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
INNER, ADMIN = Credentials("inner", "secret-of-inner"), Credentials("admin", "secret-of-admin")
_AUTH = "org.apache.rocketmq.auth"
ACL: Mapping[str, object] = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
    "initAuthenticationUser": FIRST_USER_FORM.text(ADMIN).decode().strip(),
}
OWN_LOGIN = {
    # Without it a broker with credentials does not start.
    "authenticationMetadataProvider": ACL["authenticationMetadataProvider"],
    "innerClientAuthenticationCredentials": INNER_FORM.text(INNER).decode().strip(),
}
SLAVE_S = 120.0


def inner_file(folder: Path, own: Credentials = INNER) -> Path:
    path = folder / f"{own.access_key}-{own.secret}.json"
    path.touch(0o600)
    path.write_bytes(INNER_FORM.text(own))
    return path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RocketMQ]:
    """A master with ACL, and its name server."""
    classes, addresses = class_path(), Addresses.free()
    settings = {
        "brokerIP2": "127.0.0.1", **BROKER_AT_REST, **MASTER_SIZES, **ACL, **OWN_LOGIN,
    }  # fmt: skip
    with ExitStack() as ends:
        name_server = start_name_server(classes, tmp_path / "ns", addresses.name_server)
        ends.callback(name_server.kill)
        found = RocketMQ(classes, tmp_path / "broker", addresses, settings, BROKER_OPTIONS)
        ends.callback(found.remove)
        found.start()
        yield found


def place_of(broker: RocketMQ) -> tuple[str, int]:
    host, _, port = broker.addresses.broker.partition(":")
    return host, int(port)


def fill(broker: RocketMQ) -> None:
    """A topic with messages, and a user with a list."""
    with closing(SignedPeer(place_of(broker), ADMIN.access_key, ADMIN.secret)) as peer:
        topic = {
            "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        wait_until(lambda: peer.ask(17, topic).code == 0, "no topic")
        for number in range(50):
            assert peer.ask(310, send_fields("orders"), b"%d" % number).code == 0
        alice = {"username": "alice", "password": "secret-of-alice", "userType": "Normal"}
        assert peer.ask(3001, {"username": "alice"}, json.dumps(alice).encode()).code == 0
        entry = {"resource": "Topic:orders*", "actions": ["Sub"], "decision": "Allow"}
        policies = [{"policyType": "Custom", "entries": [entry]}]
        acl = {"subject": "User:alice", "policies": policies}
        assert peer.ask(3006, {"subject": "User:alice"}, json.dumps(acl).encode()).code == 0


def test_a_replica_with_inner_credentials_has_log_tables_and_users_of_a_broker_with_acl(
    broker: RocketMQ, tmp_path: Path
) -> None:
    fill(broker)
    host, port = place_of(broker)
    own, setting = inner_file(tmp_path), "inner_client_authentication_credentials_file"
    follow = f"follow={host}:{port + 1}", f"{setting}={own}", "auth_follow_master=true"
    with RunningNode(
        tmp_path / "copy", (*follow, *SMALL_FILES), queue_workers=1, readers=1
    ) as copy:
        wait_until(
            lambda: (
                copy.log_state().flushed > 0
                and not any(read_follow_state(copy.root).metadata.values())
            ),
            f"not all came: {read_follow_state(copy.root)}",
        )
        facts = ask_facts(broker.addresses.broker, True, None, OwnCredentials(str(own)))
        assert isinstance(facts, MasterFacts)
        wait_until(lambda: copy.log_state().flushed >= facts.end, "the log did not come")
        assert TopicsFile(copy.root).topics["orders"].read_queues == 4
        wait_until(
            lambda: read_users(copy.root)[0].users.keys() == {"inner", "admin", "alice"}, "no users"
        )
        table = read_users(copy.root)[0]
        assert table.users["alice"].secret == "secret-of-alice"
        assert [str(one.resource) for one in table.lists["alice"].custom] == ["Topic:orders*"]
    settings = load_settings([f"{setting}={own}", *SMALL_FILES])
    for one in (settings, load_settings(SMALL_FILES)):
        with pytest.raises(MasterLives):
            promote(tmp_path / "copy", one)
    broker.kill()
    promote(tmp_path / "copy", settings)
    assert "alice" in read_users(tmp_path / "copy")[0].users


@pytest.mark.parametrize("secret", ["", "wrong-secret"])
def test_without_a_login_a_broker_with_acl_gives_no_table_and_the_reason_says_what_to_do(
    broker: RocketMQ, tmp_path: Path, secret: str
) -> None:
    own = (
        OwnCredentials(str(inner_file(tmp_path, Credentials("inner", secret)))) if secret else None
    )

    def refused() -> bool:
        found, _ = fetch_tables(broker.addresses.broker, PARTS, None, own)
        return all("has to name a Super user of that node" in str(one) for one in found.values())

    wait_until(refused, "it was not refused")


def slave_topics(store: Path) -> set[str]:
    path = store / "config" / "topics.json"
    try:
        return set(json.loads(path.read_text())["topicConfigTable"])
    except (OSError, ValueError):
        return set()


@pytest.mark.attack(66)
def test_of_two_slaves_of_a_node_with_users_the_one_with_inner_credentials_gets_topics(
    tmp_path: Path,
) -> None:
    """A slave asks for topics a minute after its start: both do so in the same minute."""
    own = f"inner_client_authentication_credentials_file={inner_file(tmp_path)}"
    with Site(tmp_path / "site") as site, ExitStack() as ends:
        member = site.slave({**MASTER_SIZES, **OWN_LOGIN})
        addresses = replace(Addresses.free(), name_server=site.addresses.name_server)
        home, second = site.home / "stranger", {**MASTER_SIZES, "brokerId": 2}
        stranger = JavaSlave(site.classes, home, addresses, second)
        node = ends.enter_context(site.node(tmp_path / "store", (own, *SMALL_FILES)))
        node.client.create_topic("orders", queues=3)
        for number in range(50):
            node.client.send("orders", b"%d" % number)
        for slave in (member, stranger):
            ends.callback(slave.remove)
            slave.broker.start()
        for slave in (member, stranger):
            slave.wait_for(node.log_state().appended)
        wait_until(lambda: "orders" in slave_topics(member.store), "no topics", SLAVE_S)
        audit = node.root / "keelog" / "auth" / "audit.gateway.log"
        wait_until(lambda: "get_all_topic_config" in audit.read_text(), "not refused", SLAVE_S)
        time.sleep(1.0)  # it would save its table within that time
        assert "orders" not in slave_topics(stranger.store)
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        refused = [one for one in lines if one["outcome"] == "refused"]
        assert {one.get("user", "") for one in refused} == {""}
        assert all("Authentication failed" in one["reason"] for one in refused)
        assert {one.get("user") for one in lines if one["outcome"] == "done"} == {"inner"}
