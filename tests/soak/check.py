"""Checks that a store has what its senders were told and its readers have seen.

Tables are arrays of whole numbers with a row for each message. An `Image` is what is stored: read
from the files of a store at rest, or pulled from a running node. Faults are sentences.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keelog.bench.queue_checks import Ints, pull_queue
from keelog.client.client import Client
from node.runtime.settings import Settings
from node.store.opening import open_store
from node.store.verify.verify import verify
from protocol.record.columns import RecordColumns
from tests.soak.load import (
    ACKNOWLEDGED,
    ROW,
    SEEN,
    UNKNOWN,
    Traffic,
    is_repeating,
    keys_of,
    sender_of,
)

STORED = ("physical_offset", "topic", "queue_id", "queue_offset", "producer", "number")
"""What is known of a record in the log."""
_NO_ROWS = np.zeros((0, len(STORED)), np.int64)
_EXAMPLES = 3
_STAYS, _GONE, _RACED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Image:
    """What is stored, in the log's order: a row of `STORED` for each record, and the log's end."""

    rows: Ints
    end: int
    changed: int = 0
    """Records whose body, keys or tags are not what was sent."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The power was lost at `at_ns`, and the log ended at `end` then; `again_ns`: it came back."""

    at_ns: int
    again_ns: int
    end: int


@dataclass(slots=True)
class Tally:
    """What one check found."""

    acknowledged: int = 0
    lost: int = 0
    invented: int = 0
    changed: int = 0
    twice: int = 0
    """Copies of messages whose first outcome was unknown, beyond the first."""
    unknown_stored: int = 0
    gone: int = 0
    """Lost with the power before their flush: ASYNC_FLUSH promises no more."""
    gone_age_ms: float = 0.0
    raced: int = 0
    """Acknowledged while the power went."""
    faults: list[str] = field(default_factory=list)


def read_image(
    root: Path,
    settings: Settings,
    traffic: Traffic,
    from_offset: int = 0,
    others: Collection[str] = (),
) -> Image:
    """Reads the log of a store at rest; compares bodies, keys and tags from `from_offset` on.

    `others`: topics for which nobody wrote down what was sent.
    """
    parts, changed = [_NO_ROWS], 0
    with open_store(root, settings) as store:
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            rows, wrong = _rows_of(columns, traffic, from_offset, others)
            parts.append(rows)
            changed += wrong
        end = store.log.end
    return Image(np.concatenate(parts), end, changed)


def _rows_of(
    columns: RecordColumns, traffic: Traffic, from_offset: int, others: Collection[str]
) -> tuple[Ints, int]:
    rows = np.full((len(columns), len(STORED)), -1, np.int64)
    rows[:, 0] = columns.physical_offset
    rows[:, 2] = columns.queue_id
    rows[:, 3] = columns.queue_offset
    kept = np.ones(len(columns), bool)
    wrong = 0
    for row in range(len(columns)):
        body = columns.piece(columns.body_start, columns.body_length, row)
        topic = columns.piece(columns.topic_start, columns.topic_length, row).decode()
        if topic in others:
            kept[row] = False
            continue
        rows[row, 1] = traffic.topics.index(topic) if topic in traffic.topics else -1
        rows[row, 4:] = producer, number = sender_of(body)
        if rows[row, 0] >= from_offset:
            expected = traffic.message(producer, number)
            properties = columns.piece(columns.properties_start, columns.properties_length, row)
            same = expected.body == body and traffic.topics[expected.topic] == topic
            wrong += not (same and expected.properties in properties)
    return rows[kept], wrong


def pull_image(client: Client, traffic: Traffic) -> Image:
    """Pulls everything from a running node, which has caught up; checksums are compared."""
    parts = [_NO_ROWS]
    for topic, name in enumerate(traffic.topics):
        for queue_id in range(traffic.queues):
            found = pull_queue(client, name, queue_id)
            rows = np.full((len(found["number"]), len(STORED)), topic, np.int64)
            rows[:, STORED.index("queue_id")] = queue_id
            for what, column in found.items():
                rows[:, STORED.index(what)] = column
            parts.append(rows)
    rows = np.concatenate(parts)
    return Image(rows[np.argsort(rows[:, 0])], end=client.status().log.appended)


def check_files(root: Path, settings: Settings) -> list[str]:
    """The errors of `store verify --deep`; what the next start mends by itself is none."""
    report = verify(root, deep=True, settings=settings)
    wrong = [one for one in report.findings if one.severity == "error"]
    return [f"verify: {one}" for one in wrong[:_EXAMPLES]]


