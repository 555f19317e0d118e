"""What the files of a dead store lack comes from the log, and is what the files held."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from node.runtime.settings import Settings
from node.store.checkpoints import (
    EpochLine,
    Tails,
    WorkerCheckpoint,
    save_epochs,
    save_progress,
    save_tails,
)
from node.store.opening import StoppedStore, open_store
from node.store.replay import Covered, derive_units, walk_start
from protocol.ids import Queue
from tests.support.golden import GetStore

SIZES = Settings(mapped_file_size_consume_queue=4000, max_hash_slot_num=500, max_index_num=2000)
View = tuple[dict[Queue, tuple[int, list[tuple[int, int, int]]]], list[bytes]]


def view(root: Path) -> View:
    """All units of all queues from their minimum on, and all index files' bytes in use."""
    with open_store(root, SIZES) as store:
        units = {}
        for queue in store.queues():
            reader = store.queue(*queue)
            assert reader is not None
            low, high = reader.min_offset, reader.max_offset
            units[queue] = low, reader.units(low, high - low).tolist()
        index = [
            repr((file.header, file.slots().tolist(), file.entries().tolist())).encode()
            for file in store.index.files()
        ]
        return units, index


def as_ours(root: Path, done: int, index_done: int, clean: bool) -> None:
    """Makes the golden store one that Keelog's processes left."""
    (root / "keelog" / "progress").mkdir(parents=True)
    save_epochs(root, [EpochLine(1, 0)])
    save_progress(root, "queue-0-of-1", WorkerCheckpoint(1, done))
    save_progress(root, "index", WorkerCheckpoint(1, index_done))
    if not clean:
        (root / "abort").touch()


@pytest.mark.parametrize("gone", ["consumequeue", "index", "both"])
def test_deleted_folders_come_back_as_they_were(golden_copy: GetStore, gone: str) -> None:
    root = golden_copy("small-clean")
    before = view(root)
    for folder in ("consumequeue", "index") if gone == "both" else (gone,):
        shutil.rmtree(root / folder)
    assert view(root) == before


