"""What errors about damage propose is a command that can be typed as it is."""

from pathlib import Path

import pytest

from node.store.file_cache import see_all_damage
from node.store.opening import open_store
from protocol.errors import MessageDamaged, NotFound, StoreDamaged
from tests.support.damaged_store import make_store, queue_of
from tests.workers.living_log import SETTINGS


def test_the_hints_of_damaged_records_name_the_store_and_deep(tmp_path: Path) -> None:
    root = tmp_path / "my store"
    whole = make_store(root)
    record = whole.records[5]
    whole.flip(record.physical_offset + 100)
    command = f"keelog store verify '{root}' --deep"
    with open_store(root, SETTINGS) as store:
        with pytest.raises(StoreDamaged) as looked_up:
            store.log.look_up(record.physical_offset)
        assert looked_up.value.hint.endswith(f"on the node's machine, with: {command}")
        topic, queue_id = queue_of(record)
        queue = store.queue(topic, queue_id)
        assert queue is not None
        from node.store.query.pull import record_of

        unit = queue.unit(record.head.queue_offset)
        assert unit is not None
        with pytest.raises(MessageDamaged) as pulled:
            record_of(store.log, queue, record.head.queue_offset, unit)
        assert command in pulled.value.hint
        after = record.head.queue_offset + 1
        assert f"keelog consume {topic} --queue {queue_id} -o {after}" in pulled.value.hint


def test_a_file_of_no_store_has_a_hint_too(tmp_path: Path) -> None:
    assert see_all_damage(tmp_path / "x" / "y").endswith("keelog store verify DIR --deep")


def test_a_topic_with_the_logs_name_is_not_taken_for_the_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    file = tmp_path / "consumequeue" / "commitlog" / "0" / ("0" * 20)
    file.parent.mkdir(parents=True)
    assert see_all_damage(file).endswith(f"keelog store verify {tmp_path} --deep")


def test_an_id_of_no_record_has_a_hint_about_messages(tmp_path: Path) -> None:
    whole = make_store(tmp_path)
    with open_store(tmp_path, SETTINGS) as store:
        with pytest.raises(NotFound) as missed:
            store.log.look_up(whole.records[3].physical_offset + 1)
        assert missed.value.hint.startswith(
            "look for the message by one of its keys: keelog msg find"
        )
