"""Every way to a message, and what it does with a damaged one; who reads by `pread` alone.

docs/operations.md, 'Damage', names the same ways.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.store.file_cache import OpenFile
from node.store.log.reader import Damage, columns_past_damage
from node.store.opening import StoppedStore, open_store
from node.store.query.filters import parse_tags
from node.store.query.look_up import FindRequest, find, offset_by_time
from node.store.query.pull import PulledRecords, PullRequest, get_message, record_of
from node.store.repair.plan import plan_repair
from node.store.verify.verify import verify
from node.writer.recovery import examine
from protocol.errors import MessageDamaged, StoreDamaged
from protocol.ids import Queue
from protocol.record.codec import Record
from protocol.record.properties import CRC_PROPERTY_BYTES
from tests.support.golden import GetStore
from workers.feed import RestingFeed

SEALED, PLAIN = "crc32-property", "small-clean"
"""Stores of a broker: with the whole-record checksum, and with the body's alone."""
NUMBER = 7


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


class Case:
    """A store in which one record of a queue, with tags, keys and a body, is damaged."""

    def __init__(self, root: Path, damage: Callable[[Record], int]) -> None:
        self.root = root
        with open_store(root) as store:
            self.queue, self.number, self.record = next(_candidates(store))
        self.position = damage(self.record)
        segment = next(
            path
            for path in sorted((root / "commitlog").iterdir(), reverse=True)
            if int(path.name) <= self.record.physical_offset
        )
        self.at = self.record.physical_offset - int(segment.name)
        self.segment = segment
        byte = self.record.raw[self.position] ^ 0x10
        patch(segment, self.at + self.position, bytes([byte]))


def _candidates(store: StoppedStore) -> Iterator[tuple[Queue, int, Record]]:
    for queue in store.queues():
        reader = store.queue(*queue)
        assert reader is not None
        for number in range(reader.min_offset + NUMBER, reader.max_offset):
            unit = reader.unit(number)
            assert unit is not None
            record = record_of(store.log, reader, number, unit)
            if record.tags and record.keys and len(record.raw_body) > 20:
                yield queue, number, record


def in_the_body(record: Record) -> int:
    return record.raw.index(record.raw_body) + len(record.raw_body) // 2


def in_the_born_time(_record: Record) -> int:
    return 45


def in_the_store_time(_record: Record) -> int:
    return 61


def in_a_property(record: Record) -> int:
    return record.raw.index(record.properties_raw) + 3


def in_the_checksum(record: Record) -> int:
    return record.size - CRC_PROPERTY_BYTES + 12


def in_the_place(_record: Record) -> int:
    return 30


def in_the_size(_record: Record) -> int:
    return 2


ANYWHERE = [
    *(in_the_body, in_the_born_time, in_the_store_time, in_a_property),
    *(in_the_checksum, in_the_place, in_the_size),
]
NOT_COVERED = {in_the_born_time, in_the_store_time, in_a_property, in_the_checksum}
"""By the body's checksum alone: RocketMQ's own default."""


def pull(store: StoppedStore, case: Case, tags: str | None = None) -> PulledRecords:
    request = PullRequest(tags=parse_tags(tags), exact=True)
    return get_message(store.log, store.queue(*case.queue), case.number, request)


def pull_many(store: StoppedStore, case: Case) -> PulledRecords:
    reader = store.queue(*case.queue)
    return get_message(store.log, reader, case.number, PullRequest(10_000))


def get_by_queue(store: StoppedStore, case: Case) -> Record:
    reader = store.queue(*case.queue)
    assert reader is not None
    unit = reader.unit(case.number)
    assert unit is not None
    return record_of(store.log, reader, case.number, unit)


def seek(store: StoppedStore, case: Case) -> int:
    # The search looks at its own middle, so that a queue of one message is what it needs.
    reader = store.queue(*case.queue)
    assert reader is not None
    times = range(case.record.head.store_timestamp - 2, case.record.head.store_timestamp + 3)
    return max(offset_by_time(store.log, reader, time) for time in times)


