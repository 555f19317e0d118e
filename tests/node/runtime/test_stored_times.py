"""How old a message is does not depend on what anybody does to the clock."""

import random

from node.runtime.stored_times import LOOKS_MAX, Arrivals, ClockSet, Moment

HOUR_MS = 3_600_000
NOON = 1_700_000_000_000


def test_at_a_right_clock_the_store_time_decides_to_the_ms() -> None:
    arrivals = Arrivals(HOUR_MS, Moment(NOON, 0))
    arrivals.look(3, Moment(NOON, 0))
    assert arrivals.age_ms(1, NOON - 777, Moment(NOON, 0)) == 777
    arrivals.look(5, Moment(NOON + 4_000, 4_000))
    assert arrivals.age_ms(4, NOON + 3_500, Moment(NOON + 6_000, 6_000)) == 2_500


def test_a_store_time_that_lies_ahead_counts_from_when_it_was_first_seen() -> None:
    arrivals = Arrivals(HOUR_MS, Moment(NOON, 0))
    arrivals.look(3, Moment(NOON, 0))
    for later in (0, 5_000, 70_000):
        now = Moment(NOON + later, later)
        arrivals.look(3, now)
        assert arrivals.age_ms(0, NOON + 2 * HOUR_MS, now) == later


def test_a_clock_that_is_set_makes_nothing_older_and_nothing_younger() -> None:
    for shift in (24 * HOUR_MS, -24 * HOUR_MS, 3_000, -3_000):
        arrivals = Arrivals(HOUR_MS, Moment(NOON, 0))
        arrivals.look(1, Moment(NOON, 0))
        arrivals.look(2, Moment(NOON + 5_000, 5_000))
        # The message at 2 is stored before the clock is set, and seen after it.
        arrivals.look(3, Moment(NOON + 10_000 + shift, 10_000))
        now = Moment(NOON + 12_000 + shift, 12_000)
        assert arrivals.age_ms(1, NOON + 4_000, now) == 8_000
        assert arrivals.age_ms(2, NOON + 9_000, now) == 2_000


def test_a_process_that_begins_knows_how_the_clock_was_set_before() -> None:
    sets = [ClockSet(1_000, 24 * HOUR_MS), ClockSet(5_000, -24 * HOUR_MS)]
    for count, stored, age in ((1, NOON, 6_000), (1, NOON + 24 * HOUR_MS, 0), (2, NOON, 6_000)):
        shift = 24 * HOUR_MS * (count == 1)
        arrivals = Arrivals(HOUR_MS, Moment(NOON + 5_500 + shift, 5_500), sets[:count])
        now = Moment(NOON + 6_000 + shift, 6_000)
        arrivals.look(1, now)
        assert arrivals.age_ms(0, stored, now) == age


def test_a_clock_that_is_set_before_the_first_look_makes_nothing_older() -> None:
    arrivals = Arrivals(HOUR_MS, Moment(NOON, 0))
    now = Moment(NOON + HOUR_MS + 3_000, 3_000)
    arrivals.look(1, now)
    assert arrivals.age_ms(0, NOON + 2_000, now) == 0


def test_a_message_that_nobody_has_seen_is_new() -> None:
    arrivals = Arrivals(HOUR_MS, Moment(NOON, 0))
    assert arrivals.age_ms(0, NOON - HOUR_MS, Moment(NOON, 0)) == 0


def test_no_message_is_older_than_it_is_after_any_number_of_looks() -> None:
    """A message may be younger than it is, by what lies between two looks."""
    chance = random.Random(7)
    arrivals, came, shift, end = Arrivals(HOUR_MS, Moment(NOON, 0)), [], 0, 0
    arrivals.look(0, Moment(NOON, 0))
    last, now = NOON, 0
    for step in range(1, 20 * LOOKS_MAX):
        now = step * 400
        if chance.random() < 0.001:
            shift = chance.randrange(-24 * HOUR_MS, 24 * HOUR_MS)
        if chance.random() < 0.5:
            last = max(last, NOON + shift + now)
            came.append((end, last, now))
            end += 1
        arrivals.look(end, Moment(NOON + shift + now, now))
    apart = 2 * HOUR_MS // LOOKS_MAX
    for offset, stored, at in came:
        age = arrivals.age_ms(offset, stored, Moment(NOON + shift + now, now))
        assert min(now - at, HOUR_MS) - apart <= age
        if now - at < HOUR_MS - apart:
            assert age <= now - at
