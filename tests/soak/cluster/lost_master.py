"""Loses the machine of a master under load, again and again: SIGKILL, and its folder is deleted.

Each master has a replica. After a loss `keelog replica promote` makes it the next master, which a
new replica follows from an empty folder. In the end the last store must have every message that was
acknowledged as replicated. With `--mode async` nothing is promised: what is lost is counted, in
bytes. The lag that the master showed at its end must not be less.

    python -m tests.soak.cluster.lost_master --losses 20 --mode sync --seed 1

Exit codes: 0 nothing was lost that must not be, 1 something was, 2 usage.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from keelog.bench.node_process import ANY_DISK, Node
from keelog.client.client import Client, connect
from keelog.client.options import Acks
from node.runtime.state_page import LogPage, WorkerPage
from node.runtime.wakeup import FOLLOWERS_SLOT
from node.supervisor.bind import free_ports
from node.supervisor.child_process import command
from protocol.errors import MqError
from protocol.record.codec import Record, Torn, decode
from tests.soak.command import run_soak, soak_parser
from tests.support.node import wait_until

SEGMENT_BYTES = 1 << 20
SENDERS = 4
LOAD_S = (0.5, 2.5)
PROMOTE_S_MAX = 60.0
MODES = {
    "sync": ("broker_role=SYNC_MASTER", "in_sync_replicas=2"),
    "replicated": (),
    "async": (),
}


@dataclass
class LossFigures:
    """What a run has found. Bytes are sums over the losses."""

    losses: int = 0
    acknowledged: int = 0
    lost: int = 0
    lost_bytes: int = 0
    """Of the log: what masters had appended and their replicas did not have."""
    shown_lag_bytes: int = 0
    """What the masters' state pages said at their ends: from there `keelog status` has the lag."""
    told_bytes: int = 0
    """What promotions said that the replicas lacked, as far as these could know."""
    log_bytes: int = 0
    faults: list[str] = field(default_factory=list)


class NumberedSends:
    """Sends numbered messages; `acknowledged` are the bodies whose answer was PUT_OK."""

    def __init__(self, endpoint: str, mode: str, first: int) -> None:
        self.acknowledged: set[bytes] = set()
        self.next = first
        self._mode = mode
        self._endpoint = endpoint
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

    def _send(self) -> None:
        with connect(self._endpoint, timeout=2.0) as client:
            while not self._over.is_set():
                with self._lock:
                    number, self.next = self.next, self.next + 1
                body = b"%012d" % number + b"x" * (number * 7919 % 900)
                with suppress(MqError):
                    if self._is_acknowledged(client, body):
                        with self._lock:
                            self.acknowledged.add(body)

    def _is_acknowledged(self, client: Client, body: bytes) -> bool:
        acks: Acks = "replicated" if self._mode == "replicated" else "appended"
        return client.send("t", body, acks=acks).status == "PUT_OK"


class LossRun:
    """One run."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._rnd = random.Random(options.seed)
        self._acknowledged: set[bytes] = set()
        self._next = 0
        self.figures = LossFigures()

    def run(self) -> LossFigures:
        """Loses masters, then looks what the last follower has."""
        figures = self.figures
        for number in range(self._options.losses):
            self._lose(self._folder / f"store-{number}", self._folder / f"store-{number + 1}")
            figures.losses += 1
            self._options.tell(f"{figures.losses} masters lost")
        last = self._folder / f"store-{self._options.losses}"
        stored, figures.log_bytes = bodies(last)
        lost = self._acknowledged - stored
        figures.acknowledged, figures.lost = len(self._acknowledged), len(lost)
        if lost and self._options.mode != "async":
            figures.faults.append(f"{len(lost)} acknowledged messages are lost: {min(lost)[:12]!r}")
        if not self._acknowledged:
            figures.faults.append("no message was acknowledged")
        return figures

    def _lose(self, store: Path, copy: Path) -> None:
        place = f"127.0.0.1:{free_ports(1)}"
        master = _node(store, f"serve.ha_listen={place}", *MODES[self._options.mode])
        replica = _node(copy, f"follow={place}")
        with LogPage.open(store) as log, WorkerPage.open(store, FOLLOWERS_SLOT) as followers:
            wait_until(
                lambda: followers.read().dispatched >= log.read().appended,
                "the replica does not catch up",
            )
            sends = NumberedSends(master.endpoint, self._options.mode, self._next)
            time.sleep(self._rnd.uniform(*LOAD_S))
            master.kill()
            appended, acknowledged = log.read().appended, followers.read().dispatched
        shutil.rmtree(store)
        sends.stop()
        replica.stop()
        self._acknowledged |= sends.acknowledged
        self._next = sends.next
        self._note(promote(copy), appended, appended - acknowledged)

    def _note(self, promotion: Mapping[str, int], appended: int, lag: int) -> None:
        figures = self.figures
        lost = max(0, appended - promotion["offset"])
        if lost > lag:
            figures.faults.append(f"{lost} bytes are lost, the lag shown was {lag}")
        figures.lost_bytes += lost
        figures.shown_lag_bytes += lag
        figures.told_bytes += promotion["lacks_bytes"]


def _node(root: Path, *settings: str) -> Node:
    sizes = f"mapped_file_size_commit_log={SEGMENT_BYTES}"
    return Node(root, (*ANY_DISK, sizes, *settings), queue_workers=1, readers=1).start()


def promote(root: Path) -> Mapping[str, int]:
    """As an operator does it; returns what the command says. Raises RuntimeError."""
    done = subprocess.run(
        [*command("keelog", ["replica", "promote", str(root)]), "--format", "json"],
        capture_output=True, text=True, check=False, timeout=PROMOTE_S_MAX,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{root} cannot be promoted: {done.stderr}")
    found: Mapping[str, int] = json.loads(done.stdout)
    return found


def bodies(root: Path) -> tuple[set[bytes], int]:
    """The bodies of all whole records of a log, and where these end."""
    paths = sorted((root / "commitlog").iterdir())
    data = b"".join(path.read_bytes() for path in paths)
    found, at = set(), 0
    while at < len(data) and not isinstance(item := decode(data, at, at), Torn):
        if isinstance(item, Record):
            found.add(item.body)
        at += item.size
    return found, at


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = soak_parser(__doc__)
    add = parser.add_argument
    add("--losses", type=int, default=20, help="of a master (default 20)")
    add("--mode", choices=sorted(MODES), default="sync", help="what acknowledges (default sync)")
    options = parser.parse_args()
    if options.losses < 1:
        parser.error("lose a master at least once")
    return options


def main() -> int:
    """Runs, prints, returns the exit code."""
    options = arguments()
    return run_soak(options, "losses", lambda folder: LossRun(folder, options).run())


if __name__ == "__main__":
    sys.exit(main())
