"""The bytes of RocketMQ's replication."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest
from protocol.ha import (
    FRAME_BODY_BYTES_MAX,
    LogFrameReader,
    ReportReader,
    encode_head,
    encode_report,
)

OFFSETS = st.integers(0, 2**62)
PIECES = st.lists(st.integers(1, 9000), min_size=1, max_size=9)


def in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """All of `data`, cut into sizes that repeat."""
    pieces, at, number = [], 0, 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        pieces.append(data[at : at + size])
        at, number = at + size, number + 1
    return pieces


def read(reader: LogFrameReader, data: bytes) -> list[tuple[int, bytes]]:
    """What a connection would do with `data`."""
    frames: list[tuple[int, bytes]] = []
    while data:
        room = reader.room()
        size = min(len(room), len(data))
        room[:size] = data[:size]
        data = data[size:]
        frames += [(frame.offset, bytes(frame.body)) for frame in reader.take(size)]
    return frames


def test_a_report_and_a_heart_beat_have_the_bytes_of_rocketmq() -> None:
    assert encode_report(1_900_445) == bytes.fromhex("00000000001cff9d")
    assert encode_head(1_900_544, 0) == bytes.fromhex("00000000001d000000000000")


@given(st.lists(st.tuples(OFFSETS, st.binary(max_size=20_000)), max_size=12), PIECES)
def test_frames_come_out_as_they_went_in_however_they_arrive(
    frames: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    data = b"".join(encode_head(offset, len(body)) + body for offset, body in frames)
    reader = LogFrameReader()
    came = [frame for piece in in_pieces(data, sizes) for frame in read(reader, piece)]
    assert came == frames


def test_the_largest_frame_is_read_and_a_larger_one_refused() -> None:
    body = bytes(FRAME_BODY_BYTES_MAX)
    assert read(LogFrameReader(), encode_head(7, len(body)) + body) == [(7, body)]
    for size in (FRAME_BODY_BYTES_MAX + 1, -1):
        with pytest.raises(BadRequest, match=f"offset 7 has {size} bytes"):
            read(LogFrameReader(), encode_head(7, size) + b"x")


@given(st.lists(OFFSETS, min_size=1, max_size=9), PIECES)
def test_the_last_whole_report_is_believed(reports: list[int], sizes: list[int]) -> None:
    reader, last = ReportReader(), None
    for piece in in_pieces(b"".join(map(encode_report, reports)), sizes):
        last = reader.feed(piece) or last
    assert (last or 0) == reports[-1]


def test_half_a_report_says_nothing() -> None:
    reader = ReportReader()
    assert reader.feed(encode_report(5)[:7]) is None
    assert reader.feed(encode_report(5)[7:] + encode_report(6)[:3]) == 5