def check_order(image: Image, traffic: Traffic) -> list[str]:
    """Within each queue: no gap, and each pipelining producer's messages in the order sent."""
    faults = []
    for topic in range(len(traffic.topics)):
        for queue_id in range(traffic.queues):
            mine = (image.rows[:, 1] == topic) & (image.rows[:, 2] == queue_id)
            rows = image.rows[mine]
            name = f"{traffic.topics[topic]} {queue_id}"
            if not np.array_equal(rows[:, 3], np.arange(len(rows))):
                faults.append(f"{name}: queue offsets are not 0 to {len(rows) - 1}, each once")
            for producer in np.unique(rows[:, 4]):
                numbers = rows[rows[:, 4] == producer, 5]
                if not is_repeating(int(producer)) and not (np.diff(numbers) > 0).all():
                    faults.append(f"{name}: producer {producer} is out of order, or twice")
    return faults


def check_prefix(before: Image, after: Image) -> list[str]:
    """A start changes nothing of what it finds: places and senders here, bytes by `verify`."""
    kept = after.rows[after.rows[:, 0] < before.end]
    if np.array_equal(kept, before.rows):
        return []
    return [f"the log below {before.end} is another one than before ({len(before.rows)} records)"]


def check_outcomes(
    image: Image, told: dict[int, Ints], cuts: list[Cut], promised: bool, is_over: bool
) -> Tally:
    """`told`: rows of `ROW` by producer. `promised`: acknowledgements outlive a power loss.

    What nobody sent is only known once every sender has ended (`is_over`).
    """
    tally = Tally(changed=image.changed)
    if image.changed:
        tally.faults.append(f"{image.changed} messages are not what was sent")
    certain: dict[int, Ints] = {}
    possible: dict[int, Ints] = {}
    for producer, rows in told.items():
        outcome = rows[:, ROW.index("outcome")]
        good = rows[outcome == ACKNOWLEDGED]
        fate = _fate(good, cuts, promised, tally)
        certain[producer] = good[fate == _STAYS]
        raced = good[fate == _RACED, 0]
        possible[producer] = np.concatenate([rows[outcome == UNKNOWN, 0], raced])
        tally.acknowledged += len(certain[producer])
        wanted = acknowledged({producer: certain[producer]})
        lost = wanted[differing(wanted, image.rows)]
        if len(lost):
            tally.lost += len(lost)
            some = lost[:_EXAMPLES].tolist()
            tally.faults.append(
                f"{len(lost)} acknowledged messages of producer {producer} are lost: {some}"
            )
        if is_repeating(producer) and not (np.diff(certain[producer][:, 0]) > 0).all():
            tally.faults.append(f"producer {producer} was told of one message twice")
    if is_over:
        for producer in np.unique(image.rows[:, 4]).tolist():
            stored = image.rows[image.rows[:, 4] == producer]
            if producer in told:
                _check_sender(producer, stored, certain[producer], possible[producer], tally)
            else:
                tally.invented += len(stored)
                tally.faults.append(f"{len(stored)} messages of nobody ({producer})")
    return tally


def _fate(rows: Ints, cuts: list[Cut], promised: bool, tally: Tally) -> Ints:
    """Whether each of the acknowledged stays, may be gone, or raced one of these cuts."""
    at, place = rows[:, ROW.index("ns")], rows[:, ROW.index("physical_offset")]
    durable = (rows[:, ROW.index("flushed")] == 1) | promised
    fate = np.full(len(rows), _STAYS)
    since = 0
    for cut in cuts:
        behind = (at >= since) & (at < cut.again_ns) & (place >= cut.end)
        raced = behind & (at >= cut.at_ns)
        gone = behind & (at < cut.at_ns) & ~durable
        fate[raced], fate[gone] = _RACED, _GONE
        tally.raced += int(raced.sum())
        tally.gone += int(gone.sum())
        if gone.any():
            age_ms = float(cut.at_ns - at[gone].min()) / 1e6
            tally.gone_age_ms = max(tally.gone_age_ms, age_ms)
        since = cut.again_ns
    return fate


def acknowledged(told: dict[int, Ints]) -> Ints:
    """All messages that were acknowledged, as rows of `STORED`."""
    parts = [_NO_ROWS]
    for producer, rows in told.items():
        good = rows[rows[:, ROW.index("outcome")] == ACKNOWLEDGED]
        columns = [good[:, ROW.index(name)] for name in STORED[:4]]
        who = np.full(len(good), producer)
        parts.append(np.stack([*columns, who, good[:, ROW.index("number")]], axis=1))
    return np.concatenate(parts)


