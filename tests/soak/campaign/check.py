"""Asks a running node for what it has acknowledged: each message, at its place, with its body.

Rows are those of `STORED`. A node refuses to hand out a message with one of our errors, which
names the cause, or has lost it.
"""

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from keelog.bench.queue_checks import Ints
from keelog.client.client import Client
from protocol.errors import MqError
from tests.soak.check import STORED, acknowledged
from tests.soak.load import Traffic, sender_of

WAIT_S = 20.0
"""How long a message may take until it is handed out: workers may be starting."""
_SAMPLE = 12
_PULL_BYTES = 1 << 20
_PULL_COUNT = 1000
_PAUSE_S = 0.1
_EXAMPLES = 3

Place = tuple[int, int, int]
"""Topic, queue, queue offset."""
Pulled = dict[Place, tuple[int, ...]]
"""By place, the row of `STORED` that the node hands out; a changed body is not any producer's."""


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


class Checker:
    """Remembers which messages it has seen; it asks for a few of those again."""

    def __init__(self, seed: int, traffic: Traffic) -> None:
        self._rnd = random.Random(seed)
        self._traffic = traffic
        self._known: dict[int, int] = {}

    def check(self, client: Client, told: dict[int, Ints], whole: bool) -> Found:
        """Asks for all new ones and a sample of the others, or for everything (`whole`)."""
        fresh = {n: rows[0 if whole else self._known.get(n, 0) :] for n, rows in told.items()}
        old = {n: rows[: self._known.get(n, 0)] for n, rows in told.items()}
        wanted = [acknowledged(fresh)]
        if not whole:
            before = acknowledged(old)
            count = min(_SAMPLE, len(before))
            wanted.append(before[self._rnd.sample(range(len(before)), count)])
        rows = np.concatenate(wanted)
        found = judge(self._traffic, rows, *fetch(client, self._traffic, rows))
        self._known = {n: len(rows) for n, rows in told.items()}
        return found


def judge(
    traffic: Traffic, wanted: Ints, pulled: Pulled, errors: dict[tuple[int, int], str]
) -> Found:
    """`errors`: by topic and queue, why the node does not hand out what is missing there."""
    found = Found(checked=len(wanted))
    lost, wrong = [], []
    for row in map(tuple, wanted.tolist()):
        _, topic, queue_id, offset, producer, number = row
        one = pulled.get((topic, queue_id, offset))
        name = traffic.topics[topic]
        what = f"{name} {queue_id} {offset} (producer {producer}, message {number})"
        if one is None and (topic, queue_id) in errors:
            found.refused += 1
            found.refusals.append(errors[topic, queue_id])
        elif one is None:
            lost.append(what)
        elif one != row:
            wrong.append(what)
    found.lost, found.wrong = len(lost), len(wrong)
    found.refusals = list(dict.fromkeys(found.refusals))[:_EXAMPLES]
    for names, text in ((lost, "are lost"), (wrong, "are not what was sent")):
        if names:
            examples = ", ".join(names[:_EXAMPLES])
            found.faults.append(f"{len(names)} acknowledged messages {text}: {examples}")
    return found


def fetch(
    client: Client, traffic: Traffic, wanted: Ints
) -> tuple[Pulled, dict[tuple[int, int], str]]:
    """What the node hands out of these; and by topic and queue, the last refusal meanwhile."""
    pulled: Pulled = {}
    errors: dict[tuple[int, int], str] = {}
    deadline = time.monotonic() + WAIT_S
    columns = wanted[:, [STORED.index(name) for name in ("topic", "queue_id", "queue_offset")]]
    queues = sorted({(topic, queue_id) for topic, queue_id, _ in columns.tolist()})
    while queues:
        left = []
        for topic, queue_id in queues:
            mine = columns[(columns[:, 0] == topic) & (columns[:, 1] == queue_id), 2]
            missing = [n for n in sorted(set(mine.tolist())) if (topic, queue_id, n) not in pulled]
            errors.pop((topic, queue_id), None)
            try:
                _pull(client, traffic, topic, queue_id, missing, pulled)
            except MqError as error:
                errors[topic, queue_id] = f"{type(error).__name__}: {error.reason}"
            if any((topic, queue_id, n) not in pulled for n in missing):
                left.append((topic, queue_id))
        queues = left
        if time.monotonic() > deadline:
            break
        if queues:
            time.sleep(_PAUSE_S)
    return pulled, errors


def _pull(
    client: Client,
    traffic: Traffic,
    topic: int,
    queue_id: int,
    missing: Iterable[int],
    pulled: Pulled,
) -> None:
    """One pass over the offsets in rising order; passes over what is not there yet."""
    name = traffic.topics[topic]
    for offset in missing:
        if (topic, queue_id, offset) in pulled:
            continue
        answer = client.pull(
            name, queue_id, offset, max_messages=_PULL_COUNT, max_bytes=_PULL_BYTES
        )
        if not answer.count:
            return
        for one in answer.messages:
            sender = sender_of(one.body)
            sent = traffic.message(*sender)
            if (sent.topic, sent.body) != (topic, bytes(one.body)):
                sender = (-1, -1)
            place = (topic, queue_id, one.queue_offset)
            pulled[place] = (one.physical_offset, *place, *sender)
