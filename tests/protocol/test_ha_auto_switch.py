"""Replication where a controller elects the master: the bytes of RocketMQ's two ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest
from protocol.ha import (
    FollowerReader,
    GreetingReader,
    MasterEpoch,
    MasterGreeting,
    SwitchFrameReader,
    encode_answer,
    encode_greeting,
    encode_switch_head,
    encode_switch_report,
)

GREETING = MasterGreeting(900, (MasterEpoch(1, 0), MasterEpoch(2, 500)))


def test_the_bytes_are_laid_out_as_rocketmq_lays_them_out() -> None:
    assert encode_greeting(3) == bytes.fromhex("00000001 0000 0000 0000000000000003")
    assert encode_switch_report(0x1234) == bytes.fromhex("00000002 0000000000001234")
    assert encode_answer(GREETING) == bytes.fromhex(
        "00000001 00000018 0000000000000384 00000002"
        " 00000001 0000000000000000 00000002 00000000000001f4"
    )
    assert encode_switch_head(500, 7, MasterEpoch(2, 500), 450) == bytes.fromhex(
        "00000002 00000007 00000000000001f4 00000002 00000000000001f4 00000000000001c2"
    )


@given(st.lists(st.integers(1, 20)))
def test_what_a_follower_says_may_come_in_any_parts(sizes: list[int]) -> None:
    data = encode_greeting(3) + encode_switch_report(5) + encode_switch_report(9)
    reader, found, at = FollowerReader(), [], 0
    for size in [*sizes, len(data)]:
        found.append(reader.feed(data[at : at + size]))
        at += size
    assert reader.broker_id == 3
    assert [one for one in found if one is not None][-1] == 9


def test_a_report_before_the_greeting_is_refused() -> None:
    with pytest.raises(BadRequest, match="state 2"):
        FollowerReader().feed(encode_switch_report(5))


def test_a_report_of_the_default_replication_is_refused() -> None:
    with pytest.raises(BadRequest, match="state 0"):
        FollowerReader().feed(bytes(16))


@given(st.integers(1, 60))
def test_a_masters_greeting_may_come_in_parts(first: int) -> None:
    data, reader = encode_answer(GREETING), GreetingReader()
    early = reader.feed(data[:first])
    assert (early or reader.feed(data[first:])) == GREETING


def test_a_greeting_with_half_an_epoch_is_refused() -> None:
    with pytest.raises(BadRequest, match="is this the replication port"):
        GreetingReader().feed(bytes.fromhex("00000001 0000000b 0000000000000384 00000002"))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(1, 50))
def test_frames_come_back_as_they_were_sent_with_their_epoch(
    bodies: list[bytes], step: int
) -> None:
    epoch, at, data = MasterEpoch(7, 100), 100, b""
    for body in bodies:
        data += encode_switch_head(at, len(body), epoch, 99) + body
        at += len(body)
    reader, found = SwitchFrameReader(), []
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        reader.room()[: len(piece)] = piece
        frames = reader.take(len(piece))
        found += [(one.offset, bytes(one.body), one.epoch, one.confirmed) for one in frames]
    assert [one[1] for one in found] == bodies
    assert {one[2:] for one in found} == {(epoch, 99)}
    assert found[-1][0] == at - len(bodies[-1])
