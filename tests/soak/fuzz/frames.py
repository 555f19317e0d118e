"""Sends broken requests to a node by the hundred thousand; it must serve everybody else meanwhile.

Starts a node of its own. Its writer, reader and supervisor get requests of every operation, most of
them broken in some way, over good connections, while bad connections send what is no ZeroMQ at
all. An honest client sends, pulls and asks along. In the end:

* every request had exactly one answer, and each refusal is one of the protocol's errors;
* no call of the honest client has failed, and all its messages can be read;
* no process has ended, and none has grown;
* the queues hold as many messages as were acknowledged, not one more;
* `keelog store verify --deep` finds nothing.

    python -m tests.soak.fuzz.frames --count 1000000 --seed 7

Exit codes: 0 all of this holds, 1 something does not, 2 usage.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import msgpack
import psutil
import zmq

from keelog.client.client import Client, connect
from protocol import errors
from protocol.errors import MqError
from tests.soak.fuzz.requests import CONTROL, READER, WRITER, Fuzz
from tests.soak.fuzz.sockets import BadPeers

START_S = 60
STOP_S = 60
ANSWER_S = 30
WINDOW = 256
"""Requests without an answer, on one connection."""
FRAME_BYTES_MAX = {CONTROL: 60_000, READER: 1_000_000, WRITER: 4_000_000}
"""Larger ones would cost the connection, and the answers that are under way on it."""
SHARE = {WRITER: 0.5, READER: 0.4, CONTROL: 0.1}
WARM_SHARE = 0.3
"""Memory is compared with what it was after this share of the requests."""
GROWTH_MIB_MAX = 24
QUEUES = 4
SETTINGS = (
    "mapped_file_size_commit_log=67108864",
    "mapped_file_size_consume_queue=600000",
    "max_hash_slot_num=100000",
    "max_index_num=400000",
    "long_polling_ms_max=2000",
)
_READY = re.compile(r"^ready (\S+)")
_KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type)}


@dataclass(slots=True)
class Outcome:
    """What a run has counted and found."""

    seed: int
    frames: int = 0
    seconds: float = 0.0
    valid: int = 0
    broken: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    bad_connections: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    stored: int = 0
    topics: int = 0
    honest_calls: int = 0
    rss_mib: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """By process: before, warm, after."""
    verify_exit: int = -1
    faults: list[str] = field(default_factory=list)

    @property
    def frames_per_s(self) -> int:
        """Requests answered in a second."""
        return round(self.frames / self.seconds) if self.seconds else 0


class Node:
    """`keelog serve` as a subprocess."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "keelog", "serve", str(root), "--bind"]
        command += ["tcp://127.0.0.1:0", "--readers", "1", "--queue-workers", "1"]
        for pair in SETTINGS:
            command += ["-X", pair]
        self.talk = root.with_name(root.name + ".log")
        with self.talk.open("wb") as talk:
            self._process = subprocess.Popen(command, stderr=talk)

    def await_ready(self) -> str:
        """The control endpoint, once it serves."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in self.talk.read_text(errors="replace").splitlines():
                if found := _READY.match(line):
                    return found[1]
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"the node did not start:\n{self.talk.read_text(errors='replace')}")

    def stop(self) -> int:
        """SIGTERM; answers the exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Honest(threading.Thread):
    """A client that keeps the rules. All that it asks must succeed meanwhile."""

    def __init__(self, endpoint: str, seed: int) -> None:
        super().__init__(name="honest", daemon=True)
        self.topic = f"honest-{seed}"
        self.calls = 0
        self.sent = 0
        self.faults: list[str] = []
        self._client = connect(endpoint, timeout=20.0)
        self._client.create_topic(self.topic, QUEUES)
        self._stop_wish = threading.Event()

    def run(self) -> None:
        """Sends, reads what it sent, asks how the node is; until `stop`."""
        while not self._stop_wish.is_set():
            try:
                self._round()
            except MqError as error:
                self.faults.append(f"the honest client: {type(error).__name__}: {error}")
                if len(self.faults) > 10:
                    return

    def _round(self) -> None:
        client, body = self._client, f"message {self.sent}".encode()
        receipt = client.send(self.topic, body, queue_id=self.sent % QUEUES)
        self.sent += 1
        pulled = client.pull(self.topic, receipt.queue_id, receipt.queue_offset, wait=2.0)
        found = client.get(receipt.msg_id)
        if not pulled.messages or pulled.messages[0].body != body or found.body != body:
            self.faults.append(f"the honest client read something else than {body!r}")
        if not client.health().ready:
            self.faults.append("the node said that it is not ready")
        self.calls += 4
        self._stop_wish.wait(0.01)

    def stop(self) -> None:
        """Ends the thread."""
        self._stop_wish.set()
        self.join()
        self._client.close()