def differing(wanted: Ints, stored: Ints) -> NDArray[np.bool_]:
    """Which of the wanted rows are not stored as they are; `stored` is in the log's order."""
    if not len(stored):
        return np.ones(len(wanted), bool)
    found = np.searchsorted(stored[:, 0], wanted[:, 0]).clip(max=len(stored) - 1)
    is_other: NDArray[np.bool_] = np.any(stored[found] != wanted, axis=1)
    return is_other


def _check_sender(producer: int, stored: Ints, certain: Ints, possible: Ints, tally: Tally) -> None:
    """Each stored message of a producer was acknowledged there, or its outcome was unknown."""
    told = set(
        zip(certain[:, ROW.index("physical_offset")].tolist(), certain[:, 0].tolist(), strict=True)
    )
    others = [number for place, number in stored[:, [0, 5]].tolist() if (place, number) not in told]
    chances = Counter(possible.tolist())
    extra = Counter(others) - chances
    tally.unknown_stored += len(others)
    tally.twice += len(stored) - len(np.unique(stored[:, 5]))
    if extra:
        tally.invented += extra.total()
        tally.faults.append(
            f"{extra.total()} messages of producer {producer} stand where nobody was told of them:"
            f" {sorted(extra)[:_EXAMPLES]}"
        )


def check_seen(image: Image, seen: Ints) -> list[str]:
    """A message that a reader has seen stays where it was, whatever was killed."""
    columns = [SEEN.index(name) for name in STORED]
    vanished = int(differing(seen[:, columns], image.rows).sum())
    return [f"{vanished} messages that were read are not there any more"] if vanished else []


def check_passed_over(seen: Ints) -> list[str]:
    """A reader that goes where the node sends it may see a message again, and never misses one."""
    ends: dict[tuple[int, int], int] = {}
    missed = 0
    for topic, queue_id, queue_offset in seen[:, :3].tolist():
        end = ends.get((topic, queue_id), 0)
        missed += queue_offset > end
        ends[topic, queue_id] = queue_offset + 1
    return [f"{missed} times a reader was sent past messages"] if missed else []


def check_followed(image: Image, seen: Ints, topic: int) -> list[str]:
    """A follower of a topic has seen each message once, and in order within its queue."""
    faults = []
    for queue_id in np.unique(image.rows[image.rows[:, 1] == topic, 2]).tolist():
        stored = (image.rows[:, 1] == topic) & (image.rows[:, 2] == queue_id)
        offsets = seen[seen[:, 1] == queue_id, 2]
        if not np.array_equal(offsets, np.arange(stored.sum())):
            faults.append(f"queue {queue_id}: not each of {stored.sum()} messages once, in order")
    return faults


def check_finds(client: Client, traffic: Traffic, image: Image, count: int) -> list[str]:
    """The node finds messages by their own key; `count` of them, spread evenly."""
    wrong = []
    for topic, key, places in _keyed(image, count):
        found = sorted(one.physical_offset for one in client.find(traffic.topics[topic], key))
        if found != places:
            wrong.append(f"{key} is at {places}, found at {found}")
    return [f"{len(wrong)} messages not found by key: {wrong[:_EXAMPLES]}"] if wrong else []


def check_index(
    root: Path, settings: Settings, traffic: Traffic, image: Image, count: int
) -> list[str]:
    """The index files of a store at rest have messages by their own key, as `check_finds`."""
    with open_store(root, settings) as store:
        missing = sum(
            not set(places) <= set(store.index.query(traffic.topics[topic], key))
            for topic, key, places in _keyed(image, count)
        )
    return [f"{missing} messages are not found in the index files"] if missing else []


def _keyed(image: Image, count: int) -> list[tuple[int, str, list[int]]]:
    """Topic, own key and all places of stored messages."""
    sample = image.rows[:: max(1, len(image.rows) // count)]
    wanted = {
        (producer, number): topic for topic, producer, number in sample[:, [1, 4, 5]].tolist()
    }
    places: dict[tuple[int, int], list[int]] = {who: [] for who in wanted}
    for place, *who in image.rows[:, [0, 4, 5]].tolist():
        if tuple(who) in places:
            places[who[0], who[1]].append(place)
    return [(topic, keys_of(*who)[0], places[who]) for who, topic in wanted.items()]
