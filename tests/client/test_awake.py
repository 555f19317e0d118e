"""A look for what comes ends with it or with its time; one in vain lets others fall out."""

import os
import time

import pytest

from client.transport.awake import ASLEEP_LOOKS, AwakeLook

LOOK_S = 0.02


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


class Times:
    """Is there at the `nth` time that somebody asks."""

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked >= self.nth


def test_a_look_ends_when_it_is_there() -> None:
    look, there = AwakeLook(60.0), Times(3)
    look.until(there)
    assert there.asked == 3
    again = Times(2)
    look.until(again)
    assert again.asked == 2, "a look that found something lets none fall out"


def test_a_look_in_vain_ends_in_time_and_lets_others_fall_out() -> None:
    look, never = AwakeLook(LOOK_S), Times(10**9)
    began = time.monotonic()
    look.until(never)
    assert time.monotonic() - began > LOOK_S
    assert never.asked > 1
    left_out = Times(10**9)
    for _ in range(ASLEEP_LOOKS):
        look.until(left_out)
    assert left_out.asked == 0
    look.until(left_out)
    assert left_out.asked > 0


def test_on_one_processor_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    look, there = AwakeLook(60.0), Times(1)
    look.until(there)
    assert there.asked == 0
