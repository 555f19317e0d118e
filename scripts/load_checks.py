"""Holds what a node has, after a load, against what its producers were told."""

import multiprocessing
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from node.client import Client
from node.store.store import open_store
from protocol.columns import scan
from scripts.load_processes import BODY, TOPICS, Ints, find_some, key_of

PROCESSES = 2


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
    followed: list[int] = field(default_factory=list)
    """Messages that each follower saw while processes were killed."""
    pulled: int = 0
    pulled_unacknowledged: int = 0
    found_by_key: int = 0
    """Through the readers, one look-up each."""
    finds_s: float = 0.0
    found_in_index: int = 0
    """In the files of the stopped store."""
    index_s: float = 0.0
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
    """Looks `count` messages up by key (0: all), spread evenly, some processes at a time."""
    began = time.monotonic()
    step = max(1, len(told) // count) if count else 1
    sample = told[::step]
    jobs = [
        (endpoint, int(producer), sample[sample[:, 0] == producer][:, [1, 2, 5]].tolist())
        for producer in np.unique(sample[:, 0])
    ]
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        wrong = [fault for faults in pool.starmap(find_some, jobs) for fault in faults]
    outcome.found_by_key = len(sample) - len(wrong)
    outcome.finds_s = round(time.monotonic() - began, 2)
    if wrong:
        outcome.faults.append(f"{len(wrong)} messages not found by key: {wrong[:3]}")


def missing_keys(root: Path, rows: list[list[int]]) -> int:
    """How many messages the index of a stopped store lacks: producer, topic, number, log offset."""
    with open_store(root) as store:
        return sum(
            offset not in store.index.query(TOPICS[topic], key_of(producer, number))
            for producer, topic, number, offset in rows
        )


def check_index(root: Path, told: Ints, outcome: Outcome) -> None:
    """Looks every message up in the index files, by its key, in two processes."""
    began = time.monotonic()
    rows = told[:, [0, 1, 2, 5]]
    jobs = [(root, part.tolist()) for part in np.array_split(rows, PROCESSES)]
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        missing = sum(pool.starmap(missing_keys, jobs))
    outcome.found_in_index = len(rows) - missing
    outcome.index_s = round(time.monotonic() - began, 2)
    if missing:
        outcome.faults.append(f"{missing} messages are not found in the index files")


def verify_deep(root: Path) -> tuple[int, str]:
    """`keelog store verify --deep` of a stopped store: its exit code, and how its output begins."""
    command = [sys.executable, "-m", "keelog", "store", "verify", str(root), "--deep", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr)[:2000]


def check_files(root: Path, outcome: Outcome) -> None:
    """`verify_deep`, noted."""
    began = time.monotonic()
    outcome.verify_exit, said = verify_deep(root)
    outcome.verify_s = round(time.monotonic() - began, 2)
    if outcome.verify_exit:
        outcome.faults.append(f"store verify --deep ended with {outcome.verify_exit}: {said}")
