"""Records about to be handed out: both ways agree with the decoder on any bytes at all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.file_layouts import QUEUE_UNIT
from protocol.ids import Queue
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.record.check import (
    MessageUnits,
    SealedRecord,
    copy_messages,
    first_unfit,
    sealed_at,
    unit_bytes,
)
from protocol.record.codec import Record, decode
from tests.protocol.records import Draft, drafts, pack_draft

pytestmark = pytest.mark.usefixtures("way")

QUEUE = Queue("orders", 3)


@dataclass(frozen=True)
class WantedRecords:
    """Records of one queue: number (QUEUEOFFSET), log offset and size of each."""

    queue: Queue
    numbers: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]

    def rows(self) -> list[tuple[int, int, int]]:
        return list(zip(self.numbers, self.offsets, self.sizes, strict=True))


def unfit(data: bytes, wanted: WantedRecords) -> int:
    return first_unfit(data, wanted.queue, wanted.rows())


def records(items: list[Draft]) -> tuple[bytes, WantedRecords]:
    """The records of one queue, which do not join in the log."""
    parts: list[bytes] = []
    offsets: list[int] = []
    for number, draft in enumerate(items):
        mine = replace(draft, topic=b"orders", queue_id=3, queue_offset=7 + number)
        offsets.append(offsets[-1] + len(parts[-1]) + 10 if parts else 0)
        parts.append(pack_draft(mine, offsets[-1]))
    numbers = range(7, 7 + len(items))
    return b"".join(parts), WantedRecords(QUEUE, numbers, offsets, [len(part) for part in parts])


def copied(
    compiled: Kernel, data: bytes, wanted: WantedRecords, base: int, room: int
) -> tuple[int, bytes]:
    """What the kernel copies out of a segment at `base` that has `data` in its places."""
    end = max(map(sum, zip(wanted.offsets, wanted.sizes, strict=True)), default=base)
    segment = bytearray(end - base)
    start = 0
    for offset, size in zip(wanted.offsets, wanted.sizes, strict=True):
        if offset >= base:
            segment[offset - base : offset - base + size] = data[start : start + size]
        start += size
    out = np.zeros(room, np.uint8)
    units = np.zeros(len(wanted.sizes), QUEUE_UNIT.dtype)
    units["physical_offset"], units["size"] = wanted.offsets, wanted.sizes
    messages = MessageUnits(wanted.queue, units, np.array(wanted.numbers, np.int64))
    assert unit_bytes(compiled, units) == sum(wanted.sizes)
    count = copy_messages(compiled, np.frombuffer(segment, np.uint8), base, messages, out)
    return count, out[: sum(wanted.sizes[:count])].tobytes()


def assert_compiled_agrees(data: bytes, wanted: WantedRecords, expected: int) -> None:
    compiled = loader.kernel
    if compiled is None:
        return
    for base in {0, min(wanted.offsets, default=0)}:
        count, found = copied(compiled, data, wanted, base, len(data))
        assert count == expected
        assert found == data[: sum(wanted.sizes[:expected])]
    if expected:
        # Without room for the last byte, and in a segment that begins behind the first one.
        room = sum(wanted.sizes[:expected]) - 1
        assert copied(compiled, data, wanted, 0, room)[0] == expected - 1
        behind = replace(wanted, offsets=[0] * len(wanted.sizes))
        assert copied(compiled, data, behind, 1, len(data))[0] == 0


def by_decoder(data: bytes, wanted: WantedRecords) -> int:
    start = 0
    for row, (number, offset, size) in enumerate(wanted.rows()):
        found = decode(data[start : start + size], 0, offset)
        if not isinstance(found, Record):
            return row
        head = found.head
        place = (found.topic, head.queue_id, head.queue_offset, found.size)
        if place != (*wanted.queue, number, size):
            return row
        start += size
    return len(wanted.sizes)


@given(st.lists(drafts(), max_size=5))
def test_whole_records_in_their_place_are_fit(items: list[Draft]) -> None:
    data, wanted = records(items)
    assert unfit(data, wanted) == len(items)
    assert_compiled_agrees(data, wanted, len(items))


@given(st.lists(drafts(), min_size=1, max_size=4), st.data())
def test_both_ways_agree_with_the_decoder_on_damaged_bytes(
    items: list[Draft], data: st.DataObject
) -> None:
    good, wanted = records(items)
    raw = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    expected = by_decoder(bytes(raw), wanted)
    assert unfit(bytes(raw), wanted) == expected
    assert_compiled_agrees(bytes(raw), wanted, expected)


@given(st.lists(st.binary(max_size=200), max_size=4), st.data())
def test_both_ways_agree_with_the_decoder_on_any_bytes_at_all(
    parts: list[bytes], data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.integers(0, 99), min_size=len(parts), max_size=len(parts)))
    ends = accumulate(len(part) + gap for part, gap in zip(parts, gaps, strict=True))
    offsets = [end - len(part) for part, end in zip(parts, ends, strict=True)]
    wanted = WantedRecords(QUEUE, range(len(parts)), offsets, [len(part) for part in parts])
    raw = b"".join(parts)
    expected = by_decoder(raw, wanted)
    assert unfit(raw, wanted) == expected
    assert_compiled_agrees(raw, wanted, expected)


@given(drafts(crc=True), st.data())
def test_any_flipped_bit_of_a_sealed_record_is_found(draft: Draft, data: st.DataObject) -> None:
    good, wanted = records([draft])
    raw = bytearray(good)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert unfit(bytes(raw), wanted) == 0
    assert_compiled_agrees(bytes(raw), wanted, 0)


@given(drafts(), st.sampled_from(["topic", "queue_id", "number", "offset", "size"]))
def test_a_whole_record_that_is_another_one_is_found(draft: Draft, what: str) -> None:
    data, wanted = records([draft])
    others = {
        "topic": replace(wanted, queue=Queue("orderz", 3)),
        "queue_id": replace(wanted, queue=Queue("orders", 4)),
        "number": replace(wanted, numbers=[8]),
        "offset": replace(wanted, offsets=[20]),
        "size": replace(wanted, sizes=[len(data) - 1]),
    }
    other = others[what]
    data = data[: other.sizes[0]]
    assert unfit(data, other) == 0
    assert_compiled_agrees(data, other, 0)


@pytest.mark.parametrize("crc", [True, False])
def test_many_records_are_checked_like_few(crc: bool) -> None:
    data, wanted = records([Draft(body=b"x", crc=crc)] * 100)
    assert unfit(data, wanted) == len(wanted.sizes)
    raw = bytearray(data)
    raw[raw.rindex(b"x")] ^= 1
    assert unfit(bytes(raw), wanted) == len(wanted.sizes) - 1
    assert first_unfit(data, wanted.queue, wanted.rows()[:3]) == 3


@given(drafts(), st.integers(0, 3), st.data())
def test_a_record_alone_is_what_the_decoder_takes_and_says_the_same(
    draft: Draft, before: int, data: st.DataObject
) -> None:
    raw = bytearray(before) + pack_draft(draft, 5)
    place = data.draw(st.integers(before, len(raw) - 1))
    raw[place] ^= data.draw(st.sampled_from([0, 0, 1, 128]))
    raw = raw[: data.draw(st.sampled_from([len(raw), len(raw), place]))]
    found, record = sealed_at(bytes(raw), before, 5), decode(raw, before, 5)
    assert found == (SealedRecord.of(record) if isinstance(record, Record) else None)


def test_a_record_alone_is_taken_at_its_own_place() -> None:
    draft = Draft(topic=b"orders", queue_id=3, queue_offset=7, body=b"b" * 40, crc=True)
    raw = pack_draft(draft, 9)
    assert sealed_at(raw, 0, 9) == SealedRecord(QUEUE, 7, 9, 0, raw)
    assert sealed_at(raw, 0, 8) is None
