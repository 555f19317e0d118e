"""Our small files: what is saved comes back, and what does not agree with its CRC is not there."""

import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from node.store.checkpoints import (
    EpochLine,
    Floor,
    Tails,
    WorkerCheckpoint,
    clear_clean,
    durable_end,
    epoch_end,
    is_clean,
    list_progress,
    load_epochs,
    load_floor,
    load_owner,
    load_progress,
    load_tails,
    mark_clean,
    remove_progress,
    save_epochs,
    save_owner,
    save_progress,
    save_tails,
)
from protocol.errors import StoreDamaged
from protocol.ids import Queue


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "keelog").mkdir()
    return tmp_path


def test_progress_comes_back_and_can_be_forgotten(root: Path) -> None:
    save_progress(root, "queue-0-of-2", WorkerCheckpoint(3, 4711))
    save_progress(root, "index", WorkerCheckpoint(3, 9))
    assert load_progress(root, "queue-0-of-2") == WorkerCheckpoint(3, 4711)
    assert list_progress(root) == {
        "index": WorkerCheckpoint(3, 9),
        "queue-0-of-2": WorkerCheckpoint(3, 4711),
    }
    remove_progress(root, "index")
    assert load_progress(root, "index") is None


def test_a_file_with_any_byte_changed_counts_as_missing(root: Path) -> None:
    save_progress(root, "index", WorkerCheckpoint(3, 4711))
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


def sealed(text: bytes) -> bytes:
    return text + f"crc {zlib.crc32(text):08x}\n".encode()


READERS: dict[str, Callable[[Path], object]] = {
    "epochs": load_epochs,
    "tails": load_tails,
    "floor": load_floor,
    "progress/index": lambda root: load_progress(root, "index"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\n",
        b"1\n",
        b"-1 2\n",
        b"1 99999999999999999999\n",
        b"1 2\n1 2\n",
        b"[]\n",
        b"{}\n",
        b'{"at":-1,"last_record":0,"store_timestamp":0,"queues":[]}\n',
        b'{"at":1.5,"last_record":0,"store_timestamp":0,"queues":[]}\n',
        b'{"at":1,"last_record":0,"store_timestamp":0,"queues":[["a",0,1],["a",0,2]]}\n',
        b'{"at":1,"last_record":0,"store_timestamp":0,"queues":[[1,0,1]]}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda text: str(text[:12]),
)
def test_a_file_with_a_good_checksum_that_makes_no_sense_is_refused_by_name(
    root: Path, name: str, text: bytes
) -> None:
    path = root / "keelog" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(sealed(text))
    if name == "epochs" and not text:
        assert load_epochs(root) == []
        return
    with pytest.raises(StoreDamaged, match=r"makes no sense|at most .* are expected") as caught:
        READERS[name](root)
    assert caught.value.where == str(path)
    assert re.search("remove it|move it away", caught.value.hint)


def test_flags_of_an_epoch_come_back(root: Path) -> None:
    lines = [EpochLine(1, 0), EpochLine(2, 10, crc=True), EpochLine(3, 10, True, True)]
    save_epochs(root, lines)
    assert load_epochs(root) == lines


@pytest.mark.parametrize(
    "text", [b"", b"4711", b"4711 keelog", b"4711 keelog x", b"4711 other 3", b"1 keelog 3 4"]
)
def test_only_our_own_mark_in_abort_counts(root: Path, text: bytes) -> None:
    save_owner(root, 3)
    assert load_owner(root) == 3
    (root / "abort").write_bytes(text)
    assert load_owner(root) is None


def test_the_durable_end_is_the_best_that_is_known(root: Path) -> None:
    floor = Floor(root)
    floor.save(100)
    floor.close()
    assert durable_end(root, [], None) == 100
    assert durable_end(root, [EpochLine(1, 0), EpochLine(2, 150)], None) == 150
    assert durable_end(root, [EpochLine(2, 150)], Tails(170, {})) == 170
