"""A node with a gateway, as RocketMQ's clients meet it, frame by frame."""

import json
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from keelog.client.messages import Message
from protocol.errors import NotAllowed
from protocol.ids import parse_offset_message_id
from protocol.record.codec import Record, decode
from protocol.remoting.bodies import (
    ClusterInfo,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    SubscriptionData,
    TopicRouteData,
)
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.headers import Serialization
from protocol.remoting.java_json import read_body, write_body
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import (
    REMOTING,
    Answered,
    RemotingPeer,
    pull_fields,
    remoting_place,
    send_fields,
)

pytestmark = pytest.mark.process
SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


def records(answered: Answered) -> list[Record]:
    """The records of a pull's answer."""
    found, at = [], 0
    while at < len(answered.body):
        record = decode(answered.body, at)
        assert isinstance(record, Record)
        found.append(record)
        at += record.size
    return found


def settle(peer: RemotingPeer, topic: str, count: int) -> None:
    """Waits until a pull of queue 0 gets all: just after a send it may get those on disk alone."""

    def pulled() -> int:
        return len(records(peer.ask(PULL, pull_fields(topic, 0, 0))))

    wait_until(lambda: pulled() == count, f"{topic} does not get {count} messages")


def stored(node: RunningNode, topic: str, count: int, queue_id: int = 0) -> list[Message]:
    """The first `count` messages of a queue, or more; a reader may have to catch up first."""
    found: list[Message] = []
    while len(found) < count:
        pulled = node.client.pull(topic, queue_id, len(found), wait=20).messages
        assert pulled, f"{len(found)} of {count} messages are there"
        found += pulled
    return found


def test_a_message_is_stored_as_a_broker_stores_it(node: RunningNode, peer: RemotingPeer) -> None:
    text = "TAGS\x01red\x02KEYS\x01k1\x02UNIQ_KEY\x01ABC\x02mine\x01yes\x02"
    sent = peer.ask(SEND, send_fields("one", 2, i=text, h=7, j=1), b"body")
    assert sent.code == ResponseCode.SUCCESS
    assert (sent.ext["queueId"], sent.ext["queueOffset"]) == ("2", "0")
    assert (sent.ext["transactionId"], sent.ext["MSG_REGION"]) == ("ABC", "DefaultRegion")
    (message,) = stored(node, "one", 1, 2)
    record = message.record
    assert (record.body, record.head.flag, record.head.reconsume_times) == (b"body", 7, 1)
    assert (record.head.born_timestamp, message.tags) == (1_700_000_000_000, "red")
    assert record.properties == {
        "TAGS": "red", "KEYS": "k1", "UNIQ_KEY": "ABC", "mine": "yes",
        "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        **{name: value for name, value in record.properties.items() if name == "__CRC32#"},
    }  # fmt: skip
    host, offset = parse_offset_message_id(sent.ext["msgId"])
    assert offset == message.physical_offset
    assert str(host) == ":".join(map(str, remoting_place(node.stderr))), "mqadmin connects there"
    wait_until(lambda: bool(list(node.client.find("one", "k1"))), "the index lags")
    assert [m.body for m in node.client.find("one", "k1")] == [b"body"]


def test_both_serialisations_and_the_port_below_are_served(node: RunningNode) -> None:
    host, port = remoting_place(node.stderr)
    for place in ((host, port), (host, port - 2)):
        for form in Serialization:
            with closing(RemotingPeer(place, form)) as peer:
                assert peer.ask(SEND, send_fields("forms"), b"x").code == ResponseCode.SUCCESS
    assert len(stored(node, "forms", 4)) == 4


def test_the_long_names_of_10_are_taken(node: RunningNode, peer: RemotingPeer) -> None:
    fields = {
        "producerGroup": "p", "topic": "long", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 3, "queueId": 0, "sysFlag": 0, "bornTimestamp": 5, "flag": 0,
    }  # fmt: skip
    assert peer.ask(RequestCode.SEND_MESSAGE, fields, b"x").code == ResponseCode.SUCCESS
    assert [m.body for m in stored(node, "long", 1)] == [b"x"]
    queues = {one.topic: one.write_queues for one in node.client.topics()}
    assert queues["long"] == 3, "as many as the producer asked for"


