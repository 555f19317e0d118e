"""Kills the master that RocketMQ's controllers have elected, again and again, under load.

Three name servers with controllers, three nodes, senders of our client and a producer of RocketMQ.
Each time another node has to become the master, and the old one to come back as its replica. With
`--freezes` a master is held instead (SIGSTOP) until another one leads, and then goes on: it must
acknowledge nothing any more. In the end all logs must be the same byte for byte, and hold every
message that was acknowledged.

    python -m tests.soak.cluster.elected_master --kills 20 --seed 1

Exit codes: 0 nothing is lost and all is equal, 1 something is not, 2 usage. Needs Java and Maven.
"""

import argparse
import random
import signal
import statistics
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from keelog.client.client import Client, connect
from protocol.errors import MqError
from scripts.rivals.rocketmq import Jvm, missing
from tests.cluster.elected_site import ControllerSite
from tests.cluster.same_store import differing_log
from tests.interop import probe
from tests.soak.clients.programs import QUIET_HEAP, java_classes
from tests.soak.cluster.lost_master import bodies
from tests.soak.command import run_soak, soak_parser
from tests.soak.harness import SMALL_FILES
from tests.support.elected_node import ElectedNode, await_true, elected_nodes, master_of

NODES = 3
SENDERS = 2
TOPIC = "elected"
LOAD_S = (1.0, 3.0)
BACK_S_MAX = 90.0
PAUSE_S = 0.02
TIMEOUT_MS = 3_000
"""After so long without a heart-beat a controller takes a node for dead: only for `--freezes`, as
the end of a killed node's connections is heard at once."""
KINDS = ("DLedger", "jRaft")


@dataclass
class ElectedFigures:
    """What a run has found. Seconds count from the kill, or from the begin of a freeze."""

    kills: int = 0
    freezes: int = 0
    to_master_s_p50: float = 0.0
    to_master_s_max: float = 0.0
    to_acknowledged_s_p50: float = 0.0
    to_acknowledged_s_max: float = 0.0
    back_in_sync_s_max: float = 0.0
    acknowledged: int = 0
    acknowledged_java: int = 0
    failed_java: int = 0
    lost: int = 0
    lost_java: int = 0
    cut_bytes: int = 0
    """Of logs of old masters, which no other node had; all of it is in quarantine."""
    epochs: int = 0
    log_bytes: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


class MasterSends:
    """Sends numbered messages to whoever leads; knows which were acknowledged."""

    def __init__(self, nodes: list[ElectedNode]) -> None:
        self.acknowledged: set[bytes] = set()
        self._nodes = nodes
        self._next = 0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def count(self) -> int:
        """How many were acknowledged."""
        with self._lock:
            return len(self.acknowledged)

    def _send(self) -> None:
        while not self._over.is_set():
            master = master_of(self._nodes)
            if master is None:
                time.sleep(PAUSE_S)
                continue
            with suppress(MqError, OSError), connect(master.endpoint, timeout=5.0) as client:
                # Until it fails: then it may not be the master any more.
                while not self._over.is_set() and self._send_one(client):
                    pass
            time.sleep(PAUSE_S)

    def _send_one(self, client: Client) -> bool:
        """Whether it was acknowledged. Raises MqError."""
        with self._lock:
            number, self._next = self._next, self._next + 1
        body = b"py-%012d-" % number + b"x" * (number * 7919 % 700)
        if client.send(TOPIC, body).status != "PUT_OK":
            return False
        with self._lock:
            self.acknowledged.add(body)
        return True


