"""The log's end as pulls see it: what the queues' files will say, before these say it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.reader.tail_cache import KEPT_RECORDS_MAX, RETRY_S, TURN_RECORDS_MAX, TailCache
from node.store.opening import RunningStore
from node.store.query.filters import parse_tags
from node.store.query.pull import PullRequest, PullStatus
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, offset_file_name
from tests.support.golden import GetStore, Row, facts
from tests.support.living_store import LivingStore

ALL = PullRequest(max_messages=1_000)


class Ground:
    """A living store whose log ends before message `row`, and its tail."""

    def __init__(self, root: Path, name: str, row: int) -> None:
        self.messages: list[Row] = facts(name).messages
        self.living = LivingStore(root, facts(name))
        self.first = self.row = row
        self.living.begin_epoch(self.messages[row]["physicalOffset"])
        self.store: RunningStore = RunningStore(root, self.living.shards, self.living.settings)
        self.tail = TailCache()

    def extend(self, now: float = 0.0) -> set[Queue]:
        self.store.refresh()
        return self.tail.extend(self.store, now)

    def grow(self, count: int) -> None:
        """The log alone grows by so many messages."""
        self.row += count
        last = self.messages[self.row - 1]
        end = last["physicalOffset"] + last["storeSize"]
        self.living.log.publish(appended=end, committed=end, flushed=end, readable=end)

    def follow(self) -> None:
        """The queue workers catch up."""
        end = self.living.log.read().readable
        for worker in self.living.workers:
            worker.publish(dispatched=end)

    def close(self) -> None:
        self.store.close()
        self.living.close()


def first_of_a_segment(name: str) -> int:
    """The row of the first message of a segment that many others share."""
    size = facts(name).state["config"]["mappedFileSizeCommitLog"]
    rows: dict[int, list[int]] = {}
    for row, message in enumerate(facts(name).messages):
        rows.setdefault(message["physicalOffset"] // size, []).append(row)
    return max(rows.values(), key=len)[0]


@pytest.fixture(params=["small-clean", "mixed-kinds"])
def ground(golden_copy: GetStore, request: pytest.FixtureRequest) -> Iterator[Ground]:
    name: str = request.param
    found = Ground(golden_copy(name), name, first_of_a_segment(name))
    assert found.extend() == set()
    assert found.tail.follows
    yield found
    found.close()


def queue_of(message: Row) -> Queue:
    return Queue(message["topic"], message["queueId"])


def test_each_record_is_the_next_message_of_its_queue_if_its_unit_will_be(ground: Ground) -> None:
    for _ in range(TURN_RECORDS_MAX):
        message = ground.messages[ground.row]
        ground.grow(1)
        grown = ground.extend()
        if not ground.tail.follows:
            break  # The segment has ended.
        queue = queue_of(message)
        assert grown == ({queue} if message["queued"] else set())
        taken = ground.tail.take(queue, message["queueOffset"], ALL)
        if not message["queued"]:
            assert taken is None
            continue
        assert taken is not None
        assert (taken.status, len(taken.records)) == (PullStatus.FOUND, 1)
        assert len(taken.records[0]) == message["storeSize"]
        assert taken.next_begin_offset == taken.max_offset == message["queueOffset"] + 1
        assert ground.tail.ends[queue] == message["queueOffset"] + 1
    assert ground.row > ground.first + 10


def test_several_messages_of_a_queue_come_at_once_within_the_pulls_limits(ground: Ground) -> None:
    ground.grow(12)
    queue = max(grown := ground.extend(), key=lambda one: len(ground.tail._queues[one]))
    assert grown
    first = ground.tail.first_of(queue)
    assert first is not None
    everything = ground.tail.take(queue, first, ALL)
    assert everything is not None
    assert everything.next_begin_offset == ground.tail.ends[queue]
    one = ground.tail.take(queue, first, PullRequest(max_messages=1))
    assert one is not None
    assert one.records == everything.records[:1]
    assert (one.next_begin_offset, one.max_offset) == (first + 1, everything.max_offset)
    none = ground.tail.take(queue, first, PullRequest(tags=parse_tags("no-such-tag")))
    assert none is not None
    assert (none.status, none.records) == (PullStatus.NO_MATCHED_MESSAGE, [])
    assert none.next_begin_offset == everything.next_begin_offset
    assert ground.tail.take(queue, everything.next_begin_offset, ALL) is None
    assert ground.tail.take(queue, first - 1, ALL) is None


def test_a_new_epoch_and_a_worker_that_takes_back_units_make_it_forget(ground: Ground) -> None:
    ground.grow(3)
    ground.extend()
    ground.living.begin_epoch(ground.messages[ground.row - 1]["physicalOffset"])
    assert ground.extend() == set()
    assert ground.tail.follows
    assert ground.tail.begin == ground.tail.end == ground.store.log.end
    ground.grow(0)
    queue = queue_of(ground.messages[ground.row - 1])
    assert ground.extend() <= {queue}
    ground.living.workers[0].publish(dispatched=ground.living.start)
    ground.extend()
    assert ground.tail.begin == ground.living.start or not ground.tail.follows


def test_a_log_that_grows_fast_is_left_to_the_queue_workers_for_a_moment(
    golden_copy: GetStore,
) -> None:
    ground = Ground(golden_copy("default-sizes"), "default-sizes", 0)
    try:
        ground.extend()
        ground.grow(TURN_RECORDS_MAX + 1)
        assert ground.extend(now=5.0) == set()
        assert not ground.tail.follows
        ground.follow()
        assert ground.extend(now=5.0 + RETRY_S / 2) == set()
        assert not ground.tail.follows
        assert ground.extend(now=5.0 + RETRY_S) == set()
        assert ground.tail.follows
        ground.grow(1)
        assert ground.extend(now=6.0)
    finally:
        ground.close()


def test_what_the_files_have_leaves_when_it_is_old(golden_copy: GetStore) -> None:
    ground = Ground(golden_copy("default-sizes"), "default-sizes", 0)
    try:
        ground.extend()
        steps = min(KEPT_RECORDS_MAX + 40, len(ground.messages))
        for _ in range(steps):
            ground.grow(1)
            ground.extend()
            ground.follow()
        assert ground.tail.follows
        assert sum(map(len, ground.tail._queues.values())) <= KEPT_RECORDS_MAX + 1
    finally:
        ground.close()


def test_a_damaged_record_is_never_handed_out(golden_copy: GetStore) -> None:
    root = golden_copy("crc32-property")
    ground = Ground(root, "crc32-property", first_of_a_segment("crc32-property"))
    try:
        ground.extend()
        message = ground.messages[ground.row]
        size = ground.living.settings.mapped_file_size_commit_log
        start = message["physicalOffset"] // size * size
        with (root / COMMIT_LOG_DIR / offset_file_name(start)).open("r+b") as file:
            file.seek(message["physicalOffset"] - start + message["storeSize"] - 40)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        ground.grow(1)
        assert ground.extend() == set()
        assert not ground.tail.follows
    finally:
        ground.close()
