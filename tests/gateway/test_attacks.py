"""Attacks on a node whose users log in, over the wire, at both ports of RocketMQ's clients.

The node has a certificate and takes no TLS. Each client that fails comes from an address of its
own: failures are counted by address.
"""

import json
import resource
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path

import pytest

from keelog.gateway.guard import NO_LOGIN, NOT_PROVED
from keelog.gateway.service import CONNECTIONS_MAX
from node.access.users_file import auth_dir, write_users
from node.store.identity.places import create_store
from protocol.access.decision import Action, Entry, parse_resource
from protocol.access.remoting_needs import CREDENTIALS
from protocol.access.signature import ACCESS_KEY, SIGNATURE, signature
from protocol.access.users import AccessList, AccessTable, User, UserStatus, UserType
from protocol.addresses import VIP_DISTANCE
from protocol.remoting.codes import RequestCode as Code
from protocol.remoting.frame_reader import frame_head
from protocol.remoting.headers import RemotingHeader
from tests.gateway.test_guarded_node import back_fields, beat
from tests.support.certificates import Authority
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import (
    REMOTING,
    Answered,
    RemotingPeer,
    SignedPeer,
    pull_fields,
    remoting_place,
    send_fields,
)

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("attacks")]
REFUSED, GOOD = 16, 0
SEND, PULL, LITE_PULL = Code.SEND_MESSAGE_V2, Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE
SEGMENT = "mapped_file_size_commit_log=4194304"
FAILURES_MAX, DELAY_S = 10, 0.4
COMMIT, BY_EXPRESSION = 1, 4
"""Bits of a pull's flags."""
FALSE_ADDRESS = "10.9.9.9"
_HOSTS = count(1)
Fields = dict[str, str]


def secret_of(user: str) -> str:
    return f"secret-of-{user}"


