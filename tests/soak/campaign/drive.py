"""A process of a campaign: one node after the other, each for some rounds, until all are done."""

import json
import multiprocessing
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil

from keelog.bench.node_process import Node
from keelog.client.client import connect
from protocol.errors import MqError
from tests.soak.campaign.life import NEEDS_A_SMALL_DISK, Life
from tests.soak.campaign.load import TRAFFIC
from tests.soak.campaign.results import END_OF_STORE, Round
from tests.soak.harness import LARGE_PULLS, OFTEN_SAVED, SMALL_FILES
from tests.soak.load import obey_the_parent_alone

FOLDERS = ("node", "other")
"""How the folders of stores begin, in the one of the campaign."""
ROUNDS_OF_A_STORE = 100
"""Then a new one begins: the last check reads all of it."""
KEPT_STORES_MAX = 10
"""Of each node."""
_OTHER_MESSAGES = 60
_SEEDS = 100_000
_OF_A_ROUND = (MqError, OSError, psutil.Error, subprocess.SubprocessError)
"""What may come of a node that is not well: a fault of the round, and the campaign goes on."""


@dataclass(frozen=True, slots=True)
class Work:
    """What each process of a campaign is told. `left`: rounds that nobody has taken yet."""

    folder: Path
    seed: int
    kinds: Sequence[str]
    may_mount: bool
    left: "Synchronized[int]"
    stop: Event


def make_work(folder: Path, seed: int, kinds: Sequence[str], may_mount: bool, rounds: int) -> Work:
    """For processes that are spawned."""
    context = multiprocessing.get_context("spawn")
    return Work(folder, seed, kinds, may_mount, context.Value("q", rounds), context.Event())


def drive(number: int, work: Work, results: "Queue[Round]") -> None:
    """Rounds until none is left or it is time to stop. Each result goes into the queue."""
    obey_the_parent_alone()
    Driver(number, work, results).run()


class Driver:
    """One node at a time."""

    def __init__(self, number: int, work: Work, results: "Queue[Round]") -> None:
        self._number = number
        self._work = work
        self._results = results
        self._life: Life | None = None
        self._lives = self._rounds = self._kept = 0
        self._other = work.folder / f"other-{number}"

    def run(self) -> None:
        """All of it. Whatever ends it, the node ends too."""
        try:
            _make_other(self._other, self._number)
            while not self._work.stop.is_set() and self._take():
                self._turn()
            if self._life is not None:
                self._finish()
        finally:
            if self._life is not None:
                self._life.close(keep=True)
            shutil.rmtree(self._other, ignore_errors=True)

    def _take(self) -> bool:
        with self._work.left.get_lock():
            self._work.left.value -= 1
            return bool(self._work.left.value >= 0)

    def _turn(self) -> None:
        life = self._life or self._begin()
        if life is None:
            return
        kind = life.draw(self._work.kinds)
        self._rounds += 1
        one = Round(self._number, self._rounds, kind)
        try:
            life.round(kind, one)
        except _OF_A_ROUND as error:
            one.faults.append(f"{type(error).__name__}: {error}")
        self._put(one, life)
        if self._life is not None and (life.rounds >= ROUNDS_OF_A_STORE or life.is_full):
            self._finish()

    def _begin(self) -> Life | None:
        """A new store; None when it cannot be."""
        self._lives += 1
        # A node of these kinds has a small disk, of others every second.
        small = self._work.may_mount and (
            self._lives % 2 == self._number % 2 or set(self._work.kinds) <= NEEDS_A_SMALL_DISK
        )
        folder = self._work.folder / f"node-{self._number}-{self._lives}"
        seed = self._work.seed * _SEEDS + self._number * 1_000 + self._lives
        self._life = Life(folder, seed, self._other / "store", small)
        try:
            self._life.start()
        except _OF_A_ROUND as error:
            one = Round(self._number, self._rounds, "start", faults=[f"it does not start: {error}"])
            self._put(one, self._life)
        return self._life

    def _finish(self) -> None:
        assert self._life is not None
        one = Round(self._number, self._rounds, END_OF_STORE, what="verify --deep and all checks")
        try:
            self._life.finish(one)
        except _OF_A_ROUND as error:
            one.faults.append(f"{type(error).__name__}: {error}")
        self._put(one, self._life)
        if self._life is not None:
            self._life.close(keep=False)
            self._life = None

    def _put(self, one: Round, life: Life) -> None:
        """Reports a round; a node with a fault goes, and its store stays for people to look at."""
        if one.faults:
            keep = self._kept < KEPT_STORES_MAX
            self._kept += keep
            one.kept = str(life.folder) if keep else ""
            one.talk = life.talk()
            life.close(keep)
            self._life = None
            if keep:
                (life.folder / "fault.json").write_text(json.dumps({"faults": one.faults}))
                (life.folder / "talk.txt").write_text(one.talk)
        self._results.put(one)


def _make_other(folder: Path, seed: int) -> None:
    """Another store of the same shape: its files are taken for those of a node under test."""
    folder.mkdir()
    node = Node(folder / "store", [*SMALL_FILES, *OFTEN_SAVED, *LARGE_PULLS], readers=1)
    try:
        node.begin()
        node.await_ready()
        with connect(node.endpoint, timeout=30.0) as client:
            for topic in TRAFFIC.topics:
                client.create_topic(topic, TRAFFIC.queues)
            for number in range(_OTHER_MESSAGES):
                sent = TRAFFIC.message(seed + 100, number)
                client.send(TRAFFIC.topics[sent.topic], sent.body)
            time.sleep(0.5)
        node.stop()
    finally:
        node.kill()
