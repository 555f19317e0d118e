"""Bells: who wants to be woken is, once, and nobody else; without a listener it does no harm."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from node.runtime.state_page import NEVER, WorkerPage, run_dir
from node.runtime.wakeup import (
    RINGS_AT_ONCE,
    RINGS_HIGH_WATER_MARK,
    Context,
    Waiters,
    ZmqRinger,
    ZmqWakeup,
)
from protocol.ids import Queue, shard_of

ALL = ("index", "queue-0-of-1", "reader-0")
EPOCH = 7
GREW = {offset: EPOCH.to_bytes(8, "little") + offset.to_bytes(8, "little") for offset in range(999)}
LAST = b"last"
SLOW_S = 60.0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_dir(tmp_path).mkdir(parents=True)
    monkeypatch.chdir(run_dir(tmp_path))
    return tmp_path


@pytest.fixture
def context() -> Iterator[Context]:
    found: Context = zmq.Context()
    yield found
    found.destroy(linger=0)


@pytest.fixture
def bell(context: Context, root: Path) -> Iterator[ZmqWakeup]:
    bell = ZmqWakeup(context, "index")
    yield bell
    bell.close()


@pytest.fixture
def page(root: Path) -> Iterator[WorkerPage]:
    with WorkerPage.create(root, "index") as page:
        yield page


@pytest.fixture
def sleepers(context: Context, root: Path, page: WorkerPage, bell: ZmqWakeup) -> Iterator[Waiters]:
    sleepers = Waiters(context, root, lambda slot: slot in ALL)
    meet(bell, sleepers.ring_all)
    yield sleepers
    sleepers.close()


def meet(bell: ZmqWakeup, ring: Callable[[], None]) -> None:
    """Until a first ring is heard, and all are: connections take a moment. More of these rings,
    which say nothing, may still be under way."""
    deadline = time.monotonic() + SLOW_S
    while not bell.socket.poll(20):
        ring()
        assert time.monotonic() < deadline


def heard(bell: ZmqWakeup, ring_last: Callable[[], None]) -> list[bytes]:
    """What rings said before a last one, which is for certain the last to come."""
    ring_last()
    found: list[bytes] = []
    while not found or found[-1] != LAST:
        assert bell.socket.poll(int(SLOW_S * 1000))
        found += filter(None, bell.rings())
    return found[:-1]


def last_of(sleepers: Waiters) -> Callable[[], None]:
    def ring() -> None:
        for sleeper in sleepers:
            sleeper.ringer.ring(LAST)

    return ring


def test_a_sleeper_is_told_once_how_far_the_log_has_come(
    bell: ZmqWakeup, page: WorkerPage, sleepers: Waiters
) -> None:
    page.publish(wake_at=100)
    sleepers.wake(EPOCH, 99)
    sleepers.wake(EPOCH, 100)
    sleepers.wake(EPOCH, 250)
    assert heard(bell, last_of(sleepers)) == [GREW[100]]
    page.publish(wake_at=251)
    sleepers.wake(EPOCH, 300)
    assert heard(bell, last_of(sleepers)) == [GREW[300]]


def test_of_the_workers_that_sleep_those_are_rung_whose_queues_grew(
    context: Context, root: Path, bell: ZmqWakeup, page: WorkerPage
) -> None:
    grown = Queue("orders", 3)
    number = shard_of(grown, 2)
    bells = [ZmqWakeup(context, f"queue-{i}-of-2") for i in range(2)]
    pages = [WorkerPage.create(root, f"queue-{i}-of-2") for i in range(2)]
    sleepers = Waiters(context, root, lambda slot: True)
    for one in (*bells, bell):
        meet(one, sleepers.ring_all)
    for its_page in (*pages, page):
        its_page.publish(wake_at=10)
    sleepers.wake(EPOCH, 10, lambda: {grown})
    sleepers.wake(EPOCH, 11, lambda: None)
    last_of(sleepers)()
    expected = {number: [GREW[10]], 1 - number: [GREW[11]]}
    for i, one in enumerate(bells):
        assert heard(one, lambda: None) == expected[i]
    assert heard(bell, lambda: None) == [GREW[10]]
    sleepers.close()
    for end, its_page in zip(bells, pages, strict=True):
        end.close()
        its_page.close()


def test_who_is_awake_is_not_rung(bell: ZmqWakeup, page: WorkerPage, sleepers: Waiters) -> None:
    assert page.wake_at == NEVER
    sleepers.wake(EPOCH, NEVER - 1)
    assert heard(bell, last_of(sleepers)) == []


def test_who_listens_is_rung_and_who_does_not_is_not(
    bell: ZmqWakeup, page: WorkerPage, sleepers: Waiters
) -> None:
    while bell.rings():
        pass  # those of the first meeting
    sleepers.ring_listeners()
    assert not sleepers.are_listening
    assert not bell.socket.poll(50)
    page.publish(listens=1)
    sleepers.ring_listeners()
    assert sleepers.are_listening
    assert bell.socket.poll(int(SLOW_S * 1000))
    assert bell.rings() == [b""]


def test_new_pages_and_those_in_the_place_of_others_are_found_at_a_look(
    root: Path, bell: ZmqWakeup, sleepers: Waiters
) -> None:
    Path("index.page").rename("kept")  # so that the new one is another file for certain
    with WorkerPage.create(root, "index") as page, WorkerPage.create(root, "reader-0"):
        page.publish(wake_at=5)
        sleepers.wake(EPOCH, 9)
        assert heard(bell, last_of(sleepers)) == []
        sleepers.look()
        meet(bell, sleepers.ring_all)
        sleepers.wake(EPOCH, 9)
        assert heard(bell, last_of(sleepers)) == [GREW[9]]
        assert sorted(sleeper.slot for sleeper in sleepers) == ["index", "reader-0"]
    Path("index.page").unlink()
    sleepers.look()
    assert [sleeper.slot for sleeper in sleepers] == ["reader-0"]


def test_a_page_that_is_none_is_nobodys(root: Path, sleepers: Waiters) -> None:
    Path("reader-0.page").write_bytes(b"\xff" * 4096)
    Path("queue-0-of-1.page").write_bytes(b"short")
    sleepers.look()
    assert [sleeper.slot for sleeper in sleepers] == ["index"]


def test_a_folder_that_is_gone_ends_nobody(root: Path, page: WorkerPage, sleepers: Waiters) -> None:
    page.publish(wake_at=5)
    shutil.rmtree(run_dir(root))
    sleepers.wake(EPOCH, 9)
    sleepers.look()
    assert not list(sleepers)


def test_nobody_waits_for_a_bell_that_nobody_answers(context: Context, root: Path) -> None:
    nobody, deaf = ZmqRinger(context, "nobody"), ZmqRinger(context, "index")
    bell = ZmqWakeup(context, "index")
    meet(bell, deaf.ring)
    for ringer in (nobody, deaf):
        for _ in range(20 * RINGS_HIGH_WATER_MARK):
            ringer.ring(b"x")
    assert bell.socket.poll(int(SLOW_S * 1000))
    assert 0 < len(bell.rings()) <= RINGS_AT_ONCE
    bell.close()
    deaf.ring()
    for ringer in (nobody, deaf):
        ringer.close()


def test_a_bell_takes_the_place_of_its_predecessors(context: Context, root: Path) -> None:
    ringer, first = ZmqRinger(context, "index"), ZmqWakeup(context, "index")
    meet(first, ringer.ring)
    first.close()
    bell = ZmqWakeup(context, "index")
    assert Path("index.bell").stat().st_mode & 0o077 == 0
    meet(bell, ringer.ring)
    ringer.ring(LAST)
    assert heard(bell, lambda: None) == []
    ringer.close()
    bell.close()