def get_by_place(store: StoppedStore, case: Case) -> Record:
    return store.log.record_at(case.record.physical_offset)


def find_by_key(store: StoppedStore, case: Case) -> int:
    request = FindRequest(case.queue.topic, case.record.keys[0], limit=1000)
    found = find(store, request).records
    return [record.physical_offset for record in found].count(case.record.physical_offset)


def scan(store: StoppedStore, case: Case) -> None:
    for item in columns_past_damage(store.log, store.log.min_offset):
        if isinstance(item, Damage):
            raise StoreDamaged(item.where, item.torn.position, item.torn.why)


def feed(_store: StoppedStore, case: Case) -> None:
    worker = RestingFeed(case.root)
    limits = worker.limits()
    for _ in worker.columns(limits.min_offset, limits.readable):
        pass
    worker.close()
    stopped = worker.log.stopped
    assert stopped is None or stopped.position == case.record.physical_offset
    if stopped is not None:
        raise StoreDamaged(str(worker.path_at(stopped.position)), stopped.position, "")


WAYS: list[Callable[[StoppedStore, Case], object]] = [
    *(pull, pull_many, get_by_queue, get_by_place, scan, feed),
]


@pytest.mark.parametrize("damage", ANYWHERE, ids=lambda damage: damage.__name__)
def test_no_way_hands_out_a_damaged_record(
    golden_copy: GetStore, damage: Callable[[Record], int]
) -> None:
    case = Case(golden_copy(SEALED), damage)
    with open_store(case.root) as store:
        for way in WAYS:
            with pytest.raises(StoreDamaged) as caught:
                way(store, case)
            assert caught.value.offset == case.record.physical_offset, way
            assert caught.value.where == str(case.segment), way
        with pytest.raises(MessageDamaged):
            pull(store, case, case.record.tags)
        # By time it is found between its neighbours, or as what comes first after the one before.
        assert case.record.head.queue_offset - seek(store, case) in (0, 1)
        # A look-up by key may miss it, where it can't be told from a place without a record.
        try:
            assert find_by_key(store, case) == 0
        except StoreDamaged as found:
            assert found.offset == case.record.physical_offset


@pytest.mark.parametrize("damage", ANYWHERE, ids=lambda damage: damage.__name__)
def test_without_the_whole_checksum_place_lengths_and_body_are_checked(
    golden_copy: GetStore, damage: Callable[[Record], int]
) -> None:
    case = Case(golden_copy(PLAIN), damage)
    with open_store(case.root) as store:
        for way in WAYS:
            if damage in NOT_COVERED:
                way(store, case)
                continue
            with pytest.raises(StoreDamaged) as caught:
                way(store, case)
            assert caught.value.offset == case.record.physical_offset, way


def test_a_consumer_goes_on_behind_a_damaged_message_when_it_asks_for_it(
    golden_copy: GetStore,
) -> None:
    case = Case(golden_copy(SEALED), in_a_property)
    with open_store(case.root) as store:
        reader = store.queue(*case.queue)
        before = get_message(store.log, reader, case.number - 5, PullRequest(1000))
        assert (before.count, before.next_begin_offset) == (5, case.number)
        with pytest.raises(MessageDamaged, match=f"message {case.number} of queue") as caught:
            get_message(store.log, reader, before.next_begin_offset, PullRequest(1000))
        damage = caught.value
        assert (damage.queue_offset, damage.next_offset) == (case.number, case.number + 1)
        assert f"--queue {case.queue.queue_id} -o {case.number + 1}" in damage.hint
        after = get_message(store.log, reader, damage.next_offset, PullRequest(1000))
        assert after.queue_offsets[0] == case.number + 1


