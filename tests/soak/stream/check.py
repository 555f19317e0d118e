"""Checks that a streaming query has written each message of its source once."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from node.runtime.settings import Settings
from node.store.opening import open_store
from tests.soak.check import STORED, Image
from tests.soak.load import Traffic

SOURCE_TOPIC, SINK_TOPIC = "stream-in", "stream-out"
TRAFFIC = Traffic(
    (SOURCE_TOPIC,), queues=8, body_bytes_max=4_000, pause_s=0.05, single_pause_s=0.05
)
"""A query copies it while everything is killed: no more than it keeps up with."""
_EXAMPLES = 3


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
    """Rows of the sink that are not messages of the source."""
    disordered: int = 0
    """Rows of the sink that come after a later one of their queue."""
    faults: list[str] = field(default_factory=list)


def read_sink(root: Path, settings: Settings) -> Iterator[Copied]:
    """The sink's topic as a store at rest has it, in the order of the log."""
    with open_store(root, settings) as store:
        for columns in store.log.columns(store.log.min_offset, store.log.end):
            for row in range(len(columns)):
                record = columns.record(row)
                if record.topic == SINK_TOPIC:
                    keys = record.keys[0] if record.keys else ""
                    yield Copied(record.head.queue_id, keys, record.body)


def read_parquet(folder: Path) -> Iterator[Copied]:
    """What Spark's file sink has committed: the files that its log names, in the log's order."""
    for path in _committed(folder):
        for row in pq.read_table(path).to_pylist():
            yield Copied(row["queueId"], row["keys"], row["body"])


def _committed(folder: Path) -> Iterator[Path]:
    names = list((folder / "_spark_metadata").glob("[0-9]*"))
    compact = [path for path in names if path.suffix == ".compact"]
    newest = max(compact, key=lambda path: int(path.stem), default=None)
    first = int(newest.stem) + 1 if newest else 0
    later = [path for path in names if not path.suffix and int(path.name) >= first]
    for path in [*([newest] if newest else []), *sorted(later, key=lambda path: int(path.name))]:
        for line in path.read_text().splitlines()[1:]:
            yield Path(json.loads(line)["path"].removeprefix("file://"))


def check_copies(source: Image, copied: Iterable[Copied], checked: Checked) -> None:
    """The sink has each message of the source once, unchanged, in the order of its queue."""
    places = source.rows[:, [STORED.index("queue_id"), STORED.index("queue_offset")]].tolist()
    senders = source.rows[:, [STORED.index("producer"), STORED.index("number")]].tolist()
    expected = {
        f"{queue_id}-{offset}": (offset, *sender)
        for (queue_id, offset), sender in zip(places, senders, strict=True)
    }
    seen: Counter[str] = Counter()
    last: dict[int, int] = {}
    examples: list[str] = []
    for copy in copied:
        checked.copied += 1
        offset, *sender = expected.get(copy.key, (-1, -1, -1))
        if copy.key not in expected or copy.body != TRAFFIC.message(*sender).body:
            checked.foreign += 1
            examples.append(f"foreign {copy.key}")
            continue
        seen[copy.key] += 1
        if seen[copy.key] > 1:
            examples.append(f"twice {copy.key}")
        if offset < last.get(copy.queue_id, 0):
            checked.disordered += 1
        last[copy.queue_id] = max(offset, last.get(copy.queue_id, 0))
    missing = sorted(set(expected) - set(seen))
    checked.missing = len(missing)
    checked.duplicates = sum(count - 1 for count in seen.values())
    examples += [f"missing {key}" for key in missing[:_EXAMPLES]]
    if checked.missing or checked.duplicates or checked.foreign:
        checked.faults.append(
            f"{checked.missing} missing, {checked.duplicates} twice, {checked.foreign} foreign:"
            f" {', '.join(examples[: 3 * _EXAMPLES])}"
        )
