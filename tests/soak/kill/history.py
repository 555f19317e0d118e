"""The history of one store: killed in part and as a whole, or robbed of its power, under load.

A round: single processes are killed at random moments, then the whole node, its supervisor alone,
or the power of its disk. The store is checked against what its senders were told, and the node is
started again. Or, in turns, only workers and readers are killed, one after the other, while
senders are at full speed and followers must see each message once.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from keelog.bench.node_process import ANY_DISK, START_S, Killer, Node
from keelog.client.client import connect
from node.runtime.settings import SYNC_FLUSH, load_settings
from node.runtime.state_page import LogPage
from node.store.checkpoints import QUARANTINE_DIR, own_dir
from tests.soak.check import (
    STORED,
    Cut,
    Image,
    Tally,
    check_files,
    check_finds,
    check_followed,
    check_index,
    check_order,
    check_outcomes,
    check_passed_over,
    check_prefix,
    check_seen,
    pull_image,
    read_image,
)
from tests.soak.harness import (
    LARGE_FILES,
    LARGE_PULLS,
    OFTEN_SAVED,
    SMALL_FILES,
    LoadedNode,
    Work,
)
from tests.soak.load import SEEN, TRAFFIC, Traffic, follow, read_along, read_rows
from tests.soak.power_disk import PowerDisk

SINGLE_ROLES = ("writer", "writer", "queue", "index", "reader")
"""One of these is drawn for each single kill: half of them hit what is written to most."""
SINGLES_MAX = 9
SINGLE_PAUSE_S_MAX = 0.7
FULL_SPEED = Traffic(queues=8, body_bytes_max=100, in_flight=4096, burst=200, pause_s=0.0)
FINDS, INDEX_LOOKUPS = 1_000, 20_000
"""How many messages are looked up by key at the end: at the node, and in its index files."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to one store. `kills`: of any kind, or power losses."""

    kills: int
    seed: int
    flush: str
    producers: int = 3
    singles_max: int = SINGLES_MAX
    turns: int = 0
    """Instead: how often each worker and reader is killed."""

    @property
    def pairs(self) -> tuple[str, ...]:
        """The node's settings."""
        files = (*LARGE_FILES, *LARGE_PULLS) if self.turns else (*SMALL_FILES, *OFTEN_SAVED)
        return (*files, *ANY_DISK, f"flush_disk_type={self.flush}")


@dataclass(slots=True)
class Figures(Tally):
    """What came of a history, or of several."""

    kills: Counter[str] = field(default_factory=Counter)
    histories: int = 0
    checks: int = 0
    stored: int = 0
    read: int = 0
    followed: int = 0
    quarantined: int = 0
    gap_s_max: float = 0.0
    """The longest without an acknowledgement to anybody while the supervisor lived."""
    back_s_max: float = 0.0
    """The longest from a start to `ready`, or from the kill of a worker until the next one ran."""
    orphan_s_max: float = 0.0
    seconds: float = 0.0

    def add(self, other: "Figures") -> None:
        """Sums, and the worst of both."""
        for name in (one.name for one in fields(self)):
            mine, its = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, its) if name.endswith(("_max", "_ms")) else mine + its)