def test_a_batch_keeps_each_messages_properties(node: RunningNode, peer: RemotingPeer) -> None:
    items = b""
    for number in range(3):
        body, properties = b"b%d" % number, b"UNIQ_KEY\x01K%d\x02n\x01%d\x02" % (number, number)
        item = struct.pack(">iii", 0, 0, number) + struct.pack(">i", len(body)) + body
        item += struct.pack(">h", len(properties)) + properties
        items += struct.pack(">i", len(item) + 4) + item
    sent = peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("batch", 1, m=True), items)
    assert sent.code == ResponseCode.SUCCESS, sent.header.remark
    found = stored(node, "batch", 3, 1)
    assert [m.record.head.flag for m in found] == [0, 1, 2]
    assert [m.record.properties["n"] for m in found] == ["0", "1", "2"]
    assert "CLUSTER" not in found[0].record.properties
    ids = sent.ext["msgId"].split(",")
    assert [parse_offset_message_id(one)[1] for one in ids] == [m.physical_offset for m in found]


def test_many_requests_under_way_are_stored_in_their_order(
    node: RunningNode, peer: RemotingPeer
) -> None:
    assert peer.ask(SEND, send_fields("many"), b"0").code == ResponseCode.SUCCESS
    opaques = [peer.send(SEND, send_fields("many"), b"%d" % n) for n in range(1, 500)]
    offsets = [int(peer.answer_to(one).ext["queueOffset"]) for one in opaques]
    assert offsets == list(range(1, 500))


def test_a_one_way_message_is_stored_and_gets_no_answer(
    node: RunningNode, peer: RemotingPeer
) -> None:
    peer.ask(SEND, send_fields("quiet"), b"first")
    peer.tell(SEND, send_fields("quiet"), b"quiet")
    peer.tell(SEND, send_fields("quiet", 99), b"refused, and nobody hears of it")
    assert peer.ask(SEND, send_fields("quiet"), b"last").ext["queueOffset"] == "2"
    assert [m.body for m in stored(node, "quiet", 3)] == [b"first", b"quiet", b"last"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"e": 9}, ResponseCode.INVALID_PARAMETER, "outside"),
        ({"b": "a topic"}, ResponseCode.MESSAGE_ILLEGAL, "characters"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "reserved"),
        ({"b": "none", "c": "other"}, ResponseCode.TOPIC_NOT_EXIST, "does not exist"),
        ({"i": "DELAY\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "delay level"),
        ({"i": "TIMER_DELAY_SEC\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "whole number"),
        ({"f": 4}, ResponseCode.MESSAGE_ILLEGAL, "transaction"),
        ({"i": "p\x01" + "x" * 32_800}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
        ({"m": True}, ResponseCode.SYSTEM_ERROR, "batch"),
        ({"e": "x"}, ResponseCode.SYSTEM_ERROR, "field e"),
    ],
)
def test_a_refusal_says_why_and_stores_nothing(
    node: RunningNode, peer: RemotingPeer, change: dict[str, object], code: int, words: str
) -> None:
    peer.ask(SEND, send_fields("refusals"), b"good")
    refused = peer.ask(SEND, {**send_fields("refusals"), **change}, b"a refused body")
    assert (refused.code, refused.ext["MSG_REGION"]) == (code, "DefaultRegion")
    assert words in str(refused.header.remark)
    log = sorted((node.root / "commitlog").iterdir())
    assert not any(b"a refused body" in segment.read_bytes() for segment in log)


def test_what_is_no_request_of_a_broker_is_named(peer: RemotingPeer) -> None:
    unknown = peer.ask(9999, {})
    assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "9999" in str(unknown.header.remark)
    missing = peer.ask(PULL, {"topic": "x"})
    assert missing.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup is missing" in str(missing.header.remark)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, struct.pack(">ii", 2**31 - 1, 0), b"\x00" * 64],
)
def test_what_is_no_frame_costs_its_connection_and_nobody_elses(
    node: RunningNode, peer: RemotingPeer, data: bytes
) -> None:
    with closing(RemotingPeer(remoting_place(node.stderr))) as broken:
        broken.socket.sendall(data)
        assert broken.is_closed()
    assert peer.ask(SEND, send_fields("others"), b"x").code == ResponseCode.SUCCESS


def test_a_route_is_the_address_that_the_client_reached(
    node: RunningNode, peer: RemotingPeer
) -> None:
    assert peer.ask(SEND, send_fields("routed"), b"x").code == ResponseCode.SUCCESS
    fields = {"topic": "routed", "acceptStandardJsonOnly": True}
    found = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    route = read_body(TopicRouteData, found.body)
    host, port = remoting_place(node.stderr)
    assert route.broker_datas[0].broker_addrs == {0: f"{host}:{port}"}
    assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].perm) == (4, 6)
    unknown = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nobody-knows"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
    model = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    assert read_body(TopicRouteData, model.body).queue_datas[0].perm == 7
    assert b'"routed"' in peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}).body
    assert b"DefaultCluster" in peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}).body


