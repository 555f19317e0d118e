"""The history of one store: killed in part and as a whole, or robbed of its power, under load.

A round: single processes are killed at random moments, then the whole node, its supervisor alone,
or the power of its disk. The store is held against what was told; then it is started again.
"""

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from client.client import connect
from keelog.bench.node_process import ANY_DISK, START_S, Node, await_workers, processes
from keelog.bench.queue_checks import Ints, verify_deep
from node.runtime.settings import SYNC_FLUSH, Settings, load_settings
from node.runtime.state_page import LogPage
from node.store.checkpoints import QUARANTINE_DIR, own_dir
from tests.soak.kill.check import (
    STORED,
    Cut,
    Image,
    Tally,
    check_files,
    check_order,
    check_outcomes,
    check_passed_over,
    check_prefix,
    check_seen,
    read_image,
)
from tests.soak.kill.load import QUEUES, ROW, SEEN, TOPICS, read_along, read_rows, send
from tests.soak.power_disk import PowerDisk

SIZES = (
    "mapped_file_size_commit_log=1048576",
    "mapped_file_size_consume_queue=6000",
    "max_hash_slot_num=1000",
    "max_index_num=4000",
)
"""So small that each file rolls every few seconds."""
PACE = (
    "flush_interval_consume_queue=200",
    "flush_consume_queue_least_pages=0",
    "flush_interval_commit_log=2000",
)
"""Progress is saved often; the log in ASYNC_FLUSH seldom: a power loss finds some to take."""
SINGLE_ROLES = ("writer", "writer", "queue", "index", "reader")
"""One of these is drawn for each single kill: half of them hit what is written to most."""
SINGLES_MAX = 9
SINGLE_PAUSE_S_MAX = 0.7
ORPHANS_S_MAX = 60.0
"""How long the children of a killed supervisor may live on, on a machine with other work too."""
_JOIN_S = 300


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to one store. `kills`: of any kind, or power losses."""

    kills: int
    seed: int
    flush: str
    producers: int = 3
    singles_max: int = SINGLES_MAX

    @property
    def pairs(self) -> tuple[str, ...]:
        """The node's settings."""
        return (*SIZES, *PACE, *ANY_DISK, f"flush_disk_type={self.flush}")

    @property
    def settings(self) -> Settings:
        """The same, read."""
        return load_settings(self.pairs)


@dataclass(slots=True)
class Figures:
    """What came of a history, or of several."""

    kills: Counter[str] = field(default_factory=Counter)
    histories: int = 0
    checks: int = 0
    acknowledged: int = 0
    stored: int = 0
    read: int = 0
    lost: int = 0
    invented: int = 0
    changed: int = 0
    twice: int = 0
    unknown_stored: int = 0
    gone: int = 0
    gone_age_ms: float = 0.0
    raced: int = 0
    quarantined: int = 0
    gap_s_max: float = 0.0
    """The longest without an acknowledgement to anybody while the supervisor lived."""
    back_s_max: float = 0.0
    """The longest from a start to `ready`."""
    orphan_s_max: float = 0.0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def shape(self) -> dict[str, Any]:
        """As JSON. (`asdict` cannot copy a Counter.)"""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {**values, "kills": dict(self.kills)}

    def add(self, other: "Figures") -> None:
        """Sums, and the worst of both."""
        for name in self.__slots__:
            mine, its = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, its) if name.endswith(("_max", "_ms")) else mine + its)


