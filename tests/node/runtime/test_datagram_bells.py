"""Bells of readers: heard by who is there, lost without harm where nobody is."""

import os
import stat
from pathlib import Path

import pytest

from node.runtime.state_page import run_dir
from node.runtime.wakeup import RING_BYTES_MAX, RINGS_AT_ONCE, DatagramRinger, DatagramWakeup
from tests.support.single_process import is_readable

SLOT = "reader-0"


@pytest.fixture(autouse=True)
def in_run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir(tmp_path).mkdir(parents=True)
    monkeypatch.chdir(run_dir(tmp_path))


def test_rings_are_heard_in_their_order_and_whole() -> None:
    bell, ringer = DatagramWakeup(SLOT), DatagramRinger(SLOT)
    sent = [b"", b"second", os.urandom(RING_BYTES_MAX)]
    for message in sent:
        ringer.ring(message)
    assert is_readable(bell.watched, 0)
    assert bell.rings() == sent
    assert not is_readable(bell.watched, 0)
    assert bell.rings() == []
    for one in (bell, ringer):
        one.close()


def test_nobody_waits_for_a_bell_that_nobody_answers() -> None:
    ringer = DatagramRinger(SLOT)
    ringer.ring(b"nobody is there yet")
    bell = DatagramWakeup(SLOT)
    for _ in range(10_000):
        ringer.ring(b"more than the system keeps")
    assert 0 < len(bell.rings()) <= RINGS_AT_ONCE
    bell.close()
    ringer.ring(b"nobody is there any more")
    ringer.close()


def test_a_bell_takes_the_place_of_its_predecessor_and_is_rung_by_who_knew_that_one() -> None:
    first, ringer = DatagramWakeup(SLOT), DatagramRinger(SLOT)
    ringer.ring(b"to the first")
    second = DatagramWakeup(SLOT)
    ringer.ring(b"to the second")
    assert (first.rings(), second.rings()) == ([b"to the first"], [b"to the second"])
    for one in (first, second, ringer):
        one.close()


def test_only_the_owner_may_ring() -> None:
    bell = DatagramWakeup(SLOT)
    (path,) = Path().glob(f"{SLOT}*")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    bell.close()
