"""The history of one streaming query: killed in all its parts while producers send.

Spark's driver, a Python worker of Spark, the node's writer, a reader, the whole node: each comes
back, and the query goes on from its checkpoint. At the end every message must be in the sink once.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from keelog.bench.node_process import ANY_DISK, START_S, Node, await_workers
from keelog.client.client import connect
from keelog.pipeline.micro_batch import StreamPosition, parse_position
from node.runtime.settings import load_settings
from protocol.errors import MqError
from tests.soak.check import check_order, check_outcomes, read_image
from tests.soak.harness import LoadedNode
from tests.soak.stream.check import (
    SINK_TOPIC,
    SOURCE_TOPIC,
    TRAFFIC,
    Checked,
    check_copies,
    read_parquet,
    read_sink,
)

SETTINGS = (
    *ANY_DISK,
    "mapped_file_size_commit_log=8388608",
    "mapped_file_size_consume_queue=60000",
    "max_hash_slot_num=50000",
    "max_index_num=200000",
)
"""Files so small that each rolls every minute."""
KINDS = (
    "driver", "driver", "python worker", "python worker",
    "writer", "writer", "reader", "node",
)  # fmt: skip
"""One of these is drawn for each kill."""
NODE_ROLES = ("writer", "reader")
PAUSE_S_MAX = 4.0
IMPATIENT = 0.25
"""The share of kills that wait for no batch since the last one: they hit what is coming back."""
BATCH_S_MAX = 600.0
"""How long a batch may take, restarts included, before the history is given up."""
DRAIN_S_MAX = 600.0
_LOOK_S = 0.1
_JOIN_S = 120


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done. `by_tcp`: the query reads from the node, not from its folder."""

    kills: int
    seed: int
    seconds_max: float
    producers: int = 8
    pace_s: float = 0.05
    by_tcp: bool = True
    into: str = "keelog"
    """The sink: `keelog`, the node's other topic, or `parquet`."""


