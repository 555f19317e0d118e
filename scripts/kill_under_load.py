"""Kills workers and readers with SIGKILL while producers send at full speed; nothing may be lost.

Starts a node, sends from several processes, and kills each queue worker, the index worker and each
reader in turn, again and again. Afterwards every acknowledged message must be pulled exactly once
and in order within its queue, be found by its key, and `keelog store verify --deep` must be clean.

    python scripts/kill_under_load.py --rounds 10 --producers 8

Exit codes: 0 nothing was lost, 1 something was, 2 usage.
"""

import argparse
import json
import multiprocessing
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from node.client import Client, connect
from node.client_types import ProcessStatus, Receipt
from protocol.columns import scan
from protocol.errors import MqError, OutcomeUnknownError

Ints = NDArray[np.int64]

BATCHED, SINGLE = "load-batched", "load-single"
"""Each way of sending has its own topic: the order of the one says nothing about the other's."""
TOPICS = (BATCHED, SINGLE)
QUEUES = 8
BURST = 200
"""Messages between two looks at the stop flag; one more is sent as a single request."""
BODY = struct.Struct(">qq")
ROW = struct.Struct("=6q")
BODY_BYTES = 100
FILL = bytes(BODY_BYTES - BODY.size)
KILLED_ROLES = ("queue", "index", "reader")
START_S = 60
CATCH_UP_S = 300
SETTINGS = (
    "store.mapped_file_size_commit_log=67108864",
    "store.mapped_file_size_consume_queue=600000",
    "store.max_hash_slot_num=500000",
    "store.max_index_num=2000000",
    "store.max_transfer_count_on_message_in_memory=4000",
    "store.max_transfer_bytes_on_message_in_memory=1048576",
    "store.max_transfer_count_on_message_in_disk=4000",
    "store.max_transfer_bytes_on_message_in_disk=1048576",
)
_READY = re.compile(r"^ready (\S+)")


# -- the producers: processes of their own ----------------------------------------------------


def key_of(producer: int, number: int) -> str:
    """The key of a message."""
    return f"p{producer}-{number}"


class Receipts:
    """What one producer was told, a row a message: topic, number, queue, offsets, moment in ns."""

    columns = ("topic", "number", "queue_id", "queue_offset", "physical_offset", "at_ns")

    def __init__(self) -> None:
        self._rows = array("q")
        self.errors: Counter[str] = Counter()
        self.unknown = 0

    def note(self, topic: int, number: int, outcome: "Future[Receipt]") -> None:
        """Takes the outcome of one message."""
        error = outcome.exception()
        if error is None:
            self.add(topic, number, outcome.result())
        else:
            self.fail(error)

    def add(self, topic: int, number: int, receipt: Receipt) -> None:
        """A message was stored."""
        row = (topic, number, receipt.queue_id, receipt.queue_offset, receipt.physical_offset)
        # One call: two threads add rows, and an extend could be interrupted between two items.
        self._rows.frombytes(ROW.pack(*row, time.monotonic_ns()))

    def fail(self, error: BaseException) -> None:
        """A message was refused, or nobody knows."""
        self.errors[type(error).__name__] += 1
        self.unknown += isinstance(error, OutcomeUnknownError)

    def save(self, path: Path) -> None:
        """For the parent process."""
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, len(self.columns))
        np.savez(path, rows=rows, errors=json.dumps(self.errors), unknown=self.unknown)


