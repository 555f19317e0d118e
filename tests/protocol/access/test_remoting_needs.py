"""What each request of RocketMQ's clients and tools needs: one rule, one test."""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.gateway.handlers import REFUSED, Handlers
from protocol.access.decision import Action, Entry, Kind, Need, deciding_entry, parse_resource
from protocol.access.needs import (
    ANYBODY,
    OF_OTHERS,
    SUPER,
    UNCLEAR,
    Needs,
    Super,
    need,
    sight_need,
    topic_needs,
    topic_that_counts,
)
from protocol.access.remoting_needs import (
    LISTS_OF_TOPICS,
    NEEDS,
    NEEDS_MAX,
    RECORD_ACTIONS,
    SUPER_ALONE,
    group_settings_need,
    is_administrative,
    record_needs,
    remoting_needs,
    unknown_fields,
    without_credentials,
)
from protocol.errors import NotAllowed
from protocol.names import HALF_TOPIC, SCHEDULE_TOPIC
from protocol.remoting.codes import RequestCode as Code
from protocol.remoting.headers import RemotingHeader, decode_binary, encode_binary
from protocol.remoting.java_json import write_body

PUB, SUB, GET, UPDATE = Action.PUB, Action.SUB, Action.GET, Action.UPDATE
CREATE, DELETE = Action.CREATE, Action.DELETE
CLUSTER = "DefaultCluster"
NUMBERS = (
    *("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis"),
    *("subVersion", "offset", "timestamp", "maxNum", "beginTimestamp", "endTimestamp", "count"),
    *("delayLevel", "tranStateTableOffset", "commitLogOffset", "commitOrRollback", "index"),
    *("defaultTopicQueueNums", "bornTimestamp", "flag", "readQueueNums", "writeQueueNums", "perm"),
)
TEXTS = (
    *("producerGroup", "defaultTopic", "topicFilterType", "clientId", "clientID", "key"),
    *("namespace", "brokerName", "cluster", "statsName", "statsKey"),
)
GROUPS = ("consumerGroup", "group", "groupName", "srcGroup", "destGroup")
LETTERS = dict(zip("abcdefghijklm", "gtT40010p0010", strict=True))
LOCKS = {
    "consumerGroup": "g",
    "clientId": "c",
    "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 0}],
}
BODIES: Mapping[int, Any] = {
    34: {"clientID": "c", "consumerDataSet": [
        {"groupName": "g", "subscriptionDataSet": [{"topic": "t"}, {"topic": "%RETRY%g"}]}]},
    46: {"clientId": "c", "group": "g", "subscriptionData": {"topic": "t"}},
    18: {"topicConfigList": [{"topicName": "t"}]},
    200: {"groupName": "g"},
    225: {"groupConfigList": [{"groupName": "g"}]},
    41: LOCKS,
    42: LOCKS,
}  # fmt: skip


def asked(code: int, body: Any = None, **fields: object) -> Needs:
    """The needs of a request with all that its code declares, and `fields` instead of some."""
    whole = {**dict.fromkeys(NUMBERS, "0"), **dict.fromkeys(TEXTS, "x")}
    whole |= dict.fromkeys(GROUPS, "g") | (LETTERS if code in (310, 320, 325) else {})
    whole |= {"topic": "t", "username": "u", "subject": "User:u"}
    whole |= {name: str(value) for name, value in fields.items()}
    ext = {name: value for name, value in whole.items() if value != "None"}
    if body is None:
        body = BODIES.get(code)
    raw = b"" if body is None else write_body(body, standard=True)
    return remoting_needs(RemotingHeader(code, 1, ext=ext), raw, CLUSTER)


def topic(name: str, *actions: Action) -> Need:
    return need(Kind.TOPIC, name, *actions)


def group(name: str, *actions: Action) -> Need:
    return need(Kind.GROUP, name, *actions)


def is_allowed(needs: Needs, entries: Iterable[Entry]) -> bool:
    """Whether a normal user with this list may."""
    for one in needs:
        if isinstance(one, Super):
            return False
        found = deciding_entry(list(entries), (), one, "10.0.0.1")
        if found is None or not found.allow:
            return False
    return True


def entry(resource: str, *actions: Action) -> Entry:
    return Entry(parse_resource(resource), frozenset(actions), allow=True)


# Every code

