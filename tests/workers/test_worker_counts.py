"""Queue workers of changing number, killed and stopped: the queues end as a rebuild makes them."""

import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.runtime.state_page import queue_slot
from node.store.checkpoints import PROGRESS_DIR, Tails, own_dir, save_tails
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, offset_file_name
from protocol.record.encode import NewMessage
from tests.workers.bench_of_workers import Running, expected
from tests.workers.living_log import LivingLog, derived
from workers.queue_files import QueueWriter

FEWER = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow], deadline=None)
ENDS = ("kill", "save and kill", "stop")
LIVES = st.lists(
    st.tuples(
        st.integers(1, 4),  # workers
        st.integers(0, 25),  # records before they start
        st.booleans(),  # and are these flushed
        st.integers(0, 4),  # records that the writer's restart before it loses
        st.lists(st.sampled_from(ENDS), min_size=4, max_size=4),  # how each of them ends
        st.booleans(),  # does only the first of them come up
    ),
    min_size=1,
    max_size=6,
)


def queue_files(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name.startswith(CONSUME_QUEUE_DIR)}


def live(log: LivingLog, count: int, ends: list[str], only_first: bool = False) -> None:
    """One life of `count` workers, or of the first of them alone."""
    for number in range(1 if only_first else count):
        worker = Running(log, queue_slot(number, count))
        worker.start()
        worker.catch_up()
        if ends[number] == "stop":
            worker.stop()
            continue
        if ends[number] == "save and kill":
            worker.save()
        worker.kill()


