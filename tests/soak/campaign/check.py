"""Asks a running node for what it has acknowledged: each message, at its place, with its body.

Rows of `WANTED` are whole numbers, as in `kill_load`. What a node does not hand out it either
refuses by name, with an error of ours, or has lost.
"""

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from client.client import Client
from keelog.bench.queue_checks import Ints
from protocol.errors import MqError
from tests.soak.kill.load import ACKNOWLEDGED, ROW, TOPICS, message

WANTED = ("topic", "queue_id", "queue_offset", "physical_offset", "producer", "number")
WAIT_S = 20.0
"""So long a message may take until it is handed out: workers may be starting."""
_SAMPLE = 12
_PULL_BYTES = 1 << 20
_PULL_COUNT = 1000
_PAUSE_S = 0.1
_EXAMPLES = 3

Place = tuple[int, int, int]
"""Topic, queue, queue offset."""


class Stored(NamedTuple):
    """What a node hands out at a place."""

    physical_offset: int
    body: bytes


@dataclass(slots=True)
class Found:
    """What a check came to."""

    checked: int = 0
    lost: int = 0
    wrong: int = 0
    refused: int = 0
    """Not handed out, for a named cause."""
    faults: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def acknowledged(told: dict[int, Ints]) -> Ints:
    """All messages that were acknowledged, as rows of `WANTED`."""
    parts = [np.zeros((0, len(WANTED)), np.int64)]
    for producer, rows in told.items():
        good = rows[rows[:, ROW.index("outcome")] == ACKNOWLEDGED]
        who = np.full(len(good), producer)
        columns = [good[:, ROW.index(name)] for name in WANTED[:4]]
        parts.append(np.stack([*columns, who, good[:, ROW.index("number")]], axis=1))
    return np.concatenate(parts)


class Checker:
    """Remembers which messages were seen already; of those a few are asked for again."""

    def __init__(self, seed: int) -> None:
        self._rnd = random.Random(seed)
        self._known: dict[int, int] = {}

    def check(self, client: Client, told: dict[int, Ints], whole: bool) -> Found:
        """Asks for all new ones and a sample of the others, or for everything."""
        fresh = {n: rows[0 if whole else self._known.get(n, 0) :] for n, rows in told.items()}
        old = {n: rows[: self._known.get(n, 0)] for n, rows in told.items()}
        wanted = [acknowledged(fresh)]
        if not whole:
            before = acknowledged(old)
            count = min(_SAMPLE, len(before))
            wanted.append(before[self._rnd.sample(range(len(before)), count)])
        found = judge(np.concatenate(wanted), *fetch(client, np.concatenate(wanted)))
        self._known = {n: len(rows) for n, rows in told.items()}
        return found


def judge(wanted: Ints, stored: dict[Place, Stored], errors: dict[tuple[int, int], str]) -> Found:
    """`errors`: by topic and queue, why the node does not hand out what is missing there."""
    found = Found(checked=len(wanted))
    lost, wrong = [], []
    for topic, queue_id, offset, physical, producer, number in wanted.tolist():
        one = stored.get((topic, queue_id, offset))
        sent = message(producer, number)
        what = f"{TOPICS[topic]} {queue_id} {offset} (producer {producer}, message {number})"
        if one is None and (topic, queue_id) in errors:
            found.refused += 1
            found.refusals.append(errors[topic, queue_id])
        elif one is None:
            lost.append(what)
        elif one != (physical, sent.body) or sent.topic != topic:
            wrong.append(what)
    found.lost, found.wrong = len(lost), len(wrong)
    found.refusals = list(dict.fromkeys(found.refusals))[:_EXAMPLES]
    for names, text in ((lost, "are lost"), (wrong, "are not what was sent")):
        if names:
            examples = ", ".join(names[:_EXAMPLES])
            found.faults.append(f"{len(names)} acknowledged messages {text}: {examples}")
    return found


def fetch(client: Client, wanted: Ints) -> tuple[dict[Place, Stored], dict[tuple[int, int], str]]:
    """What the node hands out of these; and by topic and queue, the last refusal in between."""
    stored: dict[Place, Stored] = {}
    errors: dict[tuple[int, int], str] = {}
    deadline = time.monotonic() + WAIT_S
    queues = sorted({(topic, queue_id) for topic, queue_id in wanted[:, :2].tolist()})
    while queues:
        left = []
        for topic, queue_id in queues:
            mine = wanted[(wanted[:, 0] == topic) & (wanted[:, 1] == queue_id), 2]
            missing = [n for n in sorted(set(mine.tolist())) if (topic, queue_id, n) not in stored]
            errors.pop((topic, queue_id), None)
            try:
                _pull(client, topic, queue_id, missing, stored)
            except MqError as error:
                errors[topic, queue_id] = f"{type(error).__name__}: {error.reason}"
            if any((topic, queue_id, n) not in stored for n in missing):
                left.append((topic, queue_id))
        queues = left
        if time.monotonic() > deadline:
            break
        if queues:
            time.sleep(_PAUSE_S)
    return stored, errors


def _pull(
    client: Client, topic: int, queue_id: int, missing: Iterable[int], stored: dict[Place, Stored]
) -> None:
    """One pass over the offsets, each of them rising; what is not there yet is passed over."""
    for offset in missing:
        if (topic, queue_id, offset) in stored:
            continue
        answer = client.pull(
            TOPICS[topic], queue_id, offset, max_messages=_PULL_COUNT, max_bytes=_PULL_BYTES
        )
        if not answer.count:
            return
        for one in answer.messages:
            place = (topic, queue_id, one.queue_offset)
            stored[place] = Stored(one.physical_offset, bytes(one.body))
