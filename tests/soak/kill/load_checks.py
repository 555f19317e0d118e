"""Holds all that a node has, after kills under load, against what its producers were told."""

import multiprocessing
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from client.client import Client
from keelog.bench.queue_checks import Ints, check_queue, pull_queue, verify_deep
from node.store.opening import open_store
from tests.soak.kill.load_processes import TOPICS, find_some, key_of

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


def check_files(root: Path, outcome: Outcome) -> None:
    """`verify_deep`, noted."""
    began = time.monotonic()
    outcome.verify_exit, said = verify_deep(root)
    outcome.verify_s = round(time.monotonic() - began, 2)
    if outcome.verify_exit:
        outcome.faults.append(f"store verify --deep ended with {outcome.verify_exit}: {said}")