def table() -> AccessTable:
    def entry(resource: str, *actions: Action, sources: tuple[str, ...] = ()) -> Entry:
        return Entry(parse_resource(resource), frozenset(actions), True, sources)

    users = [User(name, secret_of(name)) for name in ("alice", "bob", "carol")]
    users.append(User("root", secret_of("root"), UserType.SUPER))
    users.append(User("off", secret_of("off"), status=UserStatus.DISABLE))
    lists = {
        "alice": (entry("Topic:orders*", Action.ALL), entry("Group:billing", Action.ALL)),
        "bob": (entry("Topic:stock*", Action.ALL), entry("Group:stockers", Action.ALL)),
        "carol": (entry("Topic:orders*", Action.PUB, sources=(FALSE_ADDRESS,)),),
    }
    return AccessTable(
        {user.name: user for user in users}, {name: AccessList(own) for name, own in lists.items()}
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("attacked")
    root = folder / "store"
    create_store(root)
    write_users(root, table())
    settings = (
        *(REMOTING, SEGMENT, *Authority(folder).pair("server").server),
        *("tls_server_mode=disabled", "auto_create_topic_enable=true"),
        *(f"auth_failures_max={FAILURES_MAX}", f"auth_delay_ms={DELAY_S * 1000:.0f}"),
    )
    with RunningNode(root, settings, queue_workers=1, readers=1) as running:
        with closing(peer_of(running, "bob")) as bob:
            assert bob.ask(SEND, send_fields("stock"), b"his").code == GOOD
            assert bob.ask(Code.HEART_BEAT, {}, beat("his", "stockers", "stock")).code == GOOD
        yield running


@pytest.fixture(params=[0, VIP_DISTANCE], ids=["port", "port below"])
def place(node: RunningNode, request: pytest.FixtureRequest) -> tuple[str, int]:
    host, port = remoting_place(node.stderr)
    return host, port - request.param


def own_host() -> str:
    """An address of this machine from which nobody has come."""
    number = next(_HOSTS)
    return f"127.3.{number // 250}.{number % 250 + 1}"


def peer_of(node: RunningNode, user: str) -> SignedPeer:
    return SignedPeer(remoting_place(node.stderr), user, secret_of(user), own_host())


def signed(ext: Mapping[str, object], body: bytes, user: str = "alice", secret: str = "") -> Fields:
    """The fields of a request, with a signature."""
    fields = {name: str(value) for name, value in ext.items()} | {ACCESS_KEY: user}
    version = RemotingHeader(0, 0).version
    return fields | {SIGNATURE: signature(secret or secret_of(user), fields, body, version)}


# Logins

SEND_EXT = send_fields("orders", i="TAGS\x01A\x02")
BODY = b"hello"
GOOD_FIELDS = signed(SEND_EXT, BODY)
SPOILED: dict[str, tuple[Fields, bytes, str]] = {
    "no access key": (
        {k: v for k, v in GOOD_FIELDS.items() if k not in (ACCESS_KEY, SIGNATURE)}, BODY, NO_LOGIN
    ),
    "empty ones": ({**GOOD_FIELDS, ACCESS_KEY: "", SIGNATURE: ""}, BODY, NO_LOGIN),
    "no such user": (signed(SEND_EXT, BODY, "nobody"), BODY, NOT_PROVED),
    "another secret": (signed(SEND_EXT, BODY, secret="another-secret"), BODY, NOT_PROVED),
    "another body": (GOOD_FIELDS, b"hullo", NOT_PROVED),
    "another value": ({**GOOD_FIELDS, "e": "1"}, BODY, NOT_PROVED),
    "one field more": ({**GOOD_FIELDS, "n": "b"}, BODY, NOT_PROVED),
    "a field that moved": (
        {"Zi" if k == "i" else k: v for k, v in GOOD_FIELDS.items()}, BODY, NOT_PROVED
    ),
    "no signature": ({**GOOD_FIELDS, SIGNATURE: ""}, BODY, NOT_PROVED),
    "no Base64": ({**GOOD_FIELDS, SIGNATURE: "~ \u00fc"}, BODY, NOT_PROVED),
    "60 KiB of it": ({**GOOD_FIELDS, SIGNATURE: "A" * 60_000}, BODY, NOT_PROVED),
    "who is disabled": (signed(SEND_EXT, BODY, "off"), BODY, "User:off is disabled."),
}  # fmt: skip


def end_of(peer: RemotingPeer, topic: str) -> int:
    """How many messages queue 0 has had."""
    return int(peer.ask(Code.GET_MAX_OFFSET, {"topic": topic, "queueId": 0}).ext["offset"])


@pytest.mark.attack(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 21)
@pytest.mark.parametrize("how", SPOILED)
def test_a_request_that_does_not_prove_its_user_is_refused_at_both_ports(
    place: tuple[str, int], how: str
) -> None:
    fields, body, why = SPOILED[how]
    with (
        closing(SignedPeer(place, "alice", secret_of("alice"), own_host())) as alice,
        closing(RemotingPeer(place, source=own_host())) as attacker,
    ):
        assert alice.ask(SEND, SEND_EXT, BODY).code == GOOD
        end = end_of(alice, "orders")
        found = attacker.ask(SEND, fields, body)
        assert (found.code, found.header.remark, found.body) == (REFUSED, why, b"")
        attacker.tell(SEND, fields, body)
        assert attacker.ask(Code.GET_MAX_OFFSET, {"topic": "orders"}).code == REFUSED
        assert end_of(alice, "orders") == end


@pytest.mark.attack(9, 21)
def test_a_signature_that_is_longer_than_any_header_breaks_the_frame(
    place: tuple[str, int],
) -> None:
    with closing(RemotingPeer(place, source=own_host())) as attacker:
        with suppress(ConnectionError):  # it may be closed before all is sent
            attacker.send(SEND, {**GOOD_FIELDS, SIGNATURE: "A" * (1 << 20)}, BODY)
        assert attacker.is_closed()


@pytest.mark.attack(22)
def test_failures_of_one_address_are_late_and_those_who_log_in_never_are(node: RunningNode) -> None:
    place, host = remoting_place(node.stderr), own_host()
    failing, other = RemotingPeer(place, source=host), RemotingPeer(place, source=own_host())
    alice = SignedPeer(place, "alice", secret_of("alice"), host)
    with closing(failing), closing(other), closing(alice):
        for _ in range(FAILURES_MAX):
            failing.ask(SEND, SEND_EXT, BODY)
        began = time.monotonic()
        late = failing.send(SEND, SEND_EXT, BODY)
        for one in (alice, other):
            one.ask(SEND, SEND_EXT, BODY)
            assert time.monotonic() - began < DELAY_S, "only failures are late"
        assert failing.answer_to(late).code == REFUSED
        assert time.monotonic() - began >= DELAY_S


@pytest.mark.attack(20)
@pytest.mark.parametrize(
    "head",
    [
        f"PROXY TCP4 {FALSE_ADDRESS} 127.0.0.1 5555 10911\r\n".encode(),
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"
        + socket.inet_aton(FALSE_ADDRESS) + b"\x7f\0\0\1" + struct.pack(">HH", 5555, 10911),
    ],
    ids=["version 1", "version 2"],
)  # fmt: skip
def test_an_address_that_a_client_claims_is_not_believed(
    node: RunningNode, place: tuple[str, int], head: bytes
) -> None:
    fields = signed(SEND_EXT, BODY, "carol")
    frame = frame_head(RemotingHeader(SEND, 1, ext=fields), len(BODY)) + BODY
    with closing(RemotingPeer(place, source=own_host())) as claims:
        claims.socket.sendall(head + frame)
        assert claims.is_closed()
    with closing(SignedPeer(place, "carol", secret_of("carol"), own_host())) as carol:
        assert carol.ask(SEND, SEND_EXT, BODY).code == REFUSED
    assert FALSE_ADDRESS not in (auth_dir(node.root) / "audit.gateway.log").read_text()


# Rights


def batch(*bodies: bytes) -> bytes:
    """The body of 320."""
    items = [
        struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", 0) for body in bodies
    ]
    return b"".join(struct.pack(">i", len(item) + 4) + item for item in items)


def place_in(topic: str, **more: object) -> dict[str, object]:
    return {"consumerGroup": "billing", "topic": topic, "queueId": 0, **more}


def read(topic: str, group: str = "billing", **more: object) -> dict[str, object]:
    return pull_fields(topic, 0, 0, consumerGroup=group, **more)


LOCKS = {"consumerGroup": "stockers", "clientId": "c", "mqSet": []}
NEW_TOPICS = json.dumps({"topicConfigList": [{"topicName": "orders-x"}, {"topicName": "x"}]})
FOREIGN: dict[str, tuple[int, dict[str, object], bytes]] = {
    "a pull": (PULL, read("stock"), b""),
    "a lite pull": (LITE_PULL, read("stock"), b""),
    "a pull of retries": (PULL, read("%RETRY%stockers"), b""),
    "a lite pull of retries": (LITE_PULL, read("%RETRY%stockers"), b""),
    "where a group is": (Code.QUERY_CONSUMER_OFFSET, place_in("%RETRY%stockers"), b""),
    "a commit": (Code.UPDATE_CONSUMER_OFFSET, place_in("%RETRY%stockers", commitOffset=1), b""),
    "a message to retries": (SEND, send_fields("%RETRY%stockers"), BODY),
    "a message to dead letters": (SEND, send_fields("%DLQ%stockers"), BODY),
    "a message that waits": (SEND, send_fields("SCHEDULE_TOPIC_XXXX"), BODY),
    "half a message": (SEND, send_fields("RMQ_SYS_TRANS_HALF_TOPIC"), BODY),
    "a timer": (SEND, send_fields("rmq_sys_wheel_timer"), BODY),
    "a batch": (Code.SEND_BATCH_MESSAGE, send_fields("stock", m=True), batch(b"1", b"2")),
    "a message handed back": (Code.CONSUMER_SEND_MSG_BACK, back_fields(0, "billing"), b""),
    "a message by its offset": (Code.VIEW_MESSAGE_BY_ID, {"offset": 0, "topic": "orders"}, b""),
    "a heart-beat": (Code.HEART_BEAT, {}, beat("c", "billing", "orders", "stock")),
    "locks": (Code.LOCK_BATCH_MQ, {}, json.dumps(LOCKS).encode()),
    "settings": (Code.UPDATE_BROKER_CONFIG, {}, b"autoCreateTopicEnable=false"),
    "the settings": (Code.GET_BROKER_CONFIG, {}, b""),
    "new topics": (Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, NEW_TOPICS.encode()),
    "a group": (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName": "x"}'),
    "groups": (
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {},
        b'{"groupConfigList": [{"groupName": "x"}]}',
    ),
    "a pair of values": (Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}, b""),
    "no more writes": (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}, b""),
    "the mode of a group": (
        Code.SET_MESSAGE_REQUEST_MODE, {}, b'{"topic": "stock", "consumerGroup": "stockers"}'
    ),
    "another flush": (Code.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 0}, b""),
    "a user": (Code.AUTH_CREATE_USER, {"username": "eve"}, b'{"password": "12345678"}'),
}  # fmt: skip