def test_a_pull_gets_the_records_as_they_are_stored(peer: RemotingPeer) -> None:
    for number in range(5):
        text = f"TAGS\x01{'even' if number % 2 == 0 else 'odd'}\x02"
        peer.ask(SEND, send_fields("pulled", i=text), b"%d" % number)
    settle(peer, "pulled", 5)
    found = peer.ask(PULL, pull_fields("pulled", 0, 1))
    assert (found.code, found.header.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert [record.body for record in records(found)] == [b"1", b"2", b"3", b"4"]
    assert (found.ext["nextBeginOffset"], found.ext["maxOffset"]) == ("5", "5")
    even = peer.ask(PULL, pull_fields("pulled", 0, 0, subscription="even || none"))
    assert [record.body for record in records(even)] == [b"0", b"2", b"4"]
    one = peer.ask(PULL, pull_fields("pulled", 0, 0, maxMsgNums=1))
    assert one.ext["nextBeginOffset"] == "1"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"queueOffset": 77}, ResponseCode.PULL_OFFSET_MOVED),
        ({"queueOffset": 1}, ResponseCode.PULL_NOT_FOUND),
        ({"queueId": 3, "queueOffset": 0}, ResponseCode.PULL_NOT_FOUND),
        ({"queueId": 3, "queueOffset": 5}, ResponseCode.PULL_OFFSET_MOVED),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "nobody"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (
            {"expressionType": "SQL92", "subscription": "a >"},
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ),
        ({"expressionType": "XPATH"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_a_pull_of_nothing_says_why(
    peer: RemotingPeer, change: dict[str, object], code: int
) -> None:
    if peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": "lone", "queueId": 0}).ext["offset"] == "0":
        peer.ask(SEND, send_fields("lone"), b"x")
    settle(peer, "lone", 1)
    assert peer.ask(PULL, {**pull_fields("lone", 0, 0), **change}).code == code


def test_a_held_pull_gets_the_next_message_or_nothing_in_the_end(
    node: RunningNode, peer: RemotingPeer
) -> None:
    peer.ask(SEND, send_fields("held"), b"0")
    waits = peer.send(PULL, pull_fields("held", 0, 1, sysFlag=6, suspendTimeoutMillis=15_000))
    peer.ask(SEND, send_fields("held"), b"1")
    assert [record.body for record in records(peer.answer_to(waits))] == [b"1"]
    began = time.monotonic()
    late = peer.ask(PULL, pull_fields("held", 0, 2, sysFlag=6, suspendTimeoutMillis=300))
    assert late.code == ResponseCode.PULL_NOT_FOUND
    assert 0.2 < time.monotonic() - began < 10
    # A connection that goes takes its held pulls with it.
    peer.send(PULL, pull_fields("held", 0, 2, sysFlag=6, suspendTimeoutMillis=60_000))
    peer.close()


def heart_beat(client: str, group: str, *topics: str) -> bytes:
    wanted = tuple(SubscriptionData(topic, "*", sub_version=1) for topic in topics)
    data = HeartbeatData(client, (), (ConsumerData(group, subscription_data_set=wanted),))
    return write_body(data, standard=True)


def test_a_group_knows_its_members_and_rings_them(node: RunningNode, peer: RemotingPeer) -> None:
    peer.ask(SEND, send_fields("shared"), b"x")
    settle(peer, "shared", 1)
    members = {"consumerGroup": "g1"}
    assert peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members).code == 1
    beat = peer.ask(RequestCode.HEART_BEAT, {}, heart_beat("c1", "g1", "shared"))
    assert (beat.code, beat.header.version) == (ResponseCode.SUCCESS, 513)
    assert peer.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED).ext["consumerGroup"] == "g1"
    with closing(RemotingPeer(remoting_place(node.stderr))) as second:
        second.ask(RequestCode.HEART_BEAT, {}, heart_beat("c2", "g1", "shared"))
        peer.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        found = peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members)
        assert sorted(read_body(ConsumerIdList, found.body).consumer_id_list) == ["c1", "c2"]
        by_group = pull_fields("shared", 0, 0, consumerGroup="g1", sysFlag=0, subVersion=1)
        assert records(second.ask(PULL, by_group))[0].body == b"x"
    peer.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    found = peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members)
    assert read_body(ConsumerIdList, found.body).consumer_id_list == ("c1",)
    wait_until(lambda: "%RETRY%g1" in {t.topic for t in node.client.topics()}, "no retry topic")
    queues = {one.topic: one.write_queues for one in node.client.topics()}
    assert queues["%RETRY%g1"] == 1


