"""mqadmin's commands for users and access lists, at a broker with ACL 2.0 and at a node with users,
where it logs in as `tools.yml` says."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from scripts.rivals.rocketmq import missing
from tests.clients.access.sides import (
    GOOD,
    REFUSED,
    Credentials,
    LoginSide,
    broker_with_users,
    node_with_users,
)
from tests.clients.mqadmin.cases import OF_USERS
from tests.clients.mqadmin.side_by_side import DIFFERENCES, unexpected
from tests.clients.mqadmin.sides import AdminTool
from tests.clients.mqadmin.table import run_cases
from tests.clients.mqadmin.user_sides import BY_TLS, TOPIC, admin_tool, user_sides
from tests.clients.sides import place_of, running_node
from tests.support.certificates import Authority
from tests.support.remoting import SignedPeer, send_fields

JOE, ANN = Credentials("joe", "secret-of-joe"), Credentials("ann", "secret-of-ann")
LIMIT_S = 20.0
SEND = 310
pytestmark = [
    pytest.mark.access,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.fixture
def logins(tmp_path: Path) -> Iterator[tuple[LoginSide, LoginSide]]:
    """The broker's side, and the node's."""
    with (
        broker_with_users(tmp_path / "rocketmq") as broker,
        node_with_users(tmp_path / "store") as (node, _),
    ):
        yield broker, node


def run(tool: AdminTool, words: str) -> str:
    return str(tool.ask("run", args=words.split(), limit_s=LIMIT_S)["text"])


def code_of_a_send(login: LoginSide, who: Credentials, topic: str) -> int:
    with closing(SignedPeer(place_of(login.side.broker), *who)) as peer:
        return peer.ask(SEND, send_fields(topic), b"hello").code


def test_the_commands_for_users_and_lists_print_what_they_print_at_a_broker(tmp_path: Path) -> None:
    with user_sides(tmp_path) as sides:
        runs = run_cases(sides, OF_USERS)
    assert not (said := unexpected(runs, DIFFERENCES)), said
    assert len({one.case.command for one in runs}) == 12
    said = " ".join(line for one in runs for line in one.ours)
    for part in ("joe secret13 Normal enable", "User:joe Custom Topic:Orders [Sub] null Allow"):
        assert part in said, "tools have printed something"


def test_users_and_lists_are_copied_from_a_broker_to_a_node_and_back_and_log_in_there(
    logins: tuple[LoginSide, LoginSide], tmp_path: Path
) -> None:
    broker, node = logins
    for login in logins:
        login.create_topic(TOPIC, 1)
    broker.make_user(JOE, {f"Topic:{TOPIC}": "Pub"})
    broker.make_user(ANN, {"Topic:others": "Pub"})
    with admin_tool(tmp_path / "tools") as tool:
        for source, to in ((broker, node), (node, broker)):
            assert code_of_a_send(to, JOE, TOPIC) == REFUSED
            ways = f"-f {source.side.broker} -t {to.side.broker}"
            name_server = f"-n {source.side.name_server}"
            for name in (JOE.user, ANN.user):
                said = run(tool, f"copyUser {ways} -u {name} {name_server}")
                assert f"copy user of {name} from" in said, said
                said = run(tool, f"copyAcl {ways} -s User:{name} {name_server}")
                assert f"copy acl of User:{name} from" in said, said
            assert code_of_a_send(to, JOE, TOPIC) == GOOD
            assert code_of_a_send(to, ANN, TOPIC) == REFUSED
            assert code_of_a_send(to, JOE, "others") == REFUSED
            for who in (JOE, ANN):
                forget(source, who)


def forget(login: LoginSide, who: Credentials) -> None:
    """The user and the list, which a broker keeps."""
    login.ask(3008, {"subject": f"User:{who.user}"}, {})
    login.ask(3003, {"username": who.user}, {})


def test_passwords_go_to_another_machine_by_tls_alone(tmp_path: Path) -> None:
    own = own_address()
    store, pair = tmp_path / "store", Authority(tmp_path).pair("server")
    with node_with_users(store) as (login, _):
        login.make_user(JOE, {})
    settings = (*pair.server, "tls_server_mode=permissive")
    with running_node(store, "serve.remoting=0.0.0.0:0", settings=settings) as (side, _):
        place = f"{own}:{side.broker.partition(':')[2]}"
        said = {}
        for way, options in (("plain", ()), ("TLS", BY_TLS)):
            with admin_tool(tmp_path / way, options) as tool:
                said[way] = run(tool, f"getUser -b {place} -u {JOE.user} -n {place}")
    assert f"{JOE.user} null Normal enable" in " ".join(said["plain"].split())
    assert f"{JOE.user} {JOE.secret} Normal enable" in " ".join(said["TLS"].split())


def own_address() -> str:
    """One of this machine that is not loopback. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        found: Sequence[str | int] = any_socket.getsockname()
    return str(found[0])
