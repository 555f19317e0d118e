"""Pulls: the kernel answers what the broker's loop answers, text is compared when asked for."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.store.log.reader import LogReader
from node.store.opening import StoppedStore, open_store
from node.store.query import pull
from node.store.query.filters import TagFilter, parse_tags, sql_filter
from node.store.query.pull import IN_MEMORY, PullRequest, PullStatus, TransferLimits, get_message
from node.store.queues import Units
from protocol.errors import BadRequest, StoreDamaged
from protocol.kernel import loader
from tests.support.golden import GetStore


@pytest.fixture(scope="module")
def store(golden: GetStore) -> Iterator[StoppedStore]:
    with open_store(golden("trimmed")) as opened:
        yield opened


LIMITS = st.builds(
    TransferLimits,
    count_max=st.integers(1, 60),
    bytes_max=st.integers(1, 400_000),
    cold_count_max=st.integers(1, 10),
    cold_bytes_max=st.integers(1, 70_000),
    memory_bytes=st.one_of(st.none(), st.integers(0, 8_000_000)),
)
REQUESTS = st.builds(
    PullRequest,
    max_messages=st.integers(1, 1200),
    total_bytes_max=st.integers(1, 500_000),
    limits=LIMITS,
    tags=st.sampled_from(["*", "TagA", "TagA || BB", "Aa||BB", "no-such-tag"]).map(parse_tags)
    | st.sampled_from(["TAGS = 'TagA'", "TAGS <> 'TagA'", "x > 5", "TRUE"]).map(sql_filter),
    exact=st.booleans(),
    filter_bytes_max=st.integers(1, 16_000),
    files_max=st.integers(1, 3),
)


def is_the_batch_full(
    request: PullRequest, log_end: int, offset: int, size: int, total: int, count: int
) -> bool:
    """DefaultMessageStore#isTheBatchFull, whose first two tests getMessage makes as well."""
    if total == 0 or count == 0:
        return False
    limits = request.limits
    if count + 1 > request.max_messages or total + size > request.total:
        return True
    if limits.memory_bytes is None or log_end - offset <= limits.memory_bytes:
        return total + size > limits.bytes_max or count > limits.count_max - 1
    return total + size > limits.cold_bytes_max or count > limits.cold_count_max - 1


def brokers_loop(  # noqa: C901 (as long as the broker's)
    log: LogReader, units: Units, request: PullRequest
) -> pull.Scanned:
    """DefaultMessageStore#getMessage, line by line; a unit that names no place ends it."""
    rows: list[int] = []
    total = consumed = 0
    next_phy_file_start = -1
    status = PullStatus.NO_MATCHED_MESSAGE
    for row in range(len(units)):
        offset, size = int(units["physical_offset"][row]), int(units["size"][row])
        if is_the_batch_full(request, log.end, offset, size, total, len(rows)):
            break
        if total >= request.total:
            break
        consumed = row + 1
        if next_phy_file_start >= 0 and 0 <= offset < next_phy_file_start:
            continue
        if request.tags is not None and not request.tags.takes_units(units[row : row + 1])[0]:
            if not rows:
                status = PullStatus.NO_MATCHED_MESSAGE
            continue
        if not log.holds(offset, size):
            if not rows:
                status = PullStatus.MESSAGE_WAS_REMOVING
            if offset < 0 or offset >= log.min_offset:
                status = PullStatus.FOUND if rows else status
                return pull.Scanned(rows, row, status, None if rows else row)
            next_phy_file_start = (offset // log.segment_bytes + 1) * log.segment_bytes
            continue
        tags = request.tags if request.exact else None
        if tags is not None and not tags.takes_record(log.raw(offset, size)):
            continue
        rows.append(row)
        total += size
        status = PullStatus.FOUND
        next_phy_file_start = -1
    return pull.Scanned(rows, consumed, status)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=REQUESTS, data=st.data())
def test_the_kernel_answers_what_the_brokers_loop_answers(
    store: StoppedStore, request: PullRequest, data: st.DataObject
) -> None:
    queue = store.queue(*data.draw(st.sampled_from(store.queues())))
    assert queue is not None
    number = data.draw(st.integers(queue.first, queue.max_offset - 1))
    # Below the minimum there are units whose records are gone.
    units = queue.units(number, data.draw(st.integers(1, 300)))
    plain = pull.plain_scan(store.log, units, request)
    assert plain == brokers_loop(store.log, units, request)
    if request.tags is None and loader.kernel is not None:
        short = pull._scan(store.log, units, request)
        assert short._replace(rows=list(short.rows)) == plain


