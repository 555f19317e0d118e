"""A worker killed at any call, or robbed of anything that was not synced, comes back the same.

The simulated disk is that of `tests/crash/`. The log lies beside it: it is durable, or cut where a
power loss may have cut it.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.crash.images import images
from tests.crash.sim_disk import SimDisk, Stopped, in_place_of_os
from tests.workers.bench_of_workers import SLOTS, Running, expected, of_kind
from tests.workers.living_log import LivingLog, derived

FEWER = settings(max_examples=max(settings().max_examples // 12, 1))
"""Each example is a whole life of a store."""
IMAGES_PER_CRASH = 4
CRASH_IMAGES = 500


class Bench:
    """A living log, one slot's worker on a simulated disk, and what its files should be."""

    def __init__(self, folder: Path, slot: str, seed: int) -> None:
        self.sim = SimDisk(folder / "disk", seed)
        self.slot = slot
        self.log = LivingLog(self.sim.root / "store", seed=seed % 4)
        self.images = 0

    def live(self, work: Callable[[Running], None], calls: int) -> bool:
        """Starts a worker and lets it work until its calls are used up; True: it was stopped."""
        worker = Running(self.log, self.slot)
        self.sim.stop_at = self.sim.calls + calls
        try:
            with in_place_of_os(self.sim):
                worker.start()
                work(worker)
        except Stopped:
            return True
        finally:
            worker.kill()
            self.sim.abandon()
        return False

    def check_now(self, name: str) -> None:
        """A worker that starts now makes what a rebuild makes."""
        worker = Running(self.log, self.slot)
        with in_place_of_os(self.sim):
            worker.start()
            worker.catch_up()
            worker.stop()
        self.sim.abandon()
        made = of_kind(derived(self.log.root), self.slot)
        assert made == of_kind(expected(self.log), self.slot), name

    def lose_power(self, rnd: random.Random, label: str) -> None:
        """Tries images of this moment, and goes on from one. The log may lose what it may lose."""
        trees = list(images(self.sim, label, IMAGES_PER_CRASH))
        lost = [start for start in self.log.starts if start >= self.log.flushed]
        self.log.begin_epoch(rnd.choice(lost) if lost and rnd.random() < 0.5 else None)
        self.log.grow(1)
        for image in trees:
            self.sim.restart_among_others(image.tree)
            self.check_now(image.name)
            self.images += 1
        self.sim.restart_among_others(rnd.choice(trees).tree)


def work_of(log: LivingLog, rnd: random.Random) -> Callable[[Running], None]:
    """Follows the log for a while, and saves now and then."""

    def work(worker: Running) -> None:
        for _ in range(rnd.randrange(1, 5)):
            log.grow(rnd.randrange(1, 30), flush=rnd.random() < 0.7)
            worker.catch_up()
            if rnd.random() < 0.4:
                worker.save()

    return work


@pytest.mark.parametrize("slot", SLOTS)
@FEWER
@given(
    lives=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    seed=st.integers(0, 10**6),
)
def test_a_worker_killed_in_the_middle_of_any_write_comes_back_the_same(
    slot: str, lives: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bench = Bench(tmp_path_factory.mktemp("killed"), slot, seed)
    rnd = random.Random(seed)
    for calls in lives:
        bench.live(work_of(bench.log, rnd), calls)
    bench.log.grow(1)
    bench.check_now(f"seed {seed}")
    bench.log.close()


def play_power_losses(folder: Path, slot: str, seed: int) -> int:
    """One store's life; answers how many images were tried."""
    bench, rnd = Bench(folder, slot, seed), random.Random(seed)
    for number in range(rnd.randrange(1, 4)):
        for _ in range(rnd.choice([1, 1, 2, 3])):
            bench.live(work_of(bench.log, rnd), rnd.choice([5, 20, 100, 1000]))
        bench.lose_power(rnd, f"{seed}:{number}")
    bench.check_now("at last")
    bench.log.close()
    return bench.images


@pytest.mark.parametrize("slot", SLOTS)
@FEWER
@example(seed=408)  # leaves entries behind a gap, and an index file's header from before both
@example(seed=19405)  # leaves an older index file under the name of the last one
@given(seed=st.integers(0, 10**6))
def test_a_power_loss_that_keeps_any_part_of_what_was_not_synced_does_no_harm(
    slot: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert play_power_losses(tmp_path_factory.mktemp("power"), slot, seed) > 0


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("slot", SLOTS)
def test_no_image_of_a_workers_files_does_harm(
    slot: str, tmp_path: Path, record_property: Any
) -> None:
    tried = seed = 0
    while tried < CRASH_IMAGES:
        tried += play_power_losses(tmp_path / str(seed), slot, seed)
        seed += 1
    assert seed > 1, "one history is not many"
    record_property("images of workers' files tried, 0 violations", tried)
