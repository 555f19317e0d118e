"""Repair of a damaged log: what was not hit stays byte for byte, what was hit is marked."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelog.restore import repair
from node.runtime import disk
from node.store.checkpoints import Tails, load_floor, own_dir, save_tails
from node.store.config.topics_file import TopicsFile
from node.store.repair.plan import plan_repair
from node.store.verify.verify import verify
from node.writer.recovery import carry_out, examine
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.record.codec import FILLER_BYTES, Record, decode
from protocol.record.lost_marker import LOST
from tests.support.damaged_store import (
    SEGMENT_BYTES,
    Whole,
    is_of_no_queue,
    make_store,
    queue_of,
    read_records,
)
from tests.workers.living_log import SETTINGS, derived


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A store that nobody changes: `copied` makes one to damage."""
    return make_store(tmp_path_factory.mktemp("whole") / "store")


def copied(whole: Whole, root: Path) -> Whole:
    shutil.copytree(whole.root, root)
    return Whole(root, whole.records, whole.end)


@pytest.fixture
def store(whole: Whole, tmp_path: Path) -> Whole:
    return copied(whole, tmp_path / "store")


def actions(root: Path) -> list[str]:
    return [row["action"] for row in plan_repair(root, SETTINGS).rows()]


def contents(root: Path) -> dict[str, bytes]:
    """Every file but those in quarantine and the lock."""
    quarantine = own_dir(root) / "quarantine"
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and quarantine not in path.parents and path.name != "lock"
    }


def is_hit(store: Whole, record: Record) -> bool:
    """Whether the record can no longer be read at its place."""
    with store.segment(record.physical_offset).open("rb") as file:
        data = file.read()
    found = decode(data, record.physical_offset % SEGMENT_BYTES, record.physical_offset)
    return not isinstance(found, Record)


def is_hit_blank(store: Whole, offset: int) -> bool:
    """Whether a flip there hit a blank: it closes a segment behind its last record."""
    base = offset - offset % SEGMENT_BYTES
    lasts = [r for r in store.records if base <= r.physical_offset < base + SEGMENT_BYTES]
    end = max(r.physical_offset + r.size for r in lasts)
    return end <= offset < end + FILLER_BYTES and end < store.end


def mended(store: Whole) -> list[Record]:
    """Repairs, and checks what a repair always promises; answers the records."""
    done = repair(store.root, SETTINGS)
    assert done.report.ok, done.report.findings
    assert not plan_repair(store.root, SETTINGS).rows()
    assert examine(store.root, SETTINGS).cut is None
    return read_records(store.root)


places = st.lists(st.tuples(st.integers(0, 9_700), st.integers(0, 7)), min_size=1, max_size=4)


