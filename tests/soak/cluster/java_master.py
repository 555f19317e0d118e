"""Kills a real master of RocketMQ and a replica of it, in turn, under load.

The replica's process, its whole node, a worker and the broker are killed with SIGKILL; of a killed
node the log sometimes gets half a record more, as a torn write leaves it. In the end both stop: the
logs must be the same byte for byte, and so must the queues. Of the index, those files are counted
that differ from the broker's: its own are not reproducible over an unclean stop. Against an index
that is rebuilt from the log, none may differ.

    python -m tests.soak.cluster.java_master --kills 50 --seed 1

Exit codes: 0 all is equal, 1 something is not, 2 usage. It needs Java and Maven.
"""

import argparse
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from keelog.bench.queue_checks import verify_deep
from node.runtime.run_files import read_follow_state
from node.runtime.settings import load_settings
from node.store.checkpoints import load_floor
from protocol.errors import MqError
from scripts.rivals.rocketmq import missing
from tests.cluster.java_master import JavaMaster, replica_of, wait_copied
from tests.cluster.same_store import (
    differing_index,
    differing_log,
    differing_queues,
    rebuilt_copy,
)
from tests.soak.command import run_soak, soak_parser
from tests.soak.harness import SMALL_FILES
from tests.support.node import wait_until

VICTIMS = ("replica", "node", "replica", "master", "torn", "worker", "replica")
PAUSE_S = (0.3, 3.0)
BACK_S_MAX = 180.0
HALF_RECORD = bytes.fromhex("000001a4daa320a7") + b"half of a record " * 9
MASTER_SIZES = {
    "mappedFileSizeCommitLog": 1048576,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


@dataclass
class MasterFigures:
    """What a run has found."""

    kills: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    segments: int = 0
    messages: int = 0
    connections: int = 0
    index_files_that_differ: int = 0
    back_s_max: float = 0.0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


class MasterRun:
    """One run."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._rnd = random.Random(options.seed)
        self._options = options
        self._folder = folder
        self._root = folder / "replica"
        self.figures = MasterFigures()

    def run(self) -> MasterFigures:
        """Kills, then compares."""
        began = time.monotonic()
        with JavaMaster(self._folder / "master", MASTER_SIZES) as master:
            self._node = replica_of(master, self._root, *SMALL_FILES)
            self._node.start()
            master.begin_load()
            for number in range(self._options.kills):
                time.sleep(self._rnd.uniform(*PAUSE_S))
                victim = VICTIMS[number % len(VICTIMS)]
                self._tell(f"kill {number + 1} of {self._options.kills}: {victim}")
                self._kill(master, victim)
                self.figures.kills[victim] = self.figures.kills.get(victim, 0) + 1
                self._await_growth(master)
            time.sleep(2)
            master.end_load()
            end = wait_copied(master, self._node)
            self.figures.connections += read_follow_state(self._root).connections
            self._node.stop()
            master.broker.stop()
            self.figures.messages = master.sent
            self._compare(master.store, end)
        self.figures.seconds = round(time.monotonic() - began, 1)
        return self.figures

    def _tell(self, text: str) -> None:
        if not self._options.json:
            print(text, flush=True)

    def _kill(self, master: JavaMaster, victim: str) -> None:
        node = self._node
        if victim == "master":
            master.broker.kill()
            time.sleep(self._rnd.uniform(0, 2))
            master.restart()
        elif victim in ("node", "torn"):
            self.figures.connections += read_follow_state(self._root).connections
            node.kill_all()
            if victim == "torn":
                self._tear()
            self._node = replica_of(master, self._root, *SMALL_FILES)
            self._node.start()
        else:
            with suppress(MqError, AssertionError, ProcessLookupError):
                node.kill("queue" if victim == "worker" else "writer")

    def _tear(self) -> None:
        """Half a record behind the end of the log, which nobody acknowledged."""
        end = load_floor(self._root)
        path = sorted((self._root / "commitlog").iterdir())[-1]
        data = path.read_bytes()
        used = max(len(data.rstrip(b"\0")), end - int(path.name))
        if used + len(HALF_RECORD) < len(data):
            with path.open("r+b") as file:
                file.seek(used)
                file.write(HALF_RECORD)

    def _await_growth(self, master: JavaMaster) -> None:
        """The replica gets what was appended after the kill."""
        began = time.monotonic()
        end = master.facts().end + 1
        state = self._node.log_state

        def grew() -> bool:
            with suppress(FileNotFoundError):
                return state().flushed >= end
            return False

        wait_until(grew, f"no growth: {read_follow_state(self._root)}", BACK_S_MAX)
        took = round(time.monotonic() - began, 2)
        self.figures.back_s_max = max(self.figures.back_s_max, took)

    def _compare(self, theirs: Path, end: int) -> None:
        figures, root = self.figures, self._root
        figures.bytes = end
        figures.segments = len(list((root / "commitlog").iterdir()))
        figures.faults += differing_log(root, theirs, 0, end)
        figures.faults += differing_queues(root, theirs)
        figures.index_files_that_differ = len(differing_index(root, theirs))
        made = rebuilt_copy(root, self._folder, load_settings(SMALL_FILES))
        figures.faults += [f"not as rebuilt: {one}" for one in differing_queues(root, made)]
        figures.faults += [f"not as rebuilt: {one}" for one in differing_index(root, made)]
        code, said = verify_deep(root)
        if code:
            figures.faults.append(f"store verify ends with {code}: {said}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = soak_parser(__doc__)
    parser.add_argument("--kills", type=int, default=50, help="of either side (default 50)")
    options = parser.parse_args()
    if options.kills < 0:
        parser.error("a count of kills is 0 or more")
    if why := missing():
        parser.error(why)
    return options


def main() -> int:
    """Runs, prints, returns the exit code."""
    options = arguments()
    return run_soak(options, "master", lambda folder: MasterRun(folder, options).run())


if __name__ == "__main__":
    sys.exit(main())
