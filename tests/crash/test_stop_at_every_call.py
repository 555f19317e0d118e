"""A crash before each single call that changes a file, one run for each, from a new store's first
call to the last one of a start that had to cut its log.

Covers what the strace sweep of other projects does: start, segments, epochs, floor, tails, topics,
checkpoint, clean stop, quarantine.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.images import Chooser, Everything, Image, images
from tests.crash.scene import Scene
from tests.crash.sim_disk import NEVER, Stopped
from tests.crash.writer_life import WriterLife

RECENT_IMAGES = 8
QUICK_STRIDE = 11
CALLS_MIN = 150
"""The story has at least so many calls; else it no longer tells what it should."""


class Story:
    """A life in order, one that ends with a torn log, and one that has to cut it."""

    def __init__(self, folder: Path, stop_at: int) -> None:
        self.scene = Scene(folder)
        self.scene.sim.stop_at = stop_at
        self.stop_at = stop_at
        self.life: WriterLife | None = None
        self.kinds: list[str] = []

    def tell(self) -> bool:
        """False: stopped on the way."""
        try:
            with self.scene.on_disk():
                self._first_life()
                self._torn_life()
                self._cutting_life()
        except Stopped:
            return False
        return True

    def _start(self) -> WriterLife:
        self.life = self.scene.start()
        return self.life

    def _first_life(self) -> None:
        life = self._start()
        self.scene.create_topic(life, "payments")
        self.scene.append(life, 9)
        life.stop_in_order(self.scene.producer, workers_are_done=True)
        self.scene.crash(life)
        self.life = None
        self.scene.sim.stop_at = self.stop_at

    def _torn_life(self) -> None:
        life = self._start()
        self.scene.append(life, 2)
        self.scene.append(life, 3, flush=False)
        self.scene.crash(life)
        self.life = None
        torn = next(
            image.tree
            for image in images(self.scene.sim, "torn", 60)
            if self.scene.checker.check(image, thorough=True)
        )
        calls = self.scene.sim.calls
        self.scene.sim.restart_from(torn)
        assert self.scene.sim.calls == calls
        self.scene.sim.stop_at = self.stop_at

    def _cutting_life(self) -> None:
        life = self._start()
        assert any((self.scene.root / "keelog/quarantine").iterdir())
        self.scene.append(life, 3)
        life.stop_in_order(self.scene.producer, workers_are_done=True)
        self.scene.crash(life)
        self.life = None


def stop_and_look(folder: Path, stop_at: int) -> int | None:
    """Stops before one call, and tries images of that moment. Answers how many; None: no such call.

    Raises Violation.
    """
    story = Story(folder, stop_at)
    scene = story.scene
    if story.tell():
        assert scene.sim.calls >= CALLS_MIN
        return None
    scene.crash(story.life)
    label = f"stopped at {scene.sim.last_call}"
    choosers: dict[str, Callable[[], Chooser]] = {
        "none": Chooser,
        "all": Everything,
        "all, no name": lambda: Everything(names=False),
    }
    for name, chooser in choosers.items():
        scene.check(Image(f"{label}: {name}", scene.image(chooser())))
    for image in images(scene.sim, label, RECENT_IMAGES):
        scene.check(image)
    scene.sim.restart_from(image.tree)
    with scene.on_disk():
        scene.sim.stop_at = NEVER
        life = scene.start()
        scene.append(life, 2)
        life.stop_in_order(scene.producer, workers_are_done=True)
        scene.crash(life)
    return scene.totals.images


def sweep(folder: Path, stride: int) -> int:
    """Every `stride`-th call; answers the images tried."""
    total, stop_at = 0, 1
    while (tried := stop_and_look(folder / str(stop_at), stop_at)) is not None:
        total += tried
        stop_at += stride
    return total


def test_a_crash_before_some_calls_loses_nothing(fast_folder: Path) -> None:
    assert sweep(fast_folder, QUICK_STRIDE) > 0


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_a_crash_before_any_call_loses_nothing(
    fast_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    tried = sweep(fast_folder, 1)
    assert tried > 1_000, "every call of a start, a run and a stop is one"
    record_property("images of crashes before each single call", tried)
