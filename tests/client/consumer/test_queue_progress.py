"""What may be committed of a queue, whatever the order in which its messages end."""

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from keelog.client.consumer.queues import GroupMessage, QueueProgress


def pulled(*offsets: int) -> list[GroupMessage]:
    found = [SimpleNamespace(queue_offset=offset, store_size=10) for offset in offsets]
    return cast(list[GroupMessage], found)


def hand_out(progress: QueueProgress) -> int | None:
    message = progress.hand_out()
    return None if message is None else message.queue_offset


def test_the_place_is_before_the_first_message_that_has_not_ended() -> None:
    progress = QueueProgress(5)
    assert progress.committable == 5
    progress.take(pulled(5, 7, 8), 12)
    assert [hand_out(progress) for _ in range(4)] == [5, 7, 8, None]
    for offset, place in ((7, 5), (8, 5), (5, 12)):
        progress.end(offset)
        assert progress.committable == place


def test_a_message_that_waits_holds_the_place_as_one_in_hand_does() -> None:
    progress = QueueProgress(0)
    progress.take(pulled(0, 1), 2)
    assert hand_out(progress) == 0
    progress.end(0)
    assert (progress.committable, progress.held, progress.in_hand) == (1, 1, 0)


def test_a_message_that_ends_twice_counts_once() -> None:
    progress = QueueProgress(0)
    progress.take(pulled(0, 1), 2)
    hand_out(progress)
    progress.end(0)
    progress.end(0)
    assert (progress.held, progress.held_bytes, progress.committable) == (1, 10, 1)


def test_messages_before_the_next_offset_are_not_taken_again() -> None:
    progress = QueueProgress(0)
    progress.take(pulled(0, 1), 2)
    progress.take(pulled(1, 2), 3)
    assert [hand_out(progress) for _ in range(4)] == [0, 1, 2, None]


@given(
    st.lists(st.integers(1, 4), max_size=30),
    st.lists(st.integers(0, 60), max_size=200),
    st.randoms(use_true_random=False),
)
def test_no_message_is_passed_that_has_not_ended(
    gaps: list[int], turns: list[int], random: object
) -> None:
    """Pulls, hand-outs and ends in any order, beside the plainest model: sets."""
    progress = QueueProgress(0)
    coming, offset = [], 0
    for gap in gaps:
        offset += gap
        coming.append(offset)
    end = offset + 1
    taken: list[int] = []
    in_hand: list[int] = []
    ended: set[int] = set()
    committed = 0
    for turn in turns:
        if turn % 3 == 0 and coming:
            some, coming = coming[: turn + 1], coming[turn + 1 :]
            progress.take(pulled(*some), coming[0] if coming else end)
            taken += some
        elif turn % 3 == 1:
            message = hand_out(progress)
            if message is not None:
                assert message not in in_hand
                in_hand.append(message)
        elif in_hand:
            one = in_hand[turn % len(in_hand)]
            progress.end(one)
            ended.add(one)
        left = [one for one in taken if one not in ended]
        place = progress.committable
        assert place == (left[0] if left else progress.next_offset)
        assert place >= committed, "a place never goes back"
        committed = place
        assert progress.held == len(left)
        assert progress.held_bytes == 10 * len(left)
        assert progress.in_hand == len([one for one in in_hand if one not in ended])
        assert progress.span == progress.next_offset - place
