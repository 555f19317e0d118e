"""Who asks, and may they: what is refused before any handler, and what is let in. No sockets."""

import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keelog.cli.main import run
from keelog.gateway import guard as guards
from keelog.gateway.connection import EndReason, Request, _host
from keelog.gateway.guard import NO_LOGIN, NOT_PROVED, TRUST_S, Guard, seen_topics
from keelog.gateway.service import GatewayService
from node.access.audit import GATEWAY_AUDIT_FILE, AuditLog
from node.access.user_table import UserTable
from node.access.users_file import auth_dir, write_users
from node.runtime.settings import Settings, load_settings
from protocol.access.decision import Action, Entry, parse_resource
from protocol.access.needs import UNCLEAR
from protocol.access.signature import signature
from protocol.access.users import AccessList, AccessTable, User, UserStatus, UserType
from protocol.errors import BadRequest, NotAllowed
from protocol.ids import Host, parse_host
from protocol.remoting.codes import RequestCode as Code
from protocol.remoting.headers import ONE_WAY, RemotingHeader

SECRET, ROOT_SECRET = "alice-secret", "root-secret"
CLUSTER = "c"
SHA1_BLOCK = 64
"""Bytes: a longer key costs one more round."""
BODY = b"hello"


def entry(
    resource: str, *actions: Action, allow: bool = True, sources: tuple[str, ...] = ()
) -> Entry:
    return Entry(parse_resource(resource), frozenset(actions), allow, sources)


def table_of(*entries: Entry, alice: User | None = None) -> AccessTable:
    users = {
        "alice": alice or User("alice", SECRET),
        "root": User("root", ROOT_SECRET, UserType.SUPER),
        "off": User("off", SECRET, status=UserStatus.DISABLE),
        "keys": User("keys", "", public_keys=("k" * 40,)),
    }
    return AccessTable(users, {"alice": AccessList(entries)} if entries else {}, 1)


ALLOWED = table_of(
    entry("Topic:orders", Action.PUB, Action.SUB),
    entry("Group:billing", Action.SUB),
    entry("Cluster:c", Action.UPDATE, Action.GET),
    entry("Topic:secret*", Action.ALL, allow=False),
)


@dataclass(eq=False)
class Peer:
    """In place of a connection."""

    peer: Host = field(default_factory=lambda: parse_host("10.0.0.1:5"))
    is_encrypted: bool = False
    logins: dict[str, tuple[float, int, str]] = field(default_factory=dict)
    users: int = 0

    def logged_in(self) -> None:
        self.users += 1


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_users(tmp_path, ALLOWED)
    return tmp_path


@pytest.fixture
def guard(root: Path) -> Iterator[Guard]:
    found = made(root)
    yield found
    found.close()


def made(root: Path, settings: Settings | None = None) -> Guard:
    audit = AuditLog(root, GATEWAY_AUDIT_FILE)
    return Guard(UserTable(root), settings or Settings(), CLUSTER, audit, frozenset({200050}))


def signed(
    code: int, ext: Mapping[str, str], user: str = "alice", secret: str = SECRET,
    body: bytes = BODY, version: int = 477, peer: Any = None,
) -> Request:  # fmt: skip
    """A request as a client of RocketMQ's signs it."""
    fields = {**ext, "AccessKey": user}
    fields["Signature"] = signature(secret, fields, body, version)
    header = RemotingHeader(code, 1, ext=fields, version=version)
    connection: Any = peer or Peer()
    return Request(connection, header, memoryview(body))


def altered(request: Request, **changes: str | None) -> Request:
    """The same request with other fields, under the signature that it had."""
    ext = {**request.header.ext, **changes}
    header = request.header._replace(ext={k: v for k, v in ext.items() if v is not None})
    return Request(request.connection, header, request.body)


def send(**more: Any) -> Request:
    return signed(Code.SEND_MESSAGE_V2, send_ext(), **more)


