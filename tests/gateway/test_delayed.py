"""Delay levels, messages handed back and dead letters, frame by frame at a real node."""

import json
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from keelog import UnknownTopic
from node.runtime.state_page import NEVER, WorkerPage
from protocol.names import DELAY_OFFSETS_FILE, SUBSCRIPTION_GROUPS_FILE
from protocol.record.codec import Record
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place, send_fields
from tests.support.shared_node import LEVELS

pytestmark = pytest.mark.process
SEND, BACK = RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def stored(node: RunningNode, topic: str) -> list[Record]:
    """All messages of a topic, queue by queue."""
    with suppress(UnknownTopic):
        tail = node.client.tail(topic, "earliest", until_end=True)
        return [message.record for message in tail]
    return []


def arrived(node: RunningNode, topic: str, count: int = 1) -> list[Record]:
    """The messages of a topic, once there are so many."""
    wait_until(lambda: len(stored(node, topic)) >= count, f"{topic} has not {count} messages", 20)
    return stored(node, topic)


def plain(record: Record) -> dict[str, str]:
    """The properties without the checksum."""
    return {name: value for name, value in record.properties.items() if name != "__CRC32#"}


def test_a_message_with_a_delay_level_is_delivered_when_it_is_due(
    node: RunningNode, peer: RemotingPeer
) -> None:
    text = "TAGS\x01red\x02DELAY\x012\x02UNIQ_KEY\x01U1\x02TIMER_DELAY_SEC\x019\x02"
    began = time.time()
    sent = peer.ask(SEND, send_fields("late-level", 3, i=text, h=7, j=1), b"body")
    assert sent.code == ResponseCode.SUCCESS
    assert sent.ext["queueId"] == "3"
    assert stored(node, "late-level") == []
    (record,) = arrived(node, "late-level")
    took = time.time() - began
    assert 1.0 <= took < 3.0, took
    assert (record.topic, record.head.queue_id, record.body) == ("late-level", 3, b"body")
    assert (record.head.flag, record.head.reconsume_times, record.tags) == (7, 1, "red")
    assert record.head.born_timestamp == 1_700_000_000_000
    assert plain(record) == {
        "TAGS": "red", "UNIQ_KEY": "U1", "DELAY": "2", "REAL_TOPIC": "late-level", "REAL_QID": "3",
        "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    (waited,) = [one for one in stored(node, SCHEDULE) if one.unique_key == "U1"]
    assert (waited.head.queue_id, str(waited.head.queue_offset)) == (1, sent.ext["queueOffset"])
    assert plain(waited) == plain(record)
    assert waited.message_id == sent.ext["msgId"]


def test_waiting_for_delayed_messages_does_not_make_the_reader_follow_the_log(
    tmp_path: Path,
) -> None:
    levels = f"message_delay_level={' '.join(LEVELS[:5])}"
    with (
        RunningNode(tmp_path / "store", (REMOTING, levels), queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
        closing(WorkerPage.open(node.root, "reader-0")) as page,
    ):
        wait_until(lambda: page.read().held >= 6, "the pulls of levels and timers are not held")
        wait_until(lambda: page.wake_at == NEVER, "the reader asks for rings")
        for number in range(20):
            peer.ask(SEND, send_fields("others-level", 0), b"%d" % number)
            assert (page.wake_at, page.listens) == (NEVER, 0)
        assert page.read().held >= 6


def test_many_messages_of_a_level_keep_their_order(node: RunningNode, peer: RemotingPeer) -> None:
    node.client.create_topic("many-level", 1)
    opaques = [
        peer.send(SEND, send_fields("many-level", 0, i="DELAY\x011\x02"), b"%d" % number)
        for number in range(500)
    ]
    assert {peer.answer_to(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    found = arrived(node, "many-level", 500)
    assert [record.body for record in found] == [b"%d" % number for number in range(500)]


def test_a_level_beyond_the_last_is_the_last_and_one_below_the_first_is_none(
    node: RunningNode, peer: RemotingPeer
) -> None:
    sent = peer.ask(SEND, send_fields("far-level", 0, i="DELAY\x0199\x02UNIQ_KEY\x01FAR\x02"), b"x")
    assert sent.code == ResponseCode.SUCCESS
    wait_until(
        lambda: any(one.unique_key == "FAR" for one in stored(node, SCHEDULE)), "nothing is stored"
    )
    (waits,) = [one for one in stored(node, SCHEDULE) if one.unique_key == "FAR"]
    assert (waits.head.queue_id, waits.properties["DELAY"]) == (len(LEVELS) - 1, str(len(LEVELS)))
    for level in ("0", "-1"):
        peer.ask(SEND, send_fields("no-level", 0, i=f"DELAY\x01{level}\x02"), level.encode())
    assert [record.body for record in arrived(node, "no-level", 2)] == [b"0", b"-1"]


def test_clients_cannot_write_to_the_schedule_topic(node: RunningNode, peer: RemotingPeer) -> None:
    sent = peer.ask(SEND, send_fields(SCHEDULE), b"x")
    assert sent.code == ResponseCode.NO_PERMISSION


def hand_back(peer: RemotingPeer, record: Record, group: str, **others: object) -> int:
    """The code that 36 gets."""
    fields = {
        "offset": record.physical_offset, "group": group, "delayLevel": 0,
        "originMsgId": record.unique_key, "originTopic": record.topic, "unitMode": False,
        "maxReconsumeTimes": 16, **others,
    }  # fmt: skip
    return peer.ask(BACK, fields).code


def test_a_message_that_is_handed_back_comes_again_after_its_level(
    node: RunningNode, peer: RemotingPeer
) -> None:
    peer.ask(SEND, send_fields("work", 1, i="TAGS\x01t\x02UNIQ_KEY\x01W\x02"), b"task")
    (record,) = arrived(node, "work")
    began = time.time()
    assert hand_back(peer, record, "workers") == ResponseCode.SUCCESS
    (again,) = arrived(node, "%RETRY%workers")
    assert time.time() - began >= 1.0, "level 3"
    assert (again.body, again.head.reconsume_times, again.tags) == (b"task", 1, "t")
    assert again.head.born_timestamp == record.head.born_timestamp
    assert plain(again) == {
        **plain(record), "RETRY_TOPIC": "work", "ORIGIN_MESSAGE_ID": record.message_id,
        "WAIT": "false", "DELAY": "3", "REAL_TOPIC": "%RETRY%workers", "REAL_QID": "0",
    }  # fmt: skip
    assert hand_back(peer, again, "workers") == ResponseCode.SUCCESS
    last = arrived(node, "%RETRY%workers", 2)[1]
    assert (last.head.reconsume_times, last.properties["DELAY"]) == (2, "4")
    assert last.properties["RETRY_TOPIC"] == "work"
    assert last.properties["ORIGIN_MESSAGE_ID"] == record.message_id


@pytest.mark.parametrize("others", [{"delayLevel": -1}, {"maxReconsumeTimes": 0}])
def test_a_message_that_failed_too_often_becomes_a_dead_letter(
    node: RunningNode, peer: RemotingPeer, others: dict[str, object]
) -> None:
    name = next(iter(others))
    peer.ask(SEND, send_fields(f"bad-{name}", 0), b"poison")
    (record,) = arrived(node, f"bad-{name}")
    assert hand_back(peer, record, f"g-{name}", **others) == ResponseCode.SUCCESS
    (dead,) = arrived(node, f"%DLQ%g-{name}")
    assert (dead.body, dead.head.reconsume_times) == (b"poison", 1)
    assert (dead.properties["DELAY"], dead.properties["RETRY_TOPIC"]) == ("0", f"bad-{name}")


def test_handing_back_what_is_not_there_says_so(node: RunningNode, peer: RemotingPeer) -> None:
    peer.ask(SEND, send_fields("there", 0), b"x")
    (record,) = arrived(node, "there")
    fields = {"offset": 10**12, "group": "g", "delayLevel": 0}
    for offset in (10**12, record.physical_offset + 1, -5):
        found = peer.ask(BACK, {**fields, "offset": offset})
        assert found.code == ResponseCode.SYSTEM_ERROR
        assert found.header.remark


def test_a_client_that_sends_to_the_retry_topic_itself_gets_a_delay_or_a_dead_letter(
    node: RunningNode, peer: RemotingPeer
) -> None:
    first = send_fields("%RETRY%own", 0, i="RETRY_TOPIC\x01t\x02DELAY\x013\x02", j=1, l=2)
    assert peer.ask(SEND, first, b"again").code == ResponseCode.SUCCESS
    (record,) = arrived(node, "%RETRY%own")
    assert (record.body, record.head.reconsume_times) == (b"again", 1)
    last = send_fields("%RETRY%own", 0, i="RETRY_TOPIC\x01t\x02DELAY\x015\x02", j=3, l=2)
    assert peer.ask(SEND, last, b"never again").code == ResponseCode.SUCCESS
    (dead,) = arrived(node, "%DLQ%own")
    assert (dead.body, dead.properties["DELAY"]) == (b"never again", "-1")


def test_groups_are_kept_as_a_broker_keeps_them(node: RunningNode, peer: RemotingPeer) -> None:
    fields = {"offset": 0, "group": "kept", "delayLevel": 0}
    peer.ask(BACK, fields)
    path = node.root / SUBSCRIPTION_GROUPS_FILE

    def table() -> dict[str, dict[str, object]]:
        document = json.loads(path.read_text()) if path.exists() else {}
        found: dict[str, dict[str, object]] = document.get("subscriptionGroupTable", {})
        return found

    wait_until(lambda: "kept" in table(), "the group is not saved")
    entry = table()["kept"]
    assert (entry["retryMaxTimes"], entry["retryQueueNums"]) == (16, 1)
    assert entry["groupName"] == "kept"


def test_the_levels_go_on_where_they_were_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    root = tmp_path / "store"
    options = (REMOTING, "message_delay_level=2s 3s")
    for end in ("stop", "kill"):
        with RunningNode(root, options, queue_workers=1, readers=1) as node:
            with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
                for level in (1, 2):
                    text = f"DELAY\x01{level}\x02"
                    sent = peer.ask(SEND, send_fields("t", 0, i=text), f"{end} {level}".encode())
                    assert sent.code == ResponseCode.SUCCESS
            if end == "kill":
                wait_until(lambda: len(stored(node, SCHEDULE)) == 4, "not stored")
                node.kill_all()
    time.sleep(2.0)
    with RunningNode(root, options, queue_workers=1, readers=1) as node:
        wanted = {b"kill 1", b"kill 2", b"stop 1", b"stop 2"}

        def bodies() -> list[bytes]:
            return [record.body for record in stored(node, "t")]

        wait_until(lambda: set(bodies()) == wanted, "not all are delivered", 20)
        assert len(bodies()) <= len(wanted) + 2, "the kill may repeat the last second's"
    offsets = json.loads((root / DELAY_OFFSETS_FILE).read_text())["offsetTable"]
    assert offsets == {"1": 2, "2": 2}


def test_killed_tasks_and_writers_repeat_little_and_lose_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    options = (REMOTING, "message_delay_level=1s")
    count = 1500
    with RunningNode(root, options, queue_workers=1, readers=1) as node:
        with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
            for number in range(count):
                peer.ask(SEND, send_fields("t", 0, i="DELAY\x011\x02"), b"%d" % number)
                if number in (500, 1200):
                    node.kill("tasks")
                if number == 900:
                    node.kill("reader")
            node.kill("writer")
            node.wait_all_run()
        found = arrived(node, "t", count)
        wait_until(lambda: len({one.body for one in stored(node, "t")}) == count, "lost some", 20)
        found = stored(node, "t")
    assert {record.body for record in found} == {b"%d" % number for number in range(count)}
    # About a second of deliveries for each kill.
    assert len(found) - count < count, f"{len(found) - count} repeated"
