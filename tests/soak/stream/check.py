"""Holds what a streaming query has written against what is in its source: each message once.

And the source against what its senders were told. Faults are sentences; none: nothing is wrong.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from keelog.bench.queue_checks import Ints
from node.runtime.settings import Settings
from node.store.opening import open_store
from tests.soak.kill.load import ACKNOWLEDGED, REFUSED, ROW, UNKNOWN
from tests.soak.stream.load import SINK_TOPIC, SOURCE_TOPIC, body_of, is_repeating, sender_of

_EXAMPLES = 3


class Sent(NamedTuple):
    """A message of the source: its place, and who sent it."""

    queue_id: int
    queue_offset: int
    producer: int
    number: int


class Copied(NamedTuple):
    """A message of the sink in the order written: its queue, and whose copy it says to be."""

    queue_id: int
    key: str
    body: bytes


@dataclass(slots=True)
class Checked:
    """What the check counted."""

    acknowledged: int = 0
    unknown_stored: int = 0
    stored: int = 0
    copied: int = 0
    duplicates: int = 0
    missing: int = 0
    foreign: int = 0
    """Rows of the sink that are no message of the source."""
    disordered: int = 0
    """Rows of the sink that stand behind a later one of their queue."""
    faults: list[str] = field(default_factory=list)


def read_store(root: Path, settings: Settings) -> tuple[list[Sent], list[Copied]]:
    """Source and sink as a store at rest has them, each queue in its order."""
    sent: list[Sent] = []
    copied: list[Copied] = []
    with open_store(root, settings) as store:
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            for row in range(len(columns)):
                record = columns.record(row)
                head = record.head
                if record.topic == SOURCE_TOPIC:
                    who = sender_of(record.body)
                    sent.append(Sent(head.queue_id, head.queue_offset, *who))
                elif record.topic == SINK_TOPIC:
                    keys = record.keys[0] if record.keys else ""
                    copied.append(Copied(head.queue_id, keys, record.body))
    return sent, copied


def read_parquet(folder: Path) -> list[Copied]:
    """What Spark's file sink has committed: the files that its log names, in the order of it."""
    return [
        Copied(row["queueId"], row["keys"], row["body"])
        for path in _committed(folder)
        for row in pq.read_table(path).to_pylist()
    ]


def _committed(folder: Path) -> Iterator[Path]:
    names = list((folder / "_spark_metadata").glob("[0-9]*"))
    compact = [path for path in names if path.suffix == ".compact"]
    newest = max(compact, key=lambda path: int(path.stem), default=None)
    first = int(newest.stem) + 1 if newest else 0
    later = [path for path in names if not path.suffix and int(path.name) >= first]
    for path in [*([newest] if newest else []), *sorted(later, key=lambda path: int(path.name))]:
        for line in path.read_text().splitlines()[1:]:
            yield Path(json.loads(line)["path"].removeprefix("file://"))


def check_source(sent: list[Sent], told: dict[int, Ints], checked: Checked) -> None:
    """Every acknowledged message at its place; none that was refused for good or never sent."""
    checked.stored = len(sent)
    at = {(one.queue_id, one.queue_offset): (one.producer, one.number) for one in sent}
    there = Counter(at.values())
    queue_at, offset_at = ROW.index("queue_id"), ROW.index("queue_offset")
    for producer, rows in told.items():
        good = rows[rows[:, 1] == ACKNOWLEDGED]
        checked.acknowledged += len(good)
        wrong = [
            int(row[0])
            for row in good
            if at.get((int(row[queue_at]), int(row[offset_at]))) != (producer, int(row[0]))
        ]
        if wrong:
            some = wrong[:_EXAMPLES]
            checked.faults.append(f"producer {producer}: {len(wrong)} not where told: {some}")
        acknowledged = set(good[:, 0].tolist())
        unknown = set(rows[rows[:, 1] == UNKNOWN, 0].tolist()) - acknowledged
        refused = set(rows[rows[:, 1] == REFUSED, 0].tolist()) - acknowledged - unknown
        checked.unknown_stored += sum(there[producer, number] > 0 for number in unknown)
        invented = [number for number in refused if there[producer, number]]
        if invented and not is_repeating(producer):
            checked.faults.append(f"producer {producer}: refused and stored: {invented[:3]}")


def check_copies(sent: list[Sent], copied: Iterable[Copied], checked: Checked) -> None:
    """The sink has each message of the source once, unchanged, in the order of its queue."""
    expected = {f"{one.queue_id}-{one.queue_offset}": one for one in sent}
    seen: Counter[str] = Counter()
    last: dict[int, int] = {}
    examples: list[str] = []
    for copy in copied:
        checked.copied += 1
        one = expected.get(copy.key)
        if one is None or copy.body != body_of(one.producer, one.number):
            checked.foreign += 1
            examples.append(f"foreign {copy.key}")
            continue
        seen[copy.key] += 1
        if seen[copy.key] > 1:
            examples.append(f"twice {copy.key}")
        if one.queue_offset < last.get(copy.queue_id, 0):
            checked.disordered += 1
        last[copy.queue_id] = max(one.queue_offset, last.get(copy.queue_id, 0))
    missing = sorted(set(expected) - set(seen))
    checked.missing = len(missing)
    checked.duplicates = sum(count - 1 for count in seen.values())
    examples += [f"missing {key}" for key in missing[:_EXAMPLES]]
    if checked.missing or checked.duplicates or checked.foreign:
        checked.faults.append(
            f"{checked.missing} missing, {checked.duplicates} twice, {checked.foreign} foreign:"
            f" {', '.join(examples[: 3 * _EXAMPLES])}"
        )