def produce(endpoint: str, producer: int, result: Path, stop: Event) -> None:
    """Sends at full speed until `stop` is set, then saves what it was told."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    receipts = Receipts()
    with (
        connect(endpoint, timeout=30.0) as client,
        client.producer(timeout=30.0, max_in_flight=4096) as sender,
    ):
        for number in _numbers(stop):
            body = BODY.pack(producer, number) + FILL
            key = key_of(producer, number)
            if number % (BURST + 1) == BURST:
                _send_single(client, body, key, partial(receipts.add, 1, number), receipts)
            else:
                outcome = sender.send_nowait(BATCHED, body, keys=[key], tags="load")
                outcome.add_done_callback(partial(receipts.note, 0, number))
    receipts.save(result)


def _numbers(stop: Event) -> Iterator[int]:
    number = 0
    while not stop.is_set():
        yield from range(number, number + BURST + 1)
        number += BURST + 1


def _send_single(
    client: Client, body: bytes, key: str, add: Callable[[Receipt], None], receipts: Receipts
) -> None:
    try:
        add(client.send(SINGLE, body, keys=[key], tags="load"))
    except MqError as error:
        receipts.fail(error)


def find_some(endpoint: str, producer: int, numbers: list[tuple[int, int, int]]) -> list[str]:
    """Looks messages up by key: (topic, number, log offset) each. Answers what is wrong."""
    wrong = []
    with connect(endpoint, timeout=30.0) as client:
        for topic, number, offset in numbers:
            key = key_of(producer, number)
            found = [message.physical_offset for message in client.find(TOPICS[topic], key)]
            if found != [offset]:
                wrong.append(f"{key} stands at {offset}, found at {found}")
    return wrong


# -- the node ---------------------------------------------------------------------------------


class Node:
    """`keelog serve` as a subprocess; what it says goes to a file beside the store."""

    def __init__(self, root: Path, queue_workers: int, readers: int) -> None:
        self.root = root
        self.talk = root.with_name("node.log")
        command = [sys.executable, "-m", "keelog", "serve", str(root)]
        command += ["--bind", "tcp://127.0.0.1:0", "--restart-limit", "0"]
        command += ["--queue-workers", str(queue_workers), "--readers", str(readers)]
        for pair in SETTINGS:
            command += ["-X", pair]
        with self.talk.open("wb") as talk:
            self._process = subprocess.Popen(command, stderr=talk, stdout=talk)
        self.endpoint = self._await_ready()

    def _await_ready(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in self.talk.read_text(errors="replace").splitlines():
                if found := _READY.match(line):
                    return found[1]
            time.sleep(0.05)
        self.kill()
        raise SystemExit(f"the node did not start:\n{self.talk.read_text(errors='replace')}")

    def stop(self) -> int:
        """SIGTERM; answers the exit code."""
        self._process.terminate()
        return self._process.wait(60)

    def kill(self) -> None:
        """When something went wrong: its children end with it."""
        self._process.kill()
        self._process.wait(60)


def processes(client: Client) -> dict[tuple[str, int], ProcessStatus]:
    """The node's processes by role and index."""
    return {(one.role, one.index or 0): one for one in client.status().processes}


@dataclass(slots=True)
class Kill:
    """One process killed: when, and how long until its successor ran, both in seconds."""

    role: str
    index: int
    at: float
    back_s: float


class Killer:
    """Kills one process after the other and waits for each to come back."""

    def __init__(self, client: Client, rounds: int, tell: Callable[[str], None]) -> None:
        self._client = client
        self._rounds = rounds
        self._tell = tell
        self.kills: list[Kill] = []
        self.late: list[str] = []
        """Processes that did not come back in time."""

    def run(self) -> None:
        """All rounds."""
        victims = sorted(name for name in processes(self._client) if name[0] in KILLED_ROLES)
        for turn in range(self._rounds):
            for role, index in victims:
                self._tell(f"round {turn + 1} of {self._rounds}: {role} {index}")
                self._kill(role, index)

    def _kill(self, role: str, index: int) -> None:
        pid = processes(self._client)[role, index].pid
        if pid is None:
            self.late.append(f"{role} {index} has no process")
            return
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while time.monotonic() < began + START_S:
            time.sleep(0.02)
            now = processes(self._client)[role, index]
            if now.pid not in (None, pid) and now.state == "running":
                self.kills.append(Kill(role, index, began, time.monotonic() - began))
                return
        self.late.append(f"{role} {index} did not come back within {START_S} s")


def await_workers(client: Client) -> float:
    """Seconds until queues and index hold all of the log."""
    began = time.monotonic()
    while time.monotonic() < began + CATCH_UP_S:
        now = processes(client)
        if all(one.lag_bytes == 0 for (role, _), one in now.items() if role in ("queue", "index")):
            return time.monotonic() - began
        time.sleep(0.05)
    raise SystemExit(f"the workers did not catch up within {CATCH_UP_S} s")


