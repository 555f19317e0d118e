"""Bells: heard by who is there, lost without harm where nobody is."""

import stat
from pathlib import Path

import pytest

from node.runtime.state_page import run_dir
from node.runtime.wakeup import RINGS_AT_ONCE, Ringer, Wakeup
from tests.support.single_process import is_readable

SLOT = "reader-0"


@pytest.fixture(autouse=True)
def in_run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir(tmp_path).mkdir(parents=True)
    monkeypatch.chdir(run_dir(tmp_path))


def test_each_ring_is_heard_and_taken_once() -> None:
    bell, ringer = Wakeup(SLOT), Ringer()
    for _ in range(3):
        ringer.ring(SLOT)
    assert is_readable(bell.watched, 0)
    assert bell.hush() == 1
    assert is_readable(bell.watched, 0), "there are more"
    assert bell.hush(RINGS_AT_ONCE) == 2
    assert not is_readable(bell.watched, 0)
    assert bell.hush() == 0
    for one in (bell, ringer):
        one.close()


def test_nobody_waits_for_a_bell_that_nobody_answers() -> None:
    ringer = Ringer()
    ringer.ring(SLOT)  # nobody is there yet
    bell = Wakeup(SLOT)
    for _ in range(10_000):
        ringer.ring(SLOT)  # more than the system keeps
    assert 0 < bell.hush(RINGS_AT_ONCE) <= RINGS_AT_ONCE
    bell.close()
    ringer.ring(SLOT)  # nobody is there any more
    ringer.close()


def test_a_bell_takes_the_place_of_its_predecessor_and_is_rung_by_who_knew_that_one() -> None:
    first, ringer = Wakeup(SLOT), Ringer()
    ringer.ring(SLOT)
    second = Wakeup(SLOT)
    ringer.ring(SLOT)
    assert (first.hush(9), second.hush(9)) == (1, 1)
    for one in (first, second, ringer):
        one.close()


def test_only_the_owner_may_ring() -> None:
    bell = Wakeup(SLOT)
    (path,) = Path().glob(f"{SLOT}*")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    bell.close()
