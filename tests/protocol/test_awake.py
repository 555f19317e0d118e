"""A look for what comes ends with it or with its time; one in vain lets others fall out."""

from itertools import count

from protocol.wire.zmtp import ASLEEP_LOOKS, ASLEEP_LOOKS_MAX, AwakeLook


class Watched:
    """What is looked for: there at the `nth` question. It counts who gave way, too."""

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.asked = 0
        self.gave_way = 0

    def give_way(self) -> None:
        self.gave_way += 1

    def is_there(self) -> bool:
        self.asked += 1
        return self.asked >= self.nth


NEVER = 10**9


def look_for(watched: Watched, seconds: float, processors: int = 2) -> AwakeLook:
    """One whose clock goes on by a second whenever somebody looks at it."""
    ticks = count()
    return AwakeLook(seconds, processors, lambda: float(next(ticks)), watched.give_way)


def test_a_look_ends_when_it_is_there_and_gives_way_before_each_question() -> None:
    watched = Watched(3)
    look = look_for(watched, 60)
    look.until(watched.is_there)
    assert (watched.asked, watched.gave_way) == (3, 3)
    look.until(watched.is_there)
    assert watched.asked == 4, "a look that found something lets none fall out"


def test_a_look_in_vain_ends_in_time_and_lets_others_fall_out() -> None:
    watched = Watched(NEVER)
    look = look_for(watched, 5)
    look.until(watched.is_there)
    assert watched.asked == 6
    for _ in range(ASLEEP_LOOKS):
        look.until(watched.is_there)
    assert watched.asked == 6
    look.until(watched.is_there)
    assert watched.asked == 12


def test_each_further_look_in_vain_lets_more_fall_out_until_one_finds_something() -> None:
    watched = Watched(NEVER)
    look = look_for(watched, 0)

    def fall_out() -> int:
        asked, count = watched.asked, -1
        while watched.asked == asked:
            look.until(watched.is_there)
            count += 1
        return count

    assert look.is_awake
    assert [fall_out() for _ in range(8)] == [0, 15, 31, 63, 127, 255, 511, ASLEEP_LOOKS_MAX]
    assert not look.is_awake
    assert fall_out() == ASLEEP_LOOKS_MAX
    watched.nth = watched.asked
    assert fall_out() == ASLEEP_LOOKS_MAX
    assert look.is_awake, "it found something"
    watched.nth = NEVER
    assert [fall_out() for _ in range(2)] == [0, ASLEEP_LOOKS]


def test_on_one_processor_nobody_looks() -> None:
    watched = Watched(1)
    look = look_for(watched, 60, processors=1)
    for _ in range(3 * ASLEEP_LOOKS):
        look.until(watched.is_there)
    assert (watched.asked, watched.gave_way) == (0, 0)
