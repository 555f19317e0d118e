"""Transactions, frame by frame at a real node: half messages, their ends, and the questions."""

import json
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from keelog import UnknownTopic
from node.store.opening import open_store
from protocol.names import CONSUMER_OFFSETS_FILE
from protocol.record.codec import Record, decode
from protocol.remoting.bodies import HeartbeatData, ProducerData
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import parse_java_json, write_body
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, Answered, RemotingPeer, remoting_place, send_fields
from tests.support.shared_node import SETTINGS, TRANSACTION_INTERVAL_MS, TRANSACTION_TIMEOUT_MS

pytestmark = pytest.mark.process
SEND, END, ASK = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.END_TRANSACTION,
    RequestCode.CHECK_TRANSACTION_STATE,
)
HALF, OP, GIVEN_UP = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
BROKER_ADDS = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def producer(node: RunningNode, group: str) -> RemotingPeer:
    """A client that has said that it produces for a group."""
    peer = RemotingPeer(remoting_place(node.stderr))
    body = write_body(HeartbeatData(f"id-{group}", (ProducerData(group),)), standard=False)
    assert peer.ask(RequestCode.HEART_BEAT, {}, body).code == ResponseCode.SUCCESS
    return peer


def half_fields(
    topic: str, group: str, key: str, more: str = "", **others: object
) -> dict[str, object]:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02{more}"
    now = int(time.time() * 1000)
    return send_fields(topic, 1, **{"a": group, "i": text, "g": now, "f": 4, **others})


def send_half(
    peer: RemotingPeer, topic: str, group: str, key: str, more: str = "", **others: object
) -> Answered:
    sent = peer.ask(SEND, half_fields(topic, group, key, more, **others), f"body {key}".encode())
    assert sent.code == ResponseCode.SUCCESS, sent.header.remark
    return sent


def end(peer: RemotingPeer, sent: Answered, group: str, outcome: int, **others: object) -> Answered:
    """37, with an answer, which a Java client does not ask for."""
    return peer.ask(END, end_fields(sent, group, outcome, **others))


def end_fields(sent: Answered, group: str, outcome: int, **others: object) -> dict[str, object]:
    return {
        "topic": "t", "producerGroup": group, "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": int(sent.ext["msgId"][16:], 16), "commitOrRollback": outcome,
        "fromTransactionCheck": False, "msgId": sent.ext["transactionId"],
        "transactionId": sent.ext["transactionId"], **others,
    }  # fmt: skip


def answer_question(peer: RemotingPeer, asked: Answered, group: str, outcome: int) -> None:
    """What a Java client does when it is asked (ClientRemotingProcessor, DefaultMQProducerImpl)."""
    fields = {
        "topic": "t", "producerGroup": group, "fromTransactionCheck": True,
        "tranStateTableOffset": asked.ext["tranStateTableOffset"],
        "commitLogOffset": asked.ext["commitLogOffset"], "commitOrRollback": outcome,
        "msgId": asked.ext["msgId"], "transactionId": asked.ext["transactionId"],
        "bname": asked.ext["bname"],
    }  # fmt: skip
    peer.tell(END, fields)


def stored(node: RunningNode, topic: str, key: str = "") -> list[Record]:
    with suppress(UnknownTopic):
        tail = node.client.tail(topic, "earliest", until_end=True)
        found = [message.record for message in tail]
        return [one for one in found if key in ("", one.unique_key)]
    return []


def arrived(node: RunningNode, topic: str, count: int = 1, key: str = "") -> list[Record]:
    wait_until(lambda: len(stored(node, topic, key)) >= count, f"{topic} has not {count}", 20)
    return stored(node, topic, key)


def plain(record: Record) -> dict[str, str]:
    """The properties without the checksum."""
    return {name: value for name, value in record.properties.items() if name != "__CRC32#"}


def ended(node: RunningNode) -> set[int]:
    """The offsets in all op messages."""
    return {int(one) for op in stored(node, OP) for one in op.body.split(b",") if one}