def test_offsets_of_groups_are_kept_in_rocketmqs_file(
    node: RunningNode, peer: RemotingPeer
) -> None:
    for number in range(4):
        peer.ask(SEND, send_fields("kept-offsets"), b"%d" % number)
    place = {"consumerGroup": "g2", "topic": "kept-offsets", "queueId": 0}
    node.wait_dispatched()
    young = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
    assert (young.code, young.ext["offset"]) == (ResponseCode.SUCCESS, "0")
    none = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**place, "setZeroIfNotFound": False})
    assert none.code == ResponseCode.QUERY_NOT_FOUND
    for change in ({"queueId": 9}, {"topic": "nobody"}):
        found = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**place, **change})
        assert found.code == ResponseCode.QUERY_NOT_FOUND, "no queue is there, as at a broker"
    empty = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**place, "queueId": 2})
    assert empty.ext["offset"] == "0", "a member that asked for the end would miss what comes now"
    retries = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**place, "topic": "%RETRY%g2"})
    assert retries.code == ResponseCode.QUERY_NOT_FOUND
    commit = RequestCode.UPDATE_CONSUMER_OFFSET
    unknown = peer.ask(commit, {**place, "commitOffset": 3})
    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g2"}')
    assert peer.ask(commit, {**place, "commitOffset": 3}).code == ResponseCode.SUCCESS
    assert peer.ask(commit, {**place, "commitOffset": -1}).code == ResponseCode.SUCCESS
    assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, place).ext["offset"] == "3"
    path = node.root / "config" / "consumerOffset.json"

    def saved() -> object:
        table = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
        return table.get("kept-offsets@g2")

    wait_until(lambda: saved() == {"0": 3}, "the file does not have it")
    assert saved() == {"0": 3}


def test_bounds_and_times_of_queues(peer: RemotingPeer) -> None:
    began = int(time.time() * 1000)
    for number in range(3):
        peer.ask(SEND, send_fields("bounds"), b"%d" % number)
    place = {"topic": "bounds", "queueId": 0}
    assert peer.ask(RequestCode.GET_MAX_OFFSET, place).ext["offset"] == "3"
    assert peer.ask(RequestCode.GET_MIN_OFFSET, place).ext["offset"] == "0"
    by_time = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    def after_all() -> str:
        """As a broker finds it: in the queue's files, which follow the log."""
        return peer.ask(by_time, {**place, "timestamp": began + 3_600_000}).ext["offset"]

    wait_until(lambda: after_all() == "3", "the queue's files lag")
    assert after_all() == "3"
    earliest = int(peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, place).ext["timestamp"])
    assert began - 1000 <= earliest <= int(time.time() * 1000)
    assert peer.ask(by_time, {**place, "timestamp": 1}).ext["offset"] == "0"


