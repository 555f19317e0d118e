"""Any bytes in any pieces are frames or one typed error, in bounded memory."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.remoting.codes import BadCommand, BrokenFrame
from protocol.remoting.frame_reader import (
    FRAME_BYTES_MAX,
    GROWTH,
    HEADER_BYTES_MAX,
    ROOM_BYTES,
    FrameReader,
    frame_head,
)
from protocol.remoting.headers import RemotingHeader, Serialization
from tests.protocol.remoting.golden_frames import ReadFrame, read_all

bodies = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([4_000, ROOM_BYTES - 200, ROOM_BYTES, ROOM_BYTES + 1, 5 * ROOM_BYTES]).map(
        bytes
    ),
)
frames = st.builds(
    ReadFrame,
    st.builds(
        lambda code, opaque, ext, form: RemotingHeader(code, opaque, ext=ext, serialization=form),
        st.integers(0, 400),
        st.integers(-(2**31), 2**31 - 1),
        st.dictionaries(st.sampled_from("abcde"), st.text("xyz", min_size=1), max_size=4),
        st.sampled_from(Serialization),
    ),
    bodies,
)
cuts = st.lists(st.integers(1, 100_000), max_size=6).map(lambda sizes: [*sizes, 50_000])


def encoded(frame: ReadFrame) -> bytes:
    return frame_head(frame.header, len(frame.body)) + frame.body


@given(st.lists(frames, max_size=6), cuts, st.sampled_from([ROOM_BYTES, 256, 8]))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[ReadFrame], sizes: list[int], room_bytes: int
) -> None:
    data = b"".join(map(encoded, sent))
    assert list(read_all(data, sizes, FrameReader(room_bytes))) == sent


@given(st.lists(frames, max_size=2), st.binary(max_size=200), cuts)
def test_any_bytes_are_frames_or_one_typed_error_in_bounded_memory(
    sent: list[ReadFrame], data: bytes, sizes: list[int]
) -> None:
    reader = FrameReader()
    good = b"".join(map(encoded, sent))
    found = []
    try:
        for frame in read_all(good + data, sizes, reader):
            found.append(frame)
            assert reader.buffer_bytes <= max(ROOM_BYTES, GROWTH * len(good + data))
    except BrokenFrame as error:
        assert str(error).isprintable()
    assert found[: len(sent)] == sent


HEADER = b'{"code":1}'


def frame(length: int, serialization: int, header_bytes: int, rest: bytes = b"") -> bytes:
    return struct.pack(">iI", length, serialization << 24 | header_bytes) + rest


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\n", "a frame of 1195725860 bytes"),
        (frame(FRAME_BYTES_MAX - 3, 0, 10), "a frame of 16777217 bytes"),
        (frame(-1, 0, 10), "a frame with the length -1"),
        (frame(3, 0, 0), "a frame of 7 bytes"),
        (frame(10, 0, 7), "a header of 7 bytes in a frame of 14"),
        (
            frame(FRAME_BYTES_MAX - 4, 0, HEADER_BYTES_MAX + 1),
            "a header of 131073 bytes in a frame",
        ),
        (frame(10, 2, 6), "a header in serialisation 2"),
        (frame(4, 0, 0), "not JSON"),
        (frame(6, 0, 2, b"[]"), "is list, not a map"),
        (frame(8, 0, 4, b"\xff{}\xff"), "not JSON"),
        (frame(25, 1, 20, bytes(21)), "binary header ends"),
    ],
)
def test_what_is_not_a_frame_is_refused_by_name(data: bytes, what: str) -> None:
    good = frame(4 + len(HEADER), 0, len(HEADER), HEADER)
    for sizes in ([7], [1 << 30]):
        found: list[ReadFrame] = []
        with pytest.raises(BrokenFrame, match=what):
            found.extend(read_all(good + data, sizes))
        assert [one.header.code for one in found] == [1], "frames before it are handed out"


def test_a_wrong_length_is_refused_after_its_four_bytes() -> None:
    with pytest.raises(BrokenFrame, match="a frame of"):
        list(read_all(b"\x16\x03\x01\x02"))


def test_the_largest_frame_is_read_and_one_byte_more_is_not() -> None:
    header = RemotingHeader(310, 7)
    head = frame_head(header, 0)
    room = FRAME_BYTES_MAX - len(head)
    data = frame_head(header, room) + bytes(room)
    assert len(data) == FRAME_BYTES_MAX
    reader = FrameReader()
    (found,) = read_all(data, (1_000_000,), reader)
    assert (found.header, len(found.body)) == (header._replace(ext={}), room)
    assert reader.buffer_bytes == FRAME_BYTES_MAX
    reader.room()
    assert reader.buffer_bytes == ROOM_BYTES, "the memory is given back"
    with pytest.raises(BadCommand, match="16777217 bytes"):
        frame_head(header, room + 1)


def test_a_stranger_pays_for_memory_with_bytes() -> None:
    reader = FrameReader()
    start = frame(FRAME_BYTES_MAX - 4, 0, len(HEADER), HEADER)
    assert not list(read_all(start, (1 << 30,), reader))
    reader.room()
    assert reader.buffer_bytes == ROOM_BYTES
    assert not list(read_all(bytes(100_000), (1 << 30,), reader))
    reader.room()
    assert reader.buffer_bytes <= GROWTH * 100_100


def test_a_frame_that_comes_byte_by_byte_is_copied_only_when_the_buffer_grows() -> None:
    reader = FrameReader(64)
    data = encoded(ReadFrame(RemotingHeader(1, 1), bytes(5_000)))
    buffers = set()
    for byte in data:
        room = reader.room()
        buffers.add(reader.buffer_bytes)
        room[0] = byte
        found = list(reader.received(1))
    assert [len(one.body) for one in found] == [5_000]
    assert len(buffers) <= 5


def test_a_body_is_a_view_of_the_buffer_and_not_a_copy() -> None:
    reader = FrameReader()
    data = encoded(ReadFrame(RemotingHeader(10, 1), b"hello"))
    reader.room()[: len(data)] = data
    (found,) = reader.received(len(data))
    assert isinstance(found.body, memoryview)
    reader.room()[: len(data)] = bytes(len(data))
    assert bytes(found.body) == bytes(5)


@given(frames, st.integers(0, 2**31 - 1))
def test_an_answer_has_the_form_and_the_number_of_its_request(sent: ReadFrame, code: int) -> None:
    answer = sent.header.answer(code, {"a": "b"}, "why")
    assert (answer.opaque, answer.serialization) == (sent.header.opaque, sent.header.serialization)
    assert answer.is_answer
    assert not answer.is_one_way


def test_what_follows_a_large_frame_in_the_same_bytes_is_read() -> None:
    sent: Sequence[ReadFrame] = [
        ReadFrame(RemotingHeader(number, number, ext={"a": "1"}), bytes(size))
        for number, size in enumerate((10, 300_000, 20, 400_000, 0))
    ]
    assert list(read_all(b"".join(map(encoded, sent)), (250_000,))) == sent
