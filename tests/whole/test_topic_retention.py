"""Topics with a retention of their own on a real node: shorter, and longer, than the node's."""

import json
import time
from pathlib import Path

import pytest

import keelog
from keelog.cli.main import run
from node.store.verify.verify import verify
from protocol.names import COMMIT_LOG_DIR, TOPICS_FILE
from tests.support.golden import GetStore, facts
from tests.support.node import RunningNode, wait_until
from tests.whole.test_retention import BRISK, SEGMENT_BYTES, SMALL, age
from workers.rebuild import rebuild

pytestmark = pytest.mark.process
NAME = "small-clean"
FOREVER = "file_reserved_time=1000000"


def visible(node: RunningNode, topic: str) -> list[int]:
    """The offsets that readers get, of all queues."""
    tail = node.client.tail(topic, "earliest", until_end=True)
    return [message.queue_offset for message in tail]


def two_topics() -> tuple[str, str]:
    """Two topics of the golden store that have messages."""
    rows = facts(NAME).messages
    found = sorted({row["topic"] for row in rows if not row["topic"].startswith(("%", "SCHED"))})
    return found[0], found[1]


def test_a_topic_loses_what_is_past_its_own_retention_and_no_other_does(
    golden_copy: GetStore,
) -> None:
    root = golden_copy(NAME)
    short, other = two_topics()
    node = RunningNode(root, [FOREVER])
    with node:
        node.wait_dispatched()
        before, others = visible(node, short), visible(node, other)
        assert len(before) > 0
        assert len(others) > 0
        queues = next(one.queues for one in node.client.topics() if one.topic == short)
        new = node.client.send(short, b"young", queue_id=0)
        node.client.create_topic(short, queues, retention_hours=1)
        wait_until(lambda: visible(node, short) == [new.queue_offset], "old messages stay")
        assert visible(node, other) == others
        place = {one.queue_id: one for one in node.client.offsets(short)}
        assert place[0].min_offset == new.queue_offset
        assert place[0].max_offset == new.queue_offset + 1
        node.kill_all()
    rebuild(root)
    with RunningNode(root, [FOREVER]) as again:
        again.wait_dispatched()
        assert visible(again, short) == [new.queue_offset]
        assert visible(again, other) == others
    assert verify(root, deep=True).findings == []


@pytest.mark.faults
def test_a_topic_with_a_longer_retention_keeps_its_segments_until_it_is_taken_back(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    with (
        RunningNode(root, [*SMALL, *BRISK]) as node,
        node.client.producer(timeout=30.0) as producer,
    ):
        node.client.create_topic("kept", 1, retention_hours=100)
        producer.send_many("usual", [bytes(200)] * 1500, queue_id=0)
        receipts = producer.send_many("kept", [bytes(200)] * 1500, queue_id=0)
        producer.send_many("usual", [bytes(200)] * 1500, queue_id=0)
        node.wait_dispatched()
        end = age(root, keep=3)
        first = min(receipt.physical_offset for receipt in receipts)
        kept_from = first - first % SEGMENT_BYTES
        assert 0 < kept_from < end
        # The topic's first message is looked for once a minute, and when a topic changes.
        node.client.create_topic("other", 1)
        wait_until(lambda: node.log_state().min_offset == kept_from, "nothing goes")
        time.sleep(1.0)  # ten rounds
        assert node.log_state().min_offset == kept_from
        assert len(visible(node, "kept")) == 1500
        node.client.create_topic("kept", 1, retention_hours=0)
        wait_until(lambda: node.log_state().min_offset == end, "the rest stays")
    assert min(int(path.name) for path in (root / COMMIT_LOG_DIR).iterdir()) == end


def test_the_command_line_sets_shows_and_keeps_a_retention(
    shared_node: RunningNode, keelog_topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node, topic = shared_node, keelog_topic

    def cli(*words: str) -> dict[str, object]:
        assert run(["topic", *words, "--node", node.endpoint, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    cli("create", topic, "--queues", "2", "--retention", "24")
    assert cli("describe", topic)["retention_hours"] == 24
    cli("create", topic, "--queues", "4")
    assert cli("describe", topic)["retention_hours"] == 24
    table = json.loads((node.root / TOPICS_FILE).read_text())
    entry = table["topicConfigTable"][topic]
    assert entry["attributes"] == {"reserve.time": "24"}, "as RocketMQ's own attribute"
    cli("create", topic, "--queues", "4", "--retention", "0")
    info = next(one for one in node.client.topics() if one.topic == topic)
    assert info.retention_hours == 0
    with pytest.raises(keelog.BadRequest):
        node.client.create_topic(topic, 1, retention_hours=-1)