@pytest.mark.attack(21, 24, 25, 26, 28, 29, 34, 36, 40, 41)
@pytest.mark.parametrize("what", FOREIGN)
def test_nothing_foreign_is_read_or_changed_at_either_port(
    node: RunningNode, place: tuple[str, int], what: str
) -> None:
    code, ext, body = FOREIGN[what]
    with (
        closing(SignedPeer(place, "alice", secret_of("alice"), own_host())) as alice,
        closing(peer_of(node, "bob")) as bob,
    ):
        before = end_of(bob, "stock"), node.log_state().appended
        found = alice.ask(code, ext, body)
        assert (found.code, found.body) == (REFUSED, b""), found.header.remark
        assert "User:alice has no permission" in (found.header.remark or "")
        assert (end_of(bob, "stock"), node.log_state().appended) == before


@pytest.mark.attack(42)
def test_a_pull_that_is_refused_commits_nothing(node: RunningNode, place: tuple[str, int]) -> None:
    own = {"consumerGroup": "stockers", "topic": "stock", "queueId": 0}
    with (
        closing(SignedPeer(place, "alice", secret_of("alice"), own_host())) as alice,
        closing(peer_of(node, "bob")) as bob,
    ):
        assert bob.ask(Code.UPDATE_CONSUMER_OFFSET, {**own, "commitOffset": 0}).code == GOOD
        flags = {"sysFlag": COMMIT | BY_EXPRESSION, "commitOffset": 1}
        for topic, group in (("orders", "stockers"), ("stock", "stockers"), ("stock", "billing")):
            assert alice.ask(PULL, read(topic, group, **flags)).code == REFUSED
        assert bob.ask(Code.QUERY_CONSUMER_OFFSET, own).ext["offset"] == "0"


