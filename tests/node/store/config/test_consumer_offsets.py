"""`config/consumerOffset.json`: what is kept, what is refused, and what a crash may leave."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.store.config import config_table, consumer_offsets
from node.store.config.consumer_offsets import (
    OFFSETS_MAX,
    ConsumerOffsets,
    read_group_offsets,
)
from protocol.errors import BadRequest, NotAllowed, StoreDamaged, UnknownTopic
from protocol.ids import Queue
from protocol.names import CONSUMER_OFFSETS_FILE

ENDS = {Queue("orders", 0): 10, Queue("orders", 1): 5}


@contextmanager
def opened(root: Path, ends: dict[Queue, int] = ENDS) -> Iterator[ConsumerOffsets]:
    table = ConsumerOffsets(root, ends, {queue.topic for queue in ends}.__contains__, lambda: 7)
    yield table
    table.close()


def write(root: Path, document: Any, name: str = CONSUMER_OFFSETS_FILE) -> None:
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def stored(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / CONSUMER_OFFSETS_FILE).read_text())
    return found


def test_a_place_survives_a_stop_in_the_form_of_a_broker(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        assert table.get("orders", "billing") == {}
        table.commit("orders", "billing", {0: 4, 1: 5})
        table.commit("orders", "billing", {0: 6})
    assert stored(tmp_path)["offsetTable"] == {"orders@billing": {"0": 6, "1": 5}}
    assert stored(tmp_path)["dataVersion"] == {"counter": 1, "stateVersion": 0, "timestamp": 7}
    with opened(tmp_path) as table:
        assert table.get("orders", "billing") == {0: 6, 1: 5}


def test_a_place_is_saved_within_a_second_and_no_more_often(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        table.commit("orders", "billing", {0: 1})
        table.turn(100.0)
        while table._saving is not None and not table._saving.done():
            pass
        assert stored(tmp_path)["offsetTable"] == {"orders@billing": {"0": 1}}
        table.commit("orders", "billing", {0: 2})
        table.turn(100.5)
        assert stored(tmp_path)["offsetTable"] == {"orders@billing": {"0": 1}}
        table.turn(101.1)
        while table._saving is not None and not table._saving.done():
            pass
        assert stored(tmp_path)["offsetTable"] == {"orders@billing": {"0": 2}}
        assert (tmp_path / f"{CONSUMER_OFFSETS_FILE}.bak").exists()


def test_when_a_place_changed_last_is_known_and_a_repeated_commit_does_not_count(
    tmp_path: Path,
) -> None:
    clock = iter(range(10, 20))
    knows = {queue.topic for queue in ENDS}.__contains__
    table = ConsumerOffsets(tmp_path, ENDS, knows, lambda: next(clock))
    table.commit("orders", "billing", {0: 4, 1: 5})
    table.commit("orders", "billing", {0: 4})
    table.commit("orders", "billing", {0: 6, 1: 5})
    (places,) = table.all_of("billing")
    assert (places.offsets, places.moved_ms) == ({0: 6, 1: 5}, {0: 11, 1: 10})
    table.forget_group("billing")
    table.commit("orders", "billing", {1: 1})
    (places,) = table.all_of("billing")
    assert places.moved_ms == {1: 12}
    table.close()


def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        table.turn(0.0)
    assert not (tmp_path / CONSUMER_OFFSETS_FILE).exists()


def test_what_a_broker_wrote_is_read_and_what_is_not_known_stays(tmp_path: Path) -> None:
    table_of_a_broker = (
        '{"dataVersion":{"counter":3,"stateVersion":1,"timestamp":2},"extra":[1],'
        '"offsetTable":{"orders@g":{0:3,1:-1},"orders@g@broadcast":{0:2},"other@g":{0:99}},'
        '"pullOffsetTable":{"orders@g":{0:12}}}'
    )
    write(tmp_path, table_of_a_broker)
    with opened(tmp_path) as table:
        assert table.get("orders", "g") == {0: 3}
        table.commit("orders", "g", {0: 4})
    after = stored(tmp_path)
    assert after["offsetTable"] == {
        "orders@g": {"0": 4, "1": -1},
        "orders@g@broadcast": {"0": 2},
        "other@g": {"0": 99},
    }
    assert (after["extra"], after["pullOffsetTable"]) == ([1], {"orders@g": {"0": 12}})
    assert after["dataVersion"]["counter"] == 4


def test_a_place_beyond_the_end_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        for queue, offset in ((0, 11), (1, 6), (2, 1)):
            with pytest.raises(BadRequest, match=f"queue {queue} of orders ends at"):
                table.commit("orders", "billing", {queue: offset})
        with pytest.raises(UnknownTopic):
            table.commit("nosuch", "billing", {0: 0})
        assert table.get("orders", "billing") == {}


def test_a_place_that_a_power_loss_left_beyond_the_end_becomes_the_end(tmp_path: Path) -> None:
    write(tmp_path, {"offsetTable": {"orders@g": {"0": 50, "1": 2}}})
    with opened(tmp_path) as table:
        assert table.get("orders", "g") == {0: 10, 1: 2}
    assert stored(tmp_path)["offsetTable"] == {"orders@g": {"0": 10, "1": 2}}


@pytest.mark.parametrize("text", ["\0" * 40, "{", "[]", '{"offsetTable": 1}'])
def test_a_damaged_file_gives_way_to_the_version_before(text: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    with opened(tmp_path) as table, pytest.raises(StoreDamaged, match=r"consumerOffset\.json"):
        table.get("orders", "g")
    assert (tmp_path / CONSUMER_OFFSETS_FILE).read_text() == text, "evidence is kept"
    write(tmp_path, {"offsetTable": {"orders@g": {"0": 3}}}, f"{CONSUMER_OFFSETS_FILE}.bak")
    with opened(tmp_path) as table:
        assert table.get("orders", "g") == {0: 3}


def test_a_removed_topic_takes_its_places_along(tmp_path: Path) -> None:
    ends = {Queue("orders", 0): 9, Queue("orders2", 0): 9}
    with opened(tmp_path, ends) as table:
        table.commit("orders", "g", {0: 3})
        table.commit("orders2", "g", {0: 3})
        table.forget("orders")
        assert (table.get("orders", "g"), table.get("orders2", "g")) == ({}, {0: 3})
    assert stored(tmp_path)["offsetTable"] == {"orders2@g": {"0": 3}}


def test_the_number_of_cursors_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "GROUPS_MAX", 2)
    with opened(tmp_path) as table:
        table.commit("orders", "a", {0: 1})
        table.commit("orders", "b", {0: 1})
        with pytest.raises(NotAllowed, match="2 are allowed"):
            table.commit("orders", "c", {0: 1})
        table.commit("orders", "b", {0: 2})
        monkeypatch.setattr(consumer_offsets, "OFFSETS_MAX", 2)
        with pytest.raises(NotAllowed):
            table.commit("orders", "b", {1: 1})


def test_a_full_disk_costs_a_later_save_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as table:
        with monkeypatch.context() as patch:
            patch.setattr("node.store.config.config_table.disk.write_with_backup", full)
            table.commit("orders", "g", {0: 3})
            table.turn(0.0)
            assert table._saving is not None
            table._saving.exception()
            table.turn(0.1)
        assert table.get("orders", "g") == {0: 3}
    assert stored(tmp_path)["offsetTable"] == {"orders@g": {"0": 3}}


def test_a_million_offsets_are_committed_found_and_saved_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = 50
    groups = OFFSETS_MAX // queues
    table = {
        f"orders@g{group}": {str(queue): 1 for queue in range(queues)} for group in range(groups)
    }
    write(tmp_path, {"offsetTable": table})
    ends = {Queue("orders", queue): 1_000 for queue in range(queues + 1)}
    offsets = ConsumerOffsets(tmp_path, ends, lambda topic: True, lambda: 5)
    try:
        with pytest.raises(NotAllowed, match="are there already"):
            offsets.commit("orders", "g0", {queues: 1})
        offsets.commit("orders", "g0", {1: 2})
        offsets.save()  # the first one encodes all of them

        began = time.process_time()
        for number in range(1_000):
            offsets.commit("orders", f"g{number}", {0: 7})
            assert offsets.get("orders", f"g{number}")[0] == 7
        assert time.process_time() - began < 1

        # A save encodes what has changed, else it would take the writer's processor each second.
        encoded: list[Any] = []
        plainly = config_table._encoded_entry

        def noted(entry: Any) -> str:
            encoded.append(entry)
            return plainly(entry)

        monkeypatch.setattr(config_table, "_encoded_entry", noted)
        offsets.save()
        assert len(encoded) == 1_000
        offsets.commit("orders", "g5", {0: 8})
        offsets.save()
        assert len(encoded) == 1_001
        assert len(stored(tmp_path)["offsetTable"]) == groups
        assert offsets.get("orders", "g999")[0] == 7
    finally:
        offsets.close()


def test_room_for_offsets_comes_back_with_the_groups_that_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offsets, "OFFSETS_MAX", 2)
    with opened(tmp_path) as table:
        table.commit("orders", "one", {0: 1, 1: 1})
        with pytest.raises(NotAllowed):
            table.commit("orders", "two", {0: 1})
        table.commit("orders", "one", {0: 2})
        assert table.forget_group("one")
        table.commit("orders", "two", {0: 1, 1: 1})
        table.forget("orders")
        table.commit("orders", "three", {0: 1, 1: 1})


def test_another_process_reads_the_offsets_of_all_groups(tmp_path: Path) -> None:
    assert read_group_offsets(tmp_path) == {}
    entries = '"t@g":{0:3,1:-1},"u@g":{},"t@h":{"0":4},"t@g@broadcast":{0:1}'
    write(tmp_path, f'{{"offsetTable":{{{entries}}}}}')
    assert read_group_offsets(tmp_path) == {"g": {"t": {0: 3}, "u": {}}, "h": {"t": {0: 4}}}
    write(tmp_path, "{")
    assert read_group_offsets(tmp_path) == {}


def test_the_file_has_the_form_that_a_broker_writes(tmp_path: Path) -> None:
    write(tmp_path, {"offsetTable": {"z@g": {}, "a@g": {"0": 1, "10": 2}}, "pullOffsetTable": {}})
    with opened(tmp_path) as table:
        table.commit("orders", "g", {0: 4})
        table.save()
        table.commit("orders", "g", {0: 5})
    text = (tmp_path / CONSUMER_OFFSETS_FILE).read_text()
    document = json.loads(text)
    assert text == json.dumps(document, indent="\t", sort_keys=True)
    assert document["offsetTable"]["orders@g"] == {"0": 5}
