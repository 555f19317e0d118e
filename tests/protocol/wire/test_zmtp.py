"""The bytes of ZMTP, however the network cuts them; tests/node holds them against libzmq."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire import zmtp

FRAME_BYTES_MAX = 1 << 20
LARGE = zmtp.BYTES_FRAME_MIN

frames = st.one_of(
    st.binary(max_size=600),
    st.sampled_from([5_000, 8_183, 8_184, LARGE - 1, LARGE, LARGE + 1, 2 * zmtp.ROOM_BYTES]).map(
        lambda size: bytes([size % 251]) * size
    ),
)
messages = st.lists(st.lists(frames, min_size=1, max_size=3), max_size=5)


def encoded(message: Sequence[bytes]) -> bytes:
    last = len(message) - 1
    return b"".join(
        zmtp.head(len(frame), more=number < last) + frame for number, frame in enumerate(message)
    )


def received(
    data: bytes,
    cuts: Sequence[int],
    frame_bytes_max: int = FRAME_BYTES_MAX,
    room_bytes: int = zmtp.ROOM_BYTES,
) -> list[list[bytes] | zmtp.ZmtpCommand]:
    """What an inbox makes of the bytes when they come in pieces of these sizes, in turn."""
    inbox = zmtp.Inbox(frame_bytes_max, room_bytes)
    found: list[list[bytes] | zmtp.ZmtpCommand] = []
    at = turn = 0
    while at < len(data):
        room = inbox.room()
        assert len(room), "no room is no progress"
        size = min(len(room), cuts[turn % len(cuts)], len(data) - at)
        room[:size] = data[at : at + size]
        inbox.took(size)
        at, turn = at + size, turn + 1
        for item in inbox.items():
            found.append(
                item if isinstance(item, zmtp.ZmtpCommand) else [bytes(one) for one in item]
            )
    return found


@given(
    messages,
    st.lists(st.integers(1, 200_000), min_size=1, max_size=6),
    st.sampled_from([zmtp.ROOM_BYTES, 8_192, zmtp.COMMAND_BYTES_MAX + 9]),
)
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    sent: list[list[bytes]], cuts: list[int], room_bytes: int
) -> None:
    data = zmtp.GREETING + zmtp.ready(b"ROUTER") + b"".join(map(encoded, sent))
    ready, *found = received(data, cuts, room_bytes=room_bytes)
    assert isinstance(ready, zmtp.ZmtpCommand)
    assert ready.name == b"READY"
    assert found == sent


def outcome(data: bytes, cut: int) -> list[list[bytes] | zmtp.ZmtpCommand] | None:
    """What comes out of bytes; None where they are refused."""
    try:
        return received(data, [cut])
    except zmtp.NotZmtp:
        return None


@given(st.binary(max_size=200), st.integers(1, 64))
def test_any_bytes_are_waited_for_or_refused_however_they_are_cut(data: bytes, cut: int) -> None:
    for beginning in (b"", zmtp.GREETING):
        assert outcome(beginning + data, cut) == outcome(beginning + data, zmtp.ROOM_BYTES)


def test_a_ping_is_answered_with_its_context() -> None:
    data = zmtp.GREETING + zmtp.command(b"PING", b"\x00\x2acontext") + zmtp.PING
    first, second = received(data, [7])
    assert isinstance(first, zmtp.ZmtpCommand)
    assert isinstance(second, zmtp.ZmtpCommand)
    assert zmtp.pong(first) == b"\x04\x0c\x04PONGcontext"
    assert zmtp.pong(second) == b"\x04\x05\x04PONG"


def test_a_long_command_has_a_long_head() -> None:
    (found,) = received(zmtp.GREETING + zmtp.command(b"ERROR", b"x" * 300), [11])
    assert found == zmtp.ZmtpCommand(b"ERROR", b"x" * 300)


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "no greeting"),
        (zmtp.GREETING[:10] + b"\x02" + zmtp.GREETING[11:], "version 2"),
        (zmtp.GREETING[:12] + b"CURVE".ljust(20, b"\0") + zmtp.GREETING[32:], "CURVE"),
    ],
)
def test_who_greets_otherwise_is_refused(greeting: bytes, why: str) -> None:
    with pytest.raises(zmtp.NotZmtp, match=why):
        received(greeting, [64])


@pytest.mark.parametrize(
    "frame",
    [
        zmtp.head(FRAME_BYTES_MAX + 1, more=False),
        zmtp.head(2**63, more=True),
        b"\x06" + (zmtp.COMMAND_BYTES_MAX + 1).to_bytes(8, "big"),
    ],
)
def test_what_is_too_large_is_refused_before_its_memory_is_taken(frame: bytes) -> None:
    with pytest.raises(zmtp.NotZmtp, match="a frame of"):
        received(zmtp.GREETING + frame, [64])