_PARTS = (
    *("_service", "_counts", "_broker", "_names", "_topics"),
    *("_groups", "_look_ups", "_replies", "_offsets", "_users"),
)


def codes_of_the_gateway() -> set[int]:
    """All that a gateway serves or refuses, as master, as slave, and with a controller."""
    gateway = object.__new__(Handlers)
    for name in _PARTS:
        setattr(gateway, name, MagicMock())
    return set(gateway.table())


@pytest.mark.attack(72)
def test_every_code_of_the_gateway_has_needs_or_is_for_super_users_alone() -> None:
    decided = NEEDS.keys() | SUPER_ALONE | REFUSED.keys()
    undecided = sorted(codes_of_the_gateway() - decided)
    assert not undecided, (
        f"the gateway serves {undecided}, which only Super users may ask: say in"
        " protocol/access/remoting_needs.py what they need, in _OF_CLIENTS or _OF_TOOLS, or add"
        " them to SUPER_ALONE"
    )


def test_no_code_has_needs_that_nobody_serves() -> None:
    served = codes_of_the_gateway()
    assert NEEDS.keys() <= served
    assert served >= SUPER_ALONE
    assert RECORD_ACTIONS.keys() <= NEEDS.keys()
    assert NEEDS.keys() >= LISTS_OF_TOPICS
    assert not SUPER_ALONE & NEEDS.keys()


@pytest.mark.attack(72)
@pytest.mark.parametrize("code", [*sorted(SUPER_ALONE), 27, 318, 200050, 999_999, -1])
def test_what_is_not_decided_is_for_super_users_alone(code: int) -> None:
    assert asked(code) == SUPER


@pytest.mark.attack(16)
def test_a_code_that_a_binary_header_cuts_has_not_the_needs_of_another() -> None:
    for code in (*range(200050, 200057), *range(200070, 200080), 200151):
        cut = decode_binary(memoryview(encode_binary(RemotingHeader(code, 1))))
        assert remoting_needs(cut, b"", CLUSTER) == SUPER


# Rule by rule


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325, 370])
def test_a_send_needs_pub_of_its_topic(code: int) -> None:
    assert asked(code) == (topic("t", PUB),)


@pytest.mark.parametrize("code", [10, 310, 320])
def test_a_send_to_a_retry_topic_needs_sub_of_the_group_in_its_name(code: int) -> None:
    fields = {"topic": "%RETRY%victim", "producerGroup": "mine"}
    letters = {"b": "%RETRY%victim", "a": "mine"}
    assert asked(code, **(fields if code == 10 else letters)) == (group("victim", SUB),)


def test_a_send_to_a_dead_letter_topic_needs_pub_of_it() -> None:
    assert asked(310, b="%DLQ%victim") == (topic("%DLQ%victim", PUB),)


@pytest.mark.parametrize("name", sorted(OF_OTHERS))
def test_topics_in_which_messages_of_any_topic_wait_are_for_super_users_alone(name: str) -> None:
    assert asked(310, b=name) == asked(361, topic=name)[:1] == asked(202, topic=name) == SUPER
    assert not is_allowed(asked(11, topic=name), [entry("*", Action.ALL)])


@pytest.mark.parametrize("code", [11, 361])
def test_a_pull_needs_sub_of_topic_and_group(code: int) -> None:
    assert asked(code) == (topic("t", SUB), group("g", SUB))


@pytest.mark.attack(28)
@pytest.mark.parametrize(
    ("code", "actions"), [(11, {SUB}), (361, {SUB}), (14, {SUB, GET}), (15, {SUB, UPDATE})]
)
def test_the_retries_of_another_group_are_read_and_committed_by_nobody_else(
    code: int, actions: set[Action]
) -> None:
    needs = asked(code, topic="%RETRY%victim", consumerGroup="mine")
    assert needs == (group("victim", *actions), group("mine", *actions))
    assert not is_allowed(needs, [entry("Group:mine", Action.ALL), entry("Topic:*", Action.ALL)])
    assert is_allowed(
        asked(code, topic="%RETRY%mine", consumerGroup="mine"), [entry("Group:mine", SUB)]
    )


def test_places_of_a_group_need_any_right_of_its_kind_to_topic_and_group() -> None:
    assert asked(14) == (topic("t", SUB, GET), group("g", SUB, GET))
    assert asked(15) == (topic("t", SUB, UPDATE), group("g", SUB, UPDATE))