class History:
    """Runs a plan in a folder; on a disk whose power can be cut, that is how each round ends."""

    def __init__(
        self, plan: Plan, folder: Path, disk: PowerDisk | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._disk = disk
        self._rnd = random.Random(plan.seed)
        self._settings = load_settings(plan.pairs)
        self._root = (disk.place if disk else folder) / "store"
        node = Node(self._root, plan.pairs, queue_workers=2 if plan.turns else 1)
        traffic = FULL_SPEED if plan.turns else TRAFFIC
        self._node = LoadedNode(
            folder, node, traffic, plan.producers, lambda text: tell(f"{plan.flush} {text}")
        )
        self._figures = Figures(histories=1, faults=self._node.faults, kills=self._node.kills)
        self._faults = self._node.faults
        self._image = Image(np.zeros((0, len(STORED)), np.int64), 0)
        self._cuts: list[Cut] = []
        self._cut_at = self._flushed = self._started_ns = 0
        self._ups: list[tuple[int, int]] = []
        """When the node ran, from ready to the kill, in ns."""
        self._readings = folder / "reader.rows"
        self._followings = [folder / f"follower-{n}.rows" for n in range(len(traffic.topics))]
        self._readers: dict[Path, Work] = {
            self._readings: (read_along, (node.endpoint, traffic, self._readings))
        }
        if plan.turns:
            self._readers = {
                path: (follow, (node.endpoint, traffic, topic, path))
                for topic, path in enumerate(self._followings)
            }

    def run(self) -> Figures:
        """Runs the whole history. A fault ends it: the store stays for people to look at."""
        began = time.monotonic()
        self._start()
        try:
            self._node.create_topics()
            with self._node.load(self._readers):
                if self.plan.turns:
                    self._kill_in_turns()
                while self._left() > 0 and not self._faults:
                    self._round()
            if not self._faults:
                self._end()
        finally:
            self._node.node.kill()
        self._figures.back_s_max = max(self._figures.back_s_max, self._node.back_s_max)
        self._figures.orphan_s_max = self._node.orphan_s_max
        self._figures.seconds = time.monotonic() - began
        return self._figures

    # -- rounds --------------------------------------------------------------------------------

    def _kill_in_turns(self) -> None:
        with connect(self._node.node.endpoint, timeout=START_S) as client:
            killer = Killer(client)
            for _ in range(self.plan.turns):
                for role, index in killer.victims():
                    killer.kill(role, index)
                    self._node.count(f"{role} {index}")
        self._faults += killer.late
        self._figures.back_s_max = max((one.back_s for one in killer.kills), default=0.0)

    def _left(self) -> int:
        """Kills of the plan that are still to come; where there is power to cut, cuts."""
        if self.plan.turns:
            return 0
        kills = self._node.kills
        return self.plan.kills - (kills.total() if self._disk is None else kills["power"])

    def _round(self) -> None:
        for _ in range(self._rnd.randrange(min(self._left(), self.plan.singles_max) + 1)):
            self._pause()
            self._node.kill_one(self._rnd, self._rnd.choice(SINGLE_ROLES))
        if self._rnd.random() < 0.5:
            self._node.await_all()
        self._end_round()
        self._check(is_over=False)
        if self._disk is None and self._rnd.random() < 0.4:
            self._kill_in_start()
            self._check(is_over=False)
        if not self._faults:
            self._start()

    def _pause(self) -> None:
        time.sleep(self._rnd.uniform(0.0, SINGLE_PAUSE_S_MAX))

    def _end_round(self) -> None:
        """The node ends, without a warning."""
        self._pause()
        self._ups.append((self._started_ns, time.monotonic_ns()))
        if self._disk is not None:
            with LogPage.open(self._root) as page:
                self._flushed = page.read().flushed
            self._cut_at = self._disk.cut()
            self._node.node.kill()
            self._disk.unmount()
            self._disk.mount()
            self._node.count("power")
        elif self._rnd.random() < 0.6:
            self._node.kill_node()
        else:
            self._node.kill_supervisor()

    def _kill_in_start(self) -> None:
        """Kills all of a node that is starting: in the middle of a recovery, with luck."""
        self._node.node.begin()
        time.sleep(self._rnd.uniform(0.3, 1.2))
        self._node.node.kill()
        self._node.count("starting node")

    def _start(self) -> None:
        self._node.start()
        self._started_ns = time.monotonic_ns()

    # -- checks --------------------------------------------------------------------------------

    def _check(self, is_over: bool) -> Tally:
        """Checks everything that can be said now of the store at rest."""
        before, traffic = self._image, self._node.traffic
        self._figures.checks += 1
        self._faults += check_files(self._root, self._settings)
        told = self._node.told()
        # Bytes once compared can only change under the page cache when the power goes.
        whole = is_over or self._disk is not None
        self._image = read_image(self._root, self._settings, traffic, 0 if whole else before.end)
        self._faults += check_prefix(before, self._image)
        self._faults += check_order(self._image, traffic)
        if self._cut_at:
            self._cuts.append(Cut(self._cut_at, time.monotonic_ns(), self._image.end))
            if self._image.end < self._flushed:
                fault = f"{self._flushed} bytes were flushed, the log ends at {self._image.end}"
                self._faults.append(fault)
            self._cut_at = 0
        is_sync = self.plan.flush == SYNC_FLUSH
        tally = check_outcomes(self._image, told, self._cuts, is_sync, is_over)
        self._faults += tally.faults
        return tally

    def _end(self) -> None:
        """After a last stop in order nothing may be missing and nothing too much."""
        node = self._node
        node.catch_up()
        self._ups.append((self._started_ns, time.monotonic_ns()))
        with connect(node.node.endpoint, timeout=START_S) as client:
            pulled = pull_image(client, node.traffic)
            self._faults += check_finds(client, node.traffic, pulled, FINDS)
        node.stop()
        tally = self._check(is_over=True)
        if not np.array_equal(pulled.rows, self._image.rows):
            self._faults.append(
                f"{len(pulled.rows)} messages were pulled, not the {len(self._image.rows)} stored"
            )
        seen = read_rows(self._readings, SEEN)
        self._faults += check_passed_over(seen)
        if self._disk is None or self.plan.flush == SYNC_FLUSH:
            self._faults += check_seen(self._image, seen)
        self._check_followers()
        self._faults += check_index(
            self._root, self._settings, node.traffic, self._image, INDEX_LOOKUPS
        )
        node.verify()
        self._sum_up(tally, len(seen))

    def _check_followers(self) -> None:
        for topic, path in enumerate(self._followings if self.plan.turns else []):
            seen = read_rows(path, SEEN)
            self._figures.followed += len(seen)
            self._faults += check_seen(self._image, seen)
            self._faults += check_followed(self._image, seen, topic)

    def _sum_up(self, tally: Tally, read: int) -> None:
        figures = self._figures
        figures.faults = list(dict.fromkeys(self._faults))
        for one in fields(Tally):
            if one.name != "faults":
                setattr(figures, one.name, getattr(tally, one.name))
        figures.stored, figures.read = len(self._image.rows), read
        quarantine = own_dir(self._root) / QUARANTINE_DIR
        figures.quarantined = len(list(quarantine.glob("*"))) if quarantine.is_dir() else 0
        told = self._node.told().values()
        ns = np.sort(np.concatenate([rows[rows[:, 1] == 0, -1] for rows in told]))
        for began, ended in self._ups:
            gaps = np.diff(ns[(ns >= began) & (ns < ended)])
            if len(gaps):
                figures.gap_s_max = max(figures.gap_s_max, float(gaps.max()) / 1e9)