# -- the check --------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """The figures of a run. `faults` are sentences; a run without any has lost nothing."""

    producers: int = 0
    load_s: float = 0.0
    acknowledged: int = 0
    singles: int = 0
    per_second: int = 0
    not_acknowledged: int = 0
    outcome_unknown: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    pulled: int = 0
    pulled_unacknowledged: int = 0
    found_by_key: int = 0
    kills: int = 0
    restarts: dict[str, int] = field(default_factory=dict)
    back_s_max: dict[str, float] = field(default_factory=dict)
    gap_ms_max: float = 0.0
    gap_ms_p999: float = 0.0
    gap_after: str = ""
    catch_up_s: float = 0.0
    verify_exit: int = -1
    verify_s: float = 0.0
    faults: list[str] = field(default_factory=list)


def pull_queue(client: Client, topic: str, queue_id: int) -> dict[str, Ints]:
    """A whole queue, every record verified: queue offset, log offset, producer and number."""
    (ends,) = client.offsets(topic, queue_id)
    parts: list[tuple[Ints, Ints, Ints]] = []
    position = ends.min_offset
    while position < ends.max_offset:
        answer = client.pull(topic, queue_id, position, max_messages=4000, max_bytes=1 << 20)
        if answer.status != "FOUND":
            break
        found = scan(b"".join(message.raw for message in answer.messages), None)
        columns = found.columns
        bodies = columns.data[columns.body_start[:, None] + np.arange(BODY.size)]
        parts.append(
            (columns.queue_offset, columns.physical_offset, bodies.view(">i8").astype(np.int64))
        )
        position = answer.next_begin_offset
    if not parts:
        empty = np.zeros(0, np.int64)
        return {"queue_offset": empty, "physical_offset": empty, "producer": empty, "number": empty}
    offsets, places, who = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {
        "queue_offset": offsets,
        "physical_offset": places,
        "producer": who[:, 0],
        "number": who[:, 1],
    }


def check_queue(name: str, pulled: dict[str, Ints], told: Ints) -> list[str]:
    """What is wrong with one queue. `told`: producer and then Receipts.columns, a row a message."""
    faults = []
    count = len(pulled["queue_offset"])
    if not np.array_equal(pulled["queue_offset"], np.arange(count)):
        faults.append(f"{name}: queue offsets are not 0 to {count - 1}, each once")
        return faults
    if not (np.diff(pulled["physical_offset"]) > 0).all():
        faults.append(f"{name}: log order and queue order differ")
    for producer in np.unique(pulled["producer"]):
        numbers = pulled["number"][pulled["producer"] == producer]
        if not (np.diff(numbers) > 0).all():
            faults.append(f"{name}: messages of producer {producer} are out of order, or twice")
    rows = told[:, 4]
    lost = int((rows >= count).sum())
    if lost:
        faults.append(f"{name}: {lost} acknowledged messages are not there")
        told, rows = told[rows < count], rows[rows < count]
    same = (
        (pulled["producer"][rows] == told[:, 0])
        & (pulled["number"][rows] == told[:, 2])
        & (pulled["physical_offset"][rows] == told[:, 5])
    )
    if not same.all():
        faults.append(f"{name}: {int((~same).sum())} acknowledged messages are not where they were")
    return faults


def check_pulls(client: Client, told: Ints, outcome: Outcome) -> None:
    """Pulls everything and holds it against what was acknowledged."""
    everything: list[Ints] = []
    for topic, name in enumerate(TOPICS):
        for queue in client.offsets(name):
            mine = told[(told[:, 1] == topic) & (told[:, 3] == queue.queue_id)]
            pulled = pull_queue(client, name, queue.queue_id)
            outcome.faults += check_queue(f"{name} {queue.queue_id}", pulled, mine)
            outcome.pulled += len(pulled["number"])
            everything.append(np.stack((pulled["producer"], pulled["number"]), axis=1))
    messages = np.concatenate(everything)
    twice = len(messages) - len(np.unique(messages, axis=0))
    if twice:
        outcome.faults.append(f"{twice} messages were pulled more than once")
    outcome.pulled_unacknowledged = outcome.pulled - len(told)
    if outcome.pulled_unacknowledged > outcome.outcome_unknown:
        outcome.faults.append(f"{outcome.pulled_unacknowledged} messages more than acknowledged")


