"""Checks of what Java's producers were told and its consumers were given; faults are sentences."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keelog.bench.queue_checks import Ints
from node.runtime.settings import Settings
from node.store.opening import open_store
from protocol.names import SCHEDULE_TOPIC
from protocol.record.columns import RecordColumns
from protocol.record.properties import REAL_QUEUE_ID, REAL_TOPIC, decode_raw_properties
from protocol.remoting.codes import RequestCode
from tests.soak.check import STORED, Image, check_outcomes
from tests.soak.clients.programs import CONSUMED, GIVEN, TOLD, JavaLoad, numbered
from tests.soak.load import ACKNOWLEDGED, ROW, UNKNOWN, sender_of
from tests.support.remoting import RemotingPeer

SENT, DELIVERED, HANDED_BACK, RETRIED = range(4)
"""What a record is: a send (a delayed one waits in the schedule topic), the copy of a delayed
message at its place, a message that waits for its next try, and one that is tried again."""
_REPEATS_OF_A_CLIENT = 2
"""RocketMQ's producers send again by themselves, so often, and report the last outcome alone."""
_EXAMPLES = 3

Committed = dict[tuple[int, int, int], int]
"""The committed offset by broker, topic (as in GIVEN) and queue."""


class Kept(NamedTuple):
    """The records of a topic and its group in one store: STORED, and what each is."""

    rows: Ints
    kinds: Ints
    end: int


@dataclass(slots=True)
class Repeats:
    """What came more than once, of how much."""

    acknowledged: int = 0
    lost: int = 0
    unconsumed: int = 0
    sent_twice: int = 0
    """Copies beyond the first, from producers that sent again what had no reply."""
    delivered_twice: int = 0
    """Copies of delayed messages beyond one for each that was stored."""
    retried_twice: int = 0
    """The same of messages that were handed back."""
    consumed: int = 0
    """Messages, each counted once."""
    given_again: int = 0
    """Times a record was consumed again: its offset was not committed in time."""
    faults: list[str] = field(default_factory=list)


def read_kept(root: Path, settings: Settings, load: JavaLoad) -> Kept:
    """Reads the log of a store at rest, ours or a broker's."""
    rows, kinds = [np.zeros((0, len(STORED)), np.int64)], [np.zeros(0, np.int64)]
    with open_store(root, settings) as store:
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            found = [one for row in range(len(columns)) if (one := _kept_of(columns, row, load))]
            table = np.array(found, np.int64).reshape(-1, len(STORED) + 1)
            rows.append(table[:, :-1])
            kinds.append(table[:, -1])
        end = store.log.end
    return Kept(np.concatenate(rows), np.concatenate(kinds), end)


def _kept_of(columns: RecordColumns, row: int, load: JavaLoad) -> tuple[int, ...] | None:
    topic = columns.piece(columns.topic_start, columns.topic_length, row).decode()
    raw = columns.piece(columns.properties_start, columns.properties_length, row)
    properties = decode_raw_properties(raw)
    real = properties.get(REAL_TOPIC.encode(), b"").decode()
    queue_id = int(columns.queue_id[row])
    if topic == load.topic:
        kind = DELIVERED if real else SENT
    elif topic == load.retry_topic:
        kind = RETRIED
    elif topic == SCHEDULE_TOPIC and real in (load.topic, load.retry_topic):
        kind = SENT if real == load.topic else HANDED_BACK
        queue_id = int(properties[REAL_QUEUE_ID.encode()])
    else:
        return None
    place = int(columns.physical_offset[row]), 0, queue_id, int(columns.queue_offset[row])
    body = columns.piece(columns.body_start, columns.body_length, row)
    return (*place, *sender_of(body), kind)


def check_stored(load: JavaLoad, kept: Mapping[int, Kept], repeats: Repeats) -> None:
    """What was acknowledged is at its place in the stores, by broker; nothing is of nobody."""
    for broker, store in kept.items():
        told = {producer: _told_of(rows, broker) for producer, rows in load.told().items()}
        image = Image(store.rows[store.kinds == SENT], store.end)
        tally = check_outcomes(image, told, [], promised=True, is_over=True)
        repeats.acknowledged += tally.acknowledged
        repeats.lost += tally.lost
        repeats.faults += tally.faults
        for kind, first in ((DELIVERED, SENT), (RETRIED, HANDED_BACK)):
            _check_copies(store, kind, first, repeats)
    # A producer may have sent it again to another broker.
    sent = np.concatenate([one.rows[one.kinds == SENT][:, [4, 5]] for one in kept.values()])
    repeats.sent_twice = len(sent) - len(np.unique(numbered(sent)))