@dataclass(slots=True)
class Figures:
    """What came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    replayed: int = 0
    """Batches that had been planned, and not committed, when a driver died."""
    driver_starts: int = 0
    query_failures: int = 0
    seconds: float = 0.0
    checked: Checked = field(default_factory=Checked)
    faults: list[str] = field(default_factory=list)


class Checkpoint:
    """A query's checkpoint, read from outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def last(self, kind: str) -> int:
        """The last batch in `offsets` or `commits`; -1 for none."""
        names = [path.name for path in (self._folder / kind).glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def position(self) -> StreamPosition:
        """Where the last committed batch ends."""
        text = (self._folder / "offsets" / str(self.last("commits"))).read_text()
        return parse_position(json.loads(text.splitlines()[-1]))


class History:
    """Runs a plan in an empty folder."""

    def __init__(
        self, plan: Plan, folder: Path, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.plan = plan
        self._rows = folder / "rows"
        self._folder = folder
        self._rnd = random.Random(plan.seed)
        traffic = TRAFFIC._replace(pause_s=plan.pace_s, single_pause_s=plan.pace_s)
        node = Node(folder / "store", SETTINGS)
        self._node = LoadedNode(folder, node, traffic, plan.producers, tell)
        self._kills = self._node.kills
        self._faults = self._node.faults
        self.figures = Figures(self._kills, faults=self._faults)
        self._checkpoint = Checkpoint(folder / "checkpoint")
        self._driver: subprocess.Popen[bytes] | None = None

    def run(self) -> Figures:
        """The whole history."""
        began = time.monotonic()
        self._node.start()
        try:
            self._node.create_topics(SINK_TOPIC)
            self._start_driver()
            with self._node.load():
                self._await_batch_after(-1)
                self._kill_all(began + self.plan.seconds_max)
            self._drain()
            self._stop_driver()
            self._node.stop()
            self._check()
        finally:
            self._kill_driver_tree()
            self._node.node.kill()
        self.figures.seconds = time.monotonic() - began
        return self.figures

    @property
    def _endpoint(self) -> str:
        return self._node.node.endpoint

    # -- the query ------------------------------------------------------------------------------

    def _told(self) -> dict[str, Any]:
        source = {"subscribe": SOURCE_TOPIC, "startingOffsets": "earliest"}
        at = self._endpoint if self.plan.by_tcp else str(self._node.node.root)
        into: dict[str, str] = {"path": str(self._rows)}
        if self.plan.into == "keelog":
            into = {"node": self._endpoint, "topic": SINK_TOPIC}
        return {
            "master": "local[2,3]",
            "scratch": str(self._folder / "scratch"),
            "source": {**source, "nodes": json.dumps({"node": at})},
            "sink_format": self.plan.into,
            "sink": into,
            "checkpoint": str(self._folder / "checkpoint"),
        }

    def _start_driver(self) -> None:
        if self._checkpoint.last("offsets") > self._checkpoint.last("commits"):
            self.figures.replayed += 1
        self.figures.driver_starts += 1
        command = [sys.executable, "-m", "tests.soak.stream.query", json.dumps(self._told())]
        with (self._folder / "driver.log").open("ab") as talk:
            self._driver = subprocess.Popen(command, stdout=talk, stderr=talk, cwd=Path.cwd())

    def _keep_running(self) -> None:
        """A driver that has ended is started again, once all that was its is gone."""
        assert self._driver is not None
        if self._driver.poll() is not None:
            self._start_driver()

    def _below_driver(self) -> list[psutil.Process]:
        assert self._driver is not None
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._driver.pid).children(recursive=True)
        return []

    def _stop_driver(self) -> None:
        assert self._driver is not None
        self._driver.terminate()
        if code := self._driver.wait(_JOIN_S):
            self._faults.append(f"the driver ended with {code}")

    def _kill_driver_tree(self) -> None:
        if self._driver is None or self._driver.poll() is not None:
            return
        below = self._below_driver()
        self._driver.kill()
        self._driver.wait(_JOIN_S)
        _kill(below)

    # -- kills ----------------------------------------------------------------------------------

    def _kill_all(self, until: float) -> None:
        while self._kills.total() < self.plan.kills and time.monotonic() < until:
            self._wait(self._rnd.uniform(0.0, PAUSE_S_MAX))
            before = self._checkpoint.last("commits")
            kind = self._rnd.choice(KINDS)
            if self._kill(kind) and self._rnd.random() >= IMPATIENT:
                self._await_batch_after(before)

    def _kill(self, kind: str) -> bool:
        """Kills one of a kind; False when there is none just now."""
        if kind in NODE_ROLES:
            return self._node.kill_one(self._rnd, kind)
        if kind == "node":
            self._node.kill_node()
            self._node.start()
            return True
        below = self._below_driver()
        victims = [one for one in below if _is_java(one) == (kind == "driver")]
        if not victims:
            return False
        _kill([self._rnd.choice(victims)])
        if kind == "driver":
            # The program notices that its Java is gone; workers end with their sockets.
            assert self._driver is not None
            self._driver.wait(_JOIN_S)
            _kill(below)
        self._node.count(kind)
        return True

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._keep_running()
            time.sleep(_LOOK_S)

    def _await_batch_after(self, batch: int) -> None:
        deadline = time.monotonic() + BATCH_S_MAX
        while self._checkpoint.last("commits") <= batch:
            if time.monotonic() > deadline:
                raise SystemExit(f"no batch after {batch} within {BATCH_S_MAX:.0f} s")
            self._wait(_LOOK_S)

    # -- the end --------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Returns when the last committed batch ends where the source ends."""
        deadline = time.monotonic() + DRAIN_S_MAX
        ends = self._ends()
        while {at.queue_id: n for at, n in self._position().items()} != ends:
            if time.monotonic() > deadline:
                raise SystemExit(f"not drained: {self._position()} is not {ends}")
            self._wait(_LOOK_S)

    def _position(self) -> dict[Any, int]:
        return dict(self._checkpoint.position().offsets)

    def _ends(self) -> dict[int, int]:
        while True:
            try:
                with connect(self._endpoint, timeout=START_S) as client:
                    await_workers(client)
                    return {one.queue_id: one.max_offset for one in client.offsets(SOURCE_TOPIC)}
            except MqError:
                self._wait(_LOOK_S)

    def _check(self) -> None:
        figures = self.figures
        figures.batches = self._checkpoint.last("commits") + 1
        log = (self._folder / "driver.log").read_text(errors="replace")
        figures.query_failures = log.count("the query failed: ")
        root, settings = self._node.node.root, load_settings(SETTINGS)
        source = read_image(root, settings, self._node.traffic, others=(SINK_TOPIC,))
        told = self._node.told()
        tally = check_outcomes(source, told, [], promised=False, is_over=True)
        checked = figures.checked
        checked.acknowledged, checked.stored = tally.acknowledged, len(source.rows)
        checked.unknown_stored = tally.unknown_stored
        into_keelog = self.plan.into == "keelog"
        copies = read_sink(root, settings) if into_keelog else read_parquet(self._rows)
        check_copies(source, copies, checked)
        if into_keelog and checked.disordered:
            self._faults.append(f"{checked.disordered} out of their queue's order")
        self._faults += [
            *check_order(source, self._node.traffic),
            *tally.faults,
            *checked.faults,
        ]


def _kill(processes: list[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(processes, _JOIN_S)


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:
        return False
