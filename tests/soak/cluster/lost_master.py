"""Loses the machine of a master under load, again and again: SIGKILL, and its folder is deleted.

A follower writes the log to files and syncs them before it reports. After each loss a node starts
on the follower's folder and is the next master, with a new follower that gets the whole log. In the
end the last follower must have every message that was acknowledged as replicated. With `--mode
async` nothing is promised: what is lost is counted, in bytes beside the lag that was shown last.

    python -m tests.soak.cluster.lost_master --losses 20 --mode sync --seed 1

Exit codes: 0 nothing was lost that must not be, 1 something was, 2 usage.
"""

import argparse
import random
import shutil
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from client.client import Client, connect
from client.options import Acks
from keelog.bench.node_process import Node
from node.runtime.state_page import LogPage
from node.runtime.stats.followers_state import read_followers
from node.supervisor.bind import free_ports
from protocol.errors import MqError
from protocol.record.codec import Record, Torn, decode
from tests.soak.command import run_soak, soak_parser
from tests.support.follower import LogFollower, SegmentWriter
from tests.support.node import wait_until

SEGMENT_BYTES = 1 << 20
SENDERS = 4
LOAD_S = (0.5, 2.5)
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
    """Of the log: what masters had appended and their followers did not have."""
    shown_lag_bytes: int = 0
    """As the file of the followers had it last, up to a second before."""
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
        ha = free_ports(1)
        settings = (
            f"serve.ha_listen=127.0.0.1:{ha}", f"mapped_file_size_commit_log={SEGMENT_BYTES}",
            "disk_space_warning_level_ratio=100", *MODES[self._options.mode],
        )  # fmt: skip
        node = Node(store, settings, queue_workers=1, readers=1)
        node.begin()
        node.await_ready()
        writer = SegmentWriter(copy, SEGMENT_BYTES)
        follower = LogFollower(("127.0.0.1", ha))
        follower.keep, follower.before_report = writer, writer.sync
        wait_until(lambda: _connects(follower), "the follower cannot connect")
        with LogPage.open(store) as page:
            wait_until(
                lambda: follower.end >= page.read().flushed, "the follower does not catch up"
            )
            sends = NumberedSends(node.endpoint, self._options.mode, self._next)
            time.sleep(self._rnd.uniform(*LOAD_S))
            shown = read_followers(store).followers
            node.kill()
            appended = page.read().appended
        shutil.rmtree(store)
        sends.stop()
        follower.is_over.wait(60)
        follower.close()
        writer.close()
        self._acknowledged |= sends.acknowledged
        self._next = sends.next
        self.figures.lost_bytes += max(0, appended - follower.end)
        self.figures.shown_lag_bytes += shown[0].lag_bytes if shown else 0


def _connects(follower: LogFollower) -> bool:
    try:
        follower.connect()
    except OSError:
        return False
    return True


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