@FEWER
@given(lives=LIVES, seed=st.integers(0, 5))
def test_any_history_of_numbers_of_workers_ends_in_what_a_rebuild_gives(
    lives: list[Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = LivingLog(tmp_path_factory.mktemp("counts") / "store", seed=seed)
    for count, records, flush, lost, ends, only_first in lives:
        log.grow(records, flush)
        fresh = [start for start in log.starts if start >= log.flushed]
        log.begin_epoch(cut_at=fresh[-lost:][0] if fresh and lost else None)
        live(log, count, ends, only_first)
    log.grow(5)
    live(log, 3, ["stop"] * 4)
    log.close()
    assert queue_files(derived(log.root)) == queue_files(expected(log))
    shutil.rmtree(log.root)


@pytest.mark.parametrize("garbage", [b"", b"\0" * 4096, b"1 100\ncrc 00000000\n", None])
@pytest.mark.parametrize("slot", ["index", queue_slot(0, 1)])
def test_an_empty_garbled_or_missing_progress_is_made_anew(
    tmp_path: Path, garbage: bytes | None, slot: str
) -> None:
    log = LivingLog(tmp_path / "store")
    log.grow(60)
    first = Running(log, slot)
    first.start()
    first.catch_up()
    first.stop()
    path = own_dir(log.root) / PROGRESS_DIR / slot
    path.unlink() if garbage is None else path.write_bytes(garbage)
    again = Running(log, slot)
    again.start()
    again.catch_up()
    again.stop()
    log.close()
    kept = derived(log.root)
    assert kept == {name: value for name, value in expected(log).items() if name in kept}
    assert kept


@pytest.mark.parametrize("with_folder", [True, False])
def test_queues_that_were_deleted_come_back_without_a_snapshot_of_their_ends(
    tmp_path: Path, with_folder: bool
) -> None:
    """As after a kill of the whole node. The worker that comes second finds the first one's."""
    log = LivingLog(tmp_path / "store")
    log.grow(60)
    live(log, 2, ["save and kill"] * 4)
    before = queue_files(derived(log.root))
    assert before
    shutil.rmtree(log.root / CONSUME_QUEUE_DIR)
    if with_folder:
        (log.root / CONSUME_QUEUE_DIR).mkdir()
    live(log, 2, ["stop"] * 4)
    log.close()
    assert queue_files(derived(log.root)) == before


@pytest.mark.parametrize("with_folder", [True, False])
def test_index_files_that_were_deleted_come_back(tmp_path: Path, with_folder: bool) -> None:
    """Whoever deletes them deletes the folder, or all that is in it."""
    log = LivingLog(tmp_path / "store")
    log.grow(60)
    worker = Running(log, "index")
    worker.start()
    worker.catch_up()
    worker.stop()
    before = derived(log.root)
    assert before
    shutil.rmtree(log.root / INDEX_DIR)
    if with_folder:
        (log.root / INDEX_DIR).mkdir()
    again = Running(log, "index")
    again.start()
    again.catch_up()
    again.stop()
    log.close()
    assert derived(log.root) == before


def test_a_progress_ahead_of_its_queue_gets_the_queue_rebuilt(tmp_path: Path) -> None:
    log = LivingLog(tmp_path / "store")
    log.grow(60)
    live(log, 1, ["stop"] * 4)
    save_tails(log.root, Tails(log.flushed, dict(log.next_offset)))
    victim = max((log.root / CONSUME_QUEUE_DIR).rglob("0" * 20))
    data = victim.read_bytes()
    half = next(at for at in range(0, len(data), 20) if not any(data[at : at + 20])) // 40 * 20
    victim.write_bytes(data[:half].ljust(len(data), b"\0"))  # as if it had never been synced
    log.grow(10)
    live(log, 1, ["stop"] * 4)
    log.close()
    assert queue_files(derived(log.root)) == queue_files(expected(log))


def damaged_last_message(folder: Path, at: int) -> tuple[LivingLog, int]:
    """A log and its queues at rest; the last message of queue 7 has another byte `at` its place,
    and others follow it. Answers its offset."""
    log = LivingLog(folder / "store")
    log.grow(60)
    for _ in range(3):
        bad = log.append(NewMessage(topic="orders", queue_id=7, body=b"body", tags="A"))
    log.grow(20)
    live(log, 1, ["stop"] * 4)
    save_tails(log.root, Tails(log.flushed, dict(log.next_offset)))
    base = bad - bad % log.segment_bytes
    with (log.root / COMMIT_LOG_DIR / offset_file_name(base)).open("r+b") as file:
        file.seek(bad - base + at)
        file.write(b"\xff")
    return log, bad


def test_the_unit_of_a_last_message_whose_checksum_does_not_agree_stays(tmp_path: Path) -> None:
    log, _ = damaged_last_message(tmp_path, at=88)
    before = queue_files(derived(log.root))
    worker = Running(log, queue_slot(0, 1))
    worker.start()
    assert worker.page.read().dispatched == log.end
    worker.stop()
    log.close()
    assert queue_files(derived(log.root)) == before


def test_damage_in_a_rebuild_costs_its_queue_that_message_and_hides_no_other(
    tmp_path: Path,
) -> None:
    log, bad = damaged_last_message(tmp_path, at=4)
    before = queue_files(derived(log.root))
    worker = Running(log, queue_slot(0, 1))
    worker.start()
    worker.catch_up()
    assert worker.page.read().dispatched == log.end
    files = worker.files
    assert isinstance(files, QueueWriter)
    queue = Queue("orders", 7)
    assert files.last_good(queue, log.end).end == 3, "its reader is not told at the end"
    # The next message of the queue keeps its number.
    later = log.append(NewMessage(topic="orders", queue_id=7, body=b"body"))
    log.publish()
    worker.catch_up()
    places = [files.unit(queue, number).physical_offset for number in (2, 3)]
    assert places == [bad, later]
    worker.kill()
    log.close()
    after = queue_files(derived(log.root))
    broken = f"{CONSUME_QUEUE_DIR}/orders/7/"
    assert {name for name in before if before[name] != after.get(name)} == {broken + "0" * 20}


def test_a_progress_of_another_version_stops_the_worker_by_name(tmp_path: Path) -> None:
    log = LivingLog(tmp_path / "store")
    log.grow(5)
    live(log, 1, ["stop"] * 4)
    path = own_dir(log.root) / PROGRESS_DIR / queue_slot(0, 1)
    text = b"version 9\n"
    path.write_bytes(text + f"crc {zlib.crc32(text):08x}\n".encode())
    worker = Running(log, queue_slot(0, 1))
    with pytest.raises(StoreDamaged, match="makes no sense"):
        worker.start()
    worker.kill()
    log.close()
