"""What a crash, a disk or a hand may have done to a store, and what a start makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.store.checkpoints import Floor, load_tails, save_progress
from node.store.checkpoints import WorkerCheckpoint as Saved
from node.writer.recovery import carry_out
from protocol.errors import StoreDamaged
from protocol.names import offset_file_name
from tests.support.owned_store import SEGMENT_BYTES, Owner, overwrite, record_at, recovered, some


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def report(root: Path, at: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / f"keelog/quarantine/{at}/report.json").read_bytes())
    return found


def killed_store(root: Path, flushed: int = 3, loose: int = 6) -> list[int]:
    owner = Owner(root)
    offsets = owner.append(some(flushed))
    owner.flush()
    offsets += owner.append(some(loose, first=flushed))
    owner.kill()
    return offsets


# 6: pages persisted out of order


def test_whole_records_behind_a_torn_one_are_told_and_never_come_back(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root)
    size = record_at(root, offsets[4]).size
    overwrite(root, offsets[4] + 100, bytes(size - 100))
    carry_out(recovered(root))
    told = report(root, offsets[4])
    assert (told["records_behind"], told["first_record_behind"]) == (4, offsets[5])
    assert told["looks_like"] == "torn write"
    assert told["file"].endswith(f"commitlog/{offset_file_name(0)}")
    # A record of the same size grows up to the place where the stale one stood.
    owner = Owner(root)
    again = owner.append(some(1, first=4))
    assert again == [offsets[4]]
    owner.kill()
    assert recovered(root).end == offsets[5]


def test_a_flipped_bit_above_the_floor_is_told_as_corruption(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root)
    overwrite(root, offsets[5] + 95, b"\xff")
    carry_out(recovered(root))
    assert report(root, offsets[5])["looks_like"] == "corruption"


# 11: a disk that lied about a flush


def test_what_a_lying_disk_lost_below_the_floor_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root, flushed=5, loose=0)
    overwrite(root, offsets[3], bytes(SEGMENT_BYTES - offsets[3]))
    before = contents(root)
    with pytest.raises(StoreDamaged) as caught:
        recovered(root)
    assert caught.value.offset == offsets[3]
    assert caught.value.where.endswith(offset_file_name(0))
    assert caught.value.hint == f"keelog store repair {root}"
    assert "was durable" in caught.value.found
    assert contents(root) == before


def test_a_lost_last_segment_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    owner.append(some(300))
    owner.flush()
    end = owner.store.log.end
    owner.kill()
    for base in range(end - end % SEGMENT_BYTES, end + 2 * SEGMENT_BYTES, SEGMENT_BYTES):
        (root / "commitlog" / offset_file_name(base)).unlink(missing_ok=True)
    with pytest.raises(StoreDamaged, match="was durable"):
        recovered(root)


def test_a_log_without_any_segment_is_refused_when_it_had_some(tmp_path: Path) -> None:
    root = tmp_path / "store"
    killed_store(root)
    for path in (root / "commitlog").iterdir():
        path.unlink()
    with pytest.raises(StoreDamaged, match="there is no segment"):
        recovered(root)


# 15, 16: files that cannot be


def test_a_last_file_without_length_does_not_count(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root)
    following = root / "commitlog" / offset_file_name(SEGMENT_BYTES)
    following.write_bytes(b"")
    found = recovered(root)
    assert found.end > offsets[-1]
    assert found.cut is None
    Owner(root).kill()
    assert following.stat().st_size == SEGMENT_BYTES


@pytest.mark.parametrize("size", [1, SEGMENT_BYTES - 1, SEGMENT_BYTES + 1])
def test_a_segment_of_another_length_is_refused(tmp_path: Path, size: int) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    owner.append(some(600))
    owner.flush()
    owner.kill()
    path = root / "commitlog" / offset_file_name(SEGMENT_BYTES)
    path.write_bytes(path.read_bytes().ljust(size, b"\0")[:size])
    before = contents(root)
    with pytest.raises(StoreDamaged) as caught:
        recovered(root)
    assert (caught.value.where, caught.value.offset) == (str(path), SEGMENT_BYTES)
    assert f"keelog store repair {root}" in caught.value.hint
    assert contents(root) == before


def test_a_gap_in_the_names_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    owner.append(some(600))
    owner.flush()
    owner.kill()
    (root / "commitlog" / offset_file_name(SEGMENT_BYTES)).unlink()
    with pytest.raises(StoreDamaged, match=f"{offset_file_name(SEGMENT_BYTES)} is missing"):
        recovered(root)


# 17: damage below the floor is never cut


def test_any_flipped_byte_between_snapshot_and_floor_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root, flushed=4, loose=0)
    record = record_at(root, offsets[1])
    for at in range(record.size):
        whole = record.raw[at : at + 1]
        overwrite(root, offsets[1] + at, bytes([whole[0] ^ 1]))
        with pytest.raises(StoreDamaged):
            recovered(root)
        overwrite(root, offsets[1] + at, whole)
    assert recovered(root).cut is None


# 40, 41: the mark of a clean stop


def test_without_the_mark_of_a_clean_stop_the_same_store_is_found(tmp_path: Path) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    owner.append(some(50))
    owner.stop()
    clean = recovered(root)
    (root / "keelog/clean").unlink()
    assert recovered(root) == clean
    (root / "abort").write_text("")
    unclean = recovered(root)
    assert (unclean.end, unclean.tails, unclean.cut) == (clean.end, clean.tails, None)


def test_a_last_record_that_was_changed_under_a_clean_mark_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    offsets = owner.append(some(50))
    owner.stop()
    overwrite(root, offsets[-1] + 95, b"\xff")
    with pytest.raises(StoreDamaged) as caught:
        recovered(root)
    assert caught.value.offset == offsets[-1]


def test_a_log_cut_short_by_hand_under_a_clean_mark_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    offsets = owner.append(some(600))
    owner.stop()
    last = offsets[-1] - offsets[-1] % SEGMENT_BYTES
    (root / "commitlog" / offset_file_name(last)).unlink()
    with pytest.raises(StoreDamaged, match="was durable"):
        recovered(root)


# 42: the blank that closes a segment


@pytest.mark.parametrize("kept", range(8))
@pytest.mark.parametrize("from_front", [True, False])
def test_a_torn_blank_is_the_end_and_what_follows_it_is_kept_aside(
    tmp_path: Path, kept: int, from_front: bool
) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    offsets = owner.append(some(3))
    owner.flush()
    offsets += owner.append(some(200, first=3))
    owner.kill()
    last = max(offset for offset in offsets if offset < SEGMENT_BYTES)
    blank = last + record_at(root, last).size
    left = SEGMENT_BYTES - blank
    whole = left.to_bytes(4, "big") + bytes.fromhex("cbd43194")
    torn = whole[:kept].ljust(8, b"\0") if from_front else whole[8 - kept :].rjust(8, b"\0")
    overwrite(root, blank, torn)
    found = recovered(root)
    if torn == whole:
        assert found.cut is None  # the bytes that are missing were zero anyway
        return
    assert found.end == blank
    assert found.first_behind == SEGMENT_BYTES
    carry_out(found)
    assert not (root / "commitlog" / offset_file_name(SEGMENT_BYTES)).exists()
    assert recovered(root).end == blank


# The durable floor, and what is known of it


def test_an_old_floor_does_not_lower_what_epochs_and_snapshot_vouch_for(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root)
    Owner(root).kill()  # all that was there is durable now
    floor = Floor(root)
    floor.save(0)  # a power loss gave the floor's file an older content
    floor.save(0)
    floor.close()
    overwrite(root, offsets[-1] + 95, b"\xff")
    with pytest.raises(StoreDamaged):
        recovered(root)


def test_a_long_walk_leaves_a_fresh_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    killed_store(root)
    monkeypatch.setattr("node.writer.recovery.TAILS_AGE_BYTES_MAX", 1)
    found = recovered(root)
    carry_out(found)
    tails = load_tails(root)
    assert tails is not None
    assert (tails.at, tails.next_offset) == (found.end, found.tails)
    assert tails.store_timestamp == found.last_store_timestamp


def test_a_lost_epochs_file_begins_above_what_progress_names(tmp_path: Path) -> None:
    root = tmp_path / "store"
    killed_store(root)
    save_progress(root, "index", Saved(7, 100))
    (root / "keelog/epochs").write_bytes(b"garbage")
    assert recovered(root).epoch == 8


def test_space_that_was_never_written_is_not_taken_for_a_brokers_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    owner.append(some(3))
    owner.stop()
    monkeypatch.setattr("node.writer.recovery.WALK_BYTES_MAX", 1000)
    monkeypatch.setattr(
        "node.writer.recovery.StoppedStore", None
    )  # a walk as a broker's would fail
    assert recovered(root).cut is None
