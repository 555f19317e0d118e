"""The checks of `tests/soak/kill/anything.py` find what they are there for: each fault, planted."""

import json
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from keelog.bench.queue_checks import Ints
from tests.soak.check import (
    Cut,
    Image,
    check_followed,
    check_order,
    check_outcomes,
    check_passed_over,
    check_prefix,
    check_seen,
)
from tests.soak.command import shape
from tests.soak.kill.history import Figures
from tests.soak.load import ACKNOWLEDGED, REFUSED, TRAFFIC, UNKNOWN, sender_of

PRODUCER, COUNT = 2, 6
END = 100 * COUNT


def stored() -> Ints:
    """Six messages of one producer in one queue: offset, topic, queue, its offset, who, number."""
    return np.array([(100 * n, 0, 1, n, PRODUCER, n) for n in range(COUNT)], np.int64)


def told(flushed: int = 0) -> Ints:
    """What their sender was told, each at the moment of its number."""
    rows = [(n, ACKNOWLEDGED, 0, 1, n, 100 * n, flushed, n + 1) for n in range(COUNT)]
    return np.array(rows, np.int64)


def image(rows: Ints) -> Image:
    return Image(rows, END)


def faults(rows: Ints, outcomes: Ints, cuts: list[Cut] | None = None, sync: bool = False) -> str:
    tally = check_outcomes(image(rows), {PRODUCER: outcomes}, cuts or [], sync, is_over=True)
    return " ".join([*check_order(image(rows), TRAFFIC), *tally.faults])


def test_a_log_as_it_was_told_passes() -> None:
    assert faults(stored(), told()) == ""
    assert check_prefix(image(stored()[:4]), image(stored())) != []
    assert check_prefix(Image(stored()[:4], 400), image(stored())) == []
    assert check_seen(image(stored()), stored()[:, [1, 2, 3, 0, 4, 5]]) == []


def without_the_last(rows: Ints) -> Ints:
    return rows[:-1]


def swapped(rows: Ints) -> Ints:
    rows[[2, 3], 5] = rows[[3, 2], 5]
    return rows


def of_nobody(rows: Ints) -> Ints:
    rows[-1, 4] = 9
    return rows


def moved(rows: Ints) -> Ints:
    rows[1:, 0] += 4
    return rows


def with_a_hole(rows: Ints) -> Ints:
    return np.delete(rows, 3, axis=0)


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (without_the_last, "1 acknowledged messages of producer 2 are lost"),
        (swapped, "producer 2 is out of order, or twice"),
        (of_nobody, "1 messages of nobody (9)"),
        (moved, "5 acknowledged messages of producer 2 are lost"),
        (with_a_hole, "queue offsets are not 0 to 4"),
    ],
)
def test_a_log_with_a_fault_fails(plant: Callable[[Ints], Ints], fault: str) -> None:
    assert fault in faults(plant(stored()), told())


@pytest.mark.parametrize("outcome", [REFUSED, None])
def test_a_message_that_was_refused_or_never_sent_must_not_be_there(outcome: int | None) -> None:
    rows = told()
    rows = (
        rows[:-1]
        if outcome is None
        else np.where(rows[:, :1] == 5, [5, outcome, 0, 1, -1, -1, 0, 6], rows)
    )
    assert "1 messages of producer 2 stand where nobody was told of them" in faults(stored(), rows)


def test_a_message_of_unknown_outcome_may_be_there_once_for_each_attempt() -> None:
    rows = told()
    rows[5, [1, 4, 5]] = UNKNOWN, -1, -1
    assert faults(stored(), rows) == ""
    assert faults(stored()[:-1], rows) == ""
    twice = np.concatenate([stored(), [[END, 0, 1, COUNT, PRODUCER, 5]]])
    assert "stand where nobody was told of them" in faults(twice, rows)
    assert "out of order, or twice" not in faults(twice[[0, 1, 2, 3, 4, 6]], rows)


CUT = Cut(at_ns=5, again_ns=100, end=300)


def test_what_was_not_flushed_may_go_with_the_power_and_stays_gone() -> None:
    tally = check_outcomes(
        Image(stored()[:3], 300), {PRODUCER: told()}, [CUT], promised=False, is_over=True
    )
    assert (tally.faults, tally.gone, tally.raced, tally.acknowledged) == ([], 1, 2, 3)
    assert "stand where nobody was told of them" in faults(stored(), told(), [CUT])


@pytest.mark.parametrize(("flushed", "sync"), [(1, False), (0, True)])
def test_what_was_promised_to_be_durable_must_outlive_the_power(flushed: int, sync: bool) -> None:
    found = faults(stored()[:3], told(flushed), [CUT], sync)
    assert "1 acknowledged messages of producer 2 are lost" in found


def test_a_reader_s_message_that_vanished_is_told() -> None:
    seen = stored()[:, [1, 2, 3, 0, 4, 5]]
    assert check_seen(image(stored()[:-1]), seen) == [
        "1 messages that were read are not there any more"
    ]
    seen[2, 5] += 1
    assert len(check_seen(image(stored()), seen)) == 1


def test_a_reader_may_be_sent_back_and_not_past_a_message() -> None:
    seen = stored()[:, [1, 2, 3, 0, 4, 5]]
    assert check_passed_over(seen[[0, 1, 2, 1, 2, 3, 4, 5]]) == []
    assert check_passed_over(seen[[0, 1, 3, 4]]) == ["1 times a reader was sent past messages"]
    assert len(check_passed_over(seen[1:])) == 1


def test_a_follower_sees_each_message_once_and_in_order() -> None:
    seen = stored()[:, [1, 2, 3, 0, 4, 5]]
    assert check_followed(image(stored()), seen, 0) == []
    for wrong in (seen[:-1], seen[[0, 1, 2, 2, 3, 4, 5]], seen[[0, 2, 1, 3, 4, 5]]):
        assert check_followed(image(stored()), wrong, 0) == [
            "queue 1: not each of 6 messages once, in order"
        ]


def test_figures_of_histories_are_summed_up_and_told_as_json() -> None:
    both = Figures(kills=Counter(writer=2), back_s_max=1.0, faults=["a"])
    both.add(Figures(kills=Counter(writer=1, node=1), lost=3, back_s_max=0.5, faults=["b"]))
    found = json.loads(json.dumps(both, default=shape))
    assert found["kills"] == {"writer": 3, "node": 1}
    assert (found["lost"], found["back_s_max"], found["faults"]) == (3, 1.0, ["a", "b"])


def test_a_message_follows_from_who_sent_it() -> None:
    for number in range(200):
        sent = TRAFFIC.message(3, number)
        assert sender_of(sent.body) == (3, number)
        assert sent == TRAFFIC.message(3, number) != TRAFFIC.message(4, number)
        assert b"KEYS\x01p3-%d g%d\x02" % (number, number // 10) in sent.properties
