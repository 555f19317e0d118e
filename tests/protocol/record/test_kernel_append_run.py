"""Requests of one queue in one pass of the kernel, against the plain way."""

import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.record.encode import NewMessage, encode_batch
from protocol.record.kernel_append import ANY_QUEUE_FLAG, CHECKED_FLAG, SealedRuns
from protocol.record.patch import AppendRules, PlainRow, patch_plain
from tests.protocol.record.test_encode import messages
from tests.protocol.record.test_kernel_append import count_of, plain_rows
from tests.protocol.record.test_patch import BAD, BAD_IDS, GOOD, RULES, STAMP

OFFSETS = st.integers(0, 2**62)
SIZES = struct.pack("<2I", len(GOOD), len(GOOD))


@pytest.fixture(scope="module")
def compiled() -> Kernel:
    found = loader.active()
    if found is None:
        pytest.skip("this installation has no compiled kernel")
    return found


def added(runs: SealedRuns, frame: bytes, flags: int = 0, queue_id: int = 0) -> bool:
    """A frame of records of topic `t`, at offset 0 of everything."""
    count = count_of(runs.kernel, frame)
    return runs.add(frame, count, zlib.crc32(frame), b"", flags, b"t", queue_id, 0)


def sealed_plainly(
    frame: bytes, rules: AppendRules, place: tuple[str, int, int], base: int
) -> bytes | None:
    """None where the plain way refuses a record, or one is of another queue."""
    topic, queue_id, offset = place
    rows = plain_rows(frame, rules)
    if rows is None or any((row.topic, row.queue_id) != (topic, queue_id) for row in rows):
        return None
    expected = bytearray(frame)
    for number, row in enumerate(rows):
        assert isinstance(row, PlainRow)
        patch_plain(expected, row, offset + number, base + row.start, STAMP, rules.crc)
    return bytes(expected)


@given(
    st.lists(messages(), min_size=1, max_size=6), st.booleans(), OFFSETS, OFFSETS,
    st.one_of(st.none(), st.tuples(st.integers(0), st.integers(0, 255))),
)  # fmt: skip
def test_it_takes_what_the_plain_way_takes_and_seals_the_same_bytes(
    compiled: Kernel,
    items: list[NewMessage],
    crc: bool,
    offset: int,
    base: int,
    damage: tuple[int, int] | None,
) -> None:
    rules, first = RULES._replace(crc=crc), items[0]
    same = [replace(item, topic=first.topic, queue_id=5) for item in items]
    frame = bytearray(encode_batch(same, crc).records)
    if damage is not None:
        frame[damage[0] % len(frame)] = damage[1]
    raw, place = bytes(frame), (first.topic, 5, offset)
    expected = sealed_plainly(raw, rules, place, base + 2 * len(raw))
    runs = SealedRuns(compiled, rules)
    runs.clear(3 * len(raw), base, STAMP)
    count, checksum, topic = count_of(compiled, raw), zlib.crc32(raw), first.topic.encode()
    taken = [runs.add(raw, count, checksum, b"", 0, topic, 5, offset) for _ in range(3)]
    assert taken == [expected is not None] * 3
    if expected is not None:
        assert runs.records[2 * len(raw) :] == expected
        last = plain_rows(raw, rules)
        assert last is not None and runs.last_at == 2 * len(raw) + last[-1].start


@pytest.mark.parametrize("raw", [row[1] for row in BAD], ids=BAD_IDS)
def test_it_takes_no_bad_record(compiled: Kernel, raw: bytes) -> None:
    runs = SealedRuns(compiled, RULES)
    runs.clear(8 * len(GOOD) + len(raw), 0, STAMP)
    assert added(runs, GOOD + GOOD)
    assert not added(runs, GOOD + raw + GOOD)
    assert len(runs.records) == 2 * len(GOOD)


@pytest.mark.parametrize(
    ("count", "crc", "sizes", "is_good"),
    [
        (2, zlib.crc32(GOOD * 2), SIZES, True),
        (2, -1, b"", True),
        (1, -1, b"", False),
        (3, -1, b"", False),
        (2, zlib.crc32(GOOD * 2) ^ 1, b"", False),
        (2, -1, SIZES[:-1] + b"\1", False),
        (2, -1, SIZES[:4], False),
    ],
)
def test_what_a_request_says_of_its_records_is_held_against_them(
    compiled: Kernel, count: int, crc: int, sizes: bytes, is_good: bool
) -> None:
    runs = SealedRuns(compiled, RULES)
    for records in (GOOD * 2, memoryview(GOOD * 2)):
        runs.clear(len(records), 0, STAMP)
        assert runs.add(records, count, crc, sizes, 0, b"t", 0, 7) == is_good


def test_records_of_another_queue_or_topic_are_left_to_others(compiled: Kernel) -> None:
    runs = SealedRuns(compiled, RULES)
    for message, flags, is_good in (
        (NewMessage("t", b"x", 3), 0, True),
        (NewMessage("t", b"x", 2), 0, False),
        (NewMessage("t", b"x", 2), ANY_QUEUE_FLAG, True),
        (NewMessage("t", b"x", -1), ANY_QUEUE_FLAG, True),
        (NewMessage("u", b"x", 3), 0, False),
        (NewMessage("tt", b"x", 3), ANY_QUEUE_FLAG, False),
    ):
        frame = encode_batch([NewMessage("t", b"", 3), message], crc=True).records
        runs.clear(len(frame), 0, STAMP)
        assert added(runs, frame, flags, queue_id=3) == is_good


def test_what_the_node_has_encoded_itself_is_not_checked_again(compiled: Kernel) -> None:
    raw = bytearray(GOOD)
    raw[88] ^= 1
    runs = SealedRuns(compiled, RULES)
    runs.clear(2 * len(raw), 0, STAMP)
    assert not added(runs, bytes(raw))
    assert added(runs, bytes(raw), CHECKED_FLAG)


def test_the_buffer_grows_with_what_it_is_given(compiled: Kernel) -> None:
    runs = SealedRuns(compiled, AppendRules(2**22, crc=True))
    for requests, frame in ((1, GOOD), (3, GOOD * 5_000), (2, GOOD)):
        runs.clear(requests * len(frame), 0, STAMP)
        assert all(added(runs, frame) for _ in range(requests))
        assert len(runs.records) == requests * len(frame)
