"""Markers for lost records: of any length, whole for every reader, and known for what they are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.dispatch_request import DispatchRequests, index_keys
from protocol.ids import Queue
from protocol.record.codec import Record, decode, has_crc_property
from protocol.record.columns import scan
from protocol.record.lost_marker import (
    GAP_MARKER_BYTES_MAX,
    GAP_MARKER_BYTES_MIN,
    LOST,
    LOST_TOPIC,
    MarkerPlace,
    gap_marker,
    gap_sizes,
    queue_marker,
    queue_marker_bytes_min,
)

OFFSET = 4096
TIME_MS = 1_700_000_000_123

extra_bytes = st.one_of(st.integers(0, 300), st.integers(32_600, 33_000), st.just(3_000_000))
topics = st.sampled_from(["t", "orders", "%RETRY%" + "g" * 150])


@given(topic=topics, extra=extra_bytes, sealed=st.booleans())
def test_a_queue_marker_of_any_length_carries_its_queue_and_offset(
    topic: str, extra: int, sealed: bool
) -> None:
    size = queue_marker_bytes_min(topic, sealed) + extra
    raw = queue_marker(MarkerPlace(OFFSET, size, TIME_MS, sealed), Queue(topic, 7), 1 << 40)
    found = decode(raw, 0, OFFSET)
    assert isinstance(found, Record)
    assert (found.size, found.topic, found.head.queue_id) == (size, topic, 7)
    assert (found.head.queue_offset, found.head.store_timestamp) == (1 << 40, TIME_MS)
    assert has_crc_property(found.properties_raw) or not sealed
    assert found.head.flag == found.head.sys_flag == 0
    assert not found.body.strip(b"\0")
    if 21 <= extra <= 300:
        assert found.properties[LOST].strip() == "damaged"
        assert found.body == b""


@given(size=st.integers(GAP_MARKER_BYTES_MIN, 400), sealed=st.booleans())
def test_a_marker_of_unknown_origin_is_neither_queued_nor_indexed(size: int, sealed: bool) -> None:
    raw = gap_marker(MarkerPlace(OFFSET, size, TIME_MS, sealed))
    found = scan(np.frombuffer(raw, np.uint8), OFFSET)
    assert found.stop is None
    assert len(found.columns) == 1
    requests = DispatchRequests(found.columns)
    assert not requests.is_queued.any()
    assert not len(index_keys(requests).row)
    assert requests.topics[0]
    assert LOST_TOPIC.startswith(requests.topics[0])


@given(st.integers(GAP_MARKER_BYTES_MIN, 5 * GAP_MARKER_BYTES_MAX))
def test_a_long_gap_is_shared_out_among_markers_that_fill_it_exactly(size: int) -> None:
    sizes = gap_sizes(size)
    assert sum(sizes) == size
    assert min(sizes) >= GAP_MARKER_BYTES_MIN
    assert max(sizes) <= GAP_MARKER_BYTES_MAX + GAP_MARKER_BYTES_MIN