@pytest.mark.parametrize("code", [12, 29, 30, 31, 32])
def test_bounds_and_keys_of_a_topic_need_sub_or_get(code: int) -> None:
    assert asked(code) == (topic("t", SUB, GET),)
    assert asked(code, topic="%RETRY%g") == (group("g", SUB, GET),)


def test_a_heart_beat_needs_sub_of_each_group_and_topic() -> None:
    assert asked(34) == (group("g", SUB), topic("t", SUB))
    foreign = {"clientID": "c", "consumerDataSet": [
        {"groupName": "mine", "subscriptionDataSet": [{"topic": "%RETRY%victim"}]},
        {"groupName": "other", "subscriptionDataSet": [{"topic": "u"}]}]}  # fmt: skip
    wanted = (group("mine", SUB), group("other", SUB), group("victim", SUB), topic("u", SUB))
    assert asked(34, foreign) == wanted


def test_a_heart_beat_of_producers_needs_a_login_alone() -> None:
    producer = {"clientID": "c", "producerDataSet": [{"groupName": "p"}]}
    assert asked(34, producer) == ANYBODY
    assert asked(34, {**producer, "consumerDataSet": [{"groupName": ""}]}) == ANYBODY


def test_a_request_about_too_many_topics_is_refused() -> None:
    queues = [{"topic": f"t{n}", "brokerName": "b", "queueId": 0} for n in range(NEEDS_MAX)]
    with pytest.raises(NotAllowed, match=f"{NEEDS_MAX} are allowed"):
        asked(41, {**LOCKS, "mqSet": queues})
    assert len(asked(41, {**LOCKS, "mqSet": queues[1:]})) == NEEDS_MAX
    assert len(asked(41, {**LOCKS, "mqSet": queues[:1] * (2 * NEEDS_MAX)})) == 2


def test_members_need_sub_of_their_group() -> None:
    assert asked(35) == (group("g", SUB),)
    assert asked(35, consumerGroup=None) == ANYBODY
    assert asked(38) == (group("g", SUB, GET),)
    assert asked(46) == (group("g", SUB), topic("t", SUB))


@pytest.mark.parametrize("code", [41, 42])
def test_locks_need_sub_of_the_group_and_of_each_topic(code: int) -> None:
    assert asked(code) == (group("g", SUB), topic("t", SUB))


def test_routes_need_any_right_of_a_client_and_that_of_the_default_topic_none() -> None:
    assert asked(105) == (topic("t", PUB, SUB, GET),)
    assert asked(105, topic="%RETRY%g") == (group("g", SUB, GET),)
    assert asked(105, topic="TBW102") == ANYBODY


@pytest.mark.parametrize("code", [106, 206, 224, 304, 305, 311, 312, 313])
def test_anybody_asks_for_lists(code: int) -> None:
    assert asked(code) == ANYBODY


def test_topics_are_made_and_removed_by_whom_their_name_is_given() -> None:
    assert asked(17) == asked(18) == (topic("t", CREATE),)
    assert asked(215) == (topic("t", DELETE),)
    several = {"topicConfigList": [{"topicName": name} for name in ("t", "u", "%RETRY%g")]}
    assert asked(18, several) == (topic("t", CREATE), topic("u", CREATE), group("g", CREATE))


def test_settings_of_groups_need_create_of_new_ones_and_update_of_others() -> None:
    assert asked(200) == asked(225) == (group("g", CREATE, UPDATE),)
    assert group_settings_need("g", is_new=True) == group("g", CREATE)
    assert group_settings_need("g", is_new=False) == group("g", UPDATE)
    assert asked(207) == (group("g", DELETE),)


@pytest.mark.parametrize("code", [202, 300, 351])
def test_reports_about_a_topic_need_get(code: int) -> None:
    assert asked(code) == (topic("t", GET),)


@pytest.mark.parametrize("code", [203, 307, 343, 352])
def test_reports_about_a_group_need_get(code: int) -> None:
    assert asked(code) == (group("g", GET),)


def test_reports_about_both_need_get_of_both() -> None:
    assert asked(303) == asked(223) == (topic("t", GET), group("g", GET))
    assert asked(321) == (topic("t", GET), group("g", GET))
    assert asked(321, consumerGroup=None) == (topic("t", GET),)
    assert asked(345) == (group("g", GET), topic("t", GET))
    wanted = (group("g", GET), topic("t", GET), topic("u", GET), group("r", GET))
    assert asked(208, topicList="u;t;%RETRY%r") == wanted
    assert asked(208, topic="", topicList="") == (group("g", GET),)


