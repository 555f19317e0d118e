"""Kills workers and readers with SIGKILL while producers send at full speed; nothing may be lost.

Starts a node, sends from several processes, and kills each queue worker, the index worker and each
reader in turn, again and again, while a follower reads along. It must see every message once and
in order within its queue, whichever reader dies. Afterwards every acknowledged message must be
pulled exactly once and in order, be found by its key, and `keelog store verify --deep` be clean.

    python -m tests.soak.kill.under_load --rounds 10 --producers 8

Exit codes: 0 nothing was lost, 1 something was, 2 usage.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from client.client import Client, connect
from keelog.bench.killing import Kill, Killer
from keelog.bench.node_process import ANY_DISK, CATCH_UP_S, Node, await_workers
from keelog.bench.progress import progress
from keelog.bench.queue_checks import Ints
from tests.soak.kill.load_checks import Outcome, check_files, check_finds, check_index, check_pulls
from tests.soak.kill.load_processes import QUEUES, TOPICS, follow, produce, send_last

SETTINGS = (
    *ANY_DISK,
    "store.mapped_file_size_commit_log=67108864",
    "store.mapped_file_size_consume_queue=600000",
    "store.max_hash_slot_num=500000",
    "store.max_index_num=2000000",
    "store.max_transfer_count_on_message_in_memory=4000",
    "store.max_transfer_bytes_on_message_in_memory=1048576",
    "store.max_transfer_count_on_message_in_disk=4000",
    "store.max_transfer_bytes_on_message_in_disk=1048576",
)
"""Small files, so that many roll; large pulls, so that the check is quick."""


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


@dataclass(slots=True)
class Helpers:
    """The processes beside the node: those that send, and those that read along."""

    producers: list[SpawnProcess]
    receipts: list[Path]
    stop: Event
    followers: list[SpawnProcess]
    readings: list[Path]


def start_helpers(options: argparse.Namespace, node: Node) -> Helpers:
    """Starts them all."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    receipts = [node.root.with_name(f"producer-{n}.npz") for n in range(options.producers)]
    readings = [node.root.with_name(f"follower-{n}.json") for n in range(options.followers)]
    producers = [
        context.Process(target=produce, args=(node.endpoint, number, path, stop), daemon=True)
        for number, path in enumerate(receipts)
    ]
    followers = [
        context.Process(target=follow, args=(node.endpoint, options.producers, path), daemon=True)
        for path in readings
    ]
    for process in (*producers, *followers):
        process.start()
    return Helpers(producers, receipts, stop, followers, readings)


def load(options: argparse.Namespace, node: Node, client: Client, outcome: Outcome) -> Ints:
    """Producers send while the killer kills. Answers all receipts, producer number in front."""
    for topic in TOPICS:
        client.create_topic(topic, QUEUES)
    began = time.monotonic()
    helpers = start_helpers(options, node)
    killer = Killer(client)
    for turn in range(options.rounds):
        for role, index in killer.victims():
            options.tell(f"round {turn + 1} of {options.rounds}: {role} {index}")
            killer.kill(role, index)
    time.sleep(max(0.0, began + options.seconds - time.monotonic()))
    helpers.stop.set()
    options.tell("waiting for the last acknowledgements")
    join("a producer", helpers.producers, outcome)
    outcome.load_s = round(time.monotonic() - began, 2)
    note_kills(killer, outcome)
    told = collect([path for path in helpers.receipts if path.exists()], outcome)
    measure_gaps(told, killer.kills, outcome)
    last = send_last(client, options.producers)
    options.tell("waiting for those who read along")
    join("a follower", helpers.followers, outcome)
    for path in helpers.readings:
        if path.exists():
            reading: dict[str, Any] = json.loads(path.read_text())
            outcome.followed.append(reading["followed"])
            outcome.faults += reading["faults"]
    return np.concatenate((told, last))


def join(what: str, helpers: list[SpawnProcess], outcome: Outcome) -> None:
    """Waits for processes to end by themselves."""
    for process in helpers:
        process.join(CATCH_UP_S)
        if process.exitcode != 0:
            outcome.faults.append(f"{what} ended with {process.exitcode}")
            process.kill()


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
    workers, readers = options.queue_workers, options.readers
    node = Node(folder / "store", SETTINGS, queue_workers=workers, readers=readers)
    node.begin()
    try:
        node.await_ready()
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
    options.tell("finding every key in the index files")
    check_index(node.root, told, outcome)
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
        f"{outcome.pulled:,} pulled, {sum(outcome.followed):,} read along,"
        f" {outcome.found_by_key:,} found by key in {outcome.finds_s:.1f} s,"
        f" {outcome.found_in_index:,} in the index files in {outcome.index_s:.1f} s,"
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
    add("--followers", type=int, default=1, help="processes that read along (default 1)")
    add(
        "--finds", type=int, default=20_000, help="look-ups through readers, 0: all (default 20000)"
    )
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