def test_a_half_message_is_stored_as_a_broker_does_and_a_commit_delivers_it(
    node: RunningNode, peer: RemotingPeer
) -> None:
    sent = send_half(peer, "paid", "shop", "K1", "TAGS\x01red\x02", h=7)
    assert sent.ext["queueId"] == "1", "the queue that was asked for"
    assert sent.ext["transactionId"] == "K1"
    (half,) = arrived(node, HALF, key="K1")
    assert (half.head.queue_id, half.head.sys_flag, half.head.flag) == (0, 0, 7)
    assert half.message_id == sent.ext["msgId"]
    assert str(half.head.queue_offset) == sent.ext["queueOffset"]
    client = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "K1", "WAIT": "true", "TAGS": "red"}
    kept = {**client, **BROKER_ADDS, "__transactionId__": "K1"}
    assert plain(half) == {**kept, "REAL_TOPIC": "paid", "REAL_QID": "1"}
    assert stored(node, "paid") == []

    assert end(peer, sent, "shop", COMMIT).code == ResponseCode.SUCCESS
    (record,) = arrived(node, "paid")
    assert (record.head.queue_id, record.head.sys_flag & 0xC, record.body) == (1, 8, b"body K1")
    assert record.head.prepared_transaction_offset == half.physical_offset
    assert record.head.born_timestamp == half.head.born_timestamp
    assert (record.born_host, record.head.flag) == (half.born_host, 7)
    assert plain(record) == kept
    wait_until(lambda: half.head.queue_offset in ended(node), "no op message")
    (op,) = [one for one in stored(node, OP) if b"%d," % half.head.queue_offset in one.body]
    assert plain(op) == {"WAIT": "true", "TAGS": "d"}
    assert (op.head.queue_id, op.head.sys_flag, op.store_host) == (0, 0, op.born_host)
    assert op.body.endswith(b",")


def test_a_rollback_shows_nothing_and_resolves_the_half_message(
    node: RunningNode, peer: RemotingPeer
) -> None:
    sent = send_half(peer, "undone", "shop", "K2")
    assert end(peer, sent, "shop", ROLLBACK).code == ResponseCode.SUCCESS
    wait_until(lambda: int(sent.ext["queueOffset"]) in ended(node), "no op message")
    assert end(peer, sent, "shop", COMMIT).code == ResponseCode.SUCCESS, "it is too late"
    time.sleep(0.5)
    assert stored(node, "undone") == []


def test_a_second_commit_delivers_nothing_again(node: RunningNode, peer: RemotingPeer) -> None:
    sent = send_half(peer, "once", "shop", "K3")
    opaques = [peer.send(END, end_fields(sent, "shop", COMMIT)) for _ in range(5)]
    assert {peer.answer_to(one).code for one in opaques} == {ResponseCode.SUCCESS}
    arrived(node, "once")
    time.sleep(0.5)
    assert len(stored(node, "once")) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"producerGroup": "other"}, "The producer group wrong"),
        ({"tranStateTableOffset": 99}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 10**9}, "Find prepared transaction message failed"),
    ],
)
def test_an_end_that_does_not_fit_its_half_message_is_refused(
    node: RunningNode, peer: RemotingPeer, change: dict[str, object], why: str
) -> None:
    sent = send_half(peer, "misfit", "shop", "K4")
    found = end(peer, sent, "shop", COMMIT, **change)
    assert (found.code, found.header.remark) == (ResponseCode.SYSTEM_ERROR, why)
    assert end(peer, sent, "shop", ROLLBACK).code == ResponseCode.SUCCESS
    assert stored(node, "misfit") == []


