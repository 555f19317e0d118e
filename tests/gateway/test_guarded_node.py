"""A node whose users log in, over the wire: what records, lists and connections say, and to whom.

`alice` has topics and a group of her own, `bob` others, `root` is a Super user. What needs no node
is in test_guard.py.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from keelog.client.users import change_at
from keelog.gateway.guard import NO_LOGIN
from protocol.access.changes import CREATE_USER, DELETE_ACL, DELETE_USER, UPDATE_USER, Change
from protocol.ids import parse_offset_message_id
from protocol.record.codec import Record, decode
from protocol.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from protocol.remoting.codes import RequestCode as Code
from protocol.remoting.frame_reader import frame_head
from protocol.remoting.headers import ANSWER, RemotingHeader
from protocol.remoting.java_json import write_body
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

pytestmark = pytest.mark.process

REFUSED, GOOD = 16, 0
SEND, PULL = Code.SEND_MESSAGE_V2, Code.PULL_MESSAGE
SETTINGS = (
    REMOTING,
    "transaction_time_out=300",
    "transaction_check_interval=200",
    "transaction_check_max=1000",
    "auth_failures_max=4",
    "auth_delay_ms=20",
)
BEFORE: list[Answered] = []
"""What a client without a user heard of its held pull when the first user was made."""
RIGHTS = {
    "alice": {
        "Topic:orders*": "Pub Sub", "Group:billing": "Sub", "Group:payments": "Sub",
        "Topic:DefaultCluster_REPLY_TOPIC": "Pub",
    },
    "bob": {
        "Topic:stock*": "All", "Group:stockers": "All", "Group:new-*": "Create", "Group:b*": "Get",
        "Cluster:DefaultCluster": "Get Update",
    },
}  # fmt: skip


def secret_of(user: str) -> str:
    return f"secret-of-{user}"


def user_body(name: str, kind: str = "Normal") -> bytes:
    return json.dumps({"password": secret_of(name), "userType": kind}).encode()


def list_body(name: str, rights: dict[str, str]) -> bytes:
    entries = [
        {"resource": one, "actions": actions.split(), "decision": "Allow"}
        for one, actions in rights.items()
    ]
    policies = [{"policyType": "Custom", "entries": entries}]
    return json.dumps({"subject": f"User:{name}", "policies": policies}).encode()


def make_user(root: RemotingPeer, name: str, rights: dict[str, str]) -> None:
    """By the gateway, which knows of the user at once: a request before it did would be a failed
    login, and all tests have one address."""
    assert root.ask(3001, {"username": name}, user_body(name)).code == GOOD
    assert root.ask(3006, {"subject": f"User:{name}"}, list_body(name, rights)).code == GOOD


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root: Path = tmp_path_factory.mktemp("guarded") / "store"
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as running:
        make_users(running)
        yield running


def make_users(running: RunningNode) -> None:
    place = remoting_place(running.stderr)
    with closing(RemotingPeer(place)) as stranger:
        number = held(stranger, "orders", "strangers")
        change_at(running.client, Change(CREATE_USER, "root", user_body("root", "Super")))
        BEFORE.append(stranger.answer_to(number))
    with closing(SignedPeer(place, "root", secret_of("root"))) as root:
        for name, rights in RIGHTS.items():
            make_user(root, name, rights)


Login = Callable[[str], SignedPeer]


@pytest.fixture
def login(node: RunningNode) -> Iterator[Login]:
    """Connects a client of a user."""
    with ExitStack() as ends:

        def connected(user: str) -> SignedPeer:
            peer = SignedPeer(remoting_place(node.stderr), user, secret_of(user))
            ends.callback(peer.close)
            return peer

        yield connected


def told(answered: Answered) -> Any:
    assert answered.code == GOOD, answered.header
    return json.loads(answered.body)


def place_of(answered: Answered) -> int:
    """Where a message that was sent is in the log."""
    assert answered.code == GOOD, answered.header.remark
    return parse_offset_message_id(answered.ext["msgId"])[1]


def beat(client: str, group: str, *topics: str, producers: str = "") -> bytes:
    wanted = tuple(SubscriptionData(topic, "*") for topic in topics)
    consumers = (ConsumerData(group, subscription_data_set=wanted),) if group else ()
    made = (ProducerData(producers),) if producers else ()
    return write_body(HeartbeatData(client, made, consumers), standard=False)


# The first user


def test_with_the_first_user_pulls_that_wait_and_open_connections_are_nobodys(
    node: RunningNode,
) -> None:
    (answered,) = BEFORE
    assert (answered.code, answered.header.remark) == (REFUSED, NO_LOGIN)


# A whole run


def test_a_producer_and_a_consumer_that_sign_do_all_that_they_do_without_users(
    login: Login,
) -> None:
    producer, consumer = login("alice"), login("alice")
    assert told(producer.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}))["queueDatas"]
    assert producer.ask(Code.HEART_BEAT, {}, beat("p1", "", producers="p")).code == GOOD
    sent = producer.ask(SEND, send_fields("orders", 1), b"signed")
    assert sent.code == GOOD
    body = beat("c1", "billing", "orders", "%RETRY%billing")
    assert consumer.ask(Code.HEART_BEAT, {}, body).code == GOOD
    ids = told(consumer.ask(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"}))
    assert ids == {"consumerIdList": ["c1"]}
    offset = int(sent.ext["queueOffset"])
    pulled = consumer.ask(PULL, pull_fields("orders", 1, offset, consumerGroup="billing"))
    record = decode(pulled.body, 0)
    assert isinstance(record, Record)
    assert (pulled.code, record.body) == (GOOD, b"signed")
    place = {"consumerGroup": "billing", "topic": "orders", "queueId": 1}
    commit = {**place, "commitOffset": offset + 1}
    assert consumer.ask(Code.UPDATE_CONSUMER_OFFSET, commit).code == GOOD
    known = consumer.ask(Code.QUERY_CONSUMER_OFFSET, place)
    assert known.ext["offset"] == str(offset + 1)


def test_the_connection_stays_open_after_a_refusal(login: Login) -> None:
    alice = login("alice")
    refused = alice.ask(SEND, send_fields("stock"), b"x")
    text = "User:alice has no permission to access Topic:stock from 127.0.0.1, no matched policies."
    assert (refused.code, refused.header.remark) == (REFUSED, text)
    assert alice.ask(SEND, send_fields("orders"), b"x").code == GOOD


@pytest.mark.attack(14)
def test_a_one_way_send_without_a_right_stores_nothing(login: Login) -> None:
    alice, bob = login("alice"), login("bob")
    end = int(bob.ask(SEND, send_fields("stock-one-way"), b"x").ext["queueOffset"])
    alice.tell(SEND, send_fields("stock-one-way"), b"from alice")
    bob.tell(SEND, send_fields("stock-one-way"), b"from bob")
    alice.ask(SEND, send_fields("orders"), b"after it")
    last = bob.ask(SEND, send_fields("stock-one-way"), b"x")
    assert int(last.ext["queueOffset"]) == end + 2


# Records


@pytest.mark.attack(26)
def test_a_message_by_its_offset_is_for_readers_of_its_topic(login: Login) -> None:
    alice, bob = login("alice"), login("bob")
    offset = place_of(alice.ask(SEND, send_fields("orders"), b"hers"))
    for named in ({}, {"topic": "stock"}):
        refused = bob.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": offset, **named})
        assert (refused.code, refused.body) == (REFUSED, b"")
    assert b"hers" in alice.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": offset}).body


def back_fields(offset: int, group: str) -> dict[str, object]:
    return {"offset": offset, "group": group, "delayLevel": 0, "originMsgId": "x",
            "originTopic": "stock", "unitMode": False, "maxReconsumeTimes": 16}  # fmt: skip


@pytest.mark.attack(25)
def test_a_foreign_message_cannot_be_handed_back_to_an_own_group(login: Login) -> None:
    alice, bob = login("alice"), login("bob")
    hers = place_of(alice.ask(SEND, send_fields("orders"), b"hers"))
    his = place_of(bob.ask(SEND, send_fields("stock"), b"his"))
    back = Code.CONSUMER_SEND_MSG_BACK
    assert bob.ask(back, back_fields(hers, "stockers")).code == REFUSED
    assert bob.ask(back, back_fields(his, "stockers")).code == GOOD


@pytest.mark.attack(17, 27)
def test_a_foreign_message_is_not_consumed_through_an_own_client(login: Login) -> None:
    alice, bob, consumer = login("alice"), login("bob"), login("bob")
    assert consumer.ask(Code.HEART_BEAT, {}, beat("bobs", "stockers", "stock")).code == GOOD
    hers = alice.ask(SEND, send_fields("orders"), b"hers").ext["msgId"]
    his = bob.ask(SEND, send_fields("stock"), b"his").ext["msgId"]
    asked = {"consumerGroup": "stockers", "clientId": "bobs", "brokerName": "b"}
    assert bob.ask(Code.CONSUME_MESSAGE_DIRECTLY, {**asked, "msgId": hers}).code == REFUSED
    bob.send(Code.CONSUME_MESSAGE_DIRECTLY, {**asked, "msgId": his})
    passed_on = consumer.request(Code.CONSUME_MESSAGE_DIRECTLY)
    assert b"his" in passed_on.body
    assert not {"AccessKey", "Signature"} & passed_on.ext.keys()


def half(peer: RemotingPeer, topic: str, key: str) -> Answered:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01makers\x02UNIQ_KEY\x01{key}\x02"
    born = int(time.time() * 1000)
    sent = peer.ask(SEND, send_fields(topic, a="makers", i=text, f=4, g=born), b"half of it")
    assert sent.code == GOOD, sent.header.remark
    return sent


def end_of(sent: Answered, outcome: int) -> dict[str, object]:
    return {
        "producerGroup": "makers", "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": place_of(sent), "commitOrRollback": outcome,
        "fromTransactionCheck": False, "msgId": "x", "transactionId": "x",
    }  # fmt: skip


@pytest.mark.attack(30)
def test_a_foreign_transaction_is_not_ended(login: Login) -> None:
    alice, bob = login("alice"), login("bob")
    sent = half(alice, "orders-half", "E1")
    refused = bob.ask(Code.END_TRANSACTION, end_of(sent, 8))
    assert (refused.code, "Topic:orders-half" in (refused.header.remark or "")) == (REFUSED, True)
    assert alice.ask(Code.END_TRANSACTION, end_of(sent, 8)).code == GOOD


@pytest.mark.attack(31)
def test_only_who_may_send_to_its_topic_is_asked_for_a_transaction(login: Login) -> None:
    alice, bob, asked = login("alice"), login("bob"), login("alice")
    assert bob.ask(Code.HEART_BEAT, {}, beat("thief", "", producers="makers")).code == GOOD
    sent = half(alice, "orders-half", "E2")
    time.sleep(0.8)
    assert asked.ask(Code.HEART_BEAT, {}, beat("maker", "", producers="makers")).code == GOOD
    question = asked.request(Code.CHECK_TRANSACTION_STATE)
    assert question.ext["msgId"] == "E2"
    bob.ask(SEND, send_fields("stock"), b"x")
    assert [one for one in bob.came if not one.header.is_answer] == []
    assert alice.ask(Code.END_TRANSACTION, end_of(sent, 12)).code == GOOD


# Groups and clients


@pytest.mark.attack(40)
def test_a_heart_beat_with_one_foreign_subscription_is_refused_as_a_whole(login: Login) -> None:
    alice, root = login("alice"), login("root")
    body = beat("c9", "payments", "orders", "stock")
    assert alice.ask(Code.HEART_BEAT, {}, body).code == REFUSED
    members = root.ask(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "payments"})
    assert members.code != GOOD, "nobody has joined"
    assert alice.ask(Code.HEART_BEAT, {}, beat("c9", "payments", "orders")).code == GOOD


@pytest.mark.attack(32)
def test_a_client_id_in_use_is_its_users(login: Login) -> None:
    alice, again, bob = login("alice"), login("alice"), login("bob")
    hers = beat("10.0.0.1@1", "", producers="p")
    assert alice.ask(Code.HEART_BEAT, {}, hers).code == GOOD
    refused = bob.ask(Code.HEART_BEAT, {}, hers)
    assert (refused.code, "another user's" in (refused.header.remark or "")) == (REFUSED, True)
    assert again.ask(Code.HEART_BEAT, {}, hers).code == GOOD, "she may connect again"
    lock = {"consumerGroup": "stockers", "clientId": "10.0.0.1@1", "mqSet": []}
    for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ):
        assert bob.ask(code, {}, json.dumps(lock).encode()).code == REFUSED
    alice.close()
    again.close()
    wait_until(lambda: bob.ask(Code.HEART_BEAT, {}, hers).code == GOOD, "it stays hers")


@pytest.mark.attack(33)
def test_replies_are_pushed_for_those_alone_who_may_send_to_the_topic_of_replies(
    login: Login,
) -> None:
    alice, bob = login("alice"), login("bob")
    text = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01nobody\x02UNIQ_KEY\x01R\x02"
    push = Code.SEND_REPLY_MESSAGE_V2
    assert bob.ask(push, send_fields("stock", i=text), b"x").code == REFUSED
    answer = alice.ask(push, send_fields("DefaultCluster_REPLY_TOPIC", i=text), b"x")
    assert "channel of <nobody> not found" in (answer.header.remark or "")


REPLIES = "DefaultCluster_REPLY_TOPIC"
CALLERS = {
    "caller": {"Topic:calls": "Pub"},
    "callee": {"Topic:calls": "Sub", f"Topic:{REPLIES}": "Pub"},
    "prankster": {"Topic:pranks": "Pub Sub", f"Topic:{REPLIES}": "Pub"},
}
"""One asks, another replies, and the third could be anybody who replies to somebody."""


def call_text(client: str, number: str, ttl_ms: int = 60_000) -> str:
    pairs = {"REPLY_TO_CLIENT": client, "CORRELATION_ID": number, "TTL": ttl_ms, "UNIQ_KEY": number}
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def call(peer: SignedPeer, topic: str, client: str, number: str) -> None:
    """What a producer does in `request`: a heart-beat, then the message."""
    beats = beat(client, "", producers="callers")
    peer.ask(Code.HEART_BEAT, {}, beats)
    sent = peer.ask(SEND, send_fields(topic, i=call_text(client, number)), b"ping")
    assert sent.code == GOOD, sent.header.remark


def reply(peer: SignedPeer, client: str, number: str) -> int:
    text = f"MSG_TYPE\x01reply\x02{call_text(client, number)}"
    return peer.send(Code.SEND_REPLY_MESSAGE_V2, send_fields(REPLIES, i=text), b"pong")


def check_pushed(to: SignedPeer, by: SignedPeer, client: str, number: str) -> None:
    opaque = reply(by, client, number)
    pushed = to.request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert f"CORRELATION_ID\x01{number}\x02" in pushed.ext["properties"]
    answer = RemotingHeader(GOOD, pushed.header.opaque, ANSWER)
    to.socket.sendall(frame_head(answer, 0))
    assert by.answer_to(opaque).code == GOOD


def check_refused(to: SignedPeer, by: SignedPeer, client: str, number: str) -> None:
    refused = by.answer_to(reply(by, client, number))
    assert refused.code == REFUSED, refused.header
    assert "has not asked" in (refused.header.remark or "")
    assert "msgId" not in refused.ext, "it is not stored"
    to.ask(Code.HEART_BEAT, {}, beat(client, "", producers="callers"))
    assert not to.came, "what was pushed came before this answer"


@pytest.mark.attack(33)
def test_a_reply_comes_from_whoever_may_read_the_request(login: Login) -> None:
    root = login("root")
    for name, rights in CALLERS.items():
        make_user(root, name, rights)
    caller, callee, prankster = map(login, CALLERS)
    client = "10.0.0.9@1"
    call(caller, "calls", client, "n1")
    check_pushed(caller, callee, client, "n1")
    check_pushed(caller, callee, client, "n1")  # a consumer that gets it again replies again
    check_refused(caller, prankster, client, "n1")
    check_refused(caller, callee, client, "n2")  # nobody has asked that here
    check_pushed(caller, root, client, "n2")
    # Who asks for a reply in the name of another client gets it for nobody.
    sent = prankster.ask(SEND, send_fields("pranks", i=call_text(client, "n3")), b"x")
    assert sent.code == GOOD
    check_refused(caller, prankster, client, "n3")
    # Requests that other nodes of the cluster took: the producer may read the topic of replies.
    more = {**CALLERS["caller"], f"Topic:{REPLIES}": "Sub"}
    assert root.ask(3007, {"subject": "User:caller"}, list_body("caller", more)).code == GOOD
    check_pushed(caller, callee, client, "n2")


def test_programs_of_one_user_reply_to_each_other(login: Login) -> None:
    asks, replies = login("alice"), login("alice")
    call(asks, "orders-asked", "10.0.0.8@1", "n1")
    for number in ("n1", "of another node"):
        check_pushed(asks, replies, "10.0.0.8@1", number)


@pytest.mark.attack(39)
def test_offsets_of_a_foreign_group_or_topic_are_not_cloned(login: Login) -> None:
    alice, bob = login("alice"), login("bob")
    assert alice.ask(Code.HEART_BEAT, {}, beat("cloned", "billing", "orders")).code == GOOD
    place = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 1}
    assert alice.ask(Code.UPDATE_CONSUMER_OFFSET, place).code == GOOD
    clone = {"srcGroup": "billing", "destGroup": "stockers", "topic": "", "offline": True}
    refused = bob.ask(Code.CLONE_GROUP_OFFSET, clone)
    assert "Topic:orders" in (refused.header.remark or ""), "he may Get the group, not the topic"
    assert bob.ask(Code.CLONE_GROUP_OFFSET, {**clone, "srcGroup": "payments"}).code == REFUSED
    assert bob.ask(Code.CLONE_GROUP_OFFSET, {**clone, "srcGroup": "stockers"}).code == GOOD


def test_a_new_group_needs_create_and_a_known_one_update(login: Login) -> None:
    bob = login("bob")
    make = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert bob.ask(make, {}, b'{"groupName": "new-one"}').code == GOOD
    assert bob.ask(make, {}, b'{"groupName": "new-one"}').code == REFUSED
    several = b'{"groupConfigList": [{"groupName": "new-two"}, {"groupName": "new-one"}]}'
    assert bob.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, several).code == REFUSED
    assert bob.ask(make, {}, b'{"groupName": "new-two"}').code == GOOD, "it was not made"


# Lists


@pytest.mark.attack(43)
@pytest.mark.parametrize("code", [206, 224])
def test_lists_name_no_topic_to_which_the_user_has_no_right(login: Login, code: int) -> None:
    alice, bob, root = login("alice"), login("bob"), login("root")
    alice.ask(SEND, send_fields("orders"), b"x")
    bob.ask(SEND, send_fields("stock"), b"x")
    asked = {"cluster": "DefaultCluster"} if code == 224 else {}
    hers = set(told(alice.ask(code, asked))["topicList"])
    his = set(told(bob.ask(code, asked))["topicList"])
    every = set(told(root.ask(code, asked))["topicList"])
    assert {"orders", "stock"} <= every
    assert ("orders" in hers, "stock" in hers) == (True, False)
    assert ("orders" in his, "stock" in his) == (False, True)


@pytest.mark.attack(35)
def test_settings_of_the_node_hold_no_secret(login: Login) -> None:
    assert login("alice").ask(Code.GET_BROKER_CONFIG, {}).code == REFUSED
    text = login("bob").ask(Code.GET_BROKER_CONFIG, {}).body.decode()
    assert "authenticationEnabled=auto" in text
    assert "secret" not in text.lower()


# What is taken away


def held(peer: RemotingPeer, topic: str, group: str) -> int:
    """A pull at the end of a queue, which waits for a minute."""
    fields = {"sysFlag": 4 | 2, "suspendTimeoutMillis": 60_000, "consumerGroup": group}
    end = int(peer.ask(SEND, send_fields(topic), b"x").ext["queueOffset"]) + 1
    return peer.send(PULL, pull_fields(topic, 0, end, **fields))


@pytest.mark.attack(12, 13)
@pytest.mark.parametrize("how", [DELETE_ACL, DELETE_USER])
def test_a_held_pull_ends_with_a_refusal_when_its_right_or_its_user_is_gone(
    node: RunningNode, login: Login, how: str
) -> None:
    root, carol, alice = login("root"), login("carol"), login("alice")
    make_user(root, "carol", {"Topic:orders-held": "Pub Sub", "Group:carols": "Sub"})
    number = held(carol, "orders-held", "carols")
    other = held(alice, "orders-of-alice", "billing")
    change_at(node.client, Change(how, "User:carol" if how == DELETE_ACL else "carol"))
    refused = carol.answer_to(number)
    assert (refused.code, refused.body) == (REFUSED, b"")
    alice.ask(SEND, send_fields("orders-of-alice"), b"later")
    assert b"later" in alice.answer_to(other).body, "hers was held all the time"
    change_at(node.client, Change(DELETE_USER, "carol"))


def test_a_user_who_is_disabled_leaves_the_groups_at_once(node: RunningNode, login: Login) -> None:
    root, carol, alice = login("root"), login("carol"), login("alice")
    make_user(root, "carol", {"Topic:orders*": "Sub", "Group:billing": "Sub"})
    for peer, name in ((carol, "carol@1"), (alice, "alice@1")):
        assert peer.ask(Code.HEART_BEAT, {}, beat(name, "billing", "orders")).code == GOOD

    def members() -> set[str]:
        fields = {"consumerGroup": "billing"}
        found = told(alice.ask(Code.GET_CONSUMER_LIST_BY_GROUP, fields))
        return set(found["consumerIdList"])

    assert members() == {"carol@1", "alice@1"}
    off = json.dumps({"userStatus": "disable"}).encode()
    change_at(node.client, Change(UPDATE_USER, "carol", off))
    wait_until(lambda: members() == {"alice@1"}, "a member without a user keeps its queues", 5)
    refused = carol.ask(Code.HEART_BEAT, {}, beat("carol@1", "billing", "orders"))
    assert refused.header.remark == "User:carol is disabled."
    change_at(node.client, Change(DELETE_USER, "carol"))


# Users, by RocketMQ's tools


@pytest.mark.attack(37, 38)
def test_a_super_user_makes_shows_changes_and_removes_users(login: Login) -> None:
    root, dave = login("root"), login("dave")
    info = {"username": "dave", "password": secret_of("dave"), "userType": "Normal"}
    body = json.dumps(info).encode()
    assert dave.ask(206, {}).header.remark == "check signature failed."
    assert root.ask(3001, {"username": "dave"}, body).code == GOOD
    assert dave.ask(206, {}).code == GOOD, "he is known at once"
    again = root.ask(3001, {"username": "dave"}, body)
    assert (again.code, again.header.remark) == (REFUSED, "The user is existed")
    blank = root.ask(3001, {"username": " "}, body)
    assert (blank.code, blank.header.remark) == (29, "The username is blank")
    shown = {**info, "userStatus": "enable"}
    assert told(root.ask(3004, {"username": "dave"})) == shown
    assert told(root.ask(3005, {"filter": "dav"})) == [shown]
    nobody = root.ask(3004, {"username": "nobody"})
    assert (nobody.code, nobody.body) == (GOOD, b"")
    rights = list_body("dave", {"Topic:orders": "Sub"})
    assert root.ask(3006, {"subject": "User:dave"}, rights).code == GOOD
    assert told(root.ask(3009, {"subject": "User:dave"}))["subject"] == "User:dave"
    found = told(root.ask(3010, {"subjectFilter": "dav", "resourceFilter": "orders"}))
    assert [one["subject"] for one in found] == ["User:dave"]
    foreign = root.ask(3006, {"subject": "User:bob"}, rights)
    assert foreign.code == REFUSED, "the body names another subject"
    assert root.ask(3003, {"username": "dave"}).code == GOOD
    assert root.ask(3001, {"username": "dave"}, body).code == GOOD
    anew = root.ask(3009, {"subject": "User:dave"})
    assert (anew.code, anew.body) == (GOOD, b""), "a new user of the name has no old list"
    assert root.ask(3008, {"subject": "User:dave"}).header.remark == "The acl is not exist."
    assert root.ask(3003, {"username": "dave"}).code == GOOD


@pytest.mark.attack(36)
def test_a_normal_user_sees_itself_without_the_password_and_changes_nobody(login: Login) -> None:
    bob = login("bob")
    mine = told(bob.ask(3004, {"username": "bob"}))
    assert (mine["username"], mine.get("password")) == ("bob", None)
    assert bob.ask(3004, {"username": "root"}).code == REFUSED
    raised = json.dumps({"userType": "Super"}).encode()
    password = json.dumps({"password": "another-password"}).encode()
    for code, name, body in (
        (3001, "eve", raised), (3002, "bob", raised), (3002, "root", password), (3003, "root", b""),
    ):  # fmt: skip
        refused = bob.ask(code, {"username": name}, body)
        assert (refused.code, "only Super users" in (refused.header.remark or "")) == (16, True)
    assert login("root").ask(206, {}).code == GOOD


def test_changes_are_in_the_audit_log_with_who_asked_and_from_where(
    node: RunningNode, login: Login
) -> None:
    root = login("root")
    assert root.ask(3001, {"username": "fred"}, b'{"password": "freds-password"}').code == GOOD
    assert root.ask(3003, {"username": "fred"}).code == GOOD
    lines = (node.root / "keelog/auth/audit.log").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    mine = [row for row in rows if row.get("resource") == "fred"]
    assert [(row["operation"], row["user"], row["address"]) for row in mine] == [
        ("create_user", "root", "127.0.0.1"), ("delete_user", "root", "127.0.0.1"),
    ]  # fmt: skip
    assert "freds-password" not in "".join(lines)


# Last: the address of all tests has failed too often then.


@pytest.mark.attack(22)
def test_an_address_that_fails_too_often_loses_its_connections_and_its_users_none(
    node: RunningNode, login: Login
) -> None:
    alice = login("alice")
    assert alice.ask(206, {}).code == GOOD
    stranger = RemotingPeer(remoting_place(node.stderr))
    heard: list[int] = []
    with closing(stranger), pytest.raises(ConnectionResetError):
        while len(heard) < 50:
            heard.append(stranger.ask(206, {}).code)
    assert set(heard) == {REFUSED}
    assert alice.ask(206, {}).code == GOOD
    assert login("bob").ask(206, {}).code == GOOD
