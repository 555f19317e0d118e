"""Our small files: what is saved comes back, and what does not agree with its CRC is not there."""

from pathlib import Path

import pytest

from node.store.own_files import (
    EpochLine,
    Floor,
    Progress,
    Tails,
    clear_clean,
    epoch_end,
    is_clean,
    list_progress,
    load_epochs,
    load_floor,
    load_progress,
    load_tails,
    mark_clean,
    remove_progress,
    save_epochs,
    save_progress,
    save_tails,
)
from protocol.ids import Queue


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "keelog").mkdir()
    return tmp_path


def test_progress_comes_back_and_can_be_forgotten(root: Path) -> None:
    save_progress(root, "queue-0-of-2", Progress(3, 4711))
    save_progress(root, "index", Progress(3, 9))
    assert load_progress(root, "queue-0-of-2") == Progress(3, 4711)
    assert list_progress(root) == {"index": Progress(3, 9), "queue-0-of-2": Progress(3, 4711)}
    remove_progress(root, "index")
    assert load_progress(root, "index") is None


def test_a_file_with_any_byte_changed_counts_as_missing(root: Path) -> None:
    save_progress(root, "index", Progress(3, 4711))
    path = root / "keelog/progress/index"
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        path.write_bytes(bad)
        assert load_progress(root, "index") is None
    path.write_bytes(good[:-1])
    assert load_progress(root, "index") is None


def test_epochs_tell_where_each_one_ended(root: Path) -> None:
    lines = [EpochLine(1, 0), EpochLine(2, 500), EpochLine(3, 400)]
    save_epochs(root, lines)
    assert load_epochs(root) == lines
    assert [epoch_end(lines, epoch) for epoch in (1, 2, 3)] == [500, 400, None]
    assert epoch_end(lines, 9) == 0


def test_tails_keep_topics_of_any_name(root: Path) -> None:
    tails = Tails(77, {Queue("%RETRY%g", 0): 5, Queue("a-1", 12): 1})
    save_tails(root, tails)
    assert load_tails(root) == tails


def test_the_floor_survives_a_torn_slot(root: Path) -> None:
    floor = Floor(root)
    floor.save(100)
    floor.save(200)
    floor.close()
    assert load_floor(root) == 200
    path = root / "keelog/floor"
    data = bytearray(path.read_bytes())
    newest = data.index(b"200")
    data[newest] ^= 1
    path.write_bytes(data)
    assert load_floor(root) == 100
    again = Floor(root)
    again.save(300)
    again.close()
    assert load_floor(root) == 300


def test_a_missing_or_garbled_floor_is_zero(root: Path) -> None:
    assert load_floor(root) == 0
    (root / "keelog/floor").write_bytes(b"\xff" * 1024)
    assert load_floor(root) == 0


def test_the_mark_of_a_clean_stop_comes_and_goes(root: Path) -> None:
    assert not is_clean(root)
    mark_clean(root, 1, 10)
    assert is_clean(root)
    clear_clean(root)
    assert not is_clean(root)
