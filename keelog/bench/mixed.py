"""Producers, consumers, look-ups and kills at once; afterwards everything is checked."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np

import keelog
from keelog.bench import queue_checks
from keelog.bench.node_process import Killer, Node, await_workers
from keelog.bench.results import Result
from keelog.bench.running import LoadListener, Scene, make_topics, node_for, run_on
from keelog.bench.sending import WHO_AT
from keelog.bench.workload import Workload
from protocol.human_text import count_text

FULL_SPEED_S = 5.0
"""How long full speed is measured, where the rate is a part of it."""
UNREACHED = 1e6
"""A rate beyond any node: producers never wait, and time each message as at any rate."""


def run_mixed(load: Workload, listener: LoadListener) -> Result:
    """The whole load. `faults` of the result are what was lost, twice, out of order or damaged."""
    with (
        tempfile.TemporaryDirectory(prefix="keelog-bench-notes-") as notes,
        node_for(load) as (place, node),
        keelog.connect(place, **load.connection) as client,
    ):
        if load.percent_of_full is not None:
            full = _full_speed(load, client, listener, node)
            load = replace(load, rate=full * load.percent_of_full / 100, percent_of_full=None)
            listener.phase(
                f"full speed is {count_text(full)}/s: sending {count_text(load.rate or 0)}/s"
            )
        scene = Scene(load, client, listener, make_topics(load, client), node, folder=notes)
        with _kills(scene) as killer:
            result = run_on(scene)
        # The process that was killed last has to read on.
        await_workers(client)
        result.checks["kills"] = [
            {**asdict(one), "at": round(one.at - killer.began, 3), "back_s": round(one.back_s, 3)}
            for one in killer.kills
        ]
        result.faults += killer.late
        looks = [one for one in result.looks if one.anon and one.at >= load.warm_up]
        if looks:
            # At the start of the steady part and at its end, in bytes.
            result.checks["memory"] = {
                name: {"first": looks[0].anon[name], "last": last}
                for name, last in looks[-1].anon.items()
                if name in looks[0].anon
            }
        listener.phase("checking every acknowledged message")
        _check_messages(scene, result)
        if node is not None:
            listener.phase("stopping the node, verifying the store")
            _verify(node, result)
    return result


def _full_speed(
    load: Workload, client: keelog.Client, listener: LoadListener, node: Node | None
) -> float:
    """Messages a second that this load both sends and follows without kills."""
    listener.phase("measuring full speed")
    all_at_once = replace(
        load, rate=UNREACHED, percent_of_full=None, kill_every=None, duration=FULL_SPEED_S
    )
    with tempfile.TemporaryDirectory(prefix="keelog-bench-notes-") as notes:
        topics = make_topics(all_at_once, client)
        result = run_on(Scene(all_at_once, client, listener, topics, node, folder=notes))
    # Followers end later than the senders, when all has been read.
    return min(result.streams[name].steady.messages_per_s for name in ("send", "end_to_end"))


@contextlib.contextmanager
def _kills(scene: Scene) -> Iterator[Killer]:
    """Kills one worker or reader after the other, from the warm-up's end on."""
    killer, over, load = Killer(scene.client), threading.Event(), scene.load

    def kill() -> None:
        assert load.kill_every is not None
        over.wait(load.warm_up)
        while not over.wait(load.kill_every):
            victims = killer.victims()
            killer.kill(*victims[len(killer.kills) % len(victims)])

    thread = threading.Thread(target=kill)

    def start(start_ns: int) -> None:
        killer.began = start_ns / 1e9
        if load.kill_every is not None:
            thread.start()

    def is_marked(at: float) -> bool:
        now = killer.began + at
        return any(begin < now and end > now - 1 for begin, end in killer.spans())

    scene.on_start, scene.is_marked = start, is_marked
    try:
        yield killer
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()


def _check_messages(scene: Scene, result: Result) -> None:
    """Pulls every queue and compares it with the receipts of its producers."""
    (topic,) = scene.topics
    receipts = _receipts(scene)
    pulled = 0
    for queue_id in range(scene.load.queues):
        found = queue_checks.pull_queue(scene.client, topic, queue_id, WHO_AT)
        mine = receipts[receipts[:, 3] == queue_id]
        # The last message of each queue is ours.
        pulled += len(found["number"]) - 1
        is_sent = found["number"] >= 0
        both = np.stack((found["producer"][is_sent], found["number"][is_sent]), axis=1)
        result.faults += queue_checks.check_queue(f"queue {queue_id}", found, mine)
        if twice := len(both) - len(np.unique(both, axis=0)):
            result.faults.append(f"queue {queue_id}: {twice} messages are there twice")
    result.checks["acknowledged"], result.checks["pulled"] = len(receipts), pulled


def _receipts(scene: Scene) -> queue_checks.Ints:
    """Producer, topic, number, queue, queue offset, log offset of all acknowledged messages."""
    parts = []
    for producer in range(scene.load.processes):
        rows = queue_checks.read_notes(queue_checks.notes_path(str(scene.folder), producer))
        who = np.full((len(rows), 1), producer)
        parts.append(np.concatenate((who, np.zeros_like(who), rows), axis=1))
    return np.concatenate(parts)


def _verify(node: Node, result: Result) -> None:
    code = node.stop()
    if code:
        result.faults.append(f"the node ended with {code}")
    began = time.monotonic()
    found, said = queue_checks.verify_deep(node.root)
    result.checks["verify_deep"] = {"exit": found, "seconds": round(time.monotonic() - began, 2)}
    if found:
        result.faults.append(f"store verify --deep ended with {found}: {said}")
