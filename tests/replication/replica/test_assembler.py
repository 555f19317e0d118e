"""A master's log out of frames: whole records alone, whatever the frames cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.replication.replica.comparison import FollowStopped, OtherSegments, WrongRecord
from keelog.replication.replica.log_copy import BlankHead, BlankRest, LogAssembler, WholeRecords
from protocol.record.codec import FILLER_BYTES
from tests.support.master_log import SEGMENT_BYTES, MasterLog


def a_log(garbage: bytes = b"\0") -> bytes:
    log = MasterLog(garbage=garbage)
    log.put_many(120)
    return bytes(log.data)


LOG = a_log(b"old bytes")


class Copied:
    """What an assembler hands out, put together by its rules."""

    def __init__(self, start: int = 0, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.data = bytearray()
        self.records = 0
        self._behind = bytearray()
        self._segment_bytes = segment_bytes

    def take(self, assembler: LogAssembler) -> None:
        for piece in assembler.take():
            match piece:
                case WholeRecords(data=data):
                    assert piece.offset == len(self.data)
                    self.data += data
                    self.records += len(piece.columns)
                case BlankRest(data=data):
                    assert piece.offset == len(self.data) + FILLER_BYTES + len(self._behind)
                    self._behind += data
                case BlankHead(data=data):
                    assert piece.offset == len(self.data)
                    self.data += data + self._behind
                    self._behind.clear()
                    assert len(self.data) % self._segment_bytes == 0


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=20))
def test_any_cuts_give_the_masters_bytes(sizes: list[int]) -> None:
    assembler, copied, position = LogAssembler(0, SEGMENT_BYTES), Copied(), 0
    for size in itertools.cycle(sizes):
        assembler.feed(LOG[position : position + size])
        copied.take(assembler)
        position += size
        assert LOG.startswith(bytes(copied.data))
        if position >= len(LOG):
            break
    assert bytes(copied.data) == LOG
    assert copied.records == 120
    assert assembler.wanted == len(LOG)


@pytest.mark.parametrize("left", range(8, 21))
def test_a_segment_may_end_in_a_blank_of_any_size(left: int) -> None:
    log = MasterLog()
    log.put_many(3)
    log.fill_up(left)
    log.put_many(3)
    for cut in (1, left, 4096):
        assembler, copied = LogAssembler(0, SEGMENT_BYTES), Copied()
        for position in range(0, len(log.data), cut):
            assembler.feed(bytes(log.data[position : position + cut]))
            copied.take(assembler)
        assert copied.data == log.data
    assert left == SEGMENT_BYTES - log.data.index(b"\xcb\xd4\x31\x94") + 4


def test_a_known_first_byte_need_not_be_sent() -> None:
    assembler, copied = LogAssembler(0, SEGMENT_BYTES, known=b"\0"), Copied()
    assert assembler.wanted == 1
    assembler.feed(LOG[1:])
    copied.take(assembler)
    assert bytes(copied.data) == LOG


def test_a_record_of_another_place_is_refused_before_it_is_copied() -> None:
    assembler, copied = LogAssembler(SEGMENT_BYTES, SEGMENT_BYTES), Copied()
    assembler.feed(LOG[:2000])
    with pytest.raises(WrongRecord, match=f"says that it stands at 0, not {SEGMENT_BYTES}"):
        copied.take(assembler)
    assert not copied.data


def test_a_flipped_bit_of_a_body_is_refused() -> None:
    bad = bytearray(LOG)
    at = bad.index(b"m-7-")
    bad[at] ^= 1
    assembler, copied = LogAssembler(0, SEGMENT_BYTES), Copied()
    assembler.feed(bytes(bad))
    with pytest.raises(WrongRecord, match="checksum"):
        copied.take(assembler)
    assert copied.records == 7


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES // 2, SEGMENT_BYTES * 2])
def test_segments_of_another_length_are_refused_with_a_hint(segment_bytes: int) -> None:
    assembler, copied = LogAssembler(0, segment_bytes), Copied(segment_bytes=segment_bytes)
    assembler.feed(LOG)
    with pytest.raises(OtherSegments) as refused:
        copied.take(assembler)
    assert "mappedFileSizeCommitLog" in refused.value.hint


def test_the_blank_of_a_first_segment_tells_the_masters_length() -> None:
    assembler = LogAssembler(0, SEGMENT_BYTES * 2)
    assembler.feed(LOG)
    with pytest.raises(OtherSegments) as refused:
        list(assembler.take())
    assert f"({SEGMENT_BYTES} bytes)" in refused.value.hint


@given(st.binary(min_size=1, max_size=400))
def test_any_bytes_at_all_are_refused_or_waited_for(data: bytes) -> None:
    assembler = LogAssembler(0, SEGMENT_BYTES)
    assembler.feed(data)
    try:
        pieces = list(assembler.take())
    except FollowStopped:
        return
    assert all(not isinstance(piece, WholeRecords) for piece in pieces)
