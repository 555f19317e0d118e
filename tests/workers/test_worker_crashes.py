"""A worker killed at any write, or robbed of any write that was not synced, comes back the same."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workers.index_folder
import workers.queue_files
import workers.sparse_file
from tests.workers.bench_of_workers import SLOTS, Running, expected, new_log, of_kind
from tests.workers.living_log import derived

WRITERS = (workers.queue_files, workers.index_folder, workers.sparse_file)
SECTOR_BYTES = 64
FEWER = settings(max_examples=settings().max_examples // 3)
"""Each example is a whole life of a store."""

write_all = workers.sparse_file.write_all


class KilledError(BaseException):
    """Nobody may catch it and go on."""


@contextmanager
def killed_at(count: int) -> Iterator[None]:
    """The `count`-th write is made by half, and is the last."""
    left = [count]

    def write(descriptor: int, data: Any, position: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            write_all(descriptor, bytes(data)[: len(data) // 2], position)
            raise KilledError
        write_all(descriptor, data, position)

    with pytest.MonkeyPatch.context() as patch:
        for module in WRITERS:
            patch.setattr(module, "write_all", write)
        yield


def live(worker: Running, work: Callable[[Running], None], writes: int) -> None:
    """Starts a worker and lets it work until its writes are used up."""
    try:
        with killed_at(writes):
            worker.start()
            work(worker)
    except KilledError:
        pass
    finally:
        worker.kill()


@pytest.mark.parametrize("slot", SLOTS)
@FEWER
@given(
    lives=st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=6),
    seed=st.integers(0, 3),
)
def test_a_worker_killed_in_the_middle_of_any_write_comes_back_the_same(
    slot: str, lives: list[Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = new_log(tmp_path_factory.mktemp("killed"), seed)

    def work(worker: Running) -> None:
        for _ in range(4):
            log.grow(15)
            worker.catch_up()

    def work_and_save(worker: Running) -> None:
        work(worker)
        worker.save()
        work(worker)

    for writes, saves in lives:
        live(Running(log, slot), work_and_save if saves else work, writes)
    log.grow(1)
    worker = Running(log, slot)
    worker.start()
    worker.catch_up()
    worker.stop()
    log.close()
    assert of_kind(derived(log.root), slot) == of_kind(expected(log), slot)


def lose_power(durable: Path, current: Path, rnd: random.Random) -> None:
    """Each sector that differs from what was durable is on disk or not; so is each new name."""
    names = {path.relative_to(current) for path in current.rglob("*") if path.is_file()}
    for name in sorted(names):
        path, old = current / name, durable / name
        if not old.exists() and rnd.random() < 0.3:
            path.unlink()
            continue
        data = bytearray(path.read_bytes())
        before = old.read_bytes() if old.exists() else bytes(len(data))
        for start in range(0, len(data), SECTOR_BYTES):
            if rnd.random() < 0.5:
                data[start : start + SECTOR_BYTES] = before[start : start + SECTOR_BYTES]
        path.write_bytes(data)


@pytest.mark.parametrize("slot", SLOTS)
@FEWER
@given(seed=st.integers(0, 10**6), rounds=st.integers(1, 4))
def test_a_power_loss_that_keeps_any_part_of_what_was_not_synced_does_no_harm(
    slot: str, seed: int, rounds: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("power")
    log = new_log(folder, seed % 4)
    rnd = random.Random(seed)
    derived_folder = log.root / ("index" if slot == "index" else "consumequeue")
    for _ in range(rounds):
        worker = Running(log, slot)
        worker.start()
        log.grow(rnd.randrange(1, 60))
        worker.catch_up()
        worker.save()
        shutil.copytree(derived_folder, folder / "durable", dirs_exist_ok=False)
        for _ in range(rnd.randrange(3)):
            log.grow(rnd.randrange(1, 40))
            worker.catch_up()
        worker.kill()
        lose_power(folder / "durable", derived_folder, rnd)
        shutil.rmtree(folder / "durable")
    log.grow(1)
    worker = Running(log, slot)
    worker.start()
    worker.catch_up()
    worker.stop()
    log.close()
    assert of_kind(derived(log.root), slot) == of_kind(expected(log), slot)