def _check_copies(store: Kept, kind: int, first: int, repeats: Repeats) -> None:
    """Each message that waited for a time is delivered, and none that did not."""
    waiting = store.kinds == first
    if first == SENT:
        waiting &= np.isin(store.rows[:, 5] % 10, _LATE)
    waited = numbered(store.rows[waiting][:, [4, 5]])
    copies = numbered(store.rows[store.kinds == kind][:, [4, 5]])
    missing = np.setdiff1d(waited, copies)
    invented = np.setdiff1d(copies, waited)
    if len(missing) or len(invented):
        repeats.faults.append(
            f"of what waited {len(missing)} were not delivered, {len(invented)} came from nowhere"
        )
    twice = max(0, len(copies) - len(waited))
    if kind == DELIVERED:
        repeats.delivered_twice += twice
    else:
        repeats.retried_twice += twice


_LATE = (3,)
"""The last digits of messages that are sent with a delay level."""


def _told_of(rows: Ints, broker: int) -> Ints:
    """Rows of ROW of one broker: what it acknowledged, and what it may have beside that."""
    outcome = rows[:, TOLD.index("outcome")]
    mine = rows[(rows[:, 0] == broker) & (outcome == ACKNOWLEDGED)][:, 1:]
    others = np.full((len(rows), len(ROW)), -1, np.int64)
    others[:, ROW.index("number")] = rows[:, TOLD.index("number")]
    others[:, ROW.index("outcome")] = UNKNOWN
    failed = others[outcome == UNKNOWN]
    return np.concatenate([mine, failed, *[others] * _REPEATS_OF_A_CLIENT])


def check_given(load: JavaLoad, kept: Mapping[int, Kept], repeats: Repeats) -> None:
    """Each acknowledged message was consumed, and what was given is what is stored."""
    rows = load.given()
    left = load.unconsumed()
    repeats.unconsumed = len(left)
    if len(left):
        some = left[:_EXAMPLES].tolist()
        repeats.faults.append(f"{len(left)} acknowledged messages were not consumed: {some}")
    good = rows[rows[:, GIVEN.index("outcome")] == CONSUMED]
    places = np.unique(good[:, [0, GIVEN.index("physical_offset")]], axis=0)
    repeats.consumed = len(np.unique(numbered(load.consumed())))
    repeats.given_again = len(good) - len(places)
    columns = [GIVEN.index(name) for name in ("physical_offset", "producer", "number")]
    for broker, store in kept.items():
        seen = np.unique(rows[rows[:, 0] == broker][:, columns], axis=0)
        stored = np.unique(store.rows[:, [0, 4, 5]], axis=0)
        both = np.unique(np.concatenate([seen, stored]), axis=0)
        if len(both) > len(stored):
            repeats.faults.append(f"{len(both) - len(stored)} messages given are not stored there")


def committed_of(
    place: tuple[str, int], load: JavaLoad, broker: int = 0, queues: int = 4
) -> Committed:
    """The committed offsets of the group, asked as its clients ask. Raises OSError."""
    wanted = {(broker, 0, number): load.topic for number in range(queues)}
    wanted[broker, 2, 0] = load.retry_topic
    found = {}
    with closing(RemotingPeer(place)) as peer:
        for key, topic in wanted.items():
            fields = {
                "consumerGroup": load.group, "topic": topic, "queueId": key[2],
                "setZeroIfNotFound": False,
            }  # fmt: skip
            answer = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            if answer.code == 0:
                found[key] = int(answer.ext["offset"])
    return found


def check_committed(committed: Committed, given: Ints) -> list[str]:
    """Below a committed offset a consumer was given every message. `given` is read later."""
    faults = []
    for (broker, topic, queue_id), offset in committed.items():
        mine = (given[:, 0] == broker) & (given[:, 1] == topic) & (given[:, 2] == queue_id)
        offsets = np.unique(given[mine, GIVEN.index("queue_offset")])
        below = int((offsets < offset).sum())
        if below < offset:
            missing = np.setdiff1d(np.arange(offset), offsets)[:_EXAMPLES].tolist()
            faults.append(
                f"offset {offset} of queue {queue_id} is committed ({broker}, {topic}), and"
                f" {offset - below} messages below it were given to nobody: {missing}"
            )
    return faults