def test_offsets_are_reset_and_cloned_with_rights_to_all_that_they_concern() -> None:
    assert asked(222) == (topic("t", UPDATE), group("g", UPDATE))
    wanted = (group("theirs", GET), group("mine", UPDATE), topic("t", UPDATE))
    assert asked(314, srcGroup="theirs", destGroup="mine") == wanted
    assert asked(314, srcGroup="theirs", destGroup="mine", topic=" ") == wanted[:2]
    assert record_needs(314, "u") == (topic("u", UPDATE),)


@pytest.mark.parametrize(
    "code",
    [21, 26, 28, 43, 45, 60, 61, 101, 201, 204, 219, 315, 317, 328, 402, 906, 907, 1007],
)
def test_reports_about_the_node_need_get_of_the_cluster(code: int) -> None:
    assert asked(code) == (need(Kind.CLUSTER, CLUSTER, GET),)


@pytest.mark.parametrize("code", [100, 102, 205, 216, 327])
def test_changes_of_the_node_need_update_of_the_cluster(code: int) -> None:
    assert asked(code) == (need(Kind.CLUSTER, CLUSTER, UPDATE),)


@pytest.mark.attack(34)
@pytest.mark.parametrize("code", [25, 306, 316, 401, 908, 1008, 3001, 3002, 3003, 3006, 3007])
def test_settings_and_users_are_changed_by_super_users_alone(code: int) -> None:
    assert asked(code) == SUPER
    assert not is_allowed(asked(code), [entry("*", Action.ALL)])


def test_users_see_themselves_and_nobody_else() -> None:
    assert asked(3004) == asked(3009) == (Super("u"),)
    assert asked(3009, subject="u") == asked(3009, subject="User:") == SUPER
    assert asked(3005) == asked(3010) == SUPER


# The second stage


@pytest.mark.attack(25, 26, 27, 30)
@pytest.mark.parametrize(
    ("code", "actions"),
    [(12, {SUB, GET}), (33, {SUB, GET}), (36, {SUB}), (37, {PUB}), (309, {SUB})],
)
def test_a_record_needs_rights_to_its_own_topic(code: int, actions: set[Action]) -> None:
    assert record_needs(code, "theirs") == (topic("theirs", *actions),)
    of_group = {SUB if one is PUB else one for one in actions}
    assert record_needs(code, "%RETRY%victim") == (group("victim", *of_group),)
    assert record_needs(code, HALF_TOPIC) == SUPER


def test_a_code_without_a_second_stage_gives_no_right_to_a_record() -> None:
    assert record_needs(11, "t") == SUPER


def test_the_topic_of_a_record_that_waits_is_the_one_where_it_will_go() -> None:
    real = b"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02"
    for name in OF_OTHERS:
        assert topic_that_counts(name, real) == "orders"
        assert topic_needs(topic_that_counts(name, b"TAGS\x01a\x02"), SUB) == SUPER
    assert topic_that_counts("mine", real) == "mine"
    nested = topic_that_counts(SCHEDULE_TOPIC, real.replace(b"orders", HALF_TOPIC.encode()))
    assert topic_needs(nested, SUB) == SUPER


# Any list


@given(st.sampled_from(sorted(NEEDS.keys() | SUPER_ALONE)))
def test_an_empty_list_allows_what_anybody_may_and_nothing_else(code: int) -> None:
    needs = asked(code)
    assert is_allowed(needs, ()) == (needs == ANYBODY)


@given(st.sampled_from(sorted(NEEDS.keys() | SUPER_ALONE)), st.text(max_size=9))
def test_all_of_everything_allows_what_is_not_for_super_users_alone(code: int, name: str) -> None:
    needs = asked(code, topic=name)
    of_super = any(isinstance(one, Super) for one in needs)
    assert is_allowed(needs, [entry("*", Action.ALL)]) != of_super


def test_any_right_to_a_topic_shows_it_in_lists() -> None:
    seen = sight_need(Kind.TOPIC, "orders")
    assert is_allowed((seen,), [entry("Topic:orders*", PUB)])
    assert is_allowed((seen,), [entry("Topic:*", Action.LIST)])
    assert not is_allowed((seen,), [entry("Topic:billing", Action.ALL)])


