"""Timer messages by the million: how late they come, what they cost, what kills do to them.

python -m scripts.load.timers --count 1000000 --span 120 [--kill-every 15]

Sends over RocketMQ's protocol, as its clients do; then waits, and reads all that was delivered.
"""

import argparse
import contextlib
import json
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keelog import connect
from keelog.bench.node_process import ANY_DISK, Node
from node.supervisor.bind import free_ports
from scripts.load.remoting_sends import PipelinedSends
from scripts.rivals.proc import repeated

TOPIC = "timers"
QUEUES = 8
BODY = struct.Struct(">qq")
"""Number of the message, and when it is due, in ms."""
VICTIMS = ("tasks", "gateway", "writer")
SETTLE_S = 3.0
PATIENCE_S = 300.0
Numbers = NDArray[np.int64]


class Watch:
    """Memory and CPU of the process that delivers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.uss_max: dict[str, int] = {}
        self.cpu_s: dict[str, float] = {}
        self.phase = "start"

    def look(self) -> None:
        for process in [one for role, one in self._node.children() if role == "tasks"]:
            with contextlib.suppress(Exception):  # it was killed just now
                found = process.memory_full_info().uss
                self.uss_max[self.phase] = max(self.uss_max.get(self.phase, 0), found)
                self.cpu_s[self.phase] = sum(process.cpu_times()[:2])


def send_all(port: int, due: Numbers) -> float:
    """Sends a message for each time; returns the seconds that it took."""
    began = time.monotonic()
    with PipelinedSends("127.0.0.1", port, TOPIC) as sends:
        for number, when in enumerate(due.tolist()):
            text = f"UNIQ_KEY\x01{number:032X}\x02TIMER_DELIVER_MS\x01{when}\x02"
            sends.send(number % QUEUES, text, BODY.pack(number, when))
    return time.monotonic() - began


def kill_now_and_then(node: Node, every_s: float, until: float) -> list[str]:
    """SIGKILL to one process after the other; returns their roles. `every_s` 0: none."""
    killed: list[str] = []
    while every_s and time.time() + every_s < until:
        time.sleep(every_s)
        role = VICTIMS[len(killed) % len(VICTIMS)]
        victims = [process for its, process in node.children() if its == role]
        if victims:
            victims[0].kill()
            killed.append(role)
    return killed


def delivered(endpoint: str) -> tuple[Numbers, Numbers]:
    """Number and lateness in ms of all that was delivered."""
    numbers: list[int] = []
    late: list[int] = []
    with connect(endpoint, timeout=60.0) as client:
        for result in client.consume(TOPIC, "earliest", until_end=True):
            for message in result.messages:
                number, due = BODY.unpack(message.body)
                numbers.append(number)
                late.append(message.store_timestamp - due)
    return np.array(numbers, np.int64), np.array(late, np.int64)


def await_delivered(endpoint: str, count: int) -> None:
    """Returns when so many messages are there, and the rest has had time to come."""
    give_up = time.time() + PATIENCE_S
    stored = 0
    with connect(endpoint, timeout=60.0) as client:
        while stored < count and time.time() < give_up:
            time.sleep(0.5)
            stored = sum(one.max_offset - one.min_offset for one in client.offsets(TOPIC))
    time.sleep(SETTLE_S)


def main() -> int:
    """Prints what was found as JSON; 1 if a message was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--lead", type=float, default=90.0, help="s until the first is due")
    parser.add_argument("--span", type=float, default=120.0, help="s in which they are due")
    parser.add_argument("--kill-every", type=float, default=0.0, help="s between kills; 0: none")
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        found = run(Path(folder), options)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 1 if found["lost"] else 0


def run(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    port = free_ports(4) + 2
    settings = [*ANY_DISK, f"serve.remoting=127.0.0.1:{port}"]
    node = Node(folder / "store", settings, readers=1)
    watch = Watch(node)
    with node, repeated(0.5, watch.look):
        with connect(node.endpoint, timeout=60.0) as client:
            client.create_topic(TOPIC, QUEUES)
        time.sleep(SETTLE_S)
        watch.phase = "sending"
        first = int((time.time() + options.lead) * 1000)
        due = np.random.default_rng(7).integers(0, int(options.span * 1000), options.count) + first
        took = send_all(port, due)
        with connect(node.endpoint, timeout=60.0) as client:
            time.sleep(SETTLE_S)
            pending = client.status().raw["timers"]["pending"]
        if time.time() * 1000 > first:
            raise SystemExit(f"sending took {took:.0f} s: give a longer --lead")
        watch.phase = "waiting"
        time.sleep(max(0.0, first / 1000 - time.time()))
        watch.phase = "delivering"
        until = first / 1000 + options.span
        killed = kill_now_and_then(node, options.kill_every, until)
        time.sleep(max(0.0, until - time.time()))
        await_delivered(node.endpoint, options.count)
        took_late = time.time() - until - SETTLE_S
        numbers, late = delivered(node.endpoint)
    unique = len(np.unique(numbers))
    order = np.lexsort((late, numbers))
    first_of = np.r_[True, np.diff(numbers[order]) != 0] if len(numbers) else np.zeros(0, bool)
    lateness = late[order][first_of]
    p50, p99, p999 = (float(np.percentile(lateness, share)) for share in (50, 99, 99.9))
    return {
        "count": options.count, "span_s": options.span,
        "sent_per_s": round(options.count / took), "pending_seen": pending,
        "lost": options.count - unique, "repeated": len(numbers) - unique,
        "early": int((lateness < 0).sum()),
        "late_ms": {"p50": p50, "p99": p99, "p99.9": p999, "max": int(lateness.max())},
        "over_100_ms": int((lateness > 100).sum()),
        "done_after_s": round(took_late, 1), "killed": killed,
        "tasks_uss_mib": {name: round(size / 2**20, 1) for name, size in watch.uss_max.items()},
        "tasks_cpu_s": {name: round(value, 1) for name, value in watch.cpu_s.items()},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