@given(flips=places, with_queues=st.booleans())
@settings(max_examples=12)
def test_after_a_repair_only_what_was_hit_is_lost_and_each_is_marked_in_its_place(
    whole: Whole, flips: list[tuple[int, int]], with_queues: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = copied(whole, Path(folder) / "store")
        for offset, bit in flips:
            store.flip(min(offset, store.end - 1), bit)
        if not with_queues:
            shutil.rmtree(store.root / "consumequeue")
        hit = {r.physical_offset: r for r in store.records if is_hit(store, r)}
        plan = plan_repair(store.root, SETTINGS)
        assert plan.ok == (not hit and not any(is_hit_blank(store, at) for at, _ in flips))
        assert all(row["action"] != "cut_log" for row in plan.rows()) or max(hit) >= 9_400
        after = {record.physical_offset: record for record in mended(store)}
        for record in store.records:
            if record.physical_offset not in hit:
                assert after[record.physical_offset].raw == record.raw
        queues = {queue: number for queue, number, _ in plan.log.lost.ranges}
        assert set(queues) <= {queue_of(record) for record in hit.values()}
        numbers: dict[Queue, list[int]] = {}
        for record in after.values():
            if not is_of_no_queue(record):
                numbers.setdefault(queue_of(record), []).append(record.head.queue_offset)
        assert all(found == list(range(len(found))) for found in numbers.values())


def test_a_marker_has_the_place_length_and_number_of_what_was_lost(store: Whole) -> None:
    lost, before = store.records[10], store.records[9]
    store.flip(lost.physical_offset + 95)
    marker = mended(store)[10]
    assert (marker.physical_offset, marker.size) == (lost.physical_offset, lost.size)
    assert queue_of(marker) == queue_of(lost)
    assert marker.head.queue_offset == lost.head.queue_offset
    assert marker.head.store_timestamp == before.head.store_timestamp
    assert marker.properties[LOST].strip() == "damaged"
    folder = own_dir(store.root) / "quarantine" / str(lost.physical_offset)
    kept = (folder / f"{lost.physical_offset:020d}").read_bytes()
    assert len(kept) == lost.size
    assert kept != lost.raw
    assert sum(a != b for a, b in zip(kept, lost.raw, strict=True)) == 1
    assert f'"queue_offset": {lost.head.queue_offset}' in (folder / "report.json").read_text()


def test_many_records_in_one_hole_keep_their_places_by_what_the_units_say(store: Whole) -> None:
    first, last = store.records[3], store.records[6]
    end = last.physical_offset + last.size
    store.patch(first.physical_offset, b"\xee" * (end - first.physical_offset))
    after = mended(store)
    for lost, marker in zip(store.records[3:7], after[3:7], strict=True):
        assert (marker.physical_offset, marker.size) == (lost.physical_offset, lost.size)
        assert (queue_of(marker), marker.head.queue_offset) == (
            queue_of(lost),
            lost.head.queue_offset,
        )


def test_without_queue_files_the_gaps_in_the_log_say_what_was_lost(store: Whole) -> None:
    first, last = store.records[3], store.records[6]
    end = last.physical_offset + last.size
    store.patch(first.physical_offset, b"\xee" * (end - first.physical_offset))
    shutil.rmtree(store.root / "consumequeue")
    after = mended(store)
    lost = {(queue_of(record), record.head.queue_offset) for record in store.records[3:7]}
    marked = {
        (queue_of(record), record.head.queue_offset)
        for record in after
        if LOST in record.properties
    }
    assert marked == lost


def test_the_last_record_of_a_queue_is_known_from_the_snapshot_of_its_ends(store: Whole) -> None:
    ends = {queue_of(record): record for record in store.records}
    lost = min(ends.values(), key=lambda record: record.physical_offset)
    tails = {queue: record.head.queue_offset + 1 for queue, record in ends.items()}
    save_tails(store.root, Tails(store.end, tails))
    store.flip(lost.physical_offset + 95)
    shutil.rmtree(store.root / "consumequeue")
    marker = next(r for r in mended(store) if r.physical_offset == lost.physical_offset)
    assert (queue_of(marker), marker.head.queue_offset) == (queue_of(lost), lost.head.queue_offset)


def last_of_segment(store: Whole, base: int = 0) -> Record:
    return [r for r in store.records if base <= r.physical_offset < base + SEGMENT_BYTES][-1]


@pytest.mark.parametrize("with_queues", [True, False])
def test_the_last_record_before_a_blank_and_the_blank_itself_can_be_lost(
    store: Whole, with_queues: bool
) -> None:
    lost = last_of_segment(store)
    end = lost.physical_offset + lost.size
    store.flip(lost.physical_offset + 95)
    store.flip(end + 5)
    if not with_queues:
        shutil.rmtree(store.root / "consumequeue")
    after = mended(store)
    assert len(after) == len(store.records)
    marker = next(r for r in after if r.physical_offset == lost.physical_offset)
    assert (queue_of(marker), marker.head.queue_offset) == (queue_of(lost), lost.head.queue_offset)


@pytest.mark.parametrize("byte", [3, 6], ids=["its length", "its magic code"])
def test_a_damaged_blank_is_written_anew_and_nothing_is_lost(store: Whole, byte: int) -> None:
    lost = last_of_segment(store)
    end = lost.physical_offset + lost.size
    before = store.segment(0).read_bytes()
    store.flip(end + byte)
    plan = plan_repair(store.root, SETTINGS)
    assert not plan.ok
    assert [row["action"] for row in plan.rows()] == ["write_blank"]
    assert (plan.log.lost.ranges, plan.log.lost.unknown_bytes) == ([], 0)
    mended(store)
    assert store.segment(0).read_bytes() == before


def test_the_first_record_of_a_segment_and_a_whole_segment_can_be_lost(store: Whole) -> None:
    store.flip(SEGMENT_BYTES + 90)
    shutil.rmtree(store.root / "consumequeue")
    store.segment(2 * SEGMENT_BYTES).write_bytes(bytes(SEGMENT_BYTES))
    lost = {r.physical_offset: r for r in store.records if is_hit(store, r)}
    after = mended(store)
    found = {(queue_of(record), record.head.queue_offset) for record in after}
    ends = {queue_of(record): record.head.queue_offset for record in store.records}
    for record in lost.values():
        number = record.head.queue_offset
        assert (queue_of(record), number) in found or ends[queue_of(record)] == number


def test_where_nothing_follows_the_log_is_cut_and_all_else_follows(store: Whole) -> None:
    store.flip(store.records[-1].physical_offset + 95)
    (own_dir(store.root) / "clean").write_text("x")
    assert actions(store.root)[0] == "cut_log"
    plan = plan_repair(store.root, SETTINGS)
    lost = store.records[-1]
    number = lost.head.queue_offset
    assert plan.log.lost.ranges == [(queue_of(lost), number, number + 1)]
    assert mended(store) == list(store.records[:-1])
    assert load_floor(store.root) == lost.physical_offset
    found = examine(store.root, SETTINGS)
    assert found.end == lost.physical_offset
    assert found.tails[queue_of(lost)] == number
    assert not (own_dir(store.root) / "clean").exists()
    assert carry_out(found) > 1


def test_a_torn_tail_is_no_damage_and_goes_as_the_next_start_would_do_it(store: Whole) -> None:
    (store.root / "abort").write_text("1")
    store.patch(store.end, b"\0\0\1\0torn")
    plan = plan_repair(store.root, SETTINGS)
    assert plan.ok
    assert [row["action"] for row in plan.rows()] == ["cut_tail"]
    assert mended(store) == list(store.records)
    kept = own_dir(store.root) / "quarantine" / str(store.end)
    assert (kept / "report.json").exists()


@pytest.mark.parametrize("with_queues", [True, False])
def test_a_cut_counts_what_stands_behind_it_when_nothing_tells_what_was_durable(
    store: Whole, with_queues: bool
) -> None:
    (store.root / "abort").write_text("1")
    shutil.rmtree(own_dir(store.root))
    if not with_queues:
        shutil.rmtree(store.root / "consumequeue")
    hit = store.records[-5]
    store.flip(hit.physical_offset + 95)
    plan = plan_repair(store.root, SETTINGS)
    (cut,) = [row for row in plan.rows() if row["action"] == "cut_tail"]
    lost = plan.log.lost.shape()["messages"]
    assert lost == 5
    assert f"{lost} messages behind it may have been acknowledged" in cut["detail"]
    numbers = {
        (queue["topic"], queue["queue_id"], number)
        for queue in plan.log.lost.shape()["queues"]
        for number in range(queue["from"], queue["to"] + 1)
    }
    assert numbers == {
        (one.topic, one.head.queue_id, one.head.queue_offset) for one in store.records[-5:]
    }
    assert mended(store) == list(store.records[:-5])


def test_a_torn_tail_that_nothing_vouches_for_loses_nothing_that_is_known(store: Whole) -> None:
    (store.root / "abort").write_text("1")
    shutil.rmtree(own_dir(store.root))
    store.patch(store.end, b"\0\0\1\0torn")
    plan = plan_repair(store.root, SETTINGS)
    (cut,) = [row for row in plan.rows() if row["action"] == "cut_tail"]
    assert "acknowledged" not in cut["detail"]
    assert plan.log.lost.shape()["messages"] == 0


ENDS = ("middle", "end")
EVERY_CALL = (pytest.mark.faults, pytest.mark.timeout(400))


class Killed(BaseException):
    """The process ends here."""


class KillingOs:
    """`os` for the storage seam; ends at the n-th call that changes something."""

    CHANGING = frozenset(
        {"pwrite", "fsync", "fdatasync", "replace", "unlink", "rmdir", "makedirs", "ftruncate"}
    )

    def __init__(self, real: object, calls_left: int) -> None:
        self._real = real
        self.calls_left = calls_left

    def __getattr__(self, name: str) -> object:
        if name in self.CHANGING:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise Killed
        return getattr(self._real, name)


@pytest.mark.parametrize(
    ("damage", "step"),
    [("middle", 13), ("end", 13), *(pytest.param(d, 1, marks=EVERY_CALL) for d in ENDS)],
)
def test_a_repair_that_was_killed_anywhere_is_run_again_with_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, step: int
) -> None:
    broken = make_store(tmp_path / "broken", count=14)
    lost = broken.records[5 if damage == "middle" else -1]
    broken.flip(lost.physical_offset + 95)
    (broken.root / "consumequeue" / "stranger").write_text("x")
    expected = copied(broken, tmp_path / "expected")
    wanted = mended(expected)
    files = derived(expected.root)
    number, is_killed = 0, True
    while is_killed:
        number += step
        store = copied(broken, tmp_path / f"killed-{number}")
        with monkeypatch.context() as patched:
            patched.setattr(disk, "os", KillingOs(os, number))
            try:
                repair(store.root, SETTINGS)
                is_killed = False
            except Killed:
                pass
        assert mended(store) == wanted, number
        assert derived(store.root) == files, number
        quarantine = own_dir(store.root) / "quarantine"
        assert list(quarantine.glob("*/stranger")), number
        shutil.rmtree(store.root)
    assert number > 20


