"""Timer messages and their recall, frame by frame at a real node."""

import base64
import time
from contextlib import closing
from pathlib import Path

import pytest

from keelog.gateway.connection import UNDER_WAY_MAX
from protocol.derived.file_layouts import TimerCheck
from protocol.names import TIMER_CHECK_FILE, TIMER_TOPIC
from protocol.record.codec import Record
from protocol.remoting.codes import RequestCode, ResponseCode
from tests.gateway.test_delayed import arrived, plain, stored
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place, send_fields
from tests.support.shared_node import BROKER, SETTINGS

pytestmark = pytest.mark.process
SEND, RECALL = RequestCode.SEND_MESSAGE_V2, RequestCode.RECALL_MESSAGE
ADDED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def waiting(node: RunningNode, key: str) -> Record:
    def found() -> list[Record]:
        return [one for one in stored(node, TIMER_TOPIC) if one.unique_key == key]

    wait_until(lambda: bool(found()), f"{key} does not wait")
    return found()[0]


def now_ms() -> int:
    return int(time.time() * 1000)


def lateness_ms(record: Record, due_ms: int) -> int:
    return record.head.store_timestamp - due_ms


def test_a_timer_message_is_delivered_at_its_time(node: RunningNode, peer: RemotingPeer) -> None:
    due = now_ms() + 1500
    text = f"TAGS\x01red\x02UNIQ_KEY\x01U1\x02TIMER_DELIVER_MS\x01{due}\x02"
    sent = peer.ask(SEND, send_fields("late-timer", 3, i=text, h=7, j=1), b"body")
    assert sent.code == ResponseCode.SUCCESS
    assert sent.ext["queueId"] == "3"
    out = (due - 1) // 1000 * 1000
    handle = base64.urlsafe_b64decode(sent.ext["recallHandle"]).decode()
    assert handle == f"v1 late-timer {BROKER} {out + 1} U1"
    waits = waiting(node, "U1")
    assert (waits.head.queue_id, waits.message_id) == (0, sent.ext["msgId"])
    assert sent.ext["queueOffset"] == str(waits.head.queue_offset)
    common = {
        "TAGS": "red", "UNIQ_KEY": "U1", "TIMER_DELIVER_MS": str(due), "TIMER_OUT_MS": str(out),
        "REAL_TOPIC": "late-timer", "REAL_QID": "3", **ADDED,
    }  # fmt: skip
    assert plain(waits) == common
    assert stored(node, "late-timer") == []
    (record,) = arrived(node, "late-timer")
    assert 0 <= lateness_ms(record, due) < 500, lateness_ms(record, due)
    assert (record.topic, record.head.queue_id, record.body) == ("late-timer", 3, b"body")
    assert (record.head.flag, record.head.reconsume_times, record.tags) == (7, 1, "red")
    assert record.head.born_timestamp == 1_700_000_000_000
    found = plain(record)
    enqueued, dequeued = int(found.pop("TIMER_ENQUEUE_MS")), int(found.pop("TIMER_DEQUEUE_MS"))
    assert found == common
    assert enqueued <= waits.head.store_timestamp + 1000
    assert dequeued >= due


@pytest.mark.parametrize(("name", "value"), [("TIMER_DELAY_SEC", 1), ("TIMER_DELAY_MS", 700)])
def test_a_delay_counts_from_the_store_time(
    node: RunningNode, peer: RemotingPeer, name: str, value: int
) -> None:
    topic = f"after-{name}"
    asked = value * (1000 if name == "TIMER_DELAY_SEC" else 1)
    text = f"UNIQ_KEY\x01{topic}\x02{name}\x01{value}\x02"
    assert peer.ask(SEND, send_fields(topic, 0, i=text), b"x").code == ResponseCode.SUCCESS
    began = waiting(node, topic).head.store_timestamp
    (record,) = arrived(node, topic)
    assert -50 <= lateness_ms(record, began + asked) < 500