def test_a_topic_is_made_and_described(node: RunningNode, peer: RemotingPeer) -> None:
    fields = {
        "topic": "made", "defaultTopic": "TBW102", "readQueueNums": 6, "writeQueueNums": 6,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == ResponseCode.SUCCESS
    found = json.loads(peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "made"}).body)
    assert (found["topicName"], found["writeQueueNums"]) == ("made", 6)
    assert {one.topic: one.write_queues for one in node.client.topics()}["made"] == 6


def is_served(place: tuple[str, int]) -> bool:
    try:
        with closing(RemotingPeer(place)) as peer:
            return peer.ask(SEND, send_fields("probe"), b"x").code == ResponseCode.SUCCESS
    except OSError:
        return False


def test_a_killed_gateway_comes_back_at_its_port_and_what_was_answered_stays(
    tmp_path: Path,
) -> None:
    settings = (REMOTING, "store.flush_disk_type=SYNC_FLUSH")
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node:
        place, sent = remoting_place(node.stderr), 0
        for role in ("gateway", "writer", "gateway"):
            with closing(RemotingPeer(place)) as peer:
                for _ in range(20):
                    answered = peer.ask(SEND, send_fields("safe"), b"%d" % sent)
                    assert answered.code == ResponseCode.SUCCESS, answered.header.remark
                    sent += 1
                node.kill(role)
            wait_until(lambda: is_served(place), "it does not come back")
            node.wait_all_run()
        found = [m.body for m in stored(node, "safe", sent)]
        assert found[:sent] == [b"%d" % number for number in range(sent)]
        health = {check.name: check.ok for check in node.client.health().checks}
        assert health["gateway"]
        restarts = {one.role: one.restarts for one in node.client.status().processes}
        assert restarts["gateway"] == 2


def test_a_send_to_a_topic_that_every_broker_has_changes_nothing_for_others(
    node: RunningNode, peer: RemotingPeer
) -> None:
    info = read_body(ClusterInfo, peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}).body)
    for number, name in enumerate(("TBW102", "DefaultCluster", *info.broker_addr_table)):
        before = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        for _ in range(2):
            sent = peer.ask(SEND, send_fields(name, c=name), b"x")
            assert sent.code == ResponseCode.SUCCESS, sent.header.remark
        after = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        assert (before.code, after.body) == (ResponseCode.SUCCESS, before.body), name
        made = peer.ask(SEND, send_fields(f"after-{number}", c=name), b"y")
        assert made.code == ResponseCode.SUCCESS, made.header.remark
    perms = {one.topic: one.perm for one in node.client.topics()}
    assert (perms["TBW102"], perms["after-0"]) == (7, 6)


def test_a_table_in_which_new_topics_may_not_follow_tbw102_does_not_hinder_them(
    node: RunningNode, peer: RemotingPeer
) -> None:
    node.client.create_topic("TBW102", queues=1, perm=4)

    def shown() -> tuple[int, int]:
        found = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        queues = read_body(TopicRouteData, found.body).queue_datas[0]
        return queues.perm, queues.write_queue_nums

    try:
        wait_until(lambda: shown() == (7, 1), "the table is not read")
        assert peer.ask(SEND, send_fields("made-all-the-same"), b"x").code == ResponseCode.SUCCESS
    finally:
        node.client.create_topic("TBW102", queues=8, perm=7)
        wait_until(lambda: shown() == (7, 8), "it is not as before")


@pytest.mark.parametrize("code", [RequestCode.UPDATE_CONSUMER_OFFSET, PULL])
def test_no_client_moves_the_places_of_the_systems_groups(
    node: RunningNode, peer: RemotingPeer, code: RequestCode
) -> None:
    group, topic = "CID_RMQ_SYS_TRANS", "moved-by-none"
    assert peer.ask(SEND, send_fields(topic), b"x").code == ResponseCode.SUCCESS
    peer.ask(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"%s"}' % group.encode()
    )
    fields = pull_fields(topic, 0, 0, consumerGroup=group, commitOffset=1, sysFlag=5)
    peer.ask(code, fields)
    assert node.client.cursor(topic, group) == {}
    with pytest.raises(NotAllowed, match="the system's"):
        node.client.commit_cursor(topic, group, {0: 1})
    with pytest.raises(NotAllowed, match="the system's"):
        node.client.delete_group(group)