def check_finds(endpoint: str, told: Ints, count: int, outcome: Outcome) -> None:
    """Looks `count` messages up by key (0: all), spread evenly, two processes at a time."""
    step = max(1, len(told) // count) if count else 1
    sample = told[::step]
    jobs = [
        (endpoint, int(producer), sample[sample[:, 0] == producer][:, [1, 2, 5]].tolist())
        for producer in np.unique(sample[:, 0])
    ]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        wrong = [fault for faults in pool.starmap(find_some, jobs) for fault in faults]
    outcome.found_by_key = len(sample) - len(wrong)
    if wrong:
        outcome.faults.append(f"{len(wrong)} messages not found by key: {wrong[:3]}")


def check_files(root: Path, outcome: Outcome) -> None:
    """`keelog store verify --deep` of the stopped store."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "keelog", "store", "verify", str(root), "--deep", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    outcome.verify_exit, outcome.verify_s = done.returncode, time.monotonic() - began
    if done.returncode:
        said = (done.stdout + done.stderr)[:2000]
        outcome.faults.append(f"store verify --deep ended with {done.returncode}: {said}")


def measure_gaps(told: Ints, kills: list[Kill], outcome: Outcome) -> None:
    """The longest time without an acknowledgement to anybody, and what was killed before it."""
    moments = np.unique(told[:, 6])
    gaps = np.diff(moments) / 1e6
    if not len(gaps):
        return
    worst = int(np.argmax(gaps))
    outcome.gap_ms_max = round(float(gaps[worst]), 1)
    outcome.gap_ms_p999 = round(float(np.quantile(gaps, 0.999)), 1)
    at = moments[worst] / 1e9
    before = [kill for kill in kills if kill.at <= at + gaps[worst] / 1e3]
    if before:
        last = before[-1]
        outcome.gap_after = f"{at - last.at:.1f} s after {last.role} {last.index} was killed"


# -- the run ----------------------------------------------------------------------------------


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what goes on; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda text: bar.update(task, description=text)


def load(options: argparse.Namespace, node: Node, client: Client, outcome: Outcome) -> Ints:
    """Producers send while the killer kills. Answers all receipts, producer number in front."""
    for topic in TOPICS:
        client.create_topic(topic, QUEUES)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    results = [node.root.with_name(f"producer-{n}.npz") for n in range(options.producers)]
    workers = [
        context.Process(target=produce, args=(node.endpoint, number, path, stop), daemon=True)
        for number, path in enumerate(results)
    ]
    killer = Killer(client, options.rounds, options.tell)
    thread = threading.Thread(target=killer.run)
    began = time.monotonic()
    for worker in workers:
        worker.start()
    thread.start()
    time.sleep(max(0.0, options.seconds))
    thread.join()
    stop.set()
    options.tell("waiting for the last acknowledgements")
    for worker in workers:
        worker.join()
        if worker.exitcode:
            outcome.faults.append(f"a producer ended with {worker.exitcode}")
    outcome.load_s = time.monotonic() - began
    note_kills(killer, outcome)
    told = collect([path for path in results if path.exists()], outcome)
    measure_gaps(told, killer.kills, outcome)
    return told


def note_kills(killer: Killer, outcome: Outcome) -> None:
    """How often what was killed, and the longest that it was away."""
    outcome.kills = len(killer.kills)
    outcome.faults += killer.late
    for kill in killer.kills:
        name = f"{kill.role} {kill.index}"
        outcome.restarts[name] = outcome.restarts.get(name, 0) + 1
        longest = max(outcome.back_s_max.get(name, 0.0), kill.back_s)
        outcome.back_s_max[name] = round(longest, 2)


def collect(results: list[Path], outcome: Outcome) -> Ints:
    """The receipts of all producers."""
    parts = []
    for producer, path in enumerate(results):
        with np.load(path) as saved:
            rows = saved["rows"]
            for name, count in json.loads(str(saved["errors"])).items():
                outcome.errors[name] = outcome.errors.get(name, 0) + count
            outcome.outcome_unknown += int(saved["unknown"])
        parts.append(np.insert(rows, 0, producer, axis=1))
    told = np.concatenate(parts)
    seconds = (told[:, 6].max() - told[:, 6].min()) / 1e9 if len(told) else 0.0
    outcome.acknowledged = len(told)
    outcome.singles = int((told[:, 1] == 1).sum())
    outcome.not_acknowledged = sum(outcome.errors.values())
    outcome.per_second = round(len(told) / seconds) if seconds else 0
    return told


def run(options: argparse.Namespace, folder: Path) -> Outcome:
    """The whole run in `folder`."""
    outcome = Outcome(producers=options.producers)
    node = Node(folder / "store", options.queue_workers, options.readers)
    try:
        with connect(node.endpoint, timeout=30.0) as client:
            told = load(options, node, client, outcome)
            options.tell("waiting for the workers")
            outcome.catch_up_s = round(await_workers(client), 2)
            options.tell("pulling everything")
            check_pulls(client, told, outcome)
            options.tell("finding by key")
            check_finds(node.endpoint, told, options.finds, outcome)
        code = node.stop()
        if code:
            outcome.faults.append(f"the node ended with {code}")
    except BaseException:
        node.kill()
        raise
    options.tell("verifying the files")
    check_files(node.root, outcome)
    return outcome


def show(outcome: Outcome) -> None:
    """For people."""
    print(
        f"{outcome.acknowledged:,} messages acknowledged in {outcome.load_s:.1f} s"
        f" ({outcome.per_second:,} a second), {outcome.singles:,} of them single requests,"
        f" {outcome.producers} producers"
    )
    away = ", ".join(f"{name} {longest:.1f} s" for name, longest in outcome.back_s_max.items())
    print(f"{outcome.kills} processes killed; longest time until the next one ran: {away or '-'}")
    print(
        f"worst gap between two acknowledgements: {outcome.gap_ms_max} ms {outcome.gap_after}"
        f" (99.9 %: {outcome.gap_ms_p999} ms)"
    )
    print(
        f"{outcome.pulled:,} pulled, {outcome.found_by_key:,} found by key,"
        f" store verify --deep: {outcome.verify_exit} in {outcome.verify_s:.1f} s"
    )
    if outcome.errors:
        print(f"not acknowledged: {outcome.errors}, outcome unknown: {outcome.outcome_unknown}")
    for fault in outcome.faults:
        print(f"LOST: {fault}")
    print("something was lost" if outcome.faults else "nothing was lost")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--seconds", type=float, default=10, help="send at least so long (default 10)")
    add("--producers", type=int, default=8, help="processes that send (default 8)")
    add("--rounds", type=int, default=10, help="how often each process is killed (default 10)")
    add("--queue-workers", type=int, default=2)
    add("--readers", type=int, default=2)
    add("--finds", type=int, default=20_000, help="look-ups by key, 0: all (default 20000)")
    add("--store", type=Path, help="an empty folder to work in, kept (default: temporary)")
    add("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    if min(options.producers, options.queue_workers, options.readers) < 1 or options.rounds < 0:
        parser.error("there must be at least one of each, and no fewer than 0 rounds")
    return options


def main() -> int:
    """Runs, prints, answers the exit code."""
    options = arguments()
    folder = options.store or Path(tempfile.mkdtemp(prefix="keelog-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    with progress(options.json) as options.tell:
        outcome = run(options, folder)
    if options.json:
        print(json.dumps(asdict(outcome)))
    else:
        show(outcome)
    if options.store is None and not outcome.faults:
        shutil.rmtree(folder, ignore_errors=True)
    elif outcome.faults:
        print(f"the store is kept in {folder}", file=sys.stderr)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
