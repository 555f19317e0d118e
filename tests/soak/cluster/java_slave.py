"""Kills a node and a real slave of RocketMQ behind it, in turn, under load.

The writer, the process that serves followers, the whole node and the slave are killed with SIGKILL.
After each kill the slave has to get what was appended afterwards. In the end both stop: the logs
must be the same byte for byte, and the slave's queues those that follow from it. Its index files
are counted: a broker's own are not reproducible over an unclean stop.

    python -m tests.soak.cluster.java_slave --kills 50 --seed 1

Exit codes: 0 all is equal, 1 something is not, 2 usage. It needs Java and Maven.
"""

import argparse
import random
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from keelog.bench.node_process import Node
from keelog.client.client import connect
from node.runtime.settings import load_settings
from node.runtime.state_page import LogPage, LogState
from protocol.errors import MqError
from scripts.rivals.rocketmq import missing
from tests.cluster.java_slave import JavaSlave, Site
from tests.cluster.same_store import (
    differing_index,
    differing_log,
    differing_queues,
    rebuilt_copy,
)
from tests.soak.command import run_soak, soak_parser
from tests.soak.harness import SMALL_FILES, KilledNode

VICTIMS = ("writer", "followers", "node", "slave", "followers", "writer")
BACK_S_MAX = 240.0
PAUSE_S = (0.5, 4.0)
SENDERS = 3
SLAVE_SIZES = {
    "mappedFileSizeCommitLog": 1048576,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "registerNameServerPeriod": 10_000,
}


@dataclass
class SlaveFigures:
    """What a run has found."""

    kills: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    acknowledged: int = 0
    index_files_that_differ: int = 0
    back_s_max: float = 0.0
    faults: list[str] = field(default_factory=list)


class SenderThreads:
    """Sends to the node without an end, whatever happens to it."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self._endpoint = endpoint
        self._over = threading.Event()
        self.acknowledged = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._send, args=(random.Random(seed + number),), daemon=True)
            for number in range(SENDERS)
        ]

    def start(self) -> None:
        """Begins."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _send(self, rnd: random.Random) -> None:
        with connect(self._endpoint, timeout=5.0) as client:
            while not self._over.wait(0.002):
                with suppress(MqError):
                    body, key = rnd.randbytes(rnd.randrange(2_000)), f"k{rnd.randrange(500)}"
                    client.send(f"t{rnd.randrange(3)}", body, keys=key)
                    with self._lock:
                        self.acknowledged += 1


class SlaveRun:
    """One run."""

    def __init__(self, site: Site, folder: Path, options: argparse.Namespace) -> None:
        self._rnd = random.Random(options.seed)
        self._options = options
        self._folder = folder
        settings = (*site.settings(), *SMALL_FILES, "disk_space_warning_level_ratio=100")
        self._node = Node(folder / "node", settings, queue_workers=1, readers=1)
        self._killed = KilledNode(folder, self._node, options.tell)
        self._slave: JavaSlave = site.slave(SLAVE_SIZES)
        self.figures = SlaveFigures()

    def run(self) -> SlaveFigures:
        """Kills, then compares."""
        figures = self.figures
        self._killed.start()
        self._slave.broker.start()
        senders = SenderThreads(self._node.endpoint, self._options.seed)
        senders.start()
        self._await_growth()
        for number in range(self._options.kills):
            time.sleep(self._rnd.uniform(*PAUSE_S))
            self._kill(VICTIMS[number % len(VICTIMS)])
            self._await_growth()
        senders.stop()
        self._killed.catch_up()
        end = self._settled_end()
        self._slave.wait_for(end)
        begin = self._log().min_offset
        self._killed.stop()
        self._slave.broker.stop()
        figures.acknowledged, figures.bytes = senders.acknowledged, end - begin
        figures.kills = dict(self._killed.kills)
        figures.faults += self._killed.faults
        self._compare(begin, end)
        return figures

    def _kill(self, victim: str) -> None:
        if victim == "node":
            self._killed.kill_node()
            self._killed.start()
        elif victim == "slave":
            self._slave.broker.kill()
            self._killed.count("slave")
            self._slave.broker.start()
        elif not self._killed.kill_one(self._rnd, victim):
            self.figures.faults.append(f"there was no {victim} to kill")

    def _await_growth(self) -> None:
        """Returns when the slave has more than what the node has now."""
        began, wanted = time.monotonic(), self._log().appended + 1
        while self._slave.end() < wanted:
            if time.monotonic() - began > BACK_S_MAX:
                raise AssertionError(f"the slave did not get {wanted} within {BACK_S_MAX:.0f} s")
            time.sleep(0.1)
        self.figures.back_s_max = max(self.figures.back_s_max, time.monotonic() - began)

    def _log(self) -> LogState:
        with LogPage.open(self._node.root) as page:
            return page.read()

    def _settled_end(self) -> int:
        while (state := self._log()).flushed != state.appended:
            time.sleep(0.1)
        return state.appended

    def _compare(self, begin: int, end: int) -> None:
        ours, theirs = self._node.root, self._slave.store
        self.figures.faults += differing_log(ours, theirs, begin, end)
        made = rebuilt_copy(ours, self._folder, load_settings(SMALL_FILES))
        self.figures.faults += differing_queues(made, theirs)
        self.figures.index_files_that_differ = len(differing_index(made, theirs))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = soak_parser(__doc__)
    add = parser.add_argument
    add("--kills", type=int, default=20, help="of node and slave, in turn (default 20)")
    options = parser.parse_args()
    if options.kills < 0:
        parser.error("a count of kills is 0 or more")
    if reason := missing():
        parser.error(reason)
    return options


def main() -> int:
    """Runs, prints, returns the exit code."""
    options = arguments()
    return run_soak(options, "slave", lambda folder: _run(folder, options))


def _run(folder: Path, options: argparse.Namespace) -> SlaveFigures:
    with Site(folder / "site") as site:
        return SlaveRun(site, folder, options).run()


if __name__ == "__main__":
    sys.exit(main())