def test_a_topic_without_any_permission_is_made_as_at_a_broker(peer: RemotingPeer) -> None:
    fields = {
        "topic": "closed", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
        "perm": 0, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == ResponseCode.SUCCESS
    assert peer.ask(SEND, send_fields("closed"), b"x").code == ResponseCode.NO_PERMISSION
    pulled = peer.ask(PULL, pull_fields("closed", 0, 0))
    assert pulled.code == ResponseCode.NO_PERMISSION


def make_anew(node: RunningNode, peer: RemotingPeer, topic: str, count: int = 5) -> None:
    """Removes a topic, and fills queue 0 of one that is made anew."""
    node.client.delete_topic(topic)
    for number in range(count):
        assert peer.ask(SEND, send_fields(topic), b"new %d" % number).code == ResponseCode.SUCCESS
    settle(peer, topic, count)


@pytest.fixture
def tool(node: RunningNode) -> Iterator[RemotingPeer]:
    """Sends, and looks at what is there: no member."""
    with closing(RemotingPeer(remoting_place(node.stderr))) as connected:
        yield connected


def test_a_member_passes_over_nothing_of_a_topic_that_is_made_anew(
    node: RunningNode, peer: RemotingPeer, tool: RemotingPeer
) -> None:
    topic, group = "anew", "g-anew"
    place = {"consumerGroup": group, "topic": topic, "queueId": 0}
    for number in range(3):
        tool.ask(SEND, send_fields(topic), b"old %d" % number)
    peer.ask(RequestCode.HEART_BEAT, {}, heart_beat("c1", group, topic))
    settle(peer, topic, 3)
    at_end = pull_fields(topic, 0, 3, consumerGroup=group, sysFlag=2, subVersion=1)
    held = peer.send(PULL, {**at_end, "suspendTimeoutMillis": 15_000})
    make_anew(node, tool, topic)
    moved = peer.answer_to(held)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    # Each client keeps all its places, and commits them now and then.
    peer.tell(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 3})
    commits = {**at_end, "queueOffset": 3, "sysFlag": 1, "commitOffset": 3}
    moved = peer.ask(PULL, commits)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert "was removed" in (moved.header.remark or "")
    time.sleep(0.3)
    assert node.client.cursor(topic, group) == {}, "nothing of it was committed"
    found = peer.ask(PULL, {**commits, "queueOffset": 0, "commitOffset": 0})
    assert [record.body for record in records(found)] == [b"new %d" % n for n in range(5)]
    assert peer.ask(PULL, {**commits, "queueOffset": 4, "commitOffset": 4}).code == 0
    wait_until(lambda: node.client.cursor(topic, group) == {0: 4}, "not committed")


def test_a_member_that_comes_back_with_its_place_begins_where_its_group_is(
    node: RunningNode, peer: RemotingPeer, tool: RemotingPeer
) -> None:
    topic, group = "back", "g-back"
    place = {"consumerGroup": group, "topic": topic, "queueId": 0}
    for number in range(3):
        tool.ask(SEND, send_fields(topic), b"old %d" % number)
    make_anew(node, tool, topic)
    peer.ask(RequestCode.HEART_BEAT, {}, heart_beat("c1", group, topic))
    peer.tell(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 3})
    wanted = pull_fields(topic, 0, 3, consumerGroup=group, sysFlag=0, subVersion=1)
    moved = peer.ask(PULL, wanted)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert peer.ask(PULL, {**wanted, "queueOffset": 0}).code == ResponseCode.SUCCESS
    assert node.client.cursor(topic, group) == {}
    # One that has asked where its group is goes on there.
    peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 4})
    with closing(RemotingPeer(remoting_place(node.stderr))) as second:
        second.ask(RequestCode.HEART_BEAT, {}, heart_beat("c2", group, topic))
        asked = second.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
        assert asked.ext["offset"] == "4"
        assert second.ask(PULL, {**wanted, "queueOffset": 5}).code == ResponseCode.PULL_NOT_FOUND
    with closing(RemotingPeer(remoting_place(node.stderr))) as third:
        third.ask(RequestCode.HEART_BEAT, {}, heart_beat("c3", group, topic))
        moved = third.ask(PULL, {**wanted, "queueOffset": 5})
        assert moved.ext["nextBeginOffset"] == "4", "what it had may be of the topic before"
        assert third.ask(PULL, {**wanted, "queueOffset": 4}).code == ResponseCode.SUCCESS