@pytest.mark.attack(17)
def test_what_a_tool_asks_of_a_client_comes_without_its_login(node: RunningNode) -> None:
    with closing(peer_of(node, "root")) as root, closing(peer_of(node, "alice")) as consumer:
        assert consumer.ask(Code.HEART_BEAT, {}, beat("c1", "billing", "orders")).code == GOOD
        asked = {"consumerGroup": "billing", "clientId": "c1", "jstackEnable": "false"}
        root.send(Code.GET_CONSUMER_RUNNING_INFO, asked)
        came = consumer.request(Code.GET_CONSUMER_RUNNING_INFO)
        assert asked.items() <= came.ext.items()
        assert not CREDENTIALS & came.ext.keys()


TABLES = [
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
]


@pytest.mark.attack(43, 66)
@pytest.mark.parametrize("code", TABLES)
def test_a_slave_that_does_not_log_in_gets_no_table_and_hears_why(
    node: RunningNode, place: tuple[str, int], code: Code
) -> None:
    def asked(peer: RemotingPeer) -> Answered:
        with closing(peer):
            return peer.ask(code, {})

    stranger = asked(RemotingPeer(place, source=own_host()))
    assert (stranger.code, stranger.header.remark, stranger.body) == (REFUSED, NO_LOGIN, b"")
    alice = asked(SignedPeer(place, "alice", secret_of("alice"), own_host()))
    assert (alice.code, alice.body) == (REFUSED, b"")
    assert "Cluster:DefaultCluster" in (alice.header.remark or "")
    assert asked(peer_of(node, "root")).code == GOOD


# TLS


@pytest.mark.attack(48)
def test_a_client_of_tls_gets_nothing_of_a_node_that_takes_none(
    node: RunningNode, place: tuple[str, int]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(place, timeout=20) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain)
    with closing(SignedPeer(place, "alice", secret_of("alice"), own_host())) as alice:
        assert alice.ask(SEND, SEND_EXT, BODY).code == GOOD


# Crowds


@pytest.mark.attack(23)
@pytest.mark.faults
@pytest.mark.timeout(300)
def test_ten_thousand_who_say_nothing_leave_room_for_a_user_and_go_soon(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    root = tmp_path / "store"
    create_store(root)
    write_users(root, table())
    try:
        with RunningNode(root, (REMOTING, SEGMENT), queue_workers=1, readers=1) as running:
            check_silent(running, min(CONNECTIONS_MAX, before[1] - 500))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def check_silent(running: RunningNode, number: int) -> None:
    place = remoting_place(running.stderr)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(place, timeout=20)) for _ in range(number)
        ]
        for _ in range(20):
            began = time.monotonic()
            with closing(peer_of(running, "alice")) as alice:
                assert alice.ask(SEND, SEND_EXT, BODY).code == GOOD
            assert time.monotonic() - began < 5
        for one in silent:
            one.settimeout(0)
        wait_until(lambda: all(map(is_over, silent)), "they stay", 30)


def is_over(connected: socket.socket) -> bool:
    try:
        return connected.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