def test_messages_of_many_times_come_each_at_its_own(node: RunningNode, peer: RemotingPeer) -> None:
    node.client.create_topic("many-timers", 1)
    base = now_ms() + 1500
    times = [base + (number * 617) % 2500 for number in range(300)]
    opaques = [
        peer.send(
            SEND, send_fields("many-timers", 0, i=f"TIMER_DELIVER_MS\x01{due}\x02"), b"%d" % due
        )
        for due in times
    ]
    assert {peer.answer_to(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    found = arrived(node, "many-timers", 300)
    assert sorted(int(record.body) for record in found) == sorted(times)
    late = [lateness_ms(record, int(record.body)) for record in found]
    assert min(late) >= 0
    assert max(late) < 500, sorted(late)[-10:]


@pytest.mark.parametrize("due", ["0", "-5"])
def test_what_is_due_already_is_an_ordinary_message(
    node: RunningNode, peer: RemotingPeer, due: str
) -> None:
    topic = f"now-{due}"
    sent = peer.ask(SEND, send_fields(topic, 2, i=f"TIMER_DELAY_MS\x01{due}\x02"), b"x")
    assert (sent.code, sent.ext["queueId"]) == (ResponseCode.SUCCESS, "2")
    assert "recallHandle" not in sent.ext
    (record,) = arrived(node, topic)
    assert record.message_id == sent.ext["msgId"]
    assert "TIMER_OUT_MS" not in record.properties


@pytest.mark.parametrize(
    "text",
    [
        "TIMER_DELAY_SEC\x01259201\x02",
        "TIMER_DELAY_MS\x01soon\x02",
        "TIMER_DEL_UNIQKEY\x01U\x02TIMER_DELAY_MS\x01-1\x02",
    ],
)
def test_times_that_are_none_or_too_far_away_are_refused(peer: RemotingPeer, text: str) -> None:
    sent = peer.ask(SEND, send_fields("refused", 0, i=text), b"x")
    assert sent.code == ResponseCode.MESSAGE_ILLEGAL
    assert sent.ext["MSG_REGION"] == "DefaultRegion"


def recall(peer: RemotingPeer, topic: str, handle: str) -> tuple[int, str | None]:
    answer = peer.ask(
        RECALL, {"producerGroup": "g", "topic": topic, "recallHandle": handle, "bname": BROKER}
    )
    assert answer.ext["MSG_REGION"] == "DefaultRegion"
    return answer.code, answer.ext.get("msgId") or answer.header.remark


def test_a_recalled_message_never_comes(node: RunningNode, peer: RemotingPeer) -> None:
    due = now_ms() // 1000 * 1000 + 3500
    handles = []
    for key in ("GOES", "STAYS"):
        text = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due}\x02"
        sent = peer.ask(SEND, send_fields("recalled", 1, i=text), key.encode())
        handles.append(sent.ext["recallHandle"])
    assert recall(peer, "recalled", handles[0]) == (ResponseCode.SUCCESS, "GOES")
    wait_until(lambda: len(keyed(node, "GOES")) == 2, "no marker")
    marker = keyed(node, "GOES")[1]
    out = (due - 1) // 1000 * 1000
    assert marker.body == b"0"
    found = plain(marker)
    assert abs(int(found.pop("BORN_TIMESTAMP")) - now_ms()) < 20_000
    assert found == {
        "TAGS": "_RECALL_TAG_", "TIMER_DEL_UNIQKEY": "GOES", "UNIQ_KEY": "GOES",
        "TIMER_DELIVER_MS": str(out + 1), "TIMER_OUT_MS": str(out), "PGROUP": "g",
        "REAL_TOPIC": "recalled", "REAL_QID": "0",
    }  # fmt: skip
    assert [record.body for record in arrived(node, "recalled")] == [b"STAYS"]
    time.sleep(1.0)
    assert [record.body for record in stored(node, "recalled")] == [b"STAYS"]


def keyed(node: RunningNode, key: str) -> list[Record]:
    return [one for one in stored(node, TIMER_TOPIC) if one.unique_key == key]


def handle_of(*items: object) -> str:
    return base64.urlsafe_b64encode(" ".join(map(str, items)).encode()).decode()


def test_handles_that_are_wrong_are_refused_as_a_broker_refuses_them(
    node: RunningNode, peer: RemotingPeer
) -> None:
    node.client.create_topic("wrong", 1)
    soon, illegal = now_ms() + 60_000, ResponseCode.ILLEGAL_OPERATION
    for topic, handle, wanted in (
        ("nowhere", "x", (ResponseCode.TOPIC_NOT_EXIST, "recall failed, the topic[nowhere] not")),
        ("wrong", "x", (illegal, "recall handle is invalid")),
        ("wrong", handle_of("v1", "other", BROKER, soon, "K"), (illegal, "topic not match")),
        ("wrong", handle_of("v1", "wrong", "b", soon, "K"), (illegal, "service not available")),
        ("wrong", handle_of("v1", "wrong", BROKER, 5, "K"), (illegal, "timestamp invalid")),
        ("wrong", handle_of("v1", "wrong", BROKER, "x", "K"), (illegal, "timestamp invalid")),
    ):
        code, text = recall(peer, topic, handle)
        assert code == wanted[0]
        assert wanted[1] in str(text)


def test_recall_is_off_unless_it_is_enabled(tmp_path: Path) -> None:
    with (
        RunningNode(tmp_path / "store", (REMOTING,), queue_workers=1, readers=1) as node,
        closing(RemotingPeer(remoting_place(node.stderr))) as peer,
    ):
        forbidden = ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
        assert recall(peer, "t", "x") == forbidden


@pytest.mark.faults
def test_a_message_of_a_far_time_is_stored_anew_while_it_waits(tmp_path: Path) -> None:
    settings = (*SETTINGS, "timer_roll_window_slot=2")
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node:
        with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
            due = now_ms() // 1000 * 1000 + 5300
            for key in ("FAR", "GONE"):
                text = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due}\x02"
                sent = peer.ask(SEND, send_fields("far", 0, i=text), key.encode())
            assert recall(peer, "far", sent.ext["recallHandle"])[0] == ResponseCode.SUCCESS
        (record,) = arrived(node, "far")
        assert (record.body, 0 <= lateness_ms(record, due) < 500) == (b"FAR", True)
        waited = keyed(node, "FAR")
        assert len(waited) >= 2
        times = [one.properties.get("TIMER_ROLL_TIMES") for one in waited]
        assert times == [None, *(str(number) for number in range(1, len(waited)))]
        assert record.properties["TIMER_ROLL_TIMES"] == times[-1]
        assert len({one.properties["TIMER_OUT_MS"] for one in waited}) == 1


