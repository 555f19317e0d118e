"""A staged batch reaches the log exactly once, wherever the writer ends on the way."""

import itertools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import node.writer.staging.jobs
import node.writer.staging.publisher
from tests.crash.images import images
from tests.crash.publications import PublicationHistory
from tests.crash.sim_disk import Stopped, Tree
from tests.crash.truth import Violation
from tests.crash.writer_life import WriterLife

CHUNK_BYTES = 400
"""Three rows: a publication has many turns, and a crash between any two."""
NESTED_MAX = 4


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.writer.staging.publisher, "PUBLISH_BYTES_MAX", CHUNK_BYTES)
    monkeypatch.setattr(node.writer.staging.publisher, "CHECKPOINT_BYTES", 3 * CHUNK_BYTES)


def restarted(history: PublicationHistory, life: WriterLife | None, power: bool) -> None:
    """The process is gone. A power loss leaves one of many images, a kill the files as they are."""
    scene = history.scene
    scene.crash(life)
    if not power:
        return
    scene.truth.stored = scene.truth.required
    trees: list[Tree] = [image.tree for image in images(scene.sim, f"{scene.sim.calls}", 12)]
    scene.sim.restart_from(history.rnd.choice(trees))


def play(seed: int, stop_at: int, folder: Path, power: bool) -> bool:
    """One history that is stopped before its call number `stop_at`, and later perhaps again.

    Answers whether it was stopped at all.
    """
    history = PublicationHistory(seed, folder)
    sim, stops = history.scene.sim, 0
    with history.scene.on_disk():
        while True:
            life = None
            try:
                if not stops or history.rnd.random() < 0.5:
                    ahead = stop_at if not stops else history.rnd.randrange(1, 60)
                    if stops < NESTED_MAX:
                        sim.stop_at = sim.calls + ahead
                life = history.scene.start()
                history.go_on(life)
                break
            except Stopped:
                stops += 1
                restarted(history, life, power)
        life.end()
    return stops > 0


def folders(base: Path) -> Iterator[Path]:
    """A new folder for each history, gone behind it."""
    for number in itertools.count():
        with tempfile.TemporaryDirectory(dir=base, prefix=str(number)) as folder:
            yield Path(folder)


def play_every_call(seed: int, base: Path, power: bool, step: int = 1) -> int:
    """One history, stopped at each of its calls in turn; answers how many there are."""
    begin = random.Random(seed).randrange(step)
    for number, folder in enumerate(folders(base)):
        stop_at = 1 + begin + number * step
        try:
            if not play(seed, stop_at, folder, power):
                return stop_at
        except Violation as violation:
            raise Violation(
                f"seed {seed}, stopped at call {stop_at}, power {power}: {violation}"
            ) from None
    raise AssertionError("a history has an end")


@pytest.mark.parametrize("power", [False, True])
def test_a_batch_is_in_the_log_once_wherever_the_writer_ends(
    power: bool, fast_folder: Path
) -> None:
    for seed in range(2):
        assert play_every_call(seed, fast_folder, power, step=8) > 100


def test_a_publication_that_trusts_its_journal_and_not_the_log_is_found_out(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        node.writer.staging.jobs,
        "position_in_log",
        lambda _root, _batch, journal, _end: journal.position,
    )
    with pytest.raises(Violation, match="stored more than once"):
        for seed in range(100):
            play_every_call(seed, fast_folder, power=False, step=5)


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("first", [100, 200])
def test_a_batch_is_in_the_log_once_wherever_the_writer_ends_in_many_histories(
    first: int, power: bool, fast_folder: Path
) -> None:
    for seed in range(first, first + 3):
        assert play_every_call(seed, fast_folder, power, step=3) > 100
