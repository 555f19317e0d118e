"""What a store with groups, delays, timers and transactions prints can be sent again."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_reserved_topic
from protocol.record.properties import SET_BY_NODE
from tests.cli.test_consume import Done
from tests.gateway.test_transactions import COMMIT, ROLLBACK, end, producer, send_half
from tests.support.cli import keelog_text
from tests.support.flipped_record import flip_record
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("sent-again")]
SETTINGS = (REMOTING, "message_delay_level=1s 1s 1s 1s 1h", "transaction_op_batch_interval=100")
GROUP, DEAD, RETRY = "workers", "%DLQ%workers", "%RETRY%workers"
MINE = ("jobs", "late", "timed", "paid")


def command(node: RunningNode, *words: str, text: str = "") -> Done:
    return keelog_text(node.endpoint, words, text)


def rows_of(done: Done) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def printed(node: RunningNode, topic: str) -> list[dict[str, Any]]:
    return rows_of(command(node, "consume", topic, "-e", "--jsonl"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("sent-again") / "store"
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as running:
        fill(running)
        yield running


def fill(node: RunningNode) -> None:
    """Messages of every kind, delivered, waiting, refused and dead."""
    client = node.client
    for number in range(4):
        client.send("jobs", b"job %d" % number, keys=f"j{number}", tags="t", properties={"a": "b"})
    for level, body in ((1, b"came"), (5, b"waits")):
        client.send("late", body, delay_level=level)
    for delay, body in ((1.0, b"came"), (3600.0, b"waits")):
        client.send("timed", body, delay=delay)
    with closing(producer(node, "shop")) as peer:
        for key, outcome in (("K1", COMMIT), ("K2", ROLLBACK), ("K3", None)):
            sent = send_half(peer, "paid", "shop", key)
            if outcome is not None:
                end(peer, sent, "shop", outcome)
    with client.consumer(GROUP, "jobs", start="earliest") as consumer:
        while dead_count(node) < 3:
            message = consumer.get(0.2)
            if message is None:
                continue
            if message.body == b"job 0":
                message.ack()
            elif message.body == b"job 1" and not message.reconsume_times:
                message.retry()  # it comes again through the retry topic
            else:
                message.retry(-1)
    wait_until(lambda: all(counts(node, *MINE).values()), "not all were delivered", 30)
    node.wait_dispatched()


def counts(node: RunningNode, *topics: str) -> dict[str, int]:
    known = {topic.topic for topic in node.client.topics()}
    ends = {topic: node.client.offsets(topic) if topic in known else () for topic in topics}
    return {topic: sum(queue.max_offset for queue in ends[topic]) for topic in topics}


def dead_count(node: RunningNode) -> int:
    return counts(node, DEAD)[DEAD]


def told(row: dict[str, Any]) -> tuple[Any, ...]:
    """What its producer said of a message."""
    own = {name: text for name, text in row["properties"].items() if name not in SET_BY_NODE}
    return row["body"], row["tags"], tuple(row["keys"]), tuple(sorted(own.items())), row["queue_id"]


@pytest.mark.parametrize("option", [(), ("--raw-body",)], ids=["plain", "stored"])
def test_a_printed_store_is_the_same_messages_in_a_new_one(
    node: RunningNode, tmp_path: Path, option: tuple[str, ...]
) -> None:
    dumped = command(node, "store", "dump", str(node.root), "--jsonl", *option)
    assert dumped.returncode == 0
    with RunningNode(tmp_path / "new", (REMOTING,), queue_workers=1, readers=1) as other:
        done = command(other, "produce", "-", "--jsonl", text=dumped.stdout)
        assert done.returncode == 0, done.stderr
        left_out = Counter(
            row["topic"] for row in map(json.loads, dumped.stdout.splitlines())
            if row["topic"] not in (*MINE, DEAD, RETRY)
        )  # fmt: skip
        assert {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"} <= set(left_out)
        for topic, count in left_out.items():
            word = "message" if count == 1 else "messages"
            assert f"{count} {word} left out: of topic {topic}," in done.stderr
        other.wait_dispatched()
        for topic in (*MINE, DEAD):
            assert sorted(map(told, printed(other, topic))) == sorted(
                map(told, printed(node, topic))
            )
        assert counts(other, "late", "timed", "paid") == {"late": 1, "timed": 1, "paid": 1}


def test_dead_letters_can_be_sent_to_any_topic(node: RunningNode) -> None:
    text = command(node, "consume", DEAD, "-e", "--jsonl").stdout
    done = command(node, "produce", "jobs2", "--jsonl", "--any-topic", text=text)
    assert len(rows_of(done)) == 3
    for row in printed(node, "jobs2"):
        assert not {"DELAY", "REAL_TOPIC", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"} & set(
            row["properties"]
        )


def test_what_waits_does_not_come_early_by_another_topic(node: RunningNode) -> None:
    rows = rows_of(command(node, "store", "dump", str(node.root), "--jsonl"))
    system = [row for row in rows if is_reserved_topic(row["topic"])]
    assert {HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC} <= {row["topic"] for row in system}
    text = "\n".join(map(json.dumps, [*system, {"topic": "mine", "body": "mine"}]))
    done = command(node, "produce", "to", "--jsonl", "--any-topic", text=text)
    assert [row["topic"] for row in rows_of(done)] == ["to"]
    assert "left out: of topic SCHEDULE_TOPIC_XXXX, which is the system's own" in done.stderr


def test_what_a_person_writes_is_not_left_out_in_silence(node: RunningNode) -> None:
    """Only an object that was stored has properties that the node set."""
    mine = json.dumps({"body": "x", "properties": {"DELAY": "3"}})
    done = command(node, "produce", "jobs3", "--jsonl", text=mine)
    assert done.returncode == 1
    assert "delay" in done.stderr


@pytest.mark.parametrize("flags", [4, 12])
def test_a_message_that_no_reader_got_does_not_become_one(node: RunningNode, flags: int) -> None:
    """Older stores have half messages in the topic itself, which no queue leads to."""
    half = json.dumps({"topic": "t", "queue_offset": 0, "sys_flag": flags, "body": "half"})
    done = command(node, "produce", "-", "--jsonl", text=half)
    assert (done.returncode, done.stdout) == (0, "")
    assert "1 message left out: parts of transactions that were not committed" in done.stderr


@pytest.mark.parametrize("quiet", [(), ("--quiet",)], ids=["receipts", "quiet"])
def test_the_hint_after_a_failure_names_what_is_not_stored(
    node: RunningNode, quiet: tuple[str, ...]
) -> None:
    """Of five lines in batches of two, the third cannot be stored; the fourth is."""
    topic = f"partly{len(quiet)}"
    lines = [{"body": f"{number}"} for number in range(1, 6)]
    lines[2]["queue_id"] = 99  # type: ignore[assignment]
    text = "\n".join(map(json.dumps, lines))
    done = command(node, "produce", topic, "--jsonl", "--batch", "2", *quiet, text=text)
    assert done.returncode == 7
    assert "cause: 3 messages stored, then: message 3: " in done.stderr
    assert "try: send message 3 again, and what comes after message 4" in done.stderr
    node.wait_dispatched()
    assert {row["body"] for row in printed(node, topic)} == {"1", "2", "4"}


def test_dead_letters_go_back_to_their_group_alone_and_once(node: RunningNode) -> None:
    assert {"group": GROUP, "dead": 3} in rows_of(command(node, "dead", "ls", "--jsonl"))
    rows = rows_of(command(node, "dead", "ls", GROUP, "--jsonl"))
    assert [(row["origin_topic"], row["sent_back"]) for row in rows] == [("jobs", False)] * 3
    resend = ("dead", "resend", GROUP, "--json")
    (first,) = (row for row in rows if row["body"] == "job 2")

    plan = json.loads(command(node, *resend, "--id", first["msg_id"]).stdout)
    assert plan == {
        "group": GROUP, "topic": RETRY, "found": 1, "sent_back_before": 0, "sent": 1,
        "applied": False,
    }  # fmt: skip
    before = counts(node, RETRY)[RETRY]
    assert (
        json.loads(command(node, *resend, "--id", first["msg_id"], "--apply").stdout)["sent"] == 1
    )
    done = json.loads(command(node, *resend, "--all", "--apply").stdout)
    assert (done["found"], done["sent_back_before"], done["sent"]) == (3, 1, 2)
    again = json.loads(command(node, *resend, "--all", "--apply").stdout)
    assert (again["sent_back_before"], again["sent"]) == (3, 0)
    node.wait_dispatched()
    assert counts(node, RETRY)[RETRY] == before + 3
    shown = rows_of(command(node, "dead", "ls", GROUP, "--jsonl"))
    assert [row["sent_back"] for row in shown] == [True] * 3

    got = {}
    with node.client.consumer(GROUP, "jobs") as consumer:
        for message in consumer:
            got[message.body] = (message.topic, message.reconsume_times, message.keys)
            assert message.properties["a"] == "b"
            message.ack()
            if len(got) == 3:
                break
    assert got == {b"job %d" % n: ("jobs", 0, [f"j{n}"]) for n in (1, 2, 3)}
    forced = json.loads(command(node, *resend, "--all", "--again").stdout)
    assert forced["sent"] == 3


def test_a_message_that_dies_again_is_a_dead_letter_of_its_own(node: RunningNode) -> None:
    dead = "%DLQ%fails"
    node.client.send("failing", b"poison")
    for number in range(1, 3):
        with node.client.consumer("fails", "failing", start="earliest") as consumer:
            next(iter(consumer)).retry(-1)
        while counts(node, dead)[dead] < number:
            time.sleep(0.05)
        done = command(node, "dead", "resend", "fails", "--all", "--apply", "--json")
        answer = json.loads(done.stdout)
        assert (answer["found"], answer["sent"]) == (number, 1)


def test_what_is_not_there_is_said(node: RunningNode) -> None:
    for words, code, text in (
        (["ls", "nobody"], 3, "group nobody has no such dead letter"),
        (["resend", "nobody", "--all", "--apply"], 3, "no such dead letter"),
        (["resend", GROUP, "--id", "0A", "--apply"], 3, "has the id 0A"),
        (["resend", GROUP], 2, "say which"),
        (["resend", GROUP, "--all", "--since", "-1h"], 2, "say which"),
    ):
        done = command(node, "dead", *words)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    assert "%RETRY%nobody" not in {topic.topic for topic in node.client.topics()}


def test_a_damaged_copy_hides_no_dead_letter_and_counts_as_not_sent(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as own:
        for number in range(2):
            own.client.send("%DLQ%g", b"a letter that died %d" % number, queue_id=0)
        own.wait_dispatched()
        resend = ("dead", "resend", "g", "--all", "--apply", "--json")
        assert json.loads(command(own, *resend).stdout)["sent"] == 2
        own.wait_dispatched()
        first = own.client.get(topic="%RETRY%g", queue_id=0, queue_offset=0)
        flip_record(own.root, first.physical_offset)
        done = command(own, "dead", "ls", "g", "--jsonl")
        assert done.returncode == 5, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["sent_back"] for row in rows] == [False, True]
        assert done.stderr.count("damage: ") == 1
        again = command(own, *resend)
        assert (again.returncode, json.loads(again.stdout)["sent"]) == (5, 1)
