"""Topics: made by the first send, refused when they must be, kept as a broker wrote them."""

import errno
import json
import os
from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.store.config.topics_file import Topic, TopicsFile
from node.writer import topic_table
from node.writer.topic_table import TopicTable
from protocol.errors import (
    BadRequest,
    IllegalMessage,
    NotAllowed,
    ServiceNotAvailable,
    StoreDamaged,
    UnknownTopic,
)
from protocol.ids import Queue
from protocol.requests import CreateTopicFields


def test_a_topic_with_an_attribute_that_is_not_offered_is_served_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = (("message.type", "PRIORITY"),)
    TopicsFile(tmp_path).put([Topic("odd", 1, 1, attributes=odd), Topic("plain", 1, 1)], 1)
    topics = table(tmp_path)
    assert topics.for_send("odd").attributes == odd
    assert [one.getMessage() for one in caplog.records] == [
        "a topic has an attribute that is not offered"
    ]
    kept, _ = topics.create(CreateTopicFields("odd", 2, attributes=dict(odd)))
    assert (kept.write_queues, kept.attributes) == (2, odd)
    with pytest.raises(NotAllowed, match="PRIORITY"):
        topics.create(CreateTopicFields("plain", 2, attributes=dict(odd)))
    with pytest.raises(NotAllowed, match="does not know it"):
        topics.create(CreateTopicFields("plain", 2, attributes={"nosuch": "1"}))


def table(root: Path, *stored: Queue, **settings: bool) -> TopicTable:
    return TopicTable(TopicsFile(root), Settings(**settings), stored, lambda: 1_700_000_000_000)  # type: ignore[arg-type]


def test_the_first_send_makes_a_topic_of_eight_queues(tmp_path: Path) -> None:
    assert table(tmp_path).for_send("orders") == Topic("orders", 8, 8, 6)
    document = json.loads((tmp_path / "config/topics.json").read_text())
    assert document["topicConfigTable"]["orders"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }
    assert document["dataVersion"]["counter"] == 1


@pytest.mark.parametrize("call", ["fsync", "replace", "link"])
def test_without_room_a_topic_is_neither_made_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    topics = table(tmp_path)
    topics.create(CreateTopicFields("old", 4, 6))
    topics.create(CreateTopicFields("other", 4, 6))
    before = (tmp_path / "config/topics.json").read_bytes()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, no_room)
        for change in (
            lambda: topics.for_send("new"),
            lambda: topics.create(CreateTopicFields("old", 8, 6)),
            lambda: topics.forget("other"),
        ):
            with pytest.raises(ServiceNotAvailable, match=r"disk_full: no room for .*topics.json"):
                change()
            assert topics.all() == [Topic("old", 4, 4), Topic("other", 4, 4)]
    assert (tmp_path / "config/topics.json").read_bytes() == before
    assert topics.for_send("new").write_queues == 8
    assert table(tmp_path).all() == topics.all()


def test_a_topic_that_only_the_log_knows_keeps_its_queues(tmp_path: Path) -> None:
    assert table(tmp_path, Queue("old", 11)).for_send("old").write_queues == 12


def test_with_auto_create_off_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic):
        table(tmp_path, auto_create_topic_enable=False).for_send("orders")
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\0", "a\n", "x" * 128, "é"])
def test_an_illegal_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(IllegalMessage):
        table(tmp_path).for_send(name)


def test_topics_and_queues_are_bounded_and_those_that_are_there_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_table, "TOPICS_MAX", 3)
    monkeypatch.setattr(topic_table, "QUEUES_MAX", 24)
    topics = table(tmp_path)
    for name in ("a", "b", "c"):
        topics.for_send(name)
    before = (tmp_path / "config/topics.json").read_bytes()
    with pytest.raises(NotAllowed, match="3 topics with 24 queues are there already"):
        topics.for_send("d")
    with pytest.raises(NotAllowed):
        topics.create(CreateTopicFields("d", 1, 6))
    with pytest.raises(NotAllowed, match="24 are allowed"):
        topics.create(CreateTopicFields("c", 9, 6))
    assert (tmp_path / "config/topics.json").read_bytes() == before
    assert topics.for_send("c").write_queues == 8
    topics.forget("a")
    assert topics.create(CreateTopicFields("c", 9, 6))[0].write_queues == 9
    with pytest.raises(NotAllowed):
        topics.for_send("d")
    assert topics.create(CreateTopicFields("d", 7, 6))[1]


def test_a_topic_without_a_write_queue_takes_no_messages(tmp_path: Path) -> None:
    topics = table(tmp_path)
    with pytest.raises(NotAllowed, match="no queue to write to"):
        topics.choose_queue(Topic("closing", 8, 0))