def send_ext(topic: str = "orders") -> dict[str, str]:
    return {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
        "h": "0", "i": "TAGS\x01A\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def refusal(guard: Guard, request: Request) -> str:
    with pytest.raises(NotAllowed) as refused:
        guard.admit(request)
    assert refused.value.code == 16
    return refused.value.reason


def audit(root: Path) -> list[dict[str, str]]:
    path = auth_dir(root) / GATEWAY_AUDIT_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# Logins


def test_a_request_with_the_signature_of_its_user_is_let_in(guard: Guard) -> None:
    request = send()
    guard.admit(request)
    assert request.asker is not None
    assert (request.asker.user.name, request.asker.address) == ("alice", "10.0.0.1")


@pytest.mark.attack(1, 2)
@pytest.mark.parametrize("empty", [None, ""])
def test_a_request_without_an_access_key_or_with_an_empty_one_is_nobodys(
    guard: Guard, empty: str | None
) -> None:
    """The C++ client sends empty ones where it has no credentials."""
    request = altered(send(), AccessKey=empty, Signature=empty)
    assert refusal(guard, request) == NO_LOGIN


@pytest.mark.attack(3, 4)
def test_a_stranger_hears_the_same_of_no_such_user_and_of_a_wrong_secret(guard: Guard) -> None:
    texts = {
        refusal(guard, send(user="nobody")),
        refusal(guard, send(secret="another-secret")),
        refusal(guard, send(user="keys")),
        refusal(guard, send(user="keys", secret="")),
        refusal(guard, send(user="off", secret="another-secret")),
    }
    assert texts == {NOT_PROVED}


@pytest.mark.attack(3)
def test_a_stranger_waits_as_long_for_no_such_user_as_for_a_wrong_secret(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is the same: one signature, over the same bytes, and one comparison."""
    made: list[tuple[int, int]] = []
    digest = hmac.digest

    def counted(key: bytes, content: bytes, name: str) -> bytes:
        made.append((len(key) > SHA1_BLOCK, len(content)))
        return digest(key, content, name)

    strangers = [
        send(user=name, secret="another-secret", body=b"x" * 50_000) for name in ("carol", "alice")
    ]
    monkeypatch.setattr("protocol.access.signature.hmac.digest", counted)
    assert {refusal(guard, one) for one in strangers} == {NOT_PROVED}
    assert len(made) == 2
    assert made[0] == made[1]


@pytest.mark.attack(11)
def test_a_disabled_user_hears_so_and_only_with_the_right_secret(guard: Guard) -> None:
    assert refusal(guard, send(user="off")) == "User:off is disabled."


@pytest.mark.attack(5, 6, 7, 8)
def test_what_differs_from_what_was_signed_is_refused(guard: Guard) -> None:
    good = send()
    changed = Request(good.connection, good.header, memoryview(b"hellp"))
    assert refusal(guard, changed) == NOT_PROVED
    changes: tuple[dict[str, str | None], ...] = (
        {"e": "1"},
        {"n": "bname"},
        {"i": None, "Zi": "TAGS\x01A\x02"},
        {"AccessKey": "root"},
    )
    for change in changes:
        assert refusal(guard, altered(good, **change)) == NOT_PROVED, change
    guard.admit(good)


@pytest.mark.attack(9)
@pytest.mark.parametrize("other", [None, "", "not base64 !", "ü", "A" * 1_000_000])
def test_a_signature_that_is_none_is_refused(guard: Guard, other: str | None) -> None:
    assert refusal(guard, altered(send(), Signature=other)) == NOT_PROVED


@pytest.mark.attack(10)
def test_clients_up_to_4_9_3_leave_one_field_unsigned_and_later_ones_do_not(guard: Guard) -> None:
    ext = {"topic": "orders", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
    for version, is_let_in in ((399, True), (401, False)):
        request = altered(
            signed(Code.QUERY_MESSAGE, ext, version=version), _UNIQUE_KEY_QUERY="true"
        )
        if is_let_in:
            guard.admit(request)
        else:
            assert refusal(guard, request) == NOT_PROVED


def test_on_a_plain_connection_each_request_is_looked_at(guard: Guard) -> None:
    peer = Peer()
    guard.admit(send(peer=peer))
    assert refusal(guard, altered(send(peer=peer), Signature="x")) == NOT_PROVED


@pytest.mark.attack(15)
def test_on_an_encrypted_one_a_good_signature_counts_for_its_user_alone_and_a_while(
    guard: Guard, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(guards, "monotonic", lambda: now[0])
    peer = Peer(is_encrypted=True)
    guard.admit(send(peer=peer))
    unsigned = altered(send(peer=peer), Signature="x")
    guard.admit(unsigned)
    foreign = altered(send(peer=peer, user="root"), Signature="x")
    assert refusal(guard, foreign) == NOT_PROVED
    now[0] += TRUST_S
    assert refusal(guard, unsigned) == NOT_PROVED
    guard.admit(send(peer=peer))
    guard.admit(unsigned)
    write_users(root, table_of(alice=User("alice", "changed-secret")))
    guard.table.current()
    assert refusal(guard, unsigned) == NOT_PROVED, "users have changed"


def test_codes_that_are_not_served_say_so_to_everybody(guard: Guard) -> None:
    request = altered(signed(200050, {}), AccessKey=None, Signature=None)
    guard.admit(request)
    assert request.asker is None


@pytest.mark.attack(16)
def test_a_code_of_more_bits_does_not_count_as_the_one_that_its_low_bits_are(guard: Guard) -> None:
    pull = Code.PULL_MESSAGE + 65_536
    assert "only Super users" in refusal(guard, signed(pull, {}))


# Rights


def test_a_user_may_what_the_list_says_and_hears_what_it_does_not_say(guard: Guard) -> None:
    guard.admit(send())
    where = "User:alice has no permission to access Topic"
    foreign = signed(Code.SEND_MESSAGE_V2, send_ext("stock"))
    assert refusal(guard, foreign) == f"{where}:stock from 10.0.0.1, no matched policies."
    denied = signed(Code.SEND_MESSAGE_V2, send_ext("secrets"))
    assert refusal(guard, denied) == f"{where}:secrets from 10.0.0.1, the decision is deny."


def test_a_request_that_lacks_a_mandatory_field_cannot_be_judged(guard: Guard) -> None:
    assert refusal(guard, signed(Code.SEND_MESSAGE_V2, {"a": "p"})) == UNCLEAR
    assert refusal(guard, signed(Code.HEART_BEAT, {}, body=b"{")) == UNCLEAR


def pull_ext(topic: str, group: str, sys_flag: int = 4) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": str(sys_flag), "commitOffset": "9", "subVersion": "0",
        "suspendTimeoutMillis": "0", "subscription": "*",
    }  # fmt: skip


@pytest.mark.attack(24, 28, 42)
@pytest.mark.parametrize("code", [Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE])
def test_pulls_of_every_code_need_topic_and_group(guard: Guard, code: int) -> None:
    guard.admit(signed(code, pull_ext("orders", "billing")))
    assert "Topic:stock" in refusal(guard, signed(code, pull_ext("stock", "billing")))
    assert "Group:other" in refusal(guard, signed(code, pull_ext("orders", "other", sys_flag=5)))
    assert "Group:victim" in refusal(guard, signed(code, pull_ext("%RETRY%victim", "billing")))
    guard.admit(signed(code, pull_ext("%RETRY%billing", "billing")))


@pytest.mark.attack(29)
@pytest.mark.parametrize(
    "topic",
    ["%RETRY%victim", "%DLQ%victim", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
     "rmq_sys_wheel_timer"],
)  # fmt: skip
def test_nobody_sends_to_topics_of_others_by_their_system_names(guard: Guard, topic: str) -> None:
    assert "no permission" in refusal(guard, signed(Code.SEND_MESSAGE_V2, send_ext(topic)))


@pytest.mark.attack(36)
@pytest.mark.parametrize(
    ("code", "ext"),
    [(Code.UPDATE_BROKER_CONFIG, {}), (401, {}), (3001, {"username": "x"}), (3005, {}), (3007, {})],
)
def test_a_user_with_cluster_update_is_no_super_user(
    guard: Guard, code: int, ext: dict[str, str]
) -> None:
    assert "only Super users have" in refusal(guard, signed(code, ext))
    guard.admit(signed(code, ext, user="root", secret=ROOT_SECRET))


def test_the_node_shows_itself_to_users_with_cluster_get(root: Path, guard: Guard) -> None:
    guard.admit(signed(Code.GET_BROKER_CONFIG, {}))
    write_users(root, table_of(entry("Topic:*", Action.ALL)))
    guard.table.current()
    assert "Cluster:c" in refusal(guard, signed(Code.GET_BROKER_CONFIG, {}))


def test_a_user_may_look_at_itself_and_at_no_other(guard: Guard) -> None:
    guard.admit(signed(3004, {"username": "alice"}))
    assert "only Super users have" in refusal(guard, signed(3004, {"username": "root"}))


@pytest.mark.attack(17)
def test_a_request_of_a_tool_with_a_field_that_no_tool_sends_is_refused(guard: Guard) -> None:
    for more, is_let_in in (({}, True), ({"zzz": "1"}, False)):
        request = signed(215, {"topic": "orders", **more}, "root", ROOT_SECRET)
        if is_let_in:
            guard.admit(request)
        else:
            assert "with the fields zzz" in refusal(guard, request)


@pytest.mark.attack(45)
def test_an_address_counts_in_its_own_form_and_networks_hold_theirs(root: Path) -> None:
    write_users(root, table_of(entry("Topic:orders", Action.PUB, sources=("10.0.0.1/8",))))
    guard = made(root)
    for ip, is_let_in in (
        ("10.200.0.1", True),
        ("::ffff:10.200.0.1", True),
        ("11.0.0.1", False),
        ("::1", False),
        ("64:ff9b::a00:1", False),
    ):
        request = send(peer=Peer(_host(ip, 9)))
        if is_let_in:
            guard.admit(request)
        else:
            assert "no matched policies" in refusal(guard, request)
    guard.close()


@pytest.mark.attack(43)
def test_lists_are_cut_to_what_the_user_has_any_right_to(root: Path, guard: Guard) -> None:
    topics = ["%RETRY%billing", "%RETRY%victim", "orders", "secret-1", "stock"]
    request = signed(206, {})
    guard.admit(request)
    assert seen_topics(request, topics) == ("%RETRY%billing", "orders")
    assert seen_topics(request, topics) == ("%RETRY%billing", "orders")
    write_users(root, table_of(entry("Topic:stock", Action.LIST)))
    guard.table.current()
    assert seen_topics(request, topics) == ("stock",), "what was known is forgotten"
    every = signed(206, {}, "root", ROOT_SECRET)
    guard.admit(every)
    assert seen_topics(every, topics) == tuple(topics)
    assert seen_topics(Request(request.connection, request.header, request.body), topics) == tuple(
        topics
    )


# In the service


def service_of(guard: Guard | None) -> tuple[GatewayService, list[Request]]:
    """A service with one handler, which keeps what it gets."""
    service, handled = object.__new__(GatewayService), list[Request]()
    service.requests = 0
    service._table = {int(Code.SEND_MESSAGE_V2): handled.append}
    if guard is not None:
        service.is_guarded, service.guard = True, guard
    return service, handled


@dataclass(eq=False)
class AnsweredPeer(Peer):
    """One that keeps what it hears."""

    handler: Any = field(default_factory=lambda: SimpleNamespace(count=lambda *_: None))
    under_way: int = 0
    heard: list[tuple[int, str | None]] = field(default_factory=list)

    def send(self, header: RemotingHeader, _: object = b"") -> None:
        self.heard.append((header.code, header.remark))


def test_without_users_a_request_goes_to_its_handler_and_no_guard_is_asked() -> None:
    service, handled = service_of(None)
    request = altered(send(), AccessKey=None, Signature=None)
    service.take(request)
    assert handled == [request]


def test_a_handler_gets_what_the_guard_lets_in_and_nothing_else(guard: Guard) -> None:
    service, handled = service_of(guard)
    peer = AnsweredPeer()
    good = send(peer=peer)
    service.take(good)
    assert (handled, peer.heard) == ([good], [])
    service.take(altered(good, e="1"))
    service.take(signed(Code.SEND_MESSAGE_V2, send_ext("stock"), peer=peer))
    unknown = altered(good, AccessKey=None)
    unknown.header = unknown.header._replace(code=999)
    service.take(unknown)
    assert handled == [good]
    assert [code for code, _ in peer.heard] == [16, 16, 3]
    assert peer.heard[0][1] == NOT_PROVED


def test_a_one_way_request_that_is_refused_gets_no_answer(guard: Guard) -> None:
    service, handled = service_of(guard)
    peer = AnsweredPeer()
    request = altered(send(peer=peer), e="1")
    request.header = request.header._replace(flag=ONE_WAY)
    service.take(request)
    assert (handled, peer.heard) == ([], [])


@dataclass(eq=False)
class CrowdPeer(Peer):
    """One that can be ended."""

    is_known: bool = False
    ended: EndReason | None = None

    def end(self, reason: EndReason, _: str) -> None:
        self.ended = reason


def full_service(guard: Guard | None, *peers: CrowdPeer) -> Any:
    """A service with as many connections as it takes."""
    service: Any = service_of(guard)[0]
    service.connections = dict.fromkeys(peers)
    service._connections_max = len(peers)
    service.places = SimpleNamespace(came=lambda _: None)
    return service


@pytest.mark.attack(23)
def test_a_user_finds_room_among_strangers_who_say_nothing(guard: Guard) -> None:
    user, first, second = CrowdPeer(is_known=True), CrowdPeer(), CrowdPeer()
    service = full_service(guard, user, first, second)
    comes = CrowdPeer()
    service.came(comes)
    assert [one.ended for one in (user, first, second, comes)] == [
        None,
        EndReason.CROWD,
        None,
        None,
    ]
    assert list(service.connections) == [user, second, comes]


def test_where_nobody_logs_in_or_all_have_the_one_that_comes_too_late_goes(guard: Guard) -> None:
    for service in (full_service(None, CrowdPeer()), full_service(guard, CrowdPeer(is_known=True))):
        (there,), comes = service.connections, CrowdPeer()
        service.came(comes)
        assert (there.ended, comes.ended) == (None, EndReason.CROWD)
        assert list(service.connections) == [there]


# Settings


def test_without_users_nobody_must_log_in_until_there_is_one(tmp_path: Path) -> None:
    guard = made(tmp_path)
    assert not guard.is_on
    write_users(tmp_path, ALLOWED)
    assert guard.table.look(0.0)
    assert guard.is_on


def test_a_login_ends_with_its_user_or_its_secret(root: Path, guard: Guard) -> None:
    peer: Any = Peer()
    guard.admit(send(peer=peer))
    guard.admit(signed(206, {}, "root", ROOT_SECRET, peer=peer))
    assert guard.forget_logins(peer)
    assert set(peer.logins) == {"alice", "root"}
    users = dict(ALLOWED.users)
    users["alice"] = replace(users["alice"], secret="another secret")
    write_users(root, replace(ALLOWED, users=users))
    guard.table.current()
    assert guard.forget_logins(peer)
    assert set(peer.logins) == {"root"}
    users["root"] = replace(users["root"], status=UserStatus.DISABLE)
    write_users(root, replace(ALLOWED, users=users))
    guard.table.current()
    assert not guard.forget_logins(peer)


def test_settings_say_that_everybody_or_nobody_must_log_in(tmp_path: Path) -> None:
    assert made(tmp_path, Settings(authentication_enabled="true")).is_on
    write_users(tmp_path, ALLOWED)
    assert not made(tmp_path, Settings(authentication_enabled="false")).is_on


def test_rights_can_be_left_out_but_those_to_users_cannot(root: Path) -> None:
    guard = made(root, Settings(authentication_enabled="true", authorization_enabled="false"))
    guard.admit(signed(Code.SEND_MESSAGE_V2, send_ext("stock")))
    assert refusal(guard, altered(send(), Signature="x")) == NOT_PROVED
    assert "only Super users" in refusal(guard, signed(3001, {"username": "x"}))
    guard.close()


@pytest.mark.attack(19)
@pytest.mark.parametrize("authentication", ["auto", "false"])
def test_rights_without_logins_are_no_setting(authentication: str) -> None:
    with pytest.raises(BadRequest, match="authorization_enabled is true"):
        Settings(authentication_enabled=authentication, authorization_enabled="true")
    assert Settings(authentication_enabled="true", authorization_enabled="true")
    with pytest.raises(BadRequest, match="authentication_enabled is 'yes'"):
        Settings(authentication_enabled="yes")


@pytest.mark.attack(18)
@pytest.mark.parametrize("name", ["authentication_whitelist", "authenticationWhitelist"])
def test_no_code_can_be_left_without_a_login(name: str) -> None:
    with pytest.raises(BadRequest, match="there is no setting"):
        load_settings([f"{name}=26"])


@pytest.mark.attack(19)
def test_a_node_with_rights_and_without_logins_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rights = ["-X", "authorization_enabled=true"]
    assert run(["serve", str(tmp_path / "store"), "--bind", "tcp://127.0.0.1:0", *rights]) == 2
    assert "authorization_enabled is true" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.attack(35)
def test_no_setting_holds_a_secret_as_tools_are_shown_all_of_them() -> None:
    telling = ("secret", "password", "credential", "access_key", "token")
    named = [one.name for one in fields(Settings) if any(word in one.name for word in telling)]
    assert [name for name in named if not name.endswith(("_file", "_path"))] == []


# What is taken away


@pytest.mark.attack(12, 13)
def test_what_was_let_in_is_decided_again_when_users_have_changed(root: Path, guard: Guard) -> None:
    request = signed(Code.PULL_MESSAGE, pull_ext("orders", "billing"))
    guard.admit(request)
    asker = request.asker
    assert asker is not None
    assert asker.refusal() is None
    alice = User("alice", SECRET)
    rights = ALLOWED.lists["alice"].custom
    for table, why in (
        (table_of(*rights[1:], alice=alice), "Topic:orders"),
        (table_of(*rights, alice=User("alice", "new-secret-of-alice")), NOT_PROVED),
        (table_of(*rights, alice=User("alice", SECRET, status=UserStatus.DISABLE)), "disabled"),
        (AccessTable({"root": ALLOWED.users["root"]}, {}, 9), NOT_PROVED),
    ):
        write_users(root, table)
        guard.table.current()
        found = asker.refusal()
        assert found is not None
        assert why in found.reason
    write_users(root, ALLOWED)
    guard.table.current()
    assert asker.refusal() is None


def test_a_super_user_who_is_one_no_more_has_no_request_left(root: Path, guard: Guard) -> None:
    request = signed(Code.PULL_MESSAGE, pull_ext("x", "y"), "root", ROOT_SECRET)
    guard.admit(request)
    users = {**ALLOWED.users, "root": User("root", ROOT_SECRET)}
    write_users(root, AccessTable(users, {}, 2))
    guard.table.current()
    assert request.asker is not None
    assert request.asker.refusal() is not None


# What is written


def test_logins_and_refusals_are_in_the_audit_log_and_no_secret(root: Path, guard: Guard) -> None:
    peer = Peer()
    guard.admit(send(peer=peer))
    guard.admit(send(peer=peer))
    refusal(guard, signed(Code.SEND_MESSAGE_V2, send_ext("stock")))
    bad = send(secret="another-secret", user="bob")
    refusal(guard, bad)
    rows = [{k: v for k, v in row.items() if k != "time"} for row in audit(root)]
    who = {"end": "remoting", "user": "alice", "address": "10.0.0.1"}
    why = "User:alice has no permission to access Topic:stock from 10.0.0.1, no matched policies."
    refused = {"operation": "send_message_v2", "outcome": "refused"}
    assert rows == [
        {**who, "operation": "login", "outcome": "done"},
        {**who, "operation": "login", "outcome": "done"},
        {**who, **refused, "resource": "Topic:stock", "reason": why},
        {**who, **refused, "user": "bob", "reason": NOT_PROVED},
    ]
    text = (auth_dir(root) / GATEWAY_AUDIT_FILE).read_text()
    assert SECRET not in text
    assert bad.header.ext["Signature"] not in text
