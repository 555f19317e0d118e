"""Above the durable floor a record must be as its writer left it: who wrote last decides."""

from pathlib import Path

import pytest

from node.store.checkpoints import load_epochs, load_owner
from node.store.opening import open_store
from protocol.record.properties import CRC_PROPERTY_BYTES
from tests.support.owned_store import Owner, overwrite, record_at, recovered, some
from workers.feed import RestingFeed


def zero_properties(root: Path, offset: int, from_end: int | None = None) -> None:
    """As a page that never reached the disk: body and lengths are there, properties are zero."""
    record = record_at(root, offset)
    count = len(record.properties_raw) if from_end is None else from_end
    overwrite(root, offset + record.size - count, bytes(count))


def killed_store(root: Path, crc: bool = True) -> list[int]:
    """Three flushed records, then three that are not; answers the offsets of the latter."""
    owner = Owner(root, crc)
    owner.append(some(3))
    owner.flush()
    offsets = owner.append(some(3, first=3))
    owner.kill()
    return offsets


def as_broker(root: Path, pid: str = "4711") -> None:
    """What a broker leaves in `abort` before it appends."""
    (root / "abort").write_text(pid)


def test_a_record_whose_properties_a_torn_page_zeroed_is_cut(tmp_path: Path) -> None:
    offsets = killed_store(tmp_path / "store")
    zero_properties(tmp_path / "store", offsets[1])
    found = recovered(tmp_path / "store")
    assert found.end == offsets[1]
    assert found.cut is not None
    assert (found.cut.kind, found.looks_torn) == ("bad_crc", True)


@pytest.mark.parametrize("from_end", [1, 2, 11, 13, 21, CRC_PROPERTY_BYTES, 40])
@pytest.mark.parametrize("crc", [True, False])
def test_properties_that_end_in_zeros_are_cut_with_checksums_or_without(
    tmp_path: Path, from_end: int, crc: bool
) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root, crc)
    zero_properties(root, offsets[1], from_end)
    assert recovered(root, crc).end == offsets[1]


def test_offline_readers_and_workers_end_where_the_writer_will(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root)
    zero_properties(root, offsets[1])
    with open_store(root) as store:
        assert store.log.end == offsets[1]
    feed = RestingFeed(root)
    assert feed.limits().readable == offsets[1]
    feed.close()


def test_whole_records_without_checksum_of_a_broker_in_between_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "store"
    killed_store(root)
    plain = Owner(root, crc=False)
    offsets = plain.append(some(3, first=6))
    plain.kill()
    as_broker(root)
    found = recovered(root)
    assert found.cut is None
    assert found.end == offsets[-1] + record_at(root, offsets[-1]).size


def test_an_emptied_abort_is_no_mark_of_ours(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root, crc=False)
    as_broker(root, "")
    assert load_owner(root) is None
    assert recovered(root).end > offsets[-1]


def test_records_from_before_checksums_were_turned_on_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "store"
    killed_store(root, crc=False)
    owner = Owner(root, crc=True)
    offsets = owner.append(some(2, first=6))
    owner.kill()
    (root / "keelog/floor").unlink()
    (root / "keelog/tails").unlink(missing_ok=True)
    found = recovered(root)
    assert (found.cut, found.end) == (None, offsets[1] + record_at(root, offsets[1]).size)


def test_records_without_checksum_are_kept_when_the_last_writer_had_them_off(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    killed_store(root, crc=True)
    offsets = killed_store(root, crc=False)
    found = recovered(root, crc=True)  # the setting of the next start does not matter
    assert (found.cut, found.end) == (None, offsets[2] + record_at(root, offsets[2]).size)


def test_a_start_that_is_killed_before_it_appends_leaves_the_last_writers_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    offsets = killed_store(root)
    zero_properties(root, offsets[1])
    monkeypatch.setattr("node.store.checkpoints.save_owner", _killed)
    with pytest.raises(_KilledError):
        Owner(root)
    assert load_owner(root) == 1
    assert [line.epoch for line in load_epochs(root)] == [1, 2]
    found = recovered(root)
    assert (found.end, found.cut) == (offsets[1], None)


def test_after_a_stop_in_order_nobody_is_the_last_writer(tmp_path: Path) -> None:
    root = tmp_path / "store"
    owner = Owner(root)
    owner.append(some(3))
    assert load_owner(root) == 1
    owner.stop()
    assert load_owner(root) is None
    assert not (root / "abort").exists()


class _KilledError(Exception):
    pass


def _killed(*_: object) -> None:
    raise _KilledError