class History:
    """Runs a plan in a folder; on a disk whose power can be cut, that is how each round ends."""

    def __init__(
        self, plan: Plan, folder: Path, disk: PowerDisk | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.figures = Figures(histories=1)
        self._rnd = random.Random(plan.seed)
        self._folder = folder
        self._disk = disk
        self._tell = tell
        self._root = (disk.place if disk else folder) / "store"
        self._node = Node(self._root, plan.pairs)
        self._node.talk = folder / "node.log"
        self._image = Image(np.zeros((0, len(STORED)), np.int64), 0)
        self._cuts: list[Cut] = []
        self._cut_at = self._flushed = self._started_ns = 0
        self._ups: list[tuple[int, int]] = []
        """When the node ran, from ready to the kill, in ns."""

    def run(self) -> Figures:
        """The whole history. A fault ends it: what is there stays for people to look at."""
        began = time.monotonic()
        self._start()
        try:
            with connect(self._node.endpoint, timeout=START_S) as client:
                for topic in TOPICS:
                    client.create_topic(topic, QUEUES)
            with self._load():
                while self._left() > 0 and not self.figures.faults:
                    self._round()
            if not self.figures.faults:
                self._end()
        finally:
            self._node.kill()
        self.figures.seconds = time.monotonic() - began
        return self.figures

    # -- what sends and reads ------------------------------------------------------------------

    @contextmanager
    def _load(self) -> Iterator[None]:
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        endpoint = self._node.endpoint
        helpers = [
            context.Process(target=send, args=(endpoint, number, path, stop), daemon=True)
            for number, path in self._receipts().items()
        ]
        reader = (endpoint, self._readings, stop)
        helpers.append(context.Process(target=read_along, args=reader, daemon=True))
        for helper in helpers:
            helper.start()
        try:
            self._await_load()
            yield
        finally:
            self._stop_load(helpers, stop)

    def _await_load(self) -> None:
        """Returns when each has something to show."""
        deadline = time.monotonic() + START_S
        paths = [*self._receipts().values(), self._readings]
        while not all(path.exists() and path.stat().st_size for path in paths):
            if time.monotonic() > deadline:
                raise SystemExit(f"not all of {paths} begin")
            time.sleep(0.02)

    def _stop_load(self, helpers: list[SpawnProcess], stop: Event) -> None:
        stop.set()
        for helper in helpers:
            helper.join(_JOIN_S)
            if helper.exitcode != 0:
                self.figures.faults.append(f"a sender or reader ended with {helper.exitcode}")
                helper.kill()

    def _receipts(self) -> dict[int, Path]:
        return {n: self._folder / f"producer-{n}.rows" for n in range(self.plan.producers)}

    @property
    def _readings(self) -> Path:
        return self._folder / "reader.rows"

    def _told(self) -> dict[int, Ints]:
        return {number: read_rows(path, ROW) for number, path in self._receipts().items()}

    # -- rounds --------------------------------------------------------------------------------

    def _left(self) -> int:
        """Kills of the plan that are still to come; where there is power to cut, cuts."""
        kills = self.figures.kills
        return self.plan.kills - (kills.total() if self._disk is None else kills["power"])

    def _round(self) -> None:
        self._kill_singles(self._rnd.randrange(min(self._left(), self.plan.singles_max) + 1))
        if self._rnd.random() < 0.5:
            self._await_all()
        self._end_round()
        self._check(is_over=False)
        if self._disk is None and self._rnd.random() < 0.4:
            self._kill_in_start()
            self._check(is_over=False)
        if not self.figures.faults:
            self._start()

    def _kill_singles(self, count: int) -> None:
        for _ in range(count):
            time.sleep(self._rnd.uniform(0.0, SINGLE_PAUSE_S_MAX))
            role = self._rnd.choice(SINGLE_ROLES)
            victims = [child for its, child in self._node.children() if its == role]
            if victims:
                with suppress(psutil.NoSuchProcess):
                    self._rnd.choice(victims).kill()
                    self._count(role)

    def _count(self, kind: str) -> None:
        self.figures.kills[kind] += 1
        self._tell(f"{self.plan.flush} {self.figures.kills.total()} kills, the last: {kind}")

    def _await_all(self) -> None:
        """Whoever was killed comes back by itself."""
        deadline = time.monotonic() + START_S
        with connect(self._node.endpoint, timeout=START_S) as client:
            while any(one.state != "running" for one in processes(client).values()):
                if time.monotonic() > deadline:
                    self.figures.faults.append(f"not all processes run: {processes(client)}")
                    return
                time.sleep(0.05)

    def _end_round(self) -> None:
        """The node ends, without a warning."""
        time.sleep(self._rnd.uniform(0.0, SINGLE_PAUSE_S_MAX))
        self._ups.append((self._started_ns, time.monotonic_ns()))
        if self._disk is not None:
            with LogPage.open(self._root) as page:
                self._flushed = page.read().flushed
            self._cut_at = self._disk.cut()
            self._node.kill()
            self._disk.unmount()
            self._disk.mount()
            self._count("power")
        elif self._rnd.random() < 0.6:
            self._node.kill()
            self._count("node")
        else:
            self._await_orphans(self._node.kill_supervisor())
            self._count("supervisor")

    def _await_orphans(self, children: list[psutil.Process]) -> None:
        began = time.monotonic()
        _, alive = psutil.wait_procs(children, _JOIN_S)
        took = time.monotonic() - began
        self.figures.orphan_s_max = max(self.figures.orphan_s_max, took)
        if alive or took > ORPHANS_S_MAX:
            self.figures.faults.append(f"children outlived their supervisor by {took:.1f} s")
        for child in alive:
            child.kill()

    def _kill_in_start(self) -> None:
        """All of a node that is starting: in the middle of a recovery, with luck."""
        self._node.begin()
        time.sleep(self._rnd.uniform(0.3, 1.2))
        self._node.kill()
        self._count("starting node")

    def _start(self) -> None:
        began = time.monotonic()
        self._node.begin()
        self._node.await_ready()
        self.figures.back_s_max = max(self.figures.back_s_max, time.monotonic() - began)
        self._started_ns = time.monotonic_ns()

    # -- checks --------------------------------------------------------------------------------

    def _check(self, is_over: bool) -> Tally:
        """Everything that can be said now, of the store at rest."""
        figures, settings, before = self.figures, self.plan.settings, self._image
        figures.checks += 1
        figures.faults += check_files(self._root, settings)
        told = self._told()
        # Bytes once compared can only change under the page cache when the power goes.
        whole = is_over or self._disk is not None
        self._image = read_image(self._root, settings, 0 if whole else before.end)
        figures.faults += check_prefix(before, self._image)
        figures.faults += check_order(self._image)
        if self._cut_at:
            self._cuts.append(Cut(self._cut_at, time.monotonic_ns(), self._image.end))
            if self._image.end < self._flushed:
                fault = f"{self._flushed} bytes were flushed, the log ends at {self._image.end}"
                figures.faults.append(fault)
            self._cut_at = 0
        is_sync = self.plan.flush == SYNC_FLUSH
        tally = check_outcomes(self._image, told, self._cuts, is_sync, is_over)
        figures.faults += tally.faults
        return tally

    def _end(self) -> None:
        """A last stop in order; then nothing may be missing and nothing too much."""
        self._await_all()
        with connect(self._node.endpoint, timeout=START_S) as client:
            await_workers(client)
        self._ups.append((self._started_ns, time.monotonic_ns()))
        if code := self._node.stop():
            self.figures.faults.append(f"the node ended with {code}")
        tally = self._check(is_over=True)
        seen = read_rows(self._readings, SEEN)
        self.figures.faults += check_passed_over(seen)
        if self._disk is None or self.plan.flush == SYNC_FLUSH:
            self.figures.faults += check_seen(self._image, seen)
        code, said = verify_deep(self._root)
        if code:
            self.figures.faults.append(f"store verify --deep ended with {code}: {said}")
        self._sum_up(tally, len(seen))

    def _sum_up(self, tally: Tally, read: int) -> None:
        figures = self.figures
        figures.faults = list(dict.fromkeys(figures.faults))
        for one in fields(Tally):
            if one.name != "faults":
                setattr(figures, one.name, getattr(tally, one.name))
        figures.stored, figures.read = len(self._image.rows), read
        quarantine = own_dir(self._root) / QUARANTINE_DIR
        figures.quarantined = len(list(quarantine.glob("*"))) if quarantine.is_dir() else 0
        ns = np.sort(np.concatenate([rows[rows[:, 1] == 0, -1] for rows in self._told().values()]))
        for began, ended in self._ups:
            gaps = np.diff(ns[(ns >= began) & (ns < ended)])
            if len(gaps):
                figures.gap_s_max = max(figures.gap_s_max, float(gaps.max()) / 1e9)
