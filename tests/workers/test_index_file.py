"""Where the index worker resumes, and what becomes of half an index."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from node.store.checkpoints import remove_progress
from node.store.file_sizes import found_geometry
from protocol.derived.file_layouts import INDEX_ENTRY, INDEX_HEADER
from protocol.errors import StoreDamaged
from protocol.names import ABORT_FILE, INDEX_DIR
from protocol.record.encode import NewMessage
from tests.workers.bench_of_workers import Running, expected, new_log, of_kind, running
from tests.workers.living_log import SETTINGS, LivingLog, derived

SLOT = "index"
GEOMETRY = SETTINGS.index_geometry


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LivingLog]:
    log = new_log(tmp_path)
    yield log
    log.close()


def run(log: LivingLog) -> int:
    """Starts, catches up and stops the worker; answers where it resumed."""
    worker = Running(log, SLOT)
    worker.start()
    resumed = worker.dispatcher.done
    worker.catch_up()
    worker.stop()
    return resumed


def is_as_rebuilt(log: LivingLog) -> bool:
    return of_kind(derived(log.root), SLOT) == of_kind(expected(log), SLOT)


def index_paths(log: LivingLog) -> list[Path]:
    return sorted((log.root / INDEX_DIR).iterdir())


def test_a_restart_goes_on_where_the_progress_is(log: LivingLog) -> None:
    log.grow(60)
    run(log)
    end = log.end
    log.grow(60)
    assert run(log) == end
    assert is_as_rebuilt(log)


def test_a_missing_index_voids_the_progress(log: LivingLog) -> None:
    log.grow(60)
    run(log)
    shutil.rmtree(log.root / INDEX_DIR)
    assert run(log) == 0
    assert is_as_rebuilt(log)


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.timeout(60)
def test_what_is_no_file_among_the_index_files_is_refused_by_name_and_never_opened(
    log: LivingLog, is_folder: bool
) -> None:
    log.grow(60)
    run(log)
    last = index_paths(log)[-1]
    last.unlink()
    if is_folder:
        last.mkdir()
    else:
        os.mkfifo(last)
    assert found_geometry(log.root, GEOMETRY) == GEOMETRY
    worker = Running(log, SLOT)
    with pytest.raises(StoreDamaged, match=f"{last}.*is no file") as caught:
        worker.start()
    assert "keelog store repair" in caught.value.hint
    assert index_paths(log)[-1] == last
    worker.kill()


def test_after_a_clean_stop_of_another_owner_the_last_record_is_where_to_go_on(
    log: LivingLog,
) -> None:
    log.grow(60)
    run(log)
    remove_progress(log.root, SLOT)
    last = INDEX_HEADER.read(index_paths(log)[-1].read_bytes()).end_physical_offset
    log.grow(30)
    assert run(log) == last
    assert is_as_rebuilt(log)


def test_after_any_other_stop_of_another_owner_the_last_file_is_made_anew(log: LivingLog) -> None:
    log.grow(60)
    run(log)
    remove_progress(log.root, SLOT)
    (log.root / ABORT_FILE).write_text("1")
    path = index_paths(log)[-1]
    data = bytearray(path.read_bytes())
    data[100:400] = bytes(300)
    path.write_bytes(data)
    run(log)
    assert is_as_rebuilt(log)


@pytest.mark.parametrize("missing", range(1, 6))
def test_a_record_with_half_its_entries_is_completed(log: LivingLog, missing: int) -> None:
    """As a broker leaves it that was stopped between two keys, even across two files."""
    for number in range(12):
        log.append(
            NewMessage("t", b"", 0, "TagA", (f"a{number}", "b", "b"), unique_key=f"U{number}")
        )
    log.publish()
    run(log)
    remove_progress(log.root, SLOT)
    for _ in range(missing):
        path = index_paths(log)[-1]
        data = bytearray(path.read_bytes())
        header = INDEX_HEADER.read(data)
        number = header.index_count - 1
        at = GEOMETRY.entry_position(number)
        entry = INDEX_ENTRY.read(data, at)
        before = INDEX_ENTRY.read(data, GEOMETRY.entry_position(number - 1))
        if number == 1:
            path.unlink()
            continue
        data[at : at + INDEX_ENTRY.size] = bytes(INDEX_ENTRY.size)
        slot = GEOMETRY.slot_position(entry.key_hash % GEOMETRY.slot_count)
        data[slot : slot + 4] = entry.prev.to_bytes(4, "big")
        header = header._replace(
            index_count=number,
            slot_count=header.slot_count - (entry.prev == 0),
            end_physical_offset=before.physical_offset,
        )
        data[: INDEX_HEADER.size] = INDEX_HEADER.pack(header)
        path.write_bytes(data)
    run(log)
    assert is_as_rebuilt(log)


def test_an_index_of_another_log_counts_for_nothing(log: LivingLog, tmp_path: Path) -> None:
    other = new_log(tmp_path / "other", seed=9)
    other.grow(60)
    run(other)
    other.close()
    log.grow(60)
    shutil.copytree(other.root / INDEX_DIR, log.root / INDEX_DIR)
    run(log)
    assert is_as_rebuilt(log)


def test_an_older_file_under_the_name_of_a_new_one_counts_for_nothing(log: LivingLog) -> None:
    """A power loss may keep the name of a new file and lose what was written into it."""
    log.grow(90)
    run(log)
    first, *_, last = index_paths(log)
    shutil.copy(first, last.with_name(f"{int(last.name) + 1:017d}"))
    log.grow(60)
    run(log)
    assert is_as_rebuilt(log)


def test_entries_behind_the_end_of_the_log_are_undone(log: LivingLog) -> None:
    log.grow(120)
    run(log)
    remove_progress(log.root, SLOT)
    log.begin_epoch(cut_at=log.starts[60])
    log.grow(10)
    run(log)
    assert is_as_rebuilt(log)


def test_records_dispatched_twice_are_entered_once(log: LivingLog) -> None:
    log.grow(60)
    with running(log, SLOT) as worker:
        worker.dispatcher.done = 0
        worker.catch_up()
    assert is_as_rebuilt(log)


def test_a_record_without_keys_moves_progress_and_makes_no_file(log: LivingLog) -> None:
    log.append(NewMessage("t", b"x", 0))
    log.publish()
    run(log)
    assert index_paths(log) == []
    assert run(log) == log.end


def test_files_are_named_by_their_first_records_store_time_in_utc(log: LivingLog) -> None:
    log.grow(200)
    run(log)
    names = [path.name for path in index_paths(log)]
    assert len(names) > 3
    assert names[0].startswith("20231114221320")
    assert names == sorted(set(names))


def test_a_file_may_be_filled_exactly_and_the_next_is_made_for_the_next_key(log: LivingLog) -> None:
    for _ in range(GEOMETRY.index_num - 1):
        log.append(NewMessage("t", b"x", 0, tags="A"))
    log.publish()
    run(log)
    assert len(index_paths(log)) == 1
    log.append(NewMessage("t", b"x", 0))
    log.publish()
    run(log)
    assert len(index_paths(log)) == 1
    log.append(NewMessage("t", b"x", 0, tags="A"))
    log.publish()
    run(log)
    first, second = index_paths(log)
    assert INDEX_HEADER.read(first.read_bytes()).index_count == GEOMETRY.index_num
    assert INDEX_HEADER.read(second.read_bytes()).index_count == 2
    assert is_as_rebuilt(log)


def test_an_expired_record_is_believed(log: LivingLog) -> None:
    log.append(NewMessage("t", b"x", 0, tags="A"))
    while log.end < 2 * log.segment_bytes:
        log.append(NewMessage("t", bytes(500), 0))
    log.publish()
    run(log)
    (log.root / "commitlog" / ("0" * 20)).unlink()
    log.min_offset = log.segment_bytes
    log.begin_epoch()
    log.append(NewMessage("t", b"x", 0, tags="A"))
    log.publish()
    run(log)
    (path,) = index_paths(log)
    data = path.read_bytes()
    assert INDEX_HEADER.read(data).index_count == 3
    entries = INDEX_ENTRY.view(data, GEOMETRY.entry_position(1), 2)
    assert entries["prev"].tolist() == [0, 1]
    assert np.all(entries["physical_offset"] == [0, log.starts[-1]])