def test_units_whose_records_are_gone_are_stepped_over(store: StoppedStore) -> None:
    queue = store.queue("orders", 0)
    assert queue is not None
    gone = queue.min_offset - queue.first
    assert gone > 0
    units = queue.units(queue.first, gone)
    scanned = pull.plain_scan(store.log, units, PullRequest())
    assert scanned == pull.Scanned([], gone, PullStatus.MESSAGE_WAS_REMOVING)


def test_the_text_of_tags_is_compared_only_when_asked_for(store: StoppedStore) -> None:
    def tags_found(exact: bool) -> set[str]:
        # The hash is that of the tag that is really there, the text is another.
        known = parse_tags("TagA")
        assert known is not None
        request = PullRequest(tags=TagFilter(frozenset({"x"}), known.hashes), exact=exact)
        found: set[str] = set()
        for queue in store.queues():
            reader = store.queue(*queue)
            assert reader is not None
            result = get_message(store.log, reader, reader.min_offset, request)
            found |= {store.log.record_at(o).tags for o in result.physical_offsets.tolist()}
        return found

    assert tags_found(exact=False) == {"TagA"}
    assert tags_found(exact=True) == set()


@pytest.mark.parametrize("name", ["mixed-kinds", "crc32-property"])
def test_the_tags_of_every_kind_of_record_are_found(golden: GetStore, name: str) -> None:
    nothing = np.empty(0, np.int32)
    with open_store(golden(name)) as opened:
        for columns in opened.log.columns(0):
            for record in (columns.record(row) for row in range(len(columns))):
                assert TagFilter(frozenset({record.tags}), nothing).takes_record(record.raw)
                assert not TagFilter(frozenset({"x y"}), nothing).takes_record(record.raw)
                # What is no record passes: whoever takes it finds out.
                assert TagFilter(frozenset({"x y"}), nothing).takes_record(record.raw[:-1])


def test_records_come_back_to_back_as_stored(store: StoppedStore) -> None:
    queue = store.queue("orders", 1)
    result = get_message(store.log, queue, 700, PullRequest(20))
    assert result.count == 20
    expected = b"".join(store.log.record_at(o).raw for o in result.physical_offsets.tolist())
    assert result.payload == expected


def test_a_payload_is_the_bytes_at_its_places_whether_they_join_or_not(golden: GetStore) -> None:
    with open_store(golden("mixed-kinds")) as store:
        offsets = [0]
        while len(offsets) < 40:
            offsets.append(offsets[-1] + store.log.record_at(offsets[-1]).size)
        for step in (1, 2, -1):
            records = [store.log.record_at(offset) for offset in offsets[::step]]
            found = store.log.payload(offsets[::step], [record.size for record in records])
            assert found == (b"".join(record.raw for record in records), len(records))


def test_a_damaged_record_ends_the_pull_before_it_and_is_named_by_the_next(
    golden_copy: GetStore,
) -> None:
    root = golden_copy("crc32-property")
    with open_store(root) as store:
        queue = next(q for q in store.queues() if (r := store.queue(*q)) and r.max_offset > 10)
        reader = store.queue(*queue)
        assert reader is not None
        unit = reader.unit(5)
        assert unit is not None
    segment = root / "commitlog" / "00000000000000000000"
    with segment.open("r+b") as file:
        file.seek(unit.physical_offset + 28)
        file.write(b"\xff")
    with open_store(root) as store:
        first = get_message(store.log, store.queue(*queue), 0, PullRequest())
        assert (first.status, first.next_begin_offset, first.count) == (PullStatus.FOUND, 5, 5)
        with pytest.raises(StoreDamaged) as caught:
            get_message(store.log, store.queue(*queue), 5, PullRequest())
        assert caught.value.offset == unit.physical_offset
        assert str(segment) == caught.value.where


def test_more_files_can_be_visited_when_the_filter_takes_nothing(store: StoppedStore) -> None:
    queue = store.queue("orders", 0)
    assert queue is not None
    request = PullRequest(tags=parse_tags("no-such-tag"))
    one = get_message(store.log, queue, queue.min_offset, request)
    all_ = get_message(store.log, queue, queue.min_offset, replace(request, files_max=99))
    assert one.next_begin_offset % queue.file_units == 0
    assert one.next_begin_offset < all_.next_begin_offset == queue.max_offset
    assert all_.status is PullStatus.NO_MATCHED_MESSAGE


def test_a_subscription_without_a_tag_is_refused() -> None:
    assert parse_tags("*") is parse_tags("") is parse_tags(None) is None
    with pytest.raises(BadRequest, match="names no tag"):
        parse_tags(" || ")


def test_cold_records_count_against_their_own_limits(store: StoppedStore) -> None:
    limits = IN_MEMORY._replace(memory_bytes=0)
    queue = store.queue("orders", 0)
    result = get_message(store.log, queue, 600, PullRequest(limits=limits))
    assert result.count == 8
    assert np.array_equal(result.queue_offsets, np.arange(600, 608))