def test_segments_that_do_not_join_the_newest_ones_are_moved_away(store: Whole) -> None:
    store.segment(SEGMENT_BYTES).unlink()
    older = store.segment(0).read_bytes()
    assert actions(store.root)[0] == "move_file"
    start = 2 * SEGMENT_BYTES
    lost = plan_repair(store.root, SETTINGS).log.lost.ranges
    numbers = {(queue, number) for queue, low, stop in lost for number in range(low, stop)}
    assert numbers == {
        (queue_of(r), r.head.queue_offset) for r in store.records if r.physical_offset < start
    }
    after = mended(store)
    assert after == [r for r in store.records if r.physical_offset >= start]
    assert (own_dir(store.root) / "quarantine" / "0" / f"{0:020d}").read_bytes() == older
    tails = examine(store.root, SETTINGS).tails
    for record in after:
        assert tails[queue_of(record)] > record.head.queue_offset


@pytest.mark.parametrize("size", [100, SEGMENT_BYTES + 77])
def test_a_segment_of_another_length_gets_that_of_the_others(store: Whole, size: int) -> None:
    path = store.segment(SEGMENT_BYTES)
    data = path.read_bytes()[:size].ljust(size, b"+")
    path.write_bytes(data)
    assert actions(store.root)[0] == "set_length"
    hit = [r for r in store.records if SEGMENT_BYTES <= r.physical_offset < 2 * SEGMENT_BYTES]
    after = mended(store)
    kept = store.records if size > SEGMENT_BYTES else [r for r in store.records if r not in hit]
    assert [r for r in after if LOST not in r.properties] == list(kept)
    assert len(after) >= len(store.records)
    if size > SEGMENT_BYTES:
        excess = own_dir(store.root) / "quarantine" / str(2 * SEGMENT_BYTES)
        assert (excess / f"{2 * SEGMENT_BYTES:020d}").read_bytes() == b"+" * 77


