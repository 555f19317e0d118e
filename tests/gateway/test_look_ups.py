"""What RocketMQ's tools ask: messages by key and by id, settings of groups."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from node.store.indexes import MAX_MESSAGES_BATCH
from protocol.ids import parse_offset_message_id
from protocol.names import SUBSCRIPTION_GROUPS_FILE
from protocol.record.codec import Record, decode
from protocol.remoting.codes import RequestCode, ResponseCode
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
SEND, FIND = RequestCode.SEND_MESSAGE_V2, RequestCode.QUERY_MESSAGE
CONFIGURE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@contextmanager
def gateway_of(root: Path) -> Iterator[RemotingPeer]:
    """A connection to a node of its own, which is stopped behind it."""
    with (
        RunningNode(root, (REMOTING,), queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
    ):
        yield peer


def wanted(topic: str, key: str, **others: object) -> dict[str, object]:
    """The fields of 12."""
    always = {"maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    return {"topic": topic, "key": key, **always, **others}


def bodies(answered: Answered) -> list[bytes]:
    """The bodies of the records of an answer, in its order."""
    found, at = [], 0
    while at < len(answered.body):
        record = decode(answered.body, at)
        assert isinstance(record, Record)
        found.append(record.body)
        at += record.size
    return found


def await_index(peer: RemotingPeer, topic: str, key: str, count: int) -> None:
    wait_until(
        lambda: len(bodies(peer.ask(FIND, wanted(topic, key)))) == count,
        f"the index does not get {count} messages",
    )


def test_a_key_finds_the_newest_64_messages_oldest_first(peer: RemotingPeer) -> None:
    for number in range(MAX_MESSAGES_BATCH + 2):
        text = f"KEYS\x01k other\x02UNIQ_KEY\x01K{number}\x02TAGS\x01red\x02"
        peer.ask(SEND, send_fields("keyed", number % 2, i=text), b"%d" % number)
    peer.ask(SEND, send_fields("keyed", 0, i="KEYS\x01last\x02"), b"last")
    await_index(peer, "keyed", "last", 1)
    newest = [b"%d" % number for number in range(2, MAX_MESSAGES_BATCH + 2)]
    found = peer.ask(FIND, wanted("keyed", "k"))
    assert bodies(found) == newest
    assert int(found.ext["indexLastUpdatePhyoffset"]) > 0
    assert int(found.ext["indexLastUpdateTimestamp"]) > 1_700_000_000_000
    assert bodies(peer.ask(FIND, wanted("keyed", "other", maxNum=3))) == newest[-3:]
    assert bodies(peer.ask(FIND, wanted("keyed", "red", maxNum=1, indexType="T"))) == newest[-1:]
    by_unique = wanted("keyed", "K7", _UNIQUE_KEY_QUERY="true")
    assert bodies(peer.ask(FIND, by_unique)) == [b"7"]


def test_a_look_up_that_finds_nothing_is_answered_with_22(peer: RemotingPeer) -> None:
    peer.ask(SEND, send_fields("lonely", i="KEYS\x01here\x02UNIQ_KEY\x01U1\x02"), b"x")
    await_index(peer, "lonely", "here", 1)
    for fields in (
        wanted("lonely", "absent"),
        wanted("absent", "here"),
        wanted("lonely", "here", endTimestamp=1),
        wanted("lonely", "here", _UNIQUE_KEY_QUERY="true"),
    ):
        assert peer.ask(FIND, fields).code == ResponseCode.QUERY_NOT_FOUND, fields


def test_a_look_up_waits_for_the_index_and_finds_what_was_just_sent(
    node: RunningNode, peer: RemotingPeer
) -> None:
    peer.ask(SEND, send_fields("just-sent", i="KEYS\x01first\x02"), b"x")
    await_index(peer, "just-sent", "first", 1)
    pid = node.kill("index", number=signal.SIGSTOP)
    try:
        peer.ask(SEND, send_fields("just-sent", i="KEYS\x01second\x02"), b"y")
        opaque = peer.send(FIND, wanted("just-sent", "second"))
        peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": "just-sent", "queueId": 0})
        time.sleep(0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert bodies(peer.answer_to(opaque)) == [b"y"]
    os.kill(pid, signal.SIGSTOP)
    try:
        peer.ask(SEND, send_fields("just-sent", i="KEYS\x01third\x02"), b"z")
        late = peer.ask(FIND, wanted("just-sent", "third"))
        assert late.code == ResponseCode.QUERY_NOT_FOUND, "it does not wait for ever"
    finally:
        os.kill(pid, signal.SIGCONT)


def test_33_answers_the_record_at_an_offset_and_1_where_there_is_none(peer: RemotingPeer) -> None:
    view = RequestCode.VIEW_MESSAGE_BY_ID
    sent = peer.ask(SEND, send_fields("by-id"), b"body")
    offset = parse_offset_message_id(sent.ext["msgId"])[1]
    assert bodies(peer.ask(view, {"offset": offset, "topic": "by-id"})) == [b"body"]
    for nowhere in (offset + 1, 2**40, -1):
        refused = peer.ask(view, {"offset": nowhere, "topic": "by-id"})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.header.remark


def test_200_makes_and_changes_a_group_and_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    root = tmp_path / "store"
    file = root / SUBSCRIPTION_GROUPS_FILE

    def entry() -> dict[str, object]:
        found: dict[str, object] = json.loads(file.read_text())["subscriptionGroupTable"]["billing"]
        return found

    def ask(peer: RemotingPeer, settings: object) -> int:
        return peer.ask(CONFIGURE, {}, json.dumps(settings).encode()).code

    made = {"groupName": "billing", "retryMaxTimes": 3, "attributes": {"+a": "1"}}
    with gateway_of(root) as peer:
        assert ask(peer, made) == ResponseCode.SUCCESS
    assert (entry()["retryMaxTimes"], entry()["consumeEnable"]) == (3, True)
    assert entry()["attributes"] == {"a": "1"}
    table = json.loads(file.read_text())
    table["subscriptionGroupTable"]["billing"]["ofALaterRelease"] = 7
    file.write_text(json.dumps(table))
    changed = {"groupName": "billing", "consumeEnable": False, "attributes": {"-a": ""}}
    with gateway_of(root) as peer:
        peer.ask(SEND, send_fields("bills"), b"x")
        pull = pull_fields("bills", 0, 0, consumerGroup="billing")
        assert peer.ask(RequestCode.PULL_MESSAGE, pull).code != ResponseCode.NO_PERMISSION
        assert ask(peer, changed) == ResponseCode.SUCCESS
        refused = peer.ask(RequestCode.PULL_MESSAGE, pull)
        assert refused.code == ResponseCode.NO_PERMISSION, "heeded at once"
        for wrong in (
            {"groupName": "no good name"},
            {"groupName": "other", "attributes": {"a": "1"}},
            {"retryMaxTimes": 1},
            {"groupName": "billing", "attributes": {"+a": "x" * 20_000}},
        ):
            assert ask(peer, wrong) != ResponseCode.SUCCESS, wrong
    assert "other" not in file.read_text(), "it was refused"
    assert entry()["ofALaterRelease"] == 7
    assert (entry()["retryMaxTimes"], entry()["attributes"]) == (16, {})