def test_only_half_messages_can_be_committed(node: RunningNode, peer: RemotingPeer) -> None:
    plain_one = peer.ask(SEND, send_fields("usual", i="PGROUP\x01shop\x02UNIQ_KEY\x01P\x02"), b"x")
    assert end(peer, plain_one, "shop", COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert len(stored(node, "usual")) == 1


def test_an_open_transaction_is_asked_for_and_its_answer_counts(
    node: RunningNode, peer: RemotingPeer
) -> None:
    with closing(producer(node, "asked")) as asker:
        began = time.time()
        sent = send_half(peer, "late-half", "asked", "K5", "TAGS\x01blue\x02", h=3)
        assert end(peer, sent, "asked", UNKNOWN).code == ResponseCode.SUCCESS
        asked = asker.request(ASK)
        assert time.time() - began >= TRANSACTION_TIMEOUT_MS / 1000
        again = arrived(node, HALF, 2, key="K5")[1]
        assert asked.header.is_one_way
        assert dict(asked.ext) == {
            "topic": HALF, "tranStateTableOffset": str(again.head.queue_offset),
            "commitLogOffset": str(again.physical_offset), "offsetMsgId": again.message_id,
            "msgId": "K5", "transactionId": "K5", "bname": asked.ext["bname"],
        }  # fmt: skip
        body = decode(asked.body, 0)
        assert isinstance(body, Record)
        assert (body.topic, body.head.queue_id, body.body) == ("late-half", 1, b"body K5")
        assert body.head.queue_offset == again.head.queue_offset
        assert body.physical_offset == again.physical_offset
        first = stored(node, HALF, "K5")[0]
        assert plain(again) == {**plain(first), "TRANSACTION_CHECK_TIMES": "1"}
        assert plain(body) == {**plain(again), "WAIT": "false"}
        assert (again.head.flag, first.head.flag) == (0, 3), "a broker does not copy the flag"
        answer_question(asker, asked, "asked", COMMIT)
        (record,) = arrived(node, "late-half")
        assert record.head.prepared_transaction_offset == again.physical_offset
        wait_until(lambda: again.head.queue_offset in ended(node), "no op message")


def test_an_end_that_comes_after_the_question_ends_it_once(
    node: RunningNode, peer: RemotingPeer
) -> None:
    with closing(producer(node, "slow")) as asker:
        sent = send_half(peer, "slow", "slow", "K6")
        asked = asker.request(ASK)
        assert end(peer, sent, "slow", COMMIT).code == ResponseCode.SUCCESS
        answer_question(asker, asked, "slow", COMMIT)
        arrived(node, "slow")
        asked_offset = int(asked.ext["tranStateTableOffset"])
        wait_until(lambda: asked_offset in ended(node), "the newer half message is open")
        time.sleep(3 * TRANSACTION_INTERVAL_MS / 1000)
        assert len(stored(node, "slow")) == 1
        assert len(stored(node, HALF, "K6")) == 2, "it is asked for no more"


def test_a_transaction_that_nobody_decides_is_given_up_after_the_last_question(
    node: RunningNode, peer: RemotingPeer
) -> None:
    with closing(producer(node, "silent")) as asker:
        send_half(peer, "never", "silent", "K7")
        for times in ("1", "2", "3"):
            asked = asker.request(ASK)
            body = decode(asked.body, 0)
            assert isinstance(body, Record)
            assert body.properties["TRANSACTION_CHECK_TIMES"] == times
            answer_question(asker, asked, "silent", UNKNOWN)
        (given_up,) = arrived(node, GIVEN_UP, key="K7")
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "3"
        assert given_up.properties["REAL_TOPIC"] == "never"
        assert stored(node, "never") == []
        assert len(stored(node, HALF, "K7")) == 4


def test_a_message_is_not_asked_for_while_it_is_immune(
    node: RunningNode, peer: RemotingPeer
) -> None:
    with closing(producer(node, "immune")) as asker:
        began = time.time()
        more = "CHECK_IMMUNITY_TIME_IN_SECONDS\x012\x02"
        early = send_half(peer, "immune", "immune", "K8", more)
        first = arrived(node, HALF, 2, key="K8")[0]
        kept = str(first.head.queue_offset)
        for again in stored(node, HALF, "K8")[1:]:
            assert again.properties["TRAN_PREPARED_QUEUE_OFFSET"] == kept
            assert "TRANSACTION_CHECK_TIMES" not in again.properties
        send_half(peer, "immune", "immune", "K9", more)
        assert end(peer, early, "immune", COMMIT).code == ResponseCode.SUCCESS
        arrived(node, "immune")
        asked = asker.request(ASK)
        assert asked.ext["msgId"] == "K9", "K8 has ended at its first half message"
        assert time.time() - began >= 2.0
        answer_question(asker, asked, "immune", ROLLBACK)
        wait_until(lambda: int(asked.ext["tranStateTableOffset"]) in ended(node), "no op message")
        late = send_half(peer, "immune", "immune", "K10", more, g=int(began * 1000) - 2_500)
        refused = end(peer, late, "immune", COMMIT)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        answer_question(asker, asker.request(ASK), "immune", ROLLBACK)
        assert len(stored(node, "immune")) == 1


def test_a_committed_message_with_a_delay_level_waits_for_it(
    node: RunningNode, peer: RemotingPeer
) -> None:
    sent = send_half(peer, "both-half", "shop", "K11", "DELAY\x012\x02")
    began = time.time()
    assert end(peer, sent, "shop", COMMIT).code == ResponseCode.SUCCESS
    (record,) = arrived(node, "both-half")
    assert time.time() - began >= 1.0
    assert record.head.sys_flag & 0xC == COMMIT
    fields = {
        "offset": record.physical_offset, "group": "half-workers", "delayLevel": 0,
        "originMsgId": "K11", "originTopic": "both-half", "unitMode": False,
        "maxReconsumeTimes": 16,
    }  # fmt: skip
    assert peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
    (again,) = arrived(node, "%RETRY%half-workers")
    assert (again.head.reconsume_times, again.head.sys_flag & 0xC) == (1, COMMIT)
    dead = {**fields, "offset": again.physical_offset, "delayLevel": -1}
    assert peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, dead).code == ResponseCode.SUCCESS
    assert len(arrived(node, "%DLQ%half-workers")) == 1