def test_an_empty_last_file_is_deleted_and_one_in_the_middle_counts_as_missing(
    store: Whole,
) -> None:
    behind = store.segment(store.end + SEGMENT_BYTES)
    behind.touch()
    assert actions(store.root) == ["delete_file"]
    mended(store)
    assert not behind.exists()
    store.segment(SEGMENT_BYTES).write_bytes(b"")
    assert set(actions(store.root)[:2]) == {"delete_file", "move_file"}
    assert mended(store)[0].physical_offset >= 2 * SEGMENT_BYTES


def test_a_queue_of_which_only_the_snapshot_knows_is_lost_with_a_missing_segment(
    store: Whole,
) -> None:
    gone = Queue("only_in_the_missing_one", 3)
    ends = {Queue(one.topic, one.head.queue_id): one.head.queue_offset + 1 for one in store.records}
    save_tails(store.root, Tails(store.end, {**ends, gone: 7}))
    store.segment(SEGMENT_BYTES).unlink()
    assert (gone, 0, 7) in plan_repair(store.root, SETTINGS).log.lost.ranges


@pytest.mark.parametrize("with_copy", [True, False])
def test_a_table_of_topics_that_no_node_starts_with_is_moved_and_its_copy_counts(
    store: Whole, with_copy: bool
) -> None:
    table = store.root / "config" / "topics.json"
    table.parent.mkdir()
    table.write_text("{nope")
    copy = table.with_name("topics.json.bak")
    copy.write_text('{"topicConfigTable": {"orders": {"perm": 4}}}' if with_copy else "[]")
    with pytest.raises(StoreDamaged):
        TopicsFile(store.root)
    assert not plan_repair(store.root, SETTINGS).ok
    assert actions(store.root) == ["move_file"] * (1 if with_copy else 2)
    assert mended(store) == list(store.records)
    kept = (own_dir(store.root) / "quarantine").glob("*/topics.json")
    assert [path.read_text() for path in kept] == ["{nope"]
    assert set(TopicsFile(store.root).topics) == ({"orders"} if with_copy else set())