def test_status_says_how_many_wait(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", SETTINGS, queue_workers=1, readers=1) as node:
        with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
            for _ in range(3):
                peer.ask(SEND, send_fields("hour", 0, i="TIMER_DELAY_SEC\x013600\x02"), b"x")
        wait_until(
            lambda: node.client.status().raw["timers"]["pending"] >= 3, "they are not counted"
        )
        assert node.client.status().raw["timers"]["pending"] == 3


@pytest.mark.parametrize(
    ("end", "pause_ms"),
    [
        ("stop", 100),
        pytest.param("stop", 600, marks=pytest.mark.faults),
        pytest.param("kill", 600, marks=pytest.mark.faults),
    ],
)
def test_timers_go_on_where_they_were_after_an_end(tmp_path: Path, end: str, pause_ms: int) -> None:
    root = tmp_path / "store"
    wanted = [b"%d" % number for number in range(10)]
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as node:
        with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
            began = now_ms()
            for body in wanted:
                due = began + 1000 + pause_ms * int(body)
                text = f"TIMER_DELIVER_MS\x01{due}\x02"
                sent = peer.ask(SEND, send_fields("t", 0, i=text), body)
                assert sent.code == ResponseCode.SUCCESS
        arrived(node, "t", 2)
        if end == "kill":
            node.kill_all()
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as node:
        wait_until(lambda: {one.body for one in stored(node, "t")} == set(wanted), "some are lost")
        time.sleep(1.5)
        found = stored(node, "t")
        assert len(found) == 10 or (end == "kill" and len(found) <= 15)
        for record in found:
            assert lateness_ms(record, int(record.properties["TIMER_DELIVER_MS"])) >= 0
    check = TimerCheck.parse((root / TIMER_CHECK_FILE).read_bytes())
    assert (check.queue_offset, check.master_offset) == (10, 10)
    assert check.read_ms > began + 600 + 9 * pause_ms


@pytest.mark.faults
def test_killed_tasks_gateways_and_writers_lose_no_timer_message(tmp_path: Path) -> None:
    root, count = tmp_path / "store", 6000
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as node:
        began = now_ms()
        sent: set[bytes] = set()
        with closing(RemotingPeer(remoting_place(node.stderr))) as peer:
            for first in range(0, count, UNDER_WAY_MAX):
                opaques = {}
                for number in range(first, min(first + UNDER_WAY_MAX, count)):
                    due = began + 3000 + (number * 7919) % 15_000
                    body = b"%d" % number
                    text = f"TIMER_DELIVER_MS\x01{due}\x02"
                    opaques[peer.send(SEND, send_fields("t", 0, i=text), body)] = body
                for opaque, body in opaques.items():
                    if peer.answer_to(opaque).code == ResponseCode.SUCCESS:
                        sent.add(body)
        assert len(sent) == count
        for role in ("tasks", "writer", "tasks", "gateway", "reader", "tasks", "writer"):
            time.sleep(1.7)
            node.kill(role)
        node.wait_all_run()
        wait_until(lambda: {one.body for one in stored(node, "t")} == sent, "lost some", 60)
        time.sleep(1.5)
        found = stored(node, "t")
        repeats = len(found) - count
        # About two seconds of deliveries for each kill of the tasks.
        assert repeats <= 3 * 2 * count / 15, repeats
        for record in found:
            due = int(record.properties["TIMER_DELIVER_MS"])
            assert lateness_ms(record, due) >= 0