def test_transactions_in_batches_and_bits_without_a_property_are_refused(
    node: RunningNode, peer: RemotingPeer
) -> None:
    assert peer.ask(SEND, send_fields("bits", f=4), b"x").code == ResponseCode.MESSAGE_ILLEGAL
    for topic in (HALF, OP, GIVEN_UP):
        assert peer.ask(SEND, send_fields(topic), b"x").code == ResponseCode.NO_PERMISSION
    kept = half_fields("again", "shop", "K12", "DELAY\x011\x02", j=1, f=0)
    assert peer.ask(SEND, kept, b"x").code == ResponseCode.SUCCESS
    assert len(arrived(node, "again")) == 1, "handed back by a client, it is no half message"
    assert stored(node, HALF, "K12") == []


def test_status_says_how_many_transactions_are_open(node: RunningNode, peer: RemotingPeer) -> None:
    def open_now() -> int:
        return int(node.client.status().raw["transactions"]["open"])

    wait_until(lambda: open_now() == 0, "others are open")
    immune = "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02"
    sent = [send_half(peer, "seen", "nobody", f"O{number}", immune) for number in range(2)]
    wait_until(lambda: open_now() == len(sent), "they are not counted")
    for one in sent:
        end(peer, one, "nobody", ROLLBACK)
    wait_until(lambda: open_now() == 0, "they are counted still")
    assert node.client.status().raw["transactions"] == {"open": 0}


def test_the_offsets_of_the_group_are_those_of_a_broker(
    node: RunningNode, peer: RemotingPeer
) -> None:
    sent = send_half(peer, "counted", "shop", "K13")
    assert end(peer, sent, "shop", ROLLBACK).code == ResponseCode.SUCCESS
    wait_until(lambda: int(sent.ext["queueOffset"]) in ended(node), "no op message")

    def positions() -> dict[str, dict[str, int]]:
        path = node.root / CONSUMER_OFFSETS_FILE
        table = parse_java_json(path.read_text())["offsetTable"] if path.exists() else {}
        return {name: places for name, places in table.items() if "CID_RMQ_SYS_TRANS" in name}

    def wanted() -> dict[str, dict[str, int]]:
        """The ends, which grow as long as what other tests sent is being ended."""
        ends = {topic: len(stored(node, topic)) for topic in (HALF, OP)}
        return {f"{topic}@CID_RMQ_SYS_TRANS": {"0": end} for topic, end in ends.items()}

    wait_until(lambda: positions() == wanted(), f"not at {wanted()}: {positions()}", 20)


def test_a_node_can_refuse_transactions(tmp_path: Path) -> None:
    settings = (REMOTING, "reject_transaction_message=true")
    with (
        RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
    ):
        refused = peer.ask(SEND, half_fields("t", "g", "K"), b"x")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert json.dumps(dict(refused.ext)), "a Java client reads its fields"


def test_an_orderly_stop_writes_the_ends_that_were_gathered(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = (REMOTING, "transaction_op_batch_interval=600000")
    with (
        RunningNode(root, settings, queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
    ):
        offsets = set()
        for key, outcome in (("K1", COMMIT), ("K2", ROLLBACK), ("K3", UNKNOWN)):
            sent = send_half(peer, "t", "g", key)
            assert end(peer, sent, "g", outcome).code == ResponseCode.SUCCESS
            if outcome != UNKNOWN:
                offsets.add(sent.ext["queueOffset"])
        assert stored(node, OP) == []
    with open_store(root) as store:
        queue = store.queue(OP, 0)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        assert set(store.look_up(unit.physical_offset).body.decode()[:-1].split(",")) == offsets


def test_a_killed_gateway_loses_no_transaction_and_shows_none_that_was_rolled_back(
    tmp_path: Path,
) -> None:
    # As many questions as are asked until the gateway and its client are back.
    asks = "transaction_check_max=1000", "transaction_op_batch_interval=600000"
    settings = (*SETTINGS[:-2], *asks)
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node:
        with closing(producer(node, "g")) as peer:
            for key, outcome in (("K1", COMMIT), ("K2", ROLLBACK), ("K3", UNKNOWN)):
                assert end(peer, send_half(peer, "t", "g", key), "g", outcome).code == 0
        killed = {node.kill("gateway"), node.kill("writer")}
        wait_until(
            lambda: not killed & {pid for some in node.pids().values() for pid in some}, "not ended"
        )
        node.wait_all_run()
        decisions = {"K1": COMMIT, "K2": ROLLBACK, "K3": COMMIT}
        with closing(producer(node, "g")) as peer:
            # Where the ends of K1 and K2 were heeded before the kill, K3 alone is asked for.
            while "K3" in decisions:
                asked = peer.request(ASK)
                if (decision := decisions.pop(asked.ext["msgId"], None)) is not None:
                    answer_question(peer, asked, "g", decision)
            arrived(node, "t", 1, "K3")
            found = [one.unique_key for one in stored(node, "t")]
        assert set(found) == {"K1", "K3"}
        assert found.count("K1") <= 2, "its op message was not written: as at a broker"
