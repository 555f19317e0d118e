"""Epochs of elected masters: where two logs part, and the file that RocketMQ writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest
from protocol.ha import (
    EPOCHS_MAX,
    MasterEpoch,
    MasterEpochs,
    common_point,
    encode_epochs,
    epoch_at,
    epochs_below,
    epochs_from,
    last_number,
    parse_epochs,
    with_epoch,
)


def epochs(*pairs: tuple[int, int]) -> MasterEpochs:
    return tuple(MasterEpoch(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "point"),
    [
        (epochs((1, 0)), 500, epochs((1, 0)), 500, 500),
        (epochs((1, 0)), 500, epochs((1, 0)), 900, 500),
        (epochs((1, 0)), 900, epochs((1, 0)), 500, 500),
        # The old master has what the new one never got.
        (epochs((1, 0)), 700, epochs((1, 0), (2, 500)), 900, 500),
        (epochs((1, 0)), 300, epochs((1, 0), (2, 500)), 900, 300),
        # Two masters after the same one.
        (epochs((1, 0), (2, 500)), 700, epochs((1, 0), (3, 600)), 900, 500),
        (epochs((1, 0), (2, 500)), 700, epochs((1, 0), (3, 400)), 900, 400),
        # Nothing was written in an epoch, and another took its place.
        (epochs((1, 0), (2, 500)), 500, epochs((1, 0), (3, 500)), 900, 500),
        (epochs((2, 0)), 700, epochs((3, 0)), 900, None),
        ((), 700, epochs((1, 0)), 900, None),
        (epochs((1, 100)), 700, epochs((1, 0)), 900, None),
    ],
)
def test_two_logs_are_the_same_up_to_the_end_of_their_last_common_epoch(
    ours: MasterEpochs, our_end: int, theirs: MasterEpochs, their_end: int, point: int | None
) -> None:
    assert common_point(ours, our_end, theirs, their_end) == point
    assert common_point(theirs, their_end, ours, our_end) == point


Written = tuple[MasterEpochs, list[int]]


def a_log(history: list[tuple[int, int]]) -> Written:
    """The epochs of a log to which each (number, bytes) wrote, and who wrote each byte."""
    known: MasterEpochs = ()
    bytes_: list[int] = []
    for number, count in history:
        known = with_epoch(known, MasterEpoch(number, len(bytes_)))
        bytes_ += [number] * count
    return known, bytes_


histories = st.lists(st.integers(0, 4), max_size=5)


@given(histories, histories, histories, st.integers(0, 20))
def test_the_common_point_is_where_the_bytes_part(
    shared: list[int], ours: list[int], theirs: list[int], cut: int
) -> None:
    base = [(1, 3), *((number + 2, count) for number, count in enumerate(shared))]
    one = base + [(100 + 2 * number, count) for number, count in enumerate(ours)]
    two = base + [(101 + 2 * number, count) for number, count in enumerate(theirs)]
    (our_epochs, our_bytes), (their_epochs, their_bytes) = a_log(one), a_log(two)
    end = min(cut, len(their_bytes))
    their_epochs, their_bytes = epochs_below(their_epochs, end), their_bytes[:end]
    pairs = zip(our_bytes, their_bytes, strict=False)
    alike = next(
        (at for at, (a, b) in enumerate(pairs) if a != b), min(len(our_bytes), len(their_bytes))
    )
    found = common_point(our_epochs, len(our_bytes), their_epochs, len(their_bytes))
    assert (found or 0) == alike


def test_an_epoch_in_which_nothing_was_written_gives_its_place_away() -> None:
    assert with_epoch(epochs((1, 0), (2, 500)), MasterEpoch(3, 500)) == epochs((1, 0), (3, 500))
    assert with_epoch(epochs((1, 0)), MasterEpoch(1, 0)) == epochs((1, 0))


def test_so_many_epochs_are_kept_as_a_greeting_has_room_for() -> None:
    known: MasterEpochs = ()
    for number in range(EPOCHS_MAX + 5):
        known = with_epoch(known, MasterEpoch(number, 10 * number))
    assert len(known) == EPOCHS_MAX
    assert last_number(known) == EPOCHS_MAX + 4


def test_a_log_without_its_first_segments_keeps_the_epochs_that_it_still_has() -> None:
    known = epochs((1, 0), (2, 500), (3, 900))
    assert epochs_from(known, 0) == known
    assert epochs_from(known, 500) == known[1:]
    assert epochs_from(known, 5_000) == known[2:]
    assert epochs_from((), 7) == ()


def test_an_offset_belongs_to_one_epoch() -> None:
    known = epochs((1, 0), (2, 500))
    assert epoch_at(known, 499) == (known[0], 500)
    assert epoch_at(known, 500) == (known[1], None)
    assert epoch_at(known[1:], 499) == (None, None)


def test_the_file_is_the_one_that_rocketmq_documents() -> None:
    # The example in CheckpointFile's comment.
    text = "2\n773307083\n7-7000\n8-8000\n"
    assert parse_epochs(text) == epochs((7, 7000), (8, 8000))
    assert encode_epochs(epochs((7, 7000), (8, 8000))) == text.encode()
    assert parse_epochs(encode_epochs(()).decode()) == ()


@pytest.mark.parametrize(
    "text",
    ["", "1\n", "x\n0\n", "2\n773307083\n7-7000\n", "2\n773307084\n7-7000\n8-8000\n",
     "2\n0\n8-8000\n7-7000\n", "1\n0\n7+7000\n"],
)  # fmt: skip
def test_anything_else_is_no_file_of_epochs(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_epochs(text)