def test_a_log_that_lost_its_last_segments_is_damage_as_its_start_is_refused(
    store: Whole,
) -> None:
    """Whatever was the last stop: what a crash left is a warning, and this is no torn tail."""
    (store.root / "abort").touch()
    shutil.rmtree(store.root / "commitlog")
    with pytest.raises(StoreDamaged, match="there is no segment"):
        examine(store.root, SETTINGS)
    plan = plan_repair(store.root, SETTINGS)
    assert (plan.ok, plan.rows()[0]["action"]) == (False, "cut_log")
    found = verify(store.root).findings[0]
    assert (found.severity, found.kind, found.offset) == ("error", "missing_segment", 0)


def test_strangers_are_moved_to_quarantine(store: Whole) -> None:
    for folder in ("commitlog", "consumequeue/orders", "index"):
        (store.root / folder / "notes.txt").write_text(folder)
    assert actions(store.root) == ["move_file"] * 3
    assert mended(store) == list(store.records)
    kept = (own_dir(store.root) / "quarantine").glob("*/notes.txt")
    assert sorted(path.read_text() for path in kept) == [
        *("commitlog", "consumequeue/orders", "index")
    ]


def test_damaged_queues_and_index_are_made_anew_from_the_log(store: Whole) -> None:
    before = derived(store.root)
    for folder in ("consumequeue", "index"):
        path = (
            next(path for path in sorted((store.root / folder).rglob("0*")) if path.is_file())
            if folder == "consumequeue"
            else sorted((store.root / folder).iterdir())[0]
        )
        data = bytearray(path.read_bytes())
        data[11 if folder == "consumequeue" else 90] ^= 1
        path.write_bytes(data)
    assert set(actions(store.root)) == {"rebuild_queues", "rebuild_index"}
    assert mended(store) == list(store.records)
    assert derived(store.root) == before


def test_a_checkpoint_that_is_ahead_is_taken_back(store: Whole) -> None:
    path = store.root / "checkpoint"
    path.write_bytes((1 << 60).to_bytes(8, "big") * 6)
    assert actions(store.root) == ["rewrite_checkpoint"]
    mended(store)
    assert path.read_bytes()[40:48] == bytes(8)
    assert len(path.read_bytes()) == 4096


def test_a_plan_changes_nothing(store: Whole) -> None:
    store.flip(store.records[10].physical_offset + 95)
    (store.root / "commitlog" / "stranger").touch()
    before = contents(store.root)
    assert not plan_repair(store.root, SETTINGS).ok
    assert contents(store.root) == before