def test_a_member_that_pulls_while_its_topic_is_away_passes_over_nothing_later(
    node: RunningNode, peer: RemotingPeer, tool: RemotingPeer
) -> None:
    """Clients repeat a pull that was refused, with the place that they had, and commit with it."""
    topic, group = "away", "g-away"
    for number in range(3):
        tool.ask(SEND, send_fields(topic), b"old %d" % number)
    peer.ask(RequestCode.HEART_BEAT, {}, heart_beat("c1", group, topic))
    settle(peer, topic, 3)
    wanted = pull_fields(topic, 0, 3, consumerGroup=group, sysFlag=1, subVersion=1, commitOffset=3)
    node.client.delete_topic(topic)
    wait_until(
        lambda: peer.ask(PULL, wanted).code == ResponseCode.TOPIC_NOT_EXIST, "it is there still"
    )
    make_anew(node, tool, topic)
    moved = peer.ask(PULL, wanted)
    assert (moved.code, moved.ext.get("nextBeginOffset")) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert node.client.cursor(topic, group) == {}


def test_a_place_from_where_the_log_ended_at_the_removal_is_of_the_topic_before(
    node: RunningNode, peer: RemotingPeer, tool: RemotingPeer
) -> None:
    """A client that is no member connected after the last send."""
    topic = "end-at-removal"
    tool.ask(SEND, send_fields(topic), b"old")
    settle(tool, topic, 1)
    with closing(RemotingPeer(remoting_place(node.stderr))) as follower:
        wanted = pull_fields(topic, 0, 1, consumerGroup="g-end-at-removal", sysFlag=4)
        assert follower.ask(PULL, wanted).code == ResponseCode.PULL_NOT_FOUND
        make_anew(node, tool, topic)
        moved = follower.ask(PULL, wanted)
    assert (moved.code, moved.ext.get("nextBeginOffset")) == (ResponseCode.PULL_OFFSET_MOVED, "0")


def test_a_place_that_a_tool_has_set_is_of_the_topic_that_is_there(
    node: RunningNode, peer: RemotingPeer, tool: RemotingPeer
) -> None:
    topic, group = "set", "g-set"
    tool.ask(SEND, send_fields(topic), b"old")
    peer.ask(RequestCode.HEART_BEAT, {}, heart_beat("c1", group, topic))
    make_anew(node, tool, topic)
    asked = {"topic": topic, "group": group, "timestamp": -1, "queueId": 0, "offset": 3}
    reset = tool.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**asked, "isForce": "true"})
    assert reset.code == ResponseCode.SUCCESS
    wanted = pull_fields(topic, 0, 1, consumerGroup=group, sysFlag=0, subVersion=1)
    assert peer.ask(PULL, wanted).ext["nextBeginOffset"] == "3"
    found = peer.ask(PULL, {**wanted, "queueOffset": 3})
    assert [record.body for record in records(found)] == [b"new 3", b"new 4"]


def test_tools_look_at_any_place_of_a_topic_that_was_made_anew(
    node: RunningNode, peer: RemotingPeer, tool: RemotingPeer
) -> None:
    topic = "looked-at"
    tool.ask(SEND, send_fields(topic), b"old")
    make_anew(node, peer, topic)
    found = tool.ask(PULL, pull_fields(topic, 0, 2, consumerGroup="TOOLS_CONSUMER"))
    assert [record.body for record in records(found)] == [b"new 2", b"new 3", b"new 4"]
    place = {"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": 0, "commitOffset": 2}
    with closing(RemotingPeer(remoting_place(node.stderr))) as fresh:
        assert fresh.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place).code == ResponseCode.SUCCESS
    wait_until(lambda: node.client.cursor(topic, "TOOLS_CONSUMER") == {0: 2}, "not committed")
