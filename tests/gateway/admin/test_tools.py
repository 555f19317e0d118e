"""The requests of RocketMQ's admin tools, frame by frame: what a node replies to each."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from keelog.client.client import run
from keelog.client.operations import create_topic
from keelog.gateway.handlers import REFUSED
from node.runtime.shortage import disk_space
from protocol.errors import NotAllowed
from protocol.names import SUBSCRIPTION_GROUPS_FILE, TOPICS_FILE
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.frame_reader import frame_head
from protocol.remoting.headers import ANSWER, RemotingHeader
from protocol.remoting.java_json import parse_java_json
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import (
    REMOTING,
    Answered,
    RemotingPeer,
    pull_fields,
    remoting_place,
    send_fields,
)
from tests.support.shared_node import BROKER

pytestmark = pytest.mark.process
CODE, OUTCOME = RequestCode, ResponseCode
NAMED = f"broker.broker_name={BROKER}"


@pytest.fixture
def member(node: RunningNode) -> Iterator[RemotingPeer]:
    """The connection of a consumer."""
    with closing(RemotingPeer(remoting_place(node.stderr))) as connected:
        yield connected


def topic_fields(name: str, queues: int = 2, **others: object) -> dict[str, object]:
    """The fields of 17."""
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": queues,
        "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
        "order": False, **others,
    }  # fmt: skip


def make(peer: RemotingPeer, name: str, queues: int = 2, **others: object) -> Answered:
    return peer.ask(CODE.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues, **others))


def fill(peer: RemotingPeer, topic: str, count: int, queue_id: int = 0) -> None:
    for number in range(count):
        sent = peer.ask(CODE.SEND_MESSAGE_V2, send_fields(topic, queue_id), b"m%d" % number)
        assert sent.code == OUTCOME.SUCCESS, sent.header.remark


def commit(peer: RemotingPeer, topic: str, group: str, queue_id: int, offset: int) -> None:
    """For a group that there is then."""
    body = json.dumps({"groupName": group}).encode()
    assert peer.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == OUTCOME.SUCCESS
    place = {"topic": topic, "consumerGroup": group, "queueId": queue_id, "commitOffset": offset}
    assert peer.ask(CODE.UPDATE_CONSUMER_OFFSET, place).code == OUTCOME.SUCCESS


def join(member: RemotingPeer, group: str, topic: str, client_id: str = "c1") -> None:
    """A heart-beat of a push consumer and of a producer of the group `p-GROUP`."""
    subscription = {
        "topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1,
        "expressionType": "TAG", "classFilterMode": False,
    }  # fmt: skip
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
        "unitMode": False,
    }  # fmt: skip
    body = {
        "clientID": client_id, "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": f"p-{group}"}],
    }  # fmt: skip
    beat = member.ask(CODE.HEART_BEAT, {}, json.dumps(body).encode())
    assert beat.code == OUTCOME.SUCCESS, beat.header.remark


def told(answered: Answered) -> Any:
    """The body of a good answer, with keys that are objects as texts."""
    assert answered.code == OUTCOME.SUCCESS, answered.header.remark
    return parse_java_json(answered.body.decode())


def by_queue(table: Mapping[str, Any]) -> dict[int, Any]:
    """A table whose keys are queues, by the id of each."""
    return {json.loads(key)["queueId"]: value for key, value in table.items()}


def consume_stats(peer: RemotingPeer, group: str, **others: object) -> dict[int, Any]:
    found = told(peer.ask(CODE.GET_CONSUME_STATS, {"consumerGroup": group, **others}))
    return by_queue(found["offsetTable"])


def test_a_topic_tells_the_bounds_of_all_its_queues(peer: RemotingPeer) -> None:
    make(peer, "told", 2, readQueueNums=3)
    began = int(time.time() * 1000)
    fill(peer, "told", 4, queue_id=1)
    found = told(peer.ask(CODE.GET_TOPIC_STATS_INFO, {"topic": "told"}))
    queues = by_queue(found["offsetTable"])
    assert sorted(queues) == [0, 1, 2], "as many as are written to or read"
    assert (queues[1]["minOffset"], queues[1]["maxOffset"]) == (0, 4)
    assert queues[1]["lastUpdateTimestamp"] >= began - 1000
    assert queues[0] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    missing = peer.ask(CODE.GET_TOPIC_STATS_INFO, {"topic": "nosuch"})
    assert missing.code == OUTCOME.TOPIC_NOT_EXIST


def test_a_topic_keeps_its_numbers_of_queues_its_order_and_its_attributes(
    node: RunningNode, peer: RemotingPeer
) -> None:
    fields = {"writeQueueNums": 2, "perm": 4, "order": True, "topicSysFlag": 1}
    made = make(peer, "kept", 5, **fields, attributes="+message.type=FIFO,+reserve.time=12")
    assert made.code == OUTCOME.SUCCESS
    found = told(peer.ask(CODE.GET_TOPIC_CONFIG, {"topic": "kept"}))
    entry = json.loads((node.root / TOPICS_FILE).read_text())["topicConfigTable"]["kept"]
    for one in (found, entry):
        assert (one["readQueueNums"], one["writeQueueNums"], one["perm"]) == (5, 2, 4)
        assert (one["order"], one["topicSysFlag"]) == (True, 1)
        assert one["attributes"] == {"message.type": "FIFO", "reserve.time": "12"}
    assert make(peer, "kept", 5, attributes="-message.type").code == OUTCOME.SUCCESS
    found = told(peer.ask(CODE.GET_TOPIC_CONFIG, {"topic": "kept"}))
    assert found["attributes"] == {"reserve.time": "12"}
    assert not found["order"], "what 17 names counts, as at a broker"


@pytest.mark.parametrize(
    "attribute",
    [
        "cleanup.policy=COMPACTION",
        "queue.type=BatchCQ",
        "message.type=PRIORITY",
        "message.type=LITE",
        "lite.topic.expiration=60",
    ],
)
def test_both_doors_refuse_an_attribute_that_is_not_offered(
    node: RunningNode, peer: RemotingPeer, attribute: str
) -> None:
    refused = make(peer, "plainly", attributes=f"+{attribute}")
    assert refused.code == OUTCOME.NO_PERMISSION
    assert f"does not offer {attribute}" in (refused.header.remark or "")
    core, name = node.client._core, attribute.partition("=")
    fields = {"topic": "plainly", "queues": 1, "attributes": {name[0]: name[2]}}
    with pytest.raises(NotAllowed, match="does not offer") as found:
        run(core, create_topic(fields, core.deadline(None)))
    assert found.value.hint == "leave the attribute out"
    missing = peer.ask(CODE.GET_TOPIC_CONFIG, {"topic": "plainly"})
    assert missing.code == OUTCOME.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ("+nosuch=1", "unsupported key: nosuch"),
        ("+message.type=HUGE", "value is not in set"),
        ("-reserve.time", "only add attribute is supported"),
        ("+reserve.time=long", "name a number"),
    ],
)
def test_an_attribute_that_a_broker_refuses_is_refused_and_no_topic_is_made(
    peer: RemotingPeer, attributes: str, why: str
) -> None:
    refused = make(peer, "unmade", attributes=attributes)
    assert refused.code == OUTCOME.SYSTEM_ERROR
    assert why in (refused.header.remark or "")
    missing = peer.ask(CODE.GET_TOPIC_CONFIG, {"topic": "unmade"})
    assert missing.code == OUTCOME.TOPIC_NOT_EXIST


def test_a_topic_that_a_broker_compacts_is_kept_plain_with_a_warning(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = (REMOTING, NAMED)
    with (
        RunningNode(root, settings, queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
    ):
        make(peer, "compacted", 1)
    path = root / TOPICS_FILE
    document = json.loads(path.read_text())
    entry = document["topicConfigTable"]["compacted"]
    entry["attributes"] = {"cleanup.policy": "COMPACTION"}
    path.write_text(json.dumps(document))
    with RunningNode(root, settings, queue_workers=1, readers=1) as node:
        warning = "a topic has an attribute that is not offered"
        wait_until(lambda: warning in node.stderr, "no warning")
        with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
            for key in ("same", "same"):
                sent = send_fields("compacted", i=f"KEYS\x01{key}\x02")
                assert peer.ask(CODE.SEND_MESSAGE_V2, sent, b"x").code == OUTCOME.SUCCESS
            found = told(peer.ask(CODE.GET_TOPIC_STATS_INFO, {"topic": "compacted"}))
            assert by_queue(found["offsetTable"])[0]["maxOffset"] == 2
            config = told(peer.ask(CODE.GET_TOPIC_CONFIG, {"topic": "compacted"}))
            assert config["attributes"] == {"cleanup.policy": "COMPACTION"}
            assert make(peer, "compacted", 3).code == OUTCOME.SUCCESS
            config = told(peer.ask(CODE.GET_TOPIC_CONFIG, {"topic": "compacted"}))
            assert config["attributes"] == {"cleanup.policy": "COMPACTION"}
            assert config["writeQueueNums"] == 3
        assert node.stderr.count(warning) == 1


def test_a_policy_that_is_the_only_one_offered_is_taken(peer: RemotingPeer) -> None:
    policy = "+cleanup.policy=DELETE,+queue.type=SimpleCQ"
    assert make(peer, "plain", attributes=policy).code == OUTCOME.SUCCESS
    changed = make(peer, "plain", attributes="+cleanup.policy=DELETE")
    assert changed.code == OUTCOME.SYSTEM_ERROR
    assert "unchangeable" in (changed.header.remark or "")


def test_the_systems_topics_are_neither_made_nor_removed(peer: RemotingPeer) -> None:
    for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", "b1", "rmq_sys_x", "no/topic", ""):
        assert make(peer, name).code == OUTCOME.INVALID_PARAMETER, name
        removed = peer.ask(CODE.DELETE_TOPIC_IN_BROKER, {"topic": name})
        assert removed.code == OUTCOME.INVALID_PARAMETER, name


def test_several_topics_are_made_at_once_and_one_is_removed_with_its_offsets(
    peer: RemotingPeer,
) -> None:
    configs = [{"topicName": f"many-{n}", "readQueueNums": 1, "writeQueueNums": 1} for n in "ab"]
    body = json.dumps({"topicConfigList": configs}).encode()
    assert peer.ask(CODE.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == OUTCOME.SUCCESS
    fill(peer, "many-a", 2)
    commit(peer, "many-a", "of-many", 0, 2)
    topics = told(peer.ask(CODE.QUERY_TOPICS_BY_CONSUMER, {"group": "of-many"}))
    assert topics["topicList"] == ["many-a"]
    for _ in range(2):
        gone = peer.ask(CODE.DELETE_TOPIC_IN_BROKER, {"topic": "many-a"})
        assert gone.code == OUTCOME.SUCCESS, "a topic that is not there is removed, too"
    assert peer.ask(CODE.GET_TOPIC_CONFIG, {"topic": "many-a"}).code == OUTCOME.TOPIC_NOT_EXIST
    route = {"topic": "many-a"}
    assert peer.ask(CODE.GET_ROUTEINFO_BY_TOPIC, route).code == OUTCOME.TOPIC_NOT_EXIST
    topics = told(peer.ask(CODE.QUERY_TOPICS_BY_CONSUMER, {"group": "of-many"}))
    assert topics["topicList"] == []
    assert told(peer.ask(CODE.GET_TOPIC_CONFIG, {"topic": "many-b"}))["perm"] == 6


def test_topics_and_groups_come_in_pages(peer: RemotingPeer) -> None:
    for number in range(3):
        make(peer, f"paged-{number}")
        body = json.dumps({"groupName": f"paged-{number}"}).encode()
        peer.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    for code, first, most, table, total in (
        (CODE.GET_ALL_TOPIC_CONFIG, "topicSeq", "maxTopicNum", "topicConfigTable", "totalTopicNum"),
        (
            CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            *("groupSeq", "maxGroupNum", "subscriptionGroupTable", "totalGroupNum"),
        ),
    ):
        whole = peer.ask(code, {})
        names = sorted(told(whole)[table])
        assert int(whole.ext[total]) == len(names)
        paged: list[str] = []
        while len(paged) < len(names):
            page = sorted(told(peer.ask(code, {first: len(paged), most: 2}))[table])
            assert 0 < len(page) <= 2
            paged += page
        assert paged == names


def test_a_group_is_made_shown_and_removed_with_its_offsets(
    node: RunningNode, peer: RemotingPeer
) -> None:
    make(peer, "grouped")
    fill(peer, "grouped", 3)
    body = b'{"groupConfigList":[{"groupName":"one","retryMaxTimes":3},{"groupName":"two"}]}'
    made = peer.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)
    assert made.code == OUTCOME.SUCCESS
    found = told(peer.ask(CODE.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "one"}))
    assert (found["retryMaxTimes"], found["consumeEnable"]) == (3, True)
    place = {"topic": "grouped", "consumerGroup": "one", "queueId": 0, "commitOffset": 3}
    assert peer.ask(CODE.UPDATE_CONSUMER_OFFSET, place).code == OUTCOME.SUCCESS
    for clean, left in ((False, {0: 3}), (True, {})):
        gone = {"groupName": "one", "cleanOffset": str(clean).lower()}
        assert peer.ask(CODE.DELETE_SUBSCRIPTIONGROUP, gone).code == OUTCOME.SUCCESS
        missing = peer.ask(CODE.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "one"})
        assert missing.code == OUTCOME.SUBSCRIPTION_GROUP_NOT_EXIST
        assert node.client.cursor("grouped", "one") == left

    def names() -> set[str]:
        path = node.root / SUBSCRIPTION_GROUPS_FILE
        text = path.read_text() if path.exists() else '{"subscriptionGroupTable": {}}'
        return set(json.loads(text)["subscriptionGroupTable"])

    wait_until(lambda: "one" not in names() and "two" in names(), "the file has it still")


def test_a_group_tells_how_far_it_is_in_each_queue(peer: RemotingPeer) -> None:
    make(peer, "progress")
    fill(peer, "progress", 5)
    fill(peer, "progress", 2, queue_id=1)
    commit(peer, "progress", "walkers", 0, 3)
    found = consume_stats(peer, "walkers")
    assert (found[0]["brokerOffset"], found[0]["consumerOffset"]) == (5, 3)
    assert found[0]["pullOffset"] == 3
    assert abs(found[0]["lastTimestamp"] - time.time() * 1000) < 60_000
    assert (found[1]["brokerOffset"], found[1]["consumerOffset"]) == (2, 0)
    assert found[1]["lastTimestamp"] == 0
    assert consume_stats(peer, "walkers", topic="progress") == found
    assert consume_stats(peer, "nosuch") == {}
    all_groups = told(peer.ask(CODE.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}))
    (row,) = [row for row in all_groups["consumeStatsList"] if "walkers" in row]
    assert by_queue(row["walkers"][0]["offsetTable"])[0]["consumerOffset"] == 3
    ordered = told(peer.ask(CODE.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}))
    assert {"walkers": []} in ordered["consumeStatsList"]


def test_times_of_messages_and_units_of_a_queue_are_shown(peer: RemotingPeer) -> None:
    make(peer, "spans")
    fill(peer, "spans", 3)
    commit(peer, "spans", "spanned", 0, 2)
    asked = {"topic": "spans", "group": "spanned"}
    spans = told(peer.ask(CODE.QUERY_CONSUME_TIME_SPAN, asked))["consumeTimeSpanSet"]
    first, empty = sorted(spans, key=lambda one: one["messageQueue"]["queueId"])
    assert first["minTimeStamp"] <= first["consumeTimeStamp"] <= first["maxTimeStamp"]
    assert 0 <= first["delayTime"] < 60_000
    assert (empty["minTimeStamp"], empty["maxTimeStamp"]) == (-1, -1)
    place = {"topic": "spans", "queueId": 0, "index": 1, "count": 5, "consumerGroup": "spanned"}

    def is_dispatched() -> bool:
        # Success without a body, as of a broker: no unit is at the index yet.
        found = peer.ask(CODE.QUERY_CONSUME_QUEUE, place)
        is_there = found.code == OUTCOME.SUCCESS and bool(found.body)
        return is_there and told(found)["maxQueueIndex"] == 3

    wait_until(is_dispatched, "the queue's file lags")
    units = told(peer.ask(CODE.QUERY_CONSUME_QUEUE, place))
    assert units["filterData"] == "spanned@spans is not online!"
    assert len(units["queueData"]) == 2
    offset = units["queueData"][0]["physicOffset"]
    assert b"m1" in peer.ask(CODE.VIEW_MESSAGE_BY_ID, {"offset": offset}).body
    missing = peer.ask(CODE.QUERY_CONSUME_QUEUE, {**place, "queueId": 9})
    assert (missing.code, missing.header.remark) == (1, "9@spans is not exist!")


def test_members_and_producers_are_shown_with_what_they_subscribe(
    peer: RemotingPeer, member: RemotingPeer
) -> None:
    make(peer, "shown")
    join(member, "shown-group", "shown", "ip@1")
    asked = {"consumerGroup": "shown-group"}
    found = told(peer.ask(CODE.GET_CONSUMER_CONNECTION_LIST, asked))
    (connection,) = found["connectionSet"]
    assert (connection["clientId"], connection["language"]) == ("ip@1", "JAVA")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", connection["clientAddr"])
    assert found["subscriptionTable"]["shown"]["subString"] == "*"
    assert found["consumeType"] == "CONSUME_PASSIVELY"
    readers = told(peer.ask(CODE.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "shown"}))
    assert readers["groupList"] == ["shown-group"]
    both = {"group": "shown-group", "topic": "shown"}
    subscribed = told(peer.ask(CODE.QUERY_SUBSCRIPTION_BY_CONSUMER, both))
    assert subscribed["subscriptionData"]["topic"] == "shown"
    one = told(peer.ask(CODE.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p-shown-group"}))
    assert [c["clientId"] for c in one["connectionSet"]] == ["ip@1"]
    everyone = told(peer.ask(CODE.GET_ALL_PRODUCER_INFO, {}))["data"]["p-shown-group"]
    assert everyone[0]["remoteIP"] == f"/{connection['clientAddr']}"
    assert abs(everyone[0]["lastUpdateTimestamp"] - time.time() * 1000) < 60_000
    nobody = peer.ask(CODE.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "nosuch"})
    assert nobody.code == OUTCOME.CONSUMER_NOT_ONLINE
    nobody = peer.ask(CODE.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nosuch"})
    assert nobody.code == OUTCOME.SYSTEM_ERROR


def answer(member: RemotingPeer, asked: Answered, body: bytes, code: int = 0) -> None:
    header = RemotingHeader(code, asked.header.opaque, ANSWER, {})
    member.socket.sendall(frame_head(header, len(body)) + body)


def test_what_a_tool_asks_of_a_member_goes_to_it_and_comes_back_as_it_is(
    peer: RemotingPeer, member: RemotingPeer
) -> None:
    make(peer, "asked")
    fill(peer, "asked", 1)
    join(member, "asked-group", "asked", "ip@2")
    asked = {"consumerGroup": "asked-group", "clientId": "ip@2", "jstackEnable": "true"}
    opaque = peer.send(CODE.GET_CONSUMER_RUNNING_INFO, asked)
    request = member.request(CODE.GET_CONSUMER_RUNNING_INFO)
    assert request.ext["jstackEnable"] == "true"
    raw = b'{"mqTable":{{"brokerName":"b1","queueId":0,"topic":"asked"}:{}},"jstack":"x"}'
    answer(member, request, raw)
    assert peer.answer_to(opaque).body == raw
    sent = peer.ask(CODE.SEND_MESSAGE_V2, send_fields("asked"), b"directly")
    directly = {
        "consumerGroup": "asked-group", "clientId": "ip@2", "msgId": sent.ext["msgId"],
        "topic": "asked",
    }  # fmt: skip
    opaque = peer.send(CODE.CONSUME_MESSAGE_DIRECTLY, directly)
    request = member.request(CODE.CONSUME_MESSAGE_DIRECTLY)
    assert b"directly" in request.body
    assert request.ext["brokerName"] == "b1"
    answer(member, request, b'{"consumeResult":"CR_SUCCESS"}')
    assert told(peer.answer_to(opaque))["consumeResult"] == "CR_SUCCESS"
    opaque = peer.send(CODE.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {
        "topic": "asked", "group": "asked-group",
    })  # fmt: skip
    request = member.request(CODE.GET_CONSUMER_STATUS_FROM_CLIENT)
    queue = '{"brokerName":"b1","queueId":0,"topic":"asked"}'
    answer(member, request, f'{{"messageQueueTable":{{{queue}:7}}}}'.encode())
    table = told(peer.answer_to(opaque))["consumerTable"]
    assert by_queue(table["ip@2"]) == {0: 7}
    offline = peer.ask(CODE.GET_CONSUMER_RUNNING_INFO, {**asked, "clientId": "ip@3"})
    assert offline.code == OUTCOME.SYSTEM_ERROR
    assert offline.header.remark == "The Consumer <asked-group> <ip@3> not online"


def test_a_member_that_leaves_while_it_is_asked_is_told_at_once(
    node: RunningNode, peer: RemotingPeer
) -> None:
    make(peer, "leaving")
    gone = RemotingPeer(remoting_place(node.stderr))
    join(gone, "leaving-group", "leaving", "ip@4")
    asked = {"consumerGroup": "leaving-group", "clientId": "ip@4"}
    opaque = peer.send(CODE.GET_CONSUMER_RUNNING_INFO, asked)
    gone.request(CODE.GET_CONSUMER_RUNNING_INFO)
    began = time.monotonic()
    gone.close()
    assert peer.answer_to(opaque).code == OUTCOME.SYSTEM_ERROR
    assert time.monotonic() - began < 5.0, "not only after 10 s"


def reset_fields(topic: str, group: str, **others: object) -> dict[str, object]:
    return {"topic": topic, "group": group, "timestamp": -1, "isForce": "true", **others}


def test_a_reset_moves_a_member_that_pulls_and_its_late_commit_counts_for_nothing(
    peer: RemotingPeer, member: RemotingPeer
) -> None:
    make(peer, "moved", 1)
    fill(peer, "moved", 5)
    join(member, "movers", "moved")
    commit(peer, "moved", "movers", 0, 4)
    asked = reset_fields("moved", "movers", queueId=0, offset=1)
    table = told(peer.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, asked))["offsetTable"]
    assert by_queue(table) == {0: 1}
    commit(member, "moved", "movers", 0, 5)
    place = {"topic": "moved", "consumerGroup": "movers", "queueId": 0}
    assert member.ask(CODE.QUERY_CONSUMER_OFFSET, place).ext["offset"] == "1"
    pull = {**pull_fields("moved", 0, 5), "consumerGroup": "movers", "sysFlag": 5}
    told_once = member.ask(CODE.PULL_MESSAGE, {**pull, "commitOffset": 5})
    assert told_once.code == OUTCOME.PULL_OFFSET_MOVED
    assert told_once.ext["nextBeginOffset"] == "1"
    assert consume_stats(peer, "movers")[0]["consumerOffset"] == 1
    found = member.ask(CODE.PULL_MESSAGE, {**pull, "queueOffset": 1, "commitOffset": 1})
    assert found.code == OUTCOME.SUCCESS
    commit(member, "moved", "movers", 0, 3)
    assert consume_stats(peer, "movers")[0]["consumerOffset"] == 3


def test_a_reset_to_a_time_moves_all_queues_of_a_group_without_members(
    peer: RemotingPeer,
) -> None:
    make(peer, "timed")
    fill(peer, "timed", 3)
    fill(peer, "timed", 2, queue_id=1)
    peer.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"timers"}')
    for timestamp, offsets in ((-1, {0: 3, 1: 2}), (0, {0: 0, 1: 0})):
        asked = reset_fields("timed", "timers", timestamp=timestamp)
        table = told(peer.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, asked))["offsetTable"]
        assert by_queue(table) == offsets
        found = consume_stats(peer, "timers")
        assert {n: one["consumerOffset"] for n, one in found.items()} == offsets


def test_a_reset_of_what_is_not_there_is_refused(peer: RemotingPeer) -> None:
    make(peer, "fixed", 1)
    fill(peer, "fixed", 2)
    reset = CODE.INVOKE_BROKER_TO_RESET_OFFSET
    assert peer.ask(reset, reset_fields("nosuch", "movers")).code == OUTCOME.TOPIC_NOT_EXIST
    refused = peer.ask(reset, reset_fields("fixed", "nosuch"))
    assert refused.code == OUTCOME.SUBSCRIPTION_GROUP_NOT_EXIST
    peer.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"fixers"}')
    refused = peer.ask(reset, reset_fields("fixed", "fixers", queueId=0, offset=9))
    assert refused.code == OUTCOME.SYSTEM_ERROR
    assert refused.header.remark == "Target offset 9 not in consume queue range [0-2]"


def test_an_offset_of_a_group_that_is_not_there_is_refused(peer: RemotingPeer) -> None:
    make(peer, "owned", 1)
    place = {"topic": "owned", "consumerGroup": "unmade", "queueId": 0, "commitOffset": 0}
    refused = peer.ask(CODE.UPDATE_CONSUMER_OFFSET, place)
    assert refused.code == OUTCOME.SUBSCRIPTION_GROUP_NOT_EXIST
    assert refused.header.remark == "Group unmade not exist!"


def test_a_group_gets_the_offsets_of_another(peer: RemotingPeer) -> None:
    make(peer, "cloned")
    fill(peer, "cloned", 3)
    commit(peer, "cloned", "originals", 0, 2)
    asked = {"srcGroup": "originals", "destGroup": "copies", "topic": "cloned", "offline": "true"}
    assert peer.ask(CODE.CLONE_GROUP_OFFSET, asked).code == OUTCOME.SUCCESS
    assert consume_stats(peer, "copies")[0]["consumerOffset"] == 2


def test_a_broker_tells_its_state_and_every_rate_is_three_numbers(peer: RemotingPeer) -> None:
    make(peer, "state")
    fill(peer, "state", 1)
    table = told(peer.ask(CODE.GET_BROKER_RUNTIME_INFO, {}))["table"]
    assert all(isinstance(value, str) and value for value in table.values())
    for name in ("putTps", "getTransferredTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert len([float(part) for part in table[name].split(" ")]) == 3
    assert int(table["commitLogMaxOffset"]) > int(table["commitLogMinOffset"])
    (commit_log,) = [
        name.partition("_")[2] for name in table if name.startswith("commitLogDiskRatio_")
    ]
    percent = disk_space(Path(commit_log)).used_percent
    assert abs(100 * float(table["commitLogDiskRatio"]) - percent) <= 1, "as RocketMQ counts"
    assert table["brokerVersionDesc"] == "V5_5_0"
    for pool in ("send", "pull", "ack", "litePull", "query"):
        assert int(table[f"{pool}ThreadPoolQueueSize"]) >= 0
    slaves = told(peer.ask(CODE.GET_BROKER_HA_STATUS, {}))
    assert (slaves["master"], slaves["haConnectionInfo"]) == (True, [])


def test_settings_are_shown_under_a_brokers_names_and_few_change_while_it_runs(
    peer: RemotingPeer,
) -> None:
    def shown() -> dict[str, str]:
        text = peer.ask(CODE.GET_BROKER_CONFIG, {}).body.decode()
        return dict(line.split("=", 1) for line in text.splitlines())

    def update(text: str) -> Answered:
        return peer.ask(CODE.UPDATE_BROKER_CONFIG, {}, text.encode())

    assert shown()["brokerName"] == "b1"
    assert shown()["fileReservedTime"] == "72"
    assert shown()["enabledAppendPropCRC"] == "true"
    refused = update("autoCreateTopicEnable=false\nflushDiskType=SYNC_FLUSH\n")
    assert refused.code == OUTCOME.NO_PERMISSION
    assert "flushDiskType cannot be changed" in (refused.header.remark or "")
    assert shown()["autoCreateTopicEnable"] == "true", "all or none"
    assert update("autoCreateTopicEnable=maybe").code == OUTCOME.SYSTEM_ERROR
    assert update("autoCreateTopicEnable=false").code == OUTCOME.SUCCESS
    assert shown()["autoCreateTopicEnable"] == "false"
    sent = peer.ask(CODE.SEND_MESSAGE_V2, send_fields("not-there"), b"x")
    assert sent.code == OUTCOME.TOPIC_NOT_EXIST
    assert update("autoCreateTopicEnable=true").code == OUTCOME.SUCCESS
    fill(peer, "there-now", 1)
    assert update("nosuchSetting=1").code == OUTCOME.NO_PERMISSION


@pytest.mark.parametrize(
    "name", ["autoCreateTopicEnable", "autoCreateSubscriptionGroup", "storeReplyMessageEnable"]
)
def test_a_setting_that_was_changed_is_shown_as_it_is_now(peer: RemotingPeer, name: str) -> None:
    for value in ("false", "true"):
        changed = peer.ask(CODE.UPDATE_BROKER_CONFIG, {}, f"{name}={value}".encode())
        assert changed.code == OUTCOME.SUCCESS, changed.header.remark
        shown = peer.ask(CODE.GET_BROKER_CONFIG, {}).body.decode().splitlines()
        assert f"{name}={value}" in shown


def test_a_group_is_not_made_while_a_tool_has_that_switched_off(peer: RemotingPeer) -> None:
    make(peer, "unread", 1)
    place = {**pull_fields("unread", 0, 0), "consumerGroup": "switched-off"}

    def switch(value: str) -> None:
        text = f"autoCreateSubscriptionGroup={value}".encode()
        assert peer.ask(CODE.UPDATE_BROKER_CONFIG, {}, text).code == OUTCOME.SUCCESS

    switch("false")
    try:
        assert peer.ask(CODE.PULL_MESSAGE, place).code == OUTCOME.SUBSCRIPTION_GROUP_NOT_EXIST
    finally:
        switch("true")
    assert peer.ask(CODE.PULL_MESSAGE, place).code == OUTCOME.PULL_NOT_FOUND


def test_names_have_values_that_a_killed_gateway_keeps(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, (REMOTING, NAMED), queue_workers=1, readers=1) as node:
        place = remoting_place(node.stderr)
        named = {"namespace": "ORDER_TOPIC_CONFIG", "key": "ordered"}
        with closing(RemotingPeer(place)) as peer:
            assert peer.ask(CODE.PUT_KV_CONFIG, {**named, "value": "b1:2"}).code == 0
            assert peer.ask(CODE.GET_KV_CONFIG, named).ext["value"] == "b1:2"
            wait_until(lambda: (root / "config/kvConfig.json").exists(), "it is not saved")
        node.kill("gateway")
        found: dict[str, Any] = {}

        def is_back() -> bool:
            try:
                with closing(RemotingPeer(place)) as peer:
                    asked = {"namespace": named["namespace"]}
                    found.update(told(peer.ask(CODE.GET_KVLIST_BY_NAMESPACE, asked)))
            except OSError:
                return False
            return True

        wait_until(is_back, "the gateway does not come back")
        assert found["table"] == {"ordered": "b1:2"}
        with closing(RemotingPeer(place)) as peer:
            assert peer.ask(CODE.DELETE_KV_CONFIG, named).code == OUTCOME.SUCCESS
            assert peer.ask(CODE.GET_KV_CONFIG, named).code == OUTCOME.QUERY_NOT_FOUND


def test_routes_say_that_nothing_can_be_sent_until_that_is_taken_back(peer: RemotingPeer) -> None:
    make(peer, "wiped")

    def perm() -> int:
        route = told(peer.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "wiped"}))
        return int(route["queueDatas"][0]["perm"])

    wiped = peer.ask(CODE.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b1"})
    assert int(wiped.ext["wipeTopicCount"]) > 0
    assert perm() == 4
    other = peer.ask(CODE.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "another"})
    assert other.ext["addTopicCount"] == "0"
    assert perm() == 4
    peer.ask(CODE.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b1"})
    assert perm() == 6


def test_figures_of_a_topic_and_a_group_come_from_what_went_in_and_out(
    peer: RemotingPeer, member: RemotingPeer
) -> None:
    make(peer, "figures", 1)
    join(member, "figured", "figures")
    fill(peer, "figures", 4)
    asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "figures"}
    stats = CODE.VIEW_BROKER_STATS_DATA
    unknown = peer.ask(stats, {**asked, "statsKey": "nosuch"})
    assert unknown.code == OUTCOME.SYSTEM_ERROR
    assert unknown.header.remark == "The stats <TOPIC_PUT_NUMS> <nosuch> not exist"
    wait_until(lambda: peer.ask(stats, asked).code == 0, "it is not counted", 30.0)
    found = told(peer.ask(stats, asked))
    assert set(found) == {"statsMinute", "statsHour", "statsDay"}


def test_topics_of_units_are_listed_by_their_flags(peer: RemotingPeer) -> None:
    for flag in range(4):
        assert make(peer, f"unit-{flag}", 1, topicSysFlag=flag).code == OUTCOME.SUCCESS
    lists = {
        CODE.GET_UNIT_TOPIC_LIST: {"unit-1", "unit-3"},
        CODE.GET_HAS_UNIT_SUB_TOPIC_LIST: {"unit-2", "unit-3"},
        CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: {"unit-2"},
    }
    for code, wanted in lists.items():
        found = set(told(peer.ask(code, {}))["topicList"])
        assert {name for name in found if name.startswith("unit-")} == wanted


@pytest.mark.parametrize(
    "code", [308, 323, 329, 319, 354, 400, 513, 2003, 5001, 200050, *range(200074, 200080)]
)
def test_what_is_not_offered_is_refused_with_the_reason(peer: RemotingPeer, code: int) -> None:
    refused = peer.ask(code, {})
    assert refused.code == OUTCOME.REQUEST_CODE_NOT_SUPPORTED
    assert REFUSED[code] in (refused.header.remark or "")


def test_pop_is_refused_by_name_and_pulls_are_taken(peer: RemotingPeer) -> None:
    for mode, code in (("POP", OUTCOME.NO_PERMISSION), ("PULL", OUTCOME.SUCCESS)):
        body = json.dumps({"topic": "t", "consumerGroup": "g", "mode": mode}).encode()
        assert peer.ask(CODE.SET_MESSAGE_REQUEST_MODE, {}, body).code == code
    modes = told(peer.ask(CODE.GET_ALL_MESSAGE_REQUEST_MODE, {}))
    assert modes == {"messageRequestModeMap": {}}


def test_a_request_without_its_fields_says_which_one_is_missing(peer: RemotingPeer) -> None:
    for code in (CODE.GET_TOPIC_STATS_INFO, CODE.GET_CONSUME_STATS, CODE.QUERY_CONSUME_QUEUE):
        refused = peer.ask(code, {})
        assert refused.code == OUTCOME.SYSTEM_ERROR
        assert "is missing" in (refused.header.remark or "")


def test_the_topics_of_the_system_are_those_of_a_broker_also_where_they_do_not_exist(
    peer: RemotingPeer,
) -> None:
    found = told(peer.ask(CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}))["topicList"]
    ours = {"CHECKPOINT_TOPIC", "BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC", "TBW102", "b1"}
    assert ours <= set(found)
    assert make(peer, "BenchmarkTest").code == OUTCOME.INVALID_PARAMETER


OF_THE_DASHBOARD = (
    *(11, 12, 17, 21, 26, 28, 29, 30, 31, 33, 105, 106, 200, 201, 202, 203, 204, 206, 207, 208),
    *(215, 216, 222, 300, 307, 309, 315, 351, 352),
)
"""What its pages and its collector send (rocketmq-dashboard 2.1)."""


@pytest.mark.parametrize("code", OF_THE_DASHBOARD)
def test_every_request_of_the_dashboard_is_served(peer: RemotingPeer, code: int) -> None:
    assert peer.ask(code, {}).code != OUTCOME.REQUEST_CODE_NOT_SUPPORTED
