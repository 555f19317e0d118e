"""Histories of a writer: it lives, dies in the middle of any call, and comes up from any image.

One seed is one history, and always the same one.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from node.runtime.settings import Settings
from node.writer.recovery import carry_out, examine
from protocol.errors import MqError
from tests.crash.images import Image, images, pending_pages
from tests.crash.sim_disk import SimDisk, Stopped, Tree, in_place_of_os
from tests.crash.slate import Slate
from tests.crash.truth import Truth, Violation
from tests.crash.writer_life import Producer, WriterLife, single_threaded, tiny_settings

STORE = "store"
MODES = ("sync", "sync", "async", "pool")
IMAGES_PER_CRASH = 60
"""Where much of the log is in doubt; else fewer."""
NESTED_MAX = 3
"""Crashes of recoveries in a row."""
_DIED = (Stopped, OSError)


@dataclass
class Totals:
    """What was tried."""

    images: int = 0
    histories: int = 0
    lives: int = 0
    crashes: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Totals") -> None:
        """Sums up."""
        self.images += other.images
        self.histories += other.histories
        self.lives += other.lives
        for name, count in other.crashes.items():
            self.note(name, count)

    def note(self, crash: str, count: int = 1) -> None:
        """Counts a crash of one kind."""
        self.crashes[crash] = self.crashes.get(crash, 0) + count


class Checker:
    """Recovers images on a folder of its own and holds the outcome against the truth."""

    def __init__(self, folder: Path, settings: Settings, truth: Truth) -> None:
        self._slate = Slate(folder)
        self._root = folder / STORE
        self._settings = settings
        self._truth = truth

    def check(self, image: Image, thorough: bool, required: int | None = None) -> bool:
        """Recovers it; `thorough` does so twice. Raises Violation.

        Answers whether a whole record stood beyond the place where the log was cut.
        """
        required = self._truth.required if required is None else required
        self._slate.lay_out(image.tree)
        try:
            if STORE not in image.tree:
                self._truth.check_no_store(required)
                return False
            with in_place_of_os(self._slate):
                beyond = self._recover(required, thorough)
                if thorough:
                    self._recover(required, thorough, again=True)
        except Violation as violation:
            raise Violation(f"{violation}\nimage: {image.name}") from None
        return beyond

    def _recover(self, required: int, thorough: bool, again: bool = False) -> bool:
        beyond = False
        try:
            found = examine(self._root, self._settings)
            if found.cut is not None:
                beyond = not again and self._truth.has_record_beyond(found.end, self._root)
            if found.cut is not None or thorough:
                (self._root / "keelog").mkdir(exist_ok=True)
                carry_out(found)
        except MqError as error:
            raise Violation(f"refused: {error}") from None
        if again and found.cut is not None:
            raise Violation(f"the second recovery cut again at {found.end}: {found.cut}")
        self._truth.check(self._root, found.end, found.tails, required)
        return beyond


class History:
    """One seed's store from its first start to its last."""

    def __init__(self, seed: int, folder: Path, totals: Totals, images_per_crash: int) -> None:
        self.seed = seed
        self.rnd = random.Random(seed)
        self.mode = self.rnd.choice(MODES)
        self.settings = self.adjust(tiny_settings(self.rnd, self.mode))
        self.truth = Truth(self.settings.mapped_file_size_commit_log)
        self.sim = SimDisk(folder / "disk", seed)
        self.checker = Checker(folder / "slate", self.settings, self.truth)
        self.producer = Producer(self.rnd, self.settings)
        self.images_per_crash = images_per_crash
        self.totals = totals
        self.eio_rate = self.rnd.choice([0.0, 0.0, 0.05, 0.3])

    def adjust(self, settings: Settings) -> Settings:
        """For subclasses: the settings of this history."""
        return settings

    @property
    def root(self) -> Path:
        """The store."""
        return self.sim.root / STORE

    def run(self) -> None:
        """All lives, then one that must come up and take a message. Raises Violation."""
        with single_threaded(), in_place_of_os(self.sim):
            for _ in range(self.rnd.randint(2, 5)):
                self._live(self._busy_life)
            self._live(self._last_life, may_crash=False)

    # -- one life -----------------------------------------------------------------------------

    def _live(self, work: Callable[[WriterLife], None], may_crash: bool = True) -> None:
        """Starts a writer, again where its recovery crashes, and lets it work until it ends."""
        for nested in range(NESTED_MAX + 1):
            self.totals.lives += 1
            if may_crash and nested < NESTED_MAX and self.rnd.random() < 0.4:
                self.sim.stop_at = self.sim.calls + self.rnd.randint(1, 60)
                self._fail_syncs(self.eio_rate / 2)
            try:
                life = WriterLife(self.sim, self.root, self.settings, self.truth)
            except _DIED:
                self._crash("in recovery")
                continue
            except MqError as error:
                raise Violation(f"seed {self.seed}: does not start: {error}") from None
            break
        try:
            life.check_start()
            work(life)
        except _DIED as died:
            life.end()
            self._crash("stopped" if isinstance(died, Stopped) else "EIO")
        else:
            life.end()
            self.totals.note("clean stop")

    def _fail_syncs(self, rate: float) -> None:
        self.sim.sync_fails = lambda: self.rnd.random() < rate

    def _busy_life(self, life: WriterLife) -> None:
        rnd = self.rnd
        if self.sim.stop_at < self.sim.calls or rnd.random() < 0.8:
            self.sim.stop_at = self.sim.calls + rnd.randint(1, 100)
        self._fail_syncs(self.eio_rate)
        jobs_rate = rnd.choice([0.05, 0.2, 0.4, 0.8])
        for _ in range(rnd.randint(1, 12)):
            life.turn(self.producer, rnd.choice([1, 1, 2, 4]), rnd.choice([0.0, 0.3, 0.6, 11.0]))
            if rnd.random() < jobs_rate:
                busy = rnd.random() < 0.4
                life.run_jobs((lambda: life.turn(self.producer, 1, 0.0)) if busy else None)
        life.stop_in_order(self.producer, workers_are_done=rnd.random() < 0.5)

    def _last_life(self, life: WriterLife) -> None:
        for _ in range(3):
            life.turn(self.producer, 2, 1.0)
            life.run_jobs()
        life.stop_in_order(self.producer, workers_are_done=True)

    # -- its end ------------------------------------------------------------------------------

    def _crash(self, where: str) -> None:
        """A kill leaves files and cache as they are; a power loss leaves one of many images."""
        self.sim.on_write = None
        self.sim.abandon()
        power = self.rnd.random() < (0.3 if where == "EIO" else 0.7)
        self.totals.note(f"{'power loss' if power else 'kill'}, {where}")
        if not power:
            self._check_kill()
            if self.rnd.random() < 0.3:
                self.sim.evict_lost_pages(self.rnd)
                self.truth.stored = self.truth.required
            return
        self.truth.stored = self.truth.required
        in_doubt = sum("commitlog/" in path for path, _ in pending_pages(self.sim).values())
        count = self.images_per_crash * min(1 + 2 * in_doubt, 5) // 5
        label = f"{self.seed}:{self.totals.lives}"
        tried: list[Tree] = []
        beyond: list[Tree] = []
        for number, image in enumerate(images(self.sim, label, count)):
            self.totals.images += 1
            tried.append(image.tree)
            if self.checker.check(image, thorough=number % 6 == 0):
                beyond.append(image.tree)
        prefer = beyond and self.rnd.random() < 0.7
        self.sim.restart_from(self.rnd.choice(beyond if prefer else tried))

    def _check_kill(self) -> None:
        """The files as they stand; the log has every record that was acknowledged as stored."""
        image = Image(f"{self.seed}: killed in life {self.totals.lives}", self._as_it_stands())
        kept = self.truth.required if self.mode == "pool" else self.truth.stored
        self.checker.check(image, thorough=True, required=kept)

    def _as_it_stands(self) -> Tree:
        root = self.sim.root
        return {
            str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
            for path in sorted(root.rglob("*"))
            if "/run/" not in str(path) and path.name != "lock"
        }


def run_history(
    seed: int, folder: Path, totals: Totals, images_per_crash: int = IMAGES_PER_CRASH
) -> None:
    """One history in a folder of its own, which goes when nothing was found. Raises Violation."""
    history = History(seed, folder / str(seed), totals, images_per_crash)
    totals.histories += 1
    try:
        history.run()
    except Violation as violation:
        raise Violation(f"seed {seed} ({history.mode}): {violation}") from None
    shutil.rmtree(folder / str(seed))