class ElectedRun:
    """One run."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._rnd = random.Random(options.seed)
        self._until = folder / "until"
        self._times: dict[str, list[float]] = {"master": [], "acknowledged": [], "back": []}
        self.figures = ElectedFigures()

    def run(self) -> ElectedFigures:
        """Kills and freezes, then compares."""
        probe.build()
        began = time.monotonic()
        with ControllerSite(self._folder, 3, self._options.controller) as site:
            settings = (*SMALL_FILES, f"controller_heart_beat_timeout={TIMEOUT_MS}")
            nodes = elected_nodes(
                self._folder, NODES, site.controllers, site.name_servers, settings
            )
            try:
                self._run(site, nodes)
            finally:
                for node in nodes:
                    if node.is_running:
                        node.kill()
        self._count_up(nodes)
        self.figures.seconds = round(time.monotonic() - began, 1)
        return self.figures

    def _run(self, site: ControllerSite, nodes: list[ElectedNode]) -> None:
        for node in nodes:
            node.begin()
        self._await_whole(nodes)
        sends = MasterSends(nodes)
        await_true(lambda: sends.count() > 0, "nothing is acknowledged", nodes, BACK_S_MAX)
        asked = [site.name_servers, TOPIC, str(self._until), "2"]
        command = [*QUIET_HEAP, "-cp", java_classes(), "Numbered", *asked]
        java = Jvm("numbered", self._folder / "java", command, talks=True)
        for number in range(self._options.kills + self._options.freezes):
            time.sleep(self._rnd.uniform(*LOAD_S))
            self._lose(nodes, sends, is_freeze=number >= self._options.kills)
            self._options.tell(f"{number + 1} masters lost")
        time.sleep(self._rnd.uniform(*LOAD_S))
        sends.stop()
        self._until.touch()
        said = java.hear()
        java.kill()
        self._await_whole(nodes)
        ends = [node.end() for node in nodes]
        await_true(
            lambda: len({node.end() for node in nodes}) == 1, f"the ends {ends} differ", nodes, 60.0
        )
        self.figures.epochs = max(node.state().epoch for node in nodes)
        for node in nodes:
            if code := node.stop():
                self.figures.faults.append(f"{node.root.name} ended with {code}")
        self._compare(nodes, sends, said["acknowledged"], said["failed"])

    def _await_whole(self, nodes: list[ElectedNode]) -> float:
        """All nodes run, and a master may be elected of all of them."""

        def is_whole() -> bool:
            master = master_of(nodes)
            if master is None or len(master.state().in_sync) != NODES:
                return False
            return all(one.follows for one in nodes if one is not master)

        return await_true(is_whole, "not all nodes are in sync", nodes, BACK_S_MAX)

    def _lose(self, nodes: list[ElectedNode], sends: MasterSends, is_freeze: bool) -> None:
        master = master_of(nodes)
        assert master is not None
        others = [one for one in nodes if one is not master]
        epoch = master.state().epoch
        before = time.monotonic()
        if is_freeze:
            master.signal(signal.SIGSTOP)
            self.figures.freezes += 1
        else:
            master.kill()
            self.figures.kills += 1
        count = sends.count()
        await_true(
            lambda: any(one.leads and one.state().epoch > epoch for one in others),
            "nobody else leads",
            nodes,
            BACK_S_MAX,
        )
        self._times["master"].append(time.monotonic() - before)
        await_true(lambda: sends.count() > count, "nothing is acknowledged", nodes, BACK_S_MAX)
        self._times["acknowledged"].append(time.monotonic() - before)
        if is_freeze:
            master.signal(signal.SIGCONT)
        else:
            master.begin()
        self._times["back"].append(self._await_whole(nodes))

    def _compare(
        self, nodes: list[ElectedNode], sends: MasterSends, java: list[int], failed: int
    ) -> None:
        figures = self.figures
        stored, figures.log_bytes = bodies(nodes[0].root)
        numbers = {int(body[5:17]) for body in stored if body.startswith(b"java-")}
        figures.acknowledged, figures.acknowledged_java = len(sends.acknowledged), len(java)
        figures.failed_java = failed
        figures.lost = len(sends.acknowledged - stored)
        figures.lost_java = len(set(java) - numbers)
        for name, lost in (("our client", figures.lost), ("RocketMQ's", figures.lost_java)):
            if lost:
                figures.faults.append(f"{lost} messages that {name} got acknowledged are lost")
        if not sends.acknowledged or not java:
            figures.faults.append("nothing was acknowledged to one of the clients")
        for node in nodes[1:]:
            figures.faults += [
                f"{node.root.name}: {one}"
                for one in differing_log(node.root, nodes[0].root, 0, figures.log_bytes)
            ]
            if bodies(node.root)[1] != figures.log_bytes:
                figures.faults.append(f"{node.root.name} ends elsewhere")

    def _count_up(self, nodes: list[ElectedNode]) -> None:
        figures, times = self.figures, self._times
        figures.to_master_s_p50 = _median(times["master"])
        figures.to_master_s_max = round(max(times["master"], default=0.0), 2)
        figures.to_acknowledged_s_p50 = _median(times["acknowledged"])
        figures.to_acknowledged_s_max = round(max(times["acknowledged"], default=0.0), 2)
        figures.back_in_sync_s_max = round(max(times["back"], default=0.0), 2)
        for node in nodes:
            for line in node.said().splitlines():
                if "follows" in line and "cut_bytes=" in line:
                    text = line.partition("cut_bytes=")[2].split()[0]
                    figures.cut_bytes += int(text) if text.isdigit() else 0


def _median(found: list[float]) -> float:
    return round(statistics.median(found), 2) if found else 0.0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = soak_parser(__doc__)
    add = parser.add_argument
    add("--kills", type=int, default=20, help="of a master (default 20)")
    add("--freezes", type=int, default=0, help="of a master, after the kills (default 0)")
    add("--controller", choices=KINDS, default=KINDS[0], help="how controllers agree")
    options = parser.parse_args()
    if why := missing():
        parser.error(why)
    return options


def main() -> int:
    """Runs, prints, returns the exit code."""
    options = arguments()
    return run_soak(options, "elected", lambda folder: ElectedRun(folder, options).run())


if __name__ == "__main__":
    sys.exit(main())
