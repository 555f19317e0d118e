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


HELLO = zmtp.GREETING + zmtp.ready(b"ROUTER")


def connection(room_bytes: int = zmtp.ROOM_BYTES) -> zmtp.Connection:
    return zmtp.Connection(b"DEALER", FRAME_BYTES_MAX, 0.0, room_bytes)


def received(
    data: bytes, cuts: Sequence[int], one: zmtp.Connection | None = None, now: float = 0.0
) -> list[list[bytes]]:
    """What a connection makes of the bytes when they come in pieces of these sizes, in turn."""
    one = connection() if one is None else one
    found: list[list[bytes]] = []
    at = turn = 0
    while at < len(data):
        room = one.room()
        assert len(room), "no room is no progress"
        size = min(len(room), cuts[turn % len(cuts)], len(data) - at)
        room[:size] = data[at : at + size]
        at, turn = at + size, turn + 1
        found += [list(map(bytes, frames)) for frames in one.received(size, now)]
    return found


@given(
    messages,
    st.lists(st.integers(1, 200_000), min_size=1, max_size=6),
    st.sampled_from([zmtp.ROOM_BYTES, 8_192, zmtp.COMMAND_BYTES_MAX + 9]),
)
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    sent: list[list[bytes]], cuts: list[int], room_bytes: int
) -> None:
    one = connection(room_bytes)
    assert not one.is_ready
    assert received(HELLO + b"".join(map(encoded, sent)), cuts, one) == sent
    assert one.is_ready


@given(st.lists(frames, min_size=1, max_size=2))
def test_what_one_end_sends_the_other_receives(sent: list[bytes]) -> None:
    header, payload = sent[0], sent[1] if len(sent) > 1 else None
    data = b"".join(map(bytes, zmtp.message(header, payload)))
    assert received(connection().hello + data, [100_000]) == [sent]


def outcome(data: bytes, cut: int) -> tuple[list[list[bytes]], bytes] | None:
    """What comes out of bytes, and the replies; None where they are refused."""
    one = connection()
    try:
        return received(data, [cut], one), one.take_replies()
    except zmtp.NotZmtp:
        return None


@given(st.binary(max_size=200), st.integers(1, 64))
def test_any_bytes_are_waited_for_or_refused_however_they_are_cut(data: bytes, cut: int) -> None:
    for beginning in (b"", zmtp.GREETING, HELLO):
        assert outcome(beginning + data, cut) == outcome(beginning + data, zmtp.ROOM_BYTES)


def test_a_ping_is_answered_with_its_context() -> None:
    one = connection()
    received(HELLO + zmtp.command(b"PING", b"\x00\x2acontext") + zmtp.PING, [7], one)
    assert one.take_replies() == b"\x04\x0c\x04PONGcontext" + b"\x04\x05\x04PONG"
    assert one.take_replies() == b"", "once"


def test_a_long_command_has_a_long_head() -> None:
    one = connection()
    received(HELLO + zmtp.command(b"PING", b"\x00\x00" + b"x" * 300), [11], one)
    assert one.take_replies() == zmtp.command(b"PONG", b"x" * 300)


def test_an_error_of_the_peer_ends_the_connection() -> None:
    with pytest.raises(zmtp.NotZmtp, match="reports"):
        received(HELLO + zmtp.command(b"ERROR", b"\x03bad"), [64])


def test_a_silent_peer_is_asked_for_a_pong_and_then_is_gone() -> None:
    one = connection()
    received(HELLO, [64], one, now=1.0)
    assert one.ping(1.0 + zmtp.PING_S) == b""
    asked_at = 1.1 + zmtp.PING_S
    assert one.ping(asked_at) == zmtp.PING
    assert one.ping(asked_at + zmtp.PONG_S) == b"", "once is enough"
    with pytest.raises(zmtp.NotZmtp):
        one.ping(asked_at + zmtp.PONG_S + 0.1)
    received(zmtp.command(b"PONG"), [64], one, now=asked_at + 9.0)
    assert one.ping(asked_at + 9.0) == b"", "what comes late counts as well"


def test_an_end_that_was_silent_for_long_is_stale() -> None:
    one = connection()
    assert not one.is_stale(zmtp.STALE_S)
    assert one.is_stale(zmtp.STALE_S + 0.1)
    one.spoke_at = 5.0
    assert not one.is_stale(5.0 + zmtp.STALE_S)


@given(
    st.lists(st.binary(max_size=9), min_size=1, max_size=4), st.integers(0, 40), st.integers(1, 20)
)
def test_an_outbox_sends_the_rest_of_each_message_in_order(
    parts: list[bytes], taken: int, at_once: int
) -> None:
    taken = min(taken, len(b"".join(parts)))
    box = zmtp.Outbox()
    first, second = box.keep(parts, taken), box.keep([b"second"], 0)
    sent = bytearray()
    while box.kept:
        left = b"".join(box.kept[0].parts)
        sent += left[:at_once]
        box.took(min(at_once, len(left)))
        assert box.bytes == sum(len(part) for one in box.kept for part in one.parts)
    assert sent == b"".join(parts)[taken:] + b"second"
    assert first.done
    assert second.done


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
        received(HELLO + frame, [64])


def test_a_message_before_ready_is_refused() -> None:
    with pytest.raises(zmtp.NotZmtp, match="before READY"):
        received(zmtp.GREETING + encoded([b"early"]), [64])