def test_a_unit_that_names_another_message_is_the_units_damage(golden_copy: GetStore) -> None:
    root = golden_copy(SEALED)
    with open_store(root) as store:
        queue, number, _ = next(_candidates(store))
        reader = store.queue(*queue)
        assert reader is not None
        other = reader.units(number + 1, 1).tobytes()
        path, position = reader.files.place(number)
    patch(path, position, other)
    with open_store(root) as store:
        reader = store.queue(*queue)
        assert reader is not None
        unit = reader.unit(number)
        assert unit is not None
        reads: list[Callable[[], object]] = [
            lambda: get_message(store.log, reader, number, PullRequest()),
            lambda: record_of(store.log, reader, number, unit),
        ]
        for read in reads:
            with pytest.raises(MessageDamaged, match=f"number {number + 1} stands") as caught:
                read()
            assert (caught.value.where, caught.value.offset) == (str(path), position)


def test_a_unit_that_names_no_place_of_the_log_is_not_stepped_over(golden_copy: GetStore) -> None:
    root = golden_copy(SEALED)
    with open_store(root) as store:
        queue, number, record = next(_candidates(store))
        reader = store.queue(*queue)
        assert reader is not None
        path, position = reader.files.place(number)
        across = store.log.segment_bytes - record.physical_offset % store.log.segment_bytes + 1
        assert record.physical_offset + across < store.log.end
    # A broker steps over it, and over all units of that segment behind it.
    patch(path, position + 8, across.to_bytes(4, "big"))
    with open_store(root) as store:
        reader = store.queue(*queue)
        before = get_message(store.log, reader, number - 3, PullRequest())
        assert (before.count, before.next_begin_offset) == (3, number)
        with pytest.raises(MessageDamaged, match="outside") as caught:
            get_message(store.log, reader, number, PullRequest())
        assert (caught.value.where, caught.value.offset) == (str(path), position)
        after = get_message(store.log, reader, caught.value.next_offset, PullRequest())
        assert after.queue_offsets[0] == number + 1


# Unreadable sectors.


class BadSector:
    """`pread` fails with EIO at one byte of a file; that file, log and queues may not be mapped."""

    def __init__(self, path: Path, position: int, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.pread

        def pread(descriptor: int, count: int, at: int) -> bytes:
            is_it = Path(f"/proc/self/fd/{descriptor}").readlink() == path.resolve()
            if is_it and at <= position < at + count:
                if at == position:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                count = position - at
            return real(descriptor, count, at)

        def view(file: OpenFile) -> memoryview:
            # Index files are mapped, when all of them has been read.
            assert file.path != path, f"{path} is mapped"
            assert file.path.parent.name == "index", f"{file.path} is mapped"
            return map_it(file)

        map_it = OpenFile.view
        monkeypatch.setattr(os, "pread", pread)
        monkeypatch.setattr(OpenFile, "view", view)


def walk(root: Path) -> None:
    with open_store(root) as store:
        for _ in columns_past_damage(store.log, store.log.min_offset):
            pass


def check(root: Path) -> None:
    verify(root, deep=True)


def plan(root: Path) -> None:
    plan_repair(root, Settings())


def recover(root: Path) -> None:
    (root / "abort").touch()  # A broker that was killed: its recovery begins at a segment's head.
    examine(root, Settings())


@pytest.mark.parametrize(
    ("look", "folder"),
    [
        *((look, "commitlog") for look in (check, plan, walk, recover)),
        *((look, folder) for look in (check, plan) for folder in ("consumequeue", "index")),
    ],
)
def test_an_unreadable_sector_is_named_by_whoever_reads_a_store_offline(
    golden_copy: GetStore,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[Path], object],
    folder: str,
) -> None:
    root = golden_copy(SEALED)
    names = {"commitlog": "0*", "consumequeue": "0*0", "index": "2*"}
    path = [path for path in sorted((root / folder).rglob(names[folder])) if path.is_file()][-1]
    base = int(path.name) if folder == "commitlog" else 0
    BadSector(path, 60, monkeypatch)
    with pytest.raises(StoreDamaged, match="cannot be read: Input/output error") as caught:
        look(root)
    assert (caught.value.where, caught.value.offset) == (str(path), base + 60)
