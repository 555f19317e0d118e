"""A writer's store after a power loss or a kill at any moment, from any image that may be left."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.__main__ import main as long_run
from tests.crash.histories import Totals, run_history
from tests.crash.planted_bugs import PLANTED, hunt

Record = Callable[[str, object], None]
SHARDS = 8
SHARD_IMAGES = 13_000
SHORT_IMAGES = 2_000
SOAK_IMAGES = 125_000
SHARD_SEEDS = 1_000_000
PLANTED_HISTORIES_MAX = 150


def play(folder: Path, first_seed: int, images: int) -> Totals:
    """Histories from a seed on until so many images were tried. Raises Violation."""
    totals = Totals()
    seed = first_seed
    while totals.images < images:
        run_history(seed, folder, totals)
        seed += 1
    return totals


def note(record: Record, totals: Totals) -> None:
    """For the summary behind the tests' dots."""
    record("crash images tried, 0 violations", totals.images)
    record("crash histories", totals.histories)
    record("lives of a writer in them", totals.lives)


def test_nothing_acknowledged_is_lost_and_nothing_invented_in_thousands_of_images(
    fast_folder: Path, record_property: Record
) -> None:
    totals = play(fast_folder, 0, SHORT_IMAGES)
    note(record_property, totals)
    assert totals.images >= SHORT_IMAGES


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_acknowledged_is_lost_and_nothing_invented(
    shard: int, fast_folder: Path, record_property: Record
) -> None:
    totals = play(fast_folder, (shard + 1) * SHARD_SEEDS, SHARD_IMAGES)
    note(record_property, totals)
    assert totals.images >= SHARD_IMAGES


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_acknowledged_is_lost_and_nothing_invented_in_a_million_images(
    shard: int, fast_folder: Path, record_property: Record
) -> None:
    totals = play(fast_folder, (SHARDS + shard + 1) * SHARD_SEEDS, SOAK_IMAGES)
    note(record_property, totals)
    assert totals.images >= SOAK_IMAGES


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, fast_folder: Path, record_property: Record) -> None:
    found = hunt(name, fast_folder, PLANTED_HISTORIES_MAX)
    assert found is not None, f"{name}: not found in {PLANTED_HISTORIES_MAX} histories"
    record_property("planted bugs found", 1)
    record_property(f"images until found, {name}", found.images)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_million_images() -> None:
    assert long_run(["--images", "1000000", "--seed", "100000000"]) == 0