def test_reserved_and_read_only_topics_take_no_messages(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.create(CreateTopicFields("closed", 4, 4))
    for name in ("closed", "SCHEDULE_TOPIC_XXXX"):
        with pytest.raises(NotAllowed):
            topics.for_send(name)


@pytest.mark.parametrize("perm", [-1, 8, 9])
def test_a_topic_has_a_permission_that_a_broker_knows(tmp_path: Path, perm: int) -> None:
    with pytest.raises(BadRequest, match="perm"):
        table(tmp_path).create(CreateTopicFields("orders", 4, perm))
    assert not (tmp_path / "config").exists()


def test_queues_are_taken_in_turn(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topic = topics.for_send("orders")
    taken = [topics.choose_queue(topic) for _ in range(16)]
    assert taken == [(taken[0] + i) % 8 for i in range(16)]


def test_a_queue_that_the_topic_lacks_is_refused(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topic = topics.for_send("orders")
    for queue_id in (-1, 8):
        with pytest.raises(BadRequest):
            topics.check_queue(topic, queue_id)


def test_what_a_broker_wrote_and_we_do_not_know_stays(tmp_path: Path) -> None:
    path = tmp_path / "config/topics.json"
    path.parent.mkdir()
    path.write_text(
        '{"dataVersion":{"counter":41,"stateVersion":7},"extra":{1:"{2:",3:[4]},"topicConfigTable":'
        '{"T":{"attributes":{"+queue.type":"SimpleCQ"},"perm":6,"readQueueNums":4,"writeQueueNums":4}}}'
    )
    table(tmp_path).create(CreateTopicFields("T", 6, 6))
    document = json.loads(path.read_text())
    assert document["extra"] == {"1": "{2:", "3": [4]}
    assert document["dataVersion"]["counter"] == 42
    assert document["dataVersion"]["stateVersion"] == 7
    assert document["topicConfigTable"]["T"]["attributes"] == {"+queue.type": "SimpleCQ"}
    assert document["topicConfigTable"]["T"]["writeQueueNums"] == 6
    assert "41" in (tmp_path / "config/topics.json.bak").read_text()


def test_the_backup_serves_when_the_file_is_gone(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.create(CreateTopicFields("one", 1, 6))
    topics.create(CreateTopicFields("two", 1, 6))
    (tmp_path / "config/topics.json").unlink()
    assert list(TopicsFile(tmp_path).topics) == ["one"]


def test_a_file_that_is_no_json_is_damage_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "config/topics.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(StoreDamaged, match=r"topics\.json"):
        TopicsFile(tmp_path)


def test_a_deleted_topic_is_gone_from_the_file(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.create(CreateTopicFields("one", 1, 6))
    assert topics.has("one")
    topics.forget("one")
    assert not topics.has("one")
    topics.forget("one")
    assert TopicsFile(tmp_path).topics == {}


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[]", b'{"topicConfigTable":7}', b'{"topicConfigTable":{"T":7}}'],
    ids=["not UTF-8", "a list", "no table", "no topic"],
)
def test_a_file_of_another_shape_is_damage_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config/topics.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreDamaged):
        TopicsFile(tmp_path)


def test_a_change_leaves_as_it_was_what_it_does_not_name(tmp_path: Path) -> None:
    topics = table(tmp_path)
    made = CreateTopicFields("orders", 16, 4, read_queues=12)
    assert topics.create(made) == (Topic("orders", 12, 16, 4), True)
    kept = topics.create(CreateTopicFields("orders", retention_hours=24))
    assert kept == (Topic("orders", 12, 16, 4, 24), False)
    assert topics.create(CreateTopicFields("orders", perm=6))[0] == Topic("orders", 12, 16, 6, 24)
    assert topics.create(CreateTopicFields("orders", 4))[0] == Topic("orders", 4, 4, 6, 24)
    assert topics.create(CreateTopicFields("fresh"))[0] == Topic("fresh", 8, 8, 6)


def test_a_topic_that_only_has_messages_keeps_all_of_their_queues(tmp_path: Path) -> None:
    topics = table(tmp_path, Queue("orders", 11))
    made = topics.create(CreateTopicFields("orders", retention_hours=24))
    assert made == (Topic("orders", 12, 12, 6, 24), True)


def test_fewer_queues_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topics = table(tmp_path)
    topics.create(CreateTopicFields("orders", 16))
    assert not caplog.records
    topics.create(CreateTopicFields("orders", 8))
    assert "consumers of groups read fewer queues" in caplog.text
