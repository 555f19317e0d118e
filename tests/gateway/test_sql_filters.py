"""Subscriptions in SQL92, as RocketMQ's clients have them, at a node with a gateway."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from protocol.record.codec import Record, decode
from protocol.remoting.bodies import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import write_body
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
PULL, SQL92 = RequestCode.PULL_MESSAGE, "SQL92"
HELD = {"sysFlag": 6, "suspendTimeoutMillis": 15_000}
BY_GROUP = {"sysFlag": 0, "subVersion": 1}


def send(peer: RemotingPeer, topic: str, number: int, tag: str = "x") -> None:
    text = f"TAGS\x01{tag}\x02a\x01{number}\x02"
    sent = peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, i=text), b"%d" % number)
    assert sent.code == ResponseCode.SUCCESS


def filled(peer: RemotingPeer, topic: str, count: int) -> None:
    """A queue of messages whose property `a` is their number, in the queue's files."""
    for number in range(count):
        send(peer, topic, number)
    every = pull_fields(topic, 0, 0)
    wait_until(lambda: len(bodies(peer.ask(PULL, every))) == count, "the queue's files lag")


def bodies(answered: Answered) -> list[bytes]:
    """The bodies of a pull's records."""
    found, at = [], 0
    while at < len(answered.body):
        record = decode(answered.body, at)
        assert isinstance(record, Record)
        found.append(record.body)
        at += record.size
    return found


def by_sql(topic: str, offset: int, expression: str, **others: object) -> dict[str, object]:
    """The fields of a pull with an expression in the header."""
    inline = {"subscription": expression, "expressionType": SQL92}
    return pull_fields(topic, 0, offset, **inline, **others)


def beat(peer: RemotingPeer, group: str, topic: str, expression: str) -> Answered:
    wanted = SubscriptionData(topic, expression, sub_version=1, expression_type=SQL92)
    data = HeartbeatData("c1", (), (ConsumerData(group, subscription_data_set=(wanted,)),))
    return peer.ask(RequestCode.HEART_BEAT, {}, write_body(data, standard=True))


def check(peer: RemotingPeer, expression: str, kind: str = SQL92) -> Answered:
    """46, as a client asks at its start."""
    wanted = SubscriptionData("any", expression, expression_type=kind)
    body = write_body(CheckClientBody("c1", "g", wanted), standard=True)
    return peer.ask(RequestCode.CHECK_CLIENT_CONFIG, {}, body)


def test_a_group_that_subscribes_by_sql_gets_its_matches_and_moves_on(peer: RemotingPeer) -> None:
    filled(peer, "matches", 10)
    assert beat(peer, "sql-group", "matches", "a > 5 AND a <> 8").code == ResponseCode.SUCCESS
    by_group = pull_fields("matches", 0, 0, consumerGroup="sql-group", **BY_GROUP)
    found = peer.ask(PULL, by_group)
    assert (found.code, bodies(found)) == (ResponseCode.SUCCESS, [b"6", b"7", b"9"])
    assert found.ext["nextBeginOffset"] == "10"
    beat(peer, "sql-none", "matches", "a > 50")
    nothing = peer.ask(PULL, {**by_group, "consumerGroup": "sql-none"})
    assert (nothing.code, nothing.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
    assert nothing.ext["nextBeginOffset"] == "10", "it is past what it refused"


def test_an_expression_in_the_header_counts(peer: RemotingPeer) -> None:
    filled(peer, "inline", 4)
    assert bodies(peer.ask(PULL, by_sql("inline", 0, "a BETWEEN 1 AND 2"))) == [b"1", b"2"]
    assert bodies(peer.ask(PULL, by_sql("inline", 0, "TAGS = 'x' AND a IN ('3')"))) == [b"3"]
    few = peer.ask(PULL, by_sql("inline", 0, "a > 0", maxMsgNums=1))
    # As with tags: what was refused before the match, and up to the next match, is passed.
    assert (bodies(few), few.ext["nextBeginOffset"]) == ([b"1"], "2")
    bad = peer.ask(PULL, by_sql("inline", 0, "a >"))
    assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "character 4" in str(bad.header.remark)


def test_a_bad_expression_fails_pulls_and_not_the_heart_beat(peer: RemotingPeer) -> None:
    filled(peer, "bad-sql", 1)
    assert beat(peer, "sql-bad", "bad-sql", "a >").code == ResponseCode.SUCCESS
    found = peer.ask(PULL, pull_fields("bad-sql", 0, 0, consumerGroup="sql-bad", **BY_GROUP))
    assert found.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "character 4" in str(found.header.remark)


def test_a_held_pull_is_answered_when_a_match_comes(peer: RemotingPeer) -> None:
    filled(peer, "held-sql", 1)
    waits = peer.send(PULL, by_sql("held-sql", 1, "a >= 3", **HELD))
    for number in (1, 2, 3):
        send(peer, "held-sql", number)
    found = peer.answer_to(waits)
    assert (bodies(found), found.ext["nextBeginOffset"]) == ([b"3"], "4")


def test_a_held_pull_without_a_match_ends_after_what_it_refused(peer: RemotingPeer) -> None:
    filled(peer, "refused-sql", 1)
    began = time.monotonic()
    held = {"sysFlag": 6, "suspendTimeoutMillis": 700}
    waits = peer.send(PULL, by_sql("refused-sql", 1, "a > 50", **held))
    send(peer, "refused-sql", 1)
    late = peer.answer_to(waits)
    assert 0.5 < time.monotonic() - began < 15
    assert (late.code, late.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")


def test_held_pulls_with_the_same_text_as_a_tag_and_in_sql_do_not_share(
    peer: RemotingPeer,
) -> None:
    filled(peer, "both-sql", 1)
    # In SQL `x` is a property of its own, which no message here has.
    held = {"sysFlag": 6, "suspendTimeoutMillis": 1_500}
    in_sql = peer.send(PULL, by_sql("both-sql", 1, "x", **held))
    tagged = peer.send(PULL, pull_fields("both-sql", 0, 1, subscription="x", **held))
    send(peer, "both-sql", 1)
    assert bodies(peer.answer_to(tagged)) == [b"1"]
    assert peer.answer_to(in_sql).body == b""


def test_46_says_whether_an_expression_may_be_subscribed(peer: RemotingPeer) -> None:
    assert check(peer, "a > 5 AND b IS NOT NULL").code == ResponseCode.SUCCESS
    assert check(peer, "anything at all", "TAG").code == ResponseCode.SUCCESS
    for bad, kind in (("a > ", SQL92), ("", SQL92), ("*", SQL92), ("a > 5", "XPATH")):
        refused = check(peer, bad, kind)
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert refused.header.remark


def test_a_node_may_refuse_filters_by_properties(tmp_path: Path) -> None:
    settings = (REMOTING, "store.enable_property_filter=false")
    with (
        RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
    ):
        filled(peer, "off", 1)
        refused = check(peer, "a > 5")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "does not support" in str(refused.header.remark)
        assert check(peer, "a", "TAG").code == ResponseCode.SUCCESS
        assert peer.ask(PULL, by_sql("off", 0, "a > 5")).code == ResponseCode.SYSTEM_ERROR
        assert bodies(peer.ask(PULL, pull_fields("off", 0, 0))) == [b"0"]
