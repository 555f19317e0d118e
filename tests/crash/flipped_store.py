"""A small store that a real node wrote, which bytes of it are used, and all that it answers."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from keelog.client.messages import OutgoingMessage
from node.runtime.settings import Settings
from node.store.opening import StoppedStore, open_store
from node.store.query.filters import parse_tags
from node.store.query.look_up import FindRequest, find, offset_by_time
from node.store.query.pull import PullRequest, PullStatus, get_message, record_of
from protocol.derived.file_layouts import INDEX_ENTRY, INDEX_HEADER, UNIT_BYTES, IndexGeometry
from protocol.errors import MessageDamaged, StoreDamaged, UnknownTopic
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, INDEX_DIR
from protocol.record.codec import FILLER_BYTES, Record
from tests.support.node import RunningNode

SETTINGS = Settings(
    mapped_file_size_commit_log=8192,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=23,
    max_index_num=60,
)
TAGS = ("A", "C", "AB")
"""A and C are one bit apart."""
TOPICS = ("orders", "payments", "%RETRY%" + "g" * 140)
"""The last one is too long for records of version 1."""
_HOSTS = ("10.1.2.3:4567", "[2001:db8::7]:5")
_BATCH = 10
_T = TypeVar("_T")


def write_store(root: Path, count: int = 90, seed: int = 1) -> None:
    """A node writes `count` messages, with tags, keys, IPv6 hosts, and stops in order."""
    rnd = random.Random(seed)
    messages = [
        OutgoingMessage(
            topic=rnd.choice(TOPICS),
            queue_id=rnd.choice([0, 0, 0, 1, 5]),
            body=rnd.randbytes(rnd.randrange(60)),
            tags=rnd.choice([None, *TAGS]),
            keys=tuple(f"k{rnd.randrange(12)}" for _ in range(rnd.randrange(3))),
            born_host=rnd.choice(_HOSTS),
        )
        for _ in range(count)
    ]
    sizes = [
        f"{name}={getattr(SETTINGS, name)}"
        for name in (
            *("mapped_file_size_commit_log", "mapped_file_size_consume_queue"),
            *("max_hash_slot_num", "max_index_num"),
        )
    ]
    with RunningNode(root, sizes, queue_workers=1, readers=1) as node:
        with node.client.producer() as producer:
            for start in range(0, count, _BATCH):
                producer.send_many("orders", messages[start : start + _BATCH])
        node.wait_dispatched()


# What the bytes are for.


class Region(NamedTuple):
    """Bytes [start, end) of a file. `unused` says why nobody reads them, empty when they count.

    `queues` and `keys` are what reads of these bytes are about.
    """

    kind: str
    path: Path
    start: int
    end: int
    unused: str = ""
    queues: frozenset[Queue] = frozenset()
    keys: frozenset[tuple[str, str]] = frozenset()


def regions(root: Path) -> list[Region]:
    """Every byte of log, queues and index, by the rules of docs/format.md alone."""
    with open_store(root, SETTINGS) as store:
        return [*_of_the_log(store), *_of_the_queues(store), *_of_the_index(store)]


def records_of(store: StoppedStore) -> list[Record]:
    """All records, in log order."""
    return [
        columns.record(row)
        for columns in store.log.columns(store.log.min_offset)
        for row in range(len(columns))
    ]


def keys_of(record: Record) -> frozenset[tuple[str, str]]:
    """(topic, key) of each way to find it."""
    return frozenset((record.topic, key) for key in [*record.keys, record.unique_key])


def _of_the_log(store: StoppedStore) -> Iterator[Region]:
    size = SETTINGS.mapped_file_size_commit_log
    ends = dict.fromkeys(sorted((store.root / COMMIT_LOG_DIR).iterdir()), 0)
    paths = {int(path.name): path for path in ends}
    for record in records_of(store):
        path = paths[record.physical_offset - record.physical_offset % size]
        start = record.physical_offset % size
        ends[path] = start + record.size
        queue = Queue(record.topic, record.head.queue_id)
        yield Region("record", path, start, ends[path], "", frozenset([queue]), keys_of(record))
    for path, end in ends.items():
        # Where the log ends eight zeros say so; a closed segment has its blank there.
        yield Region("blank", path, end, end + FILLER_BYTES)
        yield Region("free log", path, end + FILLER_BYTES, size, "log bytes behind the end")


def _of_the_queues(store: StoppedStore) -> Iterator[Region]:
    size = SETTINGS.mapped_file_size_consume_queue
    for queue in store.queues():
        reader = store.queue(*queue)
        assert reader is not None
        assert reader.min_offset == 0
        for start in range(0, reader.max_offset, size // UNIT_BYTES):
            path, _ = reader.files.place(start)
            used = min((reader.max_offset - start) * UNIT_BYTES, size)
            yield Region("unit", path, 0, used, "", frozenset([queue]))
            yield Region("free unit", path, used, size, "units behind the queue's end")


def _of_the_index(store: StoppedStore) -> Iterator[Region]:
    geometry: IndexGeometry = SETTINGS.index_geometry
    for file in store.index.files():
        path = store.root / INDEX_DIR / file.name
        slots, entries = geometry.slot_position(0), geometry.entry_position(0)
        used = geometry.entry_position(file.header.index_count)
        yield Region("index header", path, 0, INDEX_HEADER.size)
        yield Region("slot", path, slots, entries)
        first = entries + INDEX_ENTRY.size
        yield Region("free entry", path, entries, first, "index entry 0, which no chain reaches")
        yield Region("entry", path, first, used)
        yield Region("free entry", path, used, geometry.file_bytes, "entries behind the count")


@contextmanager
def flipped(path: Path, position: int, bit: int) -> Iterator[None]:
    """One bit of a file is another one, for a while."""
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        old = file.read(1)
        file.seek(position)
        file.write(bytes([old[0] ^ 1 << bit]))
        try:
            yield
        finally:
            file.seek(position)
            file.write(old)


# What is answered.


class Asked(NamedTuple):
    """One message of a queue, and by which way it was read."""

    way: str
    queue: Queue
    number: int


@dataclass
class Seen:
    """What reads answered: the record's bytes, or None for an error that names the damage.

    What is not there was not answered.
    """

    messages: dict[Asked, bytes | None] = field(default_factory=dict)
    found: dict[tuple[str, str], list[bytes] | None] = field(default_factory=dict)
    times: dict[tuple[Queue, int], int | None] = field(default_factory=dict)


def read_all(
    root: Path,
    queues: Iterable[Queue],
    keys: Iterable[tuple[str, str]],
    times: Iterable[int],
) -> Seen:
    """Reads by every way there is, past damage as a consumer that asks for it.

    Raises StoreDamaged when the store as a whole is refused.
    """
    seen = Seen()
    with open_store(root, SETTINGS) as store:
        for queue in queues:
            for tag in (None, *TAGS):
                _pull_all(store, queue, tag, seen)
            _get_all(store, queue, seen)
            for time in times:
                seen.times[queue, time] = _refusing(_seek, store, queue, time)
        for key in keys:
            seen.found[key] = _refusing(_find, store, key)
    return seen


def _refusing(read: Callable[..., _T], *arguments: object) -> _T | None:
    try:
        return read(*arguments)
    except StoreDamaged:
        return None


def _pull_all(store: StoppedStore, queue: Queue, tag: str | None, seen: Seen) -> None:
    reader = store.queue(*queue)
    assert reader is not None
    offset = reader.min_offset
    request = PullRequest(tags=parse_tags(tag), exact=True)
    while True:
        try:
            result = get_message(store.log, reader, offset, request)
        except MessageDamaged as damage:
            assert offset <= damage.queue_offset < damage.next_offset
            seen.messages[Asked(f"pull {tag}", queue, damage.queue_offset)] = None
            offset = damage.next_offset
            continue
        start = 0
        for number, size in zip(result.queue_offsets.tolist(), result.sizes.tolist(), strict=True):
            asked = Asked(f"pull {tag}", queue, number)
            seen.messages[asked] = bytes(result.payload[start : start + size])
            start += size
        if result.next_begin_offset <= offset or result.status is PullStatus.OFFSET_OVERFLOW_ONE:
            return
        offset = result.next_begin_offset


def _get_all(store: StoppedStore, queue: Queue, seen: Seen) -> None:
    reader = store.queue(*queue)
    assert reader is not None
    for number in range(reader.min_offset, reader.max_offset):
        unit = reader.unit(number)
        assert unit is not None
        record = _refusing(record_of, store.log, reader, number, unit)
        seen.messages[Asked("get", queue, number)] = None if record is None else record.raw


def _seek(store: StoppedStore, queue: Queue, time: int) -> int:
    return offset_by_time(store.log, store.queue(*queue), time)


def _find(store: StoppedStore, key: tuple[str, str]) -> list[bytes]:
    with suppress(UnknownTopic):
        return [record.raw for record in find(store, FindRequest(*key)).records]
    return []