def test_nothing_is_walked_when_nothing_is_missing(
    golden: GetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(golden("small-clean")) as store:
        monkeypatch.setattr(store.log, "columns", None)
        assert len(store.queues()) == 30
        assert all((reader := store.queue(*queue)) and reader.unit(0) for queue in store.queues())
        assert store.index.query("lonely", "k190") == [191]


def test_units_that_a_killed_worker_of_ours_did_not_write_are_there(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    before, _ = view(root)
    cut = 4_000_000
    with open_store(root) as store:
        for queue in store.queues():
            cut_queue(store, queue, cut)
    as_ours(root, cut - 100_000, 0, clean=False)
    assert view(root)[0] == before


def cut_queue(store: StoppedStore, queue: Queue, cut: int) -> None:
    """Removes the units of records at or above a log offset, as if never written."""
    reader = store.queue(*queue)
    assert reader is not None
    offsets = reader.units(0, reader.max_offset)["physical_offset"]
    keep = int(np.searchsorted(offsets, cut)) * 20
    folder = store.root / "consumequeue" / queue.topic / str(queue.queue_id)
    for file in sorted(folder.iterdir()):
        start = int(file.name)
        if start >= keep:
            file.unlink()
        elif start + 4000 > keep:
            os.truncate(file, keep - start)
            os.truncate(file, 4000)


def test_a_queue_that_is_shorter_than_our_tails_say_is_made_anew(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    before, _ = view(root)
    end = max(unit[0] + unit[1] for _, units in before.values() for unit in units)
    as_ours(root, end, end, clean=True)
    tails = {queue: low + len(units) for queue, (low, units) in before.items()}
    save_tails(root, Tails(end, tails))
    shutil.rmtree(root / "consumequeue" / "orders" / "1")
    assert view(root)[0] == before


def test_the_index_of_a_killed_worker_of_ours_is_whole_and_repeats_nothing(
    golden_copy: GetStore,
) -> None:
    root = golden_copy("small-clean")
    _, before = view(root)
    last = max((root / "index").iterdir())
    with open_store(root) as store:
        entries = store.index.files()[-1].entries()
        vouched = int(entries["physical_offset"][len(entries) // 2])
    # Behind what the progress vouches for anything may stand in the last file.
    with last.open("r+b") as file:
        file.seek(40 + 4 * 500 + 20 * (len(entries) // 2 + 30))
        file.write(os.urandom(400))
    as_ours(root, 0, vouched, clean=False)
    assert view(root)[1] == before


def test_the_index_of_ours_that_lost_a_page_before_good_entries_is_whole(
    golden_copy: GetStore,
) -> None:
    root = golden_copy("small-clean")
    _, before = view(root)
    last = max((root / "index").iterdir())
    with open_store(root) as store:
        entries = store.index.files()[-1].entries()
        middle = len(entries) // 2
        vouched = int(entries["physical_offset"][middle])
    # From here on nothing was synced: this page did not reach the disk, those behind it did.
    with last.open("r+b") as file:
        file.seek(40 + 4 * 500 + 20 * (1 + middle))
        file.write(bytes(20 * 30))
    as_ours(root, 0, vouched, clean=False)
    assert view(root)[1] == before


def test_the_index_of_ours_that_lacks_whole_files_is_whole(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    _, before = view(root)
    files = sorted((root / "index").iterdir())
    with open_store(root) as store:
        vouched = store.index.files()[3].header.begin_physical_offset
    for file in files[4:]:
        file.unlink()
    as_ours(root, 0, vouched, clean=False)
    assert view(root)[1] == before


def test_a_damaged_record_leaves_a_gap_and_all_other_units_keep_their_numbers(
    golden_copy: GetStore,
) -> None:
    root = golden_copy("small-clean")
    before, _ = view(root)
    queue = Queue("orders", 0)
    low, units = before[queue]
    offset, size, _ = units[10]
    shutil.rmtree(root / "consumequeue")
    segment = root / "commitlog" / f"{offset - offset % 262_144:020d}"
    with segment.open("r+b") as file:
        file.seek(offset % 262_144 + size // 2)
        file.write(b"\xff\xfe\xfd" * 3)
    after, _ = view(root)
    assert after[queue][0] == low
    assert after[queue][1][:10] == units[:10]
    assert after[queue][1][11:] == units[11:]
    assert after[queue][1][10] == (0, 0x7FFFFFFF, 0)
    del before[queue], after[queue]
    assert after == before


def test_a_queue_whose_log_went_before_it_was_dispatched_begins_anew(
    golden_copy: GetStore,
) -> None:
    root, queue, cut = golden_copy("small-clean"), Queue("orders", 0), 1_000_000
    with open_store(root, SIZES) as store:
        cut_queue(store, queue, cut)
    for segment in sorted((root / "commitlog").iterdir()):
        if int(segment.name) < 2 * cut:
            segment.unlink()
    as_ours(root, cut, 0, clean=False)
    found = first_and_units(root, queue)
    shutil.rmtree(root / "consumequeue" / queue.topic / str(queue.queue_id))
    assert found == first_and_units(root, queue)


def first_and_units(root: Path, queue: Queue) -> tuple[int, int, list[tuple[int, int, int]]]:
    with open_store(root, SIZES) as store:
        reader = store.queue(*queue)
        assert reader is not None
        return reader.first, reader.min_offset, reader.units(0, reader.max_offset).tolist()


def test_where_the_walk_begins_depends_on_who_vouches_for_what(golden: GetStore) -> None:
    with open_store(golden("trimmed")) as store:
        log, condition = store.log, store.condition
        some = {Queue("a", 0): Covered(5, 4_000_000), Queue("b", 0): Covered(7, 5_000_000)}
        assert walk_start(log, condition, {}, 9) == log.min_offset
        assert walk_start(log, condition, some, 9) == 5_000_000
        unclean = condition._replace(is_clean=False)
        assert walk_start(log, unclean, some, 4_194_304) == 4_194_304
        ours = unclean._replace(is_ours=True, queues_done=4_500_000)
        assert walk_start(log, ours, some, 4_194_304) == 4_500_000
        short = ours._replace(tails=Tails(9, {Queue("b", 0): 8}))
        assert walk_start(log, short, some, 4_194_304) == log.min_offset
        assert derive_units(log, log.end, some, 200, ()) == {}
