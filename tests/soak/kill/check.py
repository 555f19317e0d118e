"""Holds a store that nobody runs against what its senders and readers wrote down.

Tables are arrays of whole numbers, a row a message. Faults are sentences; none: nothing is lost.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keelog.bench.queue_checks import Ints
from node.runtime.settings import Settings
from node.store.opening import open_store
from node.store.verify.verify import verify
from protocol.record.columns import RecordColumns
from tests.soak.kill.load import (
    ACKNOWLEDGED,
    QUEUES,
    ROW,
    SEEN,
    TOPICS,
    UNKNOWN,
    is_repeating,
    message,
    sender_of,
)

STORED = ("physical_offset", "topic", "queue_id", "queue_offset", "producer", "number")
"""What is known of a record in the log."""
_EXAMPLES = 3
_STAYS, _GONE, _RACED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Image:
    """The log of a store at rest: a row of `STORED` for each record, and where it ends."""

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
    root: Path, settings: Settings, from_offset: int = 0, others: Collection[str] = ()
) -> Image:
    """Reads the log; bodies, keys and tags are compared from `from_offset` on.

    `others`: topics that nobody wrote down what was sent to.
    """
    parts, changed = [], 0
    with open_store(root, settings) as store:
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            rows, wrong = _rows_of(columns, from_offset, others)
            parts.append(rows)
            changed += wrong
        end = store.log.end
    empty = np.zeros((0, len(STORED)), np.int64)
    return Image(np.concatenate([empty, *parts]), end, changed)


def _rows_of(columns: RecordColumns, from_offset: int, others: Collection[str]) -> tuple[Ints, int]:
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
        rows[row, 1] = TOPICS.index(topic) if topic in TOPICS else -1
        rows[row, 4:] = producer, number = sender_of(body)
        if rows[row, 0] >= from_offset:
            expected = message(producer, number)
            properties = columns.piece(columns.properties_start, columns.properties_length, row)
            same = expected.body == body and TOPICS[expected.topic] == topic
            wrong += not (same and expected.properties in properties)
    return rows[kept], wrong


def check_files(root: Path, settings: Settings) -> list[str]:
    """The errors of `store verify --deep`; what the next start mends by itself is none."""
    report = verify(root, deep=True, settings=settings)
    wrong = [one for one in report.findings if one.severity == "error"]
    return [f"verify: {one}" for one in wrong[:_EXAMPLES]]


def check_order(image: Image) -> list[str]:
    """Within each queue: no gap, and each pipelining producer's messages in the order sent."""
    faults = []
    for topic in range(len(TOPICS)):
        for queue_id in range(QUEUES):
            mine = (image.rows[:, 1] == topic) & (image.rows[:, 2] == queue_id)
            rows = image.rows[mine]
            name = f"{TOPICS[topic]} {queue_id}"
            if not np.array_equal(rows[:, 3], np.arange(len(rows))):
                faults.append(f"{name}: queue offsets are not 0 to {len(rows) - 1}, each once")
            for producer in np.unique(rows[:, 4]):
                numbers = rows[rows[:, 4] == producer, 5]
                if not is_repeating(int(producer)) and not (np.diff(numbers) > 0).all():
                    faults.append(f"{name}: producer {producer} is out of order, or twice")
    return faults


def check_prefix(before: Image, after: Image) -> list[str]:
    """What a start has found stays: byte for byte is `verify`'s business, place and sender ours."""
    kept = after.rows[after.rows[:, 0] < before.end]
    if np.array_equal(kept, before.rows):
        return []
    return [f"the log below {before.end} is another one than before ({len(before.rows)} records)"]


def check_outcomes(
    image: Image, told: dict[int, Ints], cuts: list[Cut], promised: bool, is_over: bool
) -> Tally:
    """`told`: by producer, rows of `ROW`. `promised`: each acknowledgement outlives a power loss.

    Only when all has been told (`is_over`) it can be said what nobody sent.
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
        _check_places(image, producer, certain[producer], tally)
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


def _check_places(image: Image, producer: int, rows: Ints, tally: Tally) -> None:
    """Every acknowledged message stands where it was said to stand."""
    if not len(rows):
        return
    if not len(image.rows):
        tally.lost += len(rows)
        tally.faults.append(f"{len(rows)} acknowledged messages of producer {producer} are lost")
        return
    wanted = rows[:, [ROW.index(name) for name in STORED[:4]] + [0]]
    found = np.searchsorted(image.rows[:, 0], wanted[:, 0]).clip(max=len(image.rows) - 1)
    stored = image.rows[found]
    same = (stored[:, :4] == wanted[:, :4]).all(axis=1)
    same &= (stored[:, 4] == producer) & (stored[:, 5] == wanted[:, 4])
    lost = int((~same).sum())
    if lost:
        tally.lost += lost
        some = wanted[~same][:_EXAMPLES].tolist()
        tally.faults.append(f"{lost} acknowledged messages of producer {producer} are lost: {some}")


def _check_sender(producer: int, stored: Ints, certain: Ints, possible: Ints, tally: Tally) -> None:
    """What one producer has in the log was acknowledged there, or nobody could know."""
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
    """What a reader has seen once stays where it was, whatever was killed."""
    if not len(seen):
        return []
    order = np.searchsorted(image.rows[:, 0], seen[:, SEEN.index("physical_offset")])
    stored = image.rows[order.clip(max=len(image.rows) - 1)]
    columns = [SEEN.index(name) for name in STORED]
    vanished = int((stored != seen[:, columns]).any(axis=1).sum())
    return [f"{vanished} messages that were read are not there any more"] if vanished else []


def check_passed_over(seen: Ints) -> list[str]:
    """A reader that goes where it is sent may see a message again, and never misses one."""
    ends: dict[tuple[int, int], int] = {}
    missed = 0
    for topic, queue_id, queue_offset in seen[:, :3].tolist():
        end = ends.get((topic, queue_id), 0)
        missed += queue_offset > end
        ends[topic, queue_id] = queue_offset + 1
    return [f"{missed} times a reader was sent past messages"] if missed else []