class Line:
    """One good connection to one process, over which the fuzz goes."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        kind: str,
        endpoint: str,
        batch_of: Mapping[int, int],
    ) -> None:
        self.kind = kind
        self._batch_of = batch_of
        self._published: dict[int, int] = {}
        """Records of each batch. Whoever asks while it is being published is told of all of it."""
        self.waiting = 0
        self.acknowledged = 0
        self.refused: Counter[str] = Counter()
        self.faults: list[str] = []
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def send(self, frames: list[bytes]) -> None:
        """Sends a request when there is room in the window."""
        while self.waiting >= WINDOW:
            if not self.receive(ANSWER_S):
                self.faults.append(f"the {self.kind} left {self.waiting} requests unanswered")
                self.waiting = 0
        limit = FRAME_BYTES_MAX[self.kind]
        self.socket.send_multipart([frame[:limit] for frame in frames])
        self.waiting += 1
        while self.receive(0):
            pass

    def receive(self, wait_s: float) -> bool:
        """Takes one answer; False when none came."""
        if not self.socket.poll(int(wait_s * 1000)):
            return False
        header, *_ = self.socket.recv_multipart()
        self.waiting -= 1
        self._note(msgpack.unpackb(header, strict_map_key=False))
        return True

    def _note(self, answer: dict[str, Any]) -> None:
        if answer["ok"] is True:
            if "queues" in answer and "physical_offset" in answer:
                self.acknowledged += sum(count for *_, count in answer["queues"])
            elif "queue_offset" in answer:
                self.acknowledged += 1
            elif answer.get("already") is False:
                number = answer["id"]
                self._published[self._batch_of.get(number, -number)] = answer["records"]
            return
        kind = answer["error"]["kind"]
        self.refused[kind] += 1
        if kind not in _KINDS or not answer["error"]["reason"]:
            self.faults.append(f"the {self.kind} refused with {answer['error']}")

    def finish(self) -> None:
        """Waits for what is not answered yet, a moment longer for answers that nobody asked for."""
        while self.waiting and self.receive(ANSWER_S):
            pass
        self.receive(0.3)
        self.acknowledged += sum(self._published.values())
        if self.waiting:
            self.faults.append(f"the {self.kind}: {self.waiting} requests without an answer")
        self.socket.close()


class Run:
    """One run against one node, as a context."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.outcome = Outcome(seed)
        self._fuzz = Fuzz(seed)
        self.client: Client = connect(endpoint, timeout=30.0)
        status = self.client.status()
        self._started = _processes(status.raw)
        places = {row.role: row.endpoint for row in status.processes if row.endpoint}
        places = {CONTROL: endpoint, WRITER: places["writer"], READER: places["reader"]}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._lines = {
            kind: Line(self._context, kind, str(places[kind]), self._fuzz.batch_of)
            for kind in SHARE
        }
        self.honest = Honest(endpoint, seed)
        self._bad_peers = BadPeers([str(place) for place in places.values()], seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._context.destroy(linger=0)

    def send_all(self, count: int, tell: bool) -> None:
        """Sends so many requests and waits for all their answers."""
        outcome = self.outcome
        first = _rss(self._started)
        warm = first
        self.honest.start()
        self._bad_peers.start()
        started = time.monotonic()
        kinds, shares = list(SHARE), list(SHARE.values())
        for number in range(count):
            kind = self._fuzz.random.choices(kinds, shares)[0]
            self._lines[kind].send(self._fuzz.request(kind, number))
            if number == int(count * WARM_SHARE):
                warm = _rss(self._started)
            if tell and number % 10_000 == 9_999:
                sys.stderr.write(f"{number + 1} requests, {time.monotonic() - started:.0f} s\n")
        for line in self._lines.values():
            line.finish()
        outcome.seconds = time.monotonic() - started
        self._bad_peers.stop()
        self.honest.stop()
        last = _rss(self._started)
        outcome.rss_mib = {name: (first[name], warm[name], last[name]) for name in last}
        outcome.frames, outcome.valid, outcome.broken = count, self._fuzz.valid, self._fuzz.broken

    def check(self) -> None:
        """Holds what was counted against what the node says."""
        outcome, honest = self.outcome, self.honest
        outcome.faults += honest.faults
        outcome.honest_calls = honest.calls
        outcome.bad_connections = dict(self._bad_peers.counts)
        refused: Counter[str] = Counter()
        outcome.acknowledged = honest.sent
        for line in self._lines.values():
            outcome.faults += line.faults
            outcome.acknowledged += line.acknowledged
            refused += line.refused
        outcome.refused = dict(refused)
        if _processes(self.client.status().raw) != self._started:
            outcome.faults.append("a process has ended and was started again")
        for name, (_, warm, last) in outcome.rss_mib.items():
            if last - warm > GROWTH_MIB_MAX:
                outcome.faults.append(f"{name} grew from {warm} to {last} MiB")
        outcome.stored = self._await_stored(outcome.acknowledged)
        if outcome.stored != outcome.acknowledged:
            outcome.faults.append(f"{outcome.acknowledged} acknowledged, {outcome.stored} stored")

    def _await_stored(self, wanted: int) -> int:
        """How many messages all queues hold, when the workers have caught up."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            topics = self.client.topics()
            self.outcome.topics = len(topics)
            found = sum(
                queue.max_offset - queue.min_offset
                for topic in topics
                for queue in self.client.offsets(topic.topic)
            )
            if found >= wanted or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def _processes(status: dict[str, Any]) -> dict[str, int]:
    """The pid of each process, by role."""
    found = {str(row["role"]): int(row["pid"]) for row in status["processes"]}
    return {**found, "supervisor": status["supervisor"]["pid"]}


def _rss(pids: dict[str, int]) -> dict[str, float]:
    """Memory of each process in MiB, without the files that it has mapped; 0 when it is gone."""
    found = dict.fromkeys(pids, 0.0)
    for name, pid in pids.items():
        with suppress(psutil.NoSuchProcess):
            memory = psutil.Process(pid).memory_info()
            found[name] = round((memory.rss - memory.shared) / 2**20, 1)
    return found


def run(root: Path, count: int, seed: int, tell: bool) -> Outcome:
    """Fuzzes a new node on `root`, which must not be there yet."""
    node = Node(root)
    try:
        with Run(node.await_ready(), seed) as running:
            running.send_all(count, tell)
            running.check()
            outcome = running.outcome
    finally:
        code = node.stop()
    if code:
        outcome.faults.append(f"the node ended with {code}")
    said = node.talk.read_text(errors="replace")
    if "Traceback" in said:
        outcome.faults.append(f"the node said:\n{said[-3_000:]}")
    verify = [sys.executable, "-m", "keelog", "store", "verify", str(root), "--deep"]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    outcome.verify_exit = done.returncode
    if done.returncode:
        outcome.faults.append(f"verify --deep: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return outcome


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, metavar="N", help="requests to send")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same S, the same run")
    parser.add_argument("--store", type=Path, help="a new folder for the store; kept")
    parser.add_argument("--json", action="store_true", help="the outcome as one JSON document")
    options = parser.parse_args()
    if options.store is not None and options.store.exists():
        parser.error(f"{options.store} is there already: name a new folder, nothing was changed")
    with tempfile.TemporaryDirectory(prefix="keelog-fuzz-") as folder:
        root = options.store or Path(folder) / "store"
        outcome = run(root, options.count, options.seed, tell=not options.json)
    if options.json:
        print(json.dumps({**asdict(outcome), "frames_per_s": outcome.frames_per_s}))
    else:
        for name, value in {**asdict(outcome), "frames_per_s": outcome.frames_per_s}.items():
            print(f"{name}: {value}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
