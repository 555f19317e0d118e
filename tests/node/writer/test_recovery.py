"""From a store's files to the log's end and the queues' next offsets: as RocketMQ finds them."""

from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.store.checkpoints import EpochLine, Floor, Tails, load_epochs, save_tails
from node.store.opening import open_store
from node.writer.recovery import carry_out, examine, segment_bases
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from tests.support.golden import STORES, GetStore, facts

SETTINGS = Settings()


def contents(root: Path) -> dict[Path, tuple[int, int]]:
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", STORES)
def test_a_brokers_store_ends_where_rocketmq_says_and_goes_on_at_its_offsets(
    golden: GetStore, name: str
) -> None:
    state = facts(name).state
    found = examine(golden(name), SETTINGS)
    assert found.end == state["maxPhyOffset"]
    assert found.min_offset == state["minPhyOffset"]
    expected = {
        Queue(queue["topic"], queue["queueId"]): queue["nextAssignedOffset"]
        for queue in state["queues"]
    }
    assert {queue: end for queue, end in found.tails.items() if end} == {
        queue: end for queue, end in expected.items() if end
    }
    assert found.last_store_timestamp == max(m["storeTimestamp"] for m in facts(name).messages)


def test_examining_changes_nothing(golden_copy: GetStore) -> None:
    root = golden_copy("small-torn")
    before = contents(root)
    examine(root, SETTINGS)
    assert contents(root) == before


def test_a_torn_brokers_store_is_cut_to_its_last_whole_record(golden_copy: GetStore) -> None:
    root = golden_copy("small-torn")
    (root / "keelog").mkdir()
    found = examine(root, SETTINGS)
    assert found.cut is not None
    assert carry_out(found) == 1
    again = examine(root, SETTINGS)
    assert (again.end, again.cut) == (found.end, None)
    assert load_epochs(root) == [EpochLine(1, found.end, crc=True)]
    quarantine = root / "keelog/quarantine" / str(found.end)
    assert (quarantine / "report.json").exists()
    with open_store(root) as store:
        assert store.log.end == facts("small-torn").state["maxPhyOffset"]


def test_recovering_twice_gives_the_same_store(golden_copy: GetStore) -> None:
    root = golden_copy("small-killed")
    (root / "keelog").mkdir()
    first = examine(root, SETTINGS)
    carry_out(first)
    second = examine(root, SETTINGS)
    carry_out(second)
    assert (second.end, second.tails) == (first.end, first.tails)
    assert [line.start for line in load_epochs(root)] == [first.end, first.end]


def test_segments_behind_the_end_are_dropped(golden_copy: GetStore) -> None:
    root = golden_copy("small-killed")
    (root / "keelog").mkdir()
    before = segment_bases(root)
    found = examine(root, SETTINGS)
    carry_out(found)
    assert segment_bases(root) == [base for base in before if base < found.end]


def snapshot_without_the_last(count: int) -> Tails:
    """The ends of the queues of `small-clean`, before so many messages came."""
    messages = facts("small-clean").messages
    ends: dict[Queue, int] = {}
    for message in messages[:-count]:
        if message["queued"]:
            ends[Queue(message["topic"], message["queueId"])] = message["queueOffset"] + 1
    return Tails(messages[-count]["physicalOffset"], ends)


def test_damage_below_the_durable_floor_is_refused_and_nothing_changes(
    golden_copy: GetStore,
) -> None:
    root = golden_copy("small-clean")
    (root / "keelog").mkdir()
    end = facts("small-clean").state["maxPhyOffset"]
    floor = Floor(root)
    floor.save(end)
    floor.close()
    save_tails(root, snapshot_without_the_last(50))
    victim = facts("small-clean").messages[-20]["physicalOffset"]
    base = max(base for base in segment_bases(root) if base <= victim)
    with (root / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(victim - base + 95)
        byte = file.read(1)
        file.seek(victim - base + 95)
        file.write(bytes([byte[0] ^ 1]))
    before = contents(root)
    with pytest.raises(StoreDamaged) as caught:
        examine(root, SETTINGS)
    assert caught.value.offset == victim
    assert "commitlog" in caught.value.where
    assert contents(root) == before


def test_the_snapshot_of_the_queues_ends_saves_the_walk(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    (root / "keelog").mkdir()
    full = examine(root, SETTINGS).tails
    save_tails(root, snapshot_without_the_last(100))
    assert examine(root, SETTINGS).tails == full


def test_an_empty_directory_is_a_new_store(tmp_path: Path) -> None:
    found = examine(tmp_path, Settings(mapped_file_size_commit_log=4096))
    assert (found.end, found.segment_bytes, found.epoch, found.tails) == (0, 4096, 1, {})
    assert list(tmp_path.iterdir()) == []