# What is missing or not as declared

_ANY_VALUE = st.text(max_size=20) | st.sampled_from(["-1", "true", "%RETRY%", "*"])


@pytest.mark.parametrize(
    ("code", "missing"),
    [(310, "b"), (10, "topic"), (11, "consumerGroup"), (15, "commitOffset"), (215, "topic"),
     (207, "groupName"), (3004, "username"), (3009, "subject")],
)  # fmt: skip
def test_a_request_without_a_mandatory_field_is_refused(code: int, missing: str) -> None:
    with pytest.raises(NotAllowed, match=UNCLEAR) as caught:
        asked(code, **{missing: None})
    assert missing in caught.value.hint


@pytest.mark.parametrize("code", sorted(BODIES))
@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'{"clientID":{}}'])
def test_a_request_without_its_body_is_refused(code: int, body: bytes) -> None:
    if code == 34 and body == b"{":
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":[]}]}'
    if code in (18, 225) and body.startswith(b'{"'):
        return  # a map without a list: of no topic or group
    with pytest.raises(NotAllowed, match=UNCLEAR):
        remoting_needs(RemotingHeader(code, 1), body, CLUSTER)


@given(
    st.sampled_from(sorted(NEEDS)),
    st.dictionaries(st.sampled_from([*NUMBERS, *LETTERS, "topic", "username"]), _ANY_VALUE),
    st.binary(max_size=60) | st.sampled_from([json.dumps(one).encode() for one in BODIES.values()]),
)
def test_any_request_is_judged_or_refused(code: int, ext: dict[str, str], body: bytes) -> None:
    try:
        needs = remoting_needs(RemotingHeader(code, 1, ext=ext), body, CLUSTER)
    except NotAllowed as error:
        assert error.reason == UNCLEAR
    else:
        assert all(isinstance(one, Need | Super) for one in needs)


# Fields


@pytest.mark.attack(17)
def test_a_field_that_no_tool_sends_with_a_code_is_unknown() -> None:
    assert unknown_fields(215, {"AccessKey": "admin", "topic": "orders"}) == []
    assert unknown_fields(215, {"AccessKey": "admin", "topic": "orders", "zzz": "g"}) == ["zzz"]
    assert unknown_fields(215, {"topic": "t", "acceptStandardJsonOnly": "x"}) != []
    assert unknown_fields(307, {"topic": "t", "consumerGroup": "g"}) == ["topic"]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (17, "topic defaultTopic readQueueNums writeQueueNums perm topicFilterType topicSysFlag"
             " order attributes force lo ns nsd bname oway"),
        (309, "consumerGroup clientId msgId brokerName topic topicSysFlag groupSysFlag"),
        (222, "topic group timestamp isForce queueId offset"),
        (216, "topic clusterName"),
        (201, "groupSeq maxGroupNum dataVersion __ZONE_NAME __ZONE_MODE"),
        (26, "AccessKey Signature SecurityToken OnsChannel ReqT"),
        (3008, "subject policyType resource"),
        (908, "masterFlushOffset"),
    ],
)  # fmt: skip
def test_fields_that_tools_and_brokers_send_are_known(code: int, names: str) -> None:
    assert unknown_fields(code, dict.fromkeys(names.split(), "1")) == []
    assert unknown_fields(code, {"Topic": "1", **dict.fromkeys(names.split(), "1")}) == ["Topic"]


def test_clients_of_other_languages_may_send_what_they_like() -> None:
    assert unknown_fields(310, {"b": "t", "mine": "1"}) == []
    clients = {code for code in NEEDS if not is_administrative(code)}
    assert clients == {
        *(10, 310, 320, 324, 325, 370, 11, 361, 12, 33, 14, 15, 29, 30, 31, 32),
        *(34, 35, 36, 37, 38, 46, 41, 42, 105),
    }
    assert all(map(is_administrative, SUPER_ALONE | LISTS_OF_TOPICS))
    assert is_administrative(Code.POP_MESSAGE)


def test_credentials_are_not_passed_on() -> None:
    ext = {"AccessKey": "a", "Signature": "s", "SecurityToken": "t", "OnsChannel": "c", "k": "v"}
    assert without_credentials(ext) == {"k": "v"}
