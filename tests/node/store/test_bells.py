"""Bells: who wants to be woken is, once, and nobody else; without a listener it does no harm."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.store.bells import RINGS_AT_ONCE, Bell, Ringer, Sleepers
from node.store.state_page import NEVER, WorkerPage, run_dir
from protocol.ids import Queue, shard_of

ALL = ("index", "queue-0-of-1", "reader-0")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_dir(tmp_path).mkdir(parents=True)
    monkeypatch.chdir(run_dir(tmp_path))
    return tmp_path


@pytest.fixture
def bell(root: Path) -> Iterator[Bell]:
    bell = Bell("index")
    yield bell
    bell.close()


@pytest.fixture
def page(root: Path) -> Iterator[WorkerPage]:
    with WorkerPage.create(root, "index") as page:
        yield page


@pytest.fixture
def sleepers(root: Path, page: WorkerPage) -> Iterator[Sleepers]:
    sleepers = Sleepers(root, lambda slot: slot in ALL)
    yield sleepers
    sleepers.close()


def test_a_sleeper_is_rung_when_the_log_comes_so_far_and_once(
    bell: Bell, page: WorkerPage, sleepers: Sleepers
) -> None:
    page.publish(wake_at=100)
    sleepers.wake(99)
    assert bell.rings() == []
    sleepers.wake(100)
    sleepers.wake(250)
    assert bell.rings() == [b""]
    page.publish(wake_at=251)
    sleepers.wake(300)
    assert bell.rings() == [b""]


def test_of_the_workers_that_sleep_those_are_rung_whose_queues_grew(
    root: Path, bell: Bell, page: WorkerPage
) -> None:
    grown = Queue("orders", 3)
    number = shard_of(grown, 2)
    bells = [Bell(f"queue-{i}-of-2") for i in range(2)]
    pages = [WorkerPage.create(root, f"queue-{i}-of-2") for i in range(2)]
    sleepers = Sleepers(root, lambda slot: True)
    for one in (*pages, page):
        one.publish(wake_at=10)
    sleepers.wake(10, lambda: {grown})
    assert [len(one.rings()) for one in (bells[number], bells[1 - number], bell)] == [1, 0, 1]
    sleepers.wake(11, lambda: None)
    assert [len(one.rings()) for one in (bells[number], bells[1 - number], bell)] == [0, 1, 0]
    sleepers.close()
    for end, its_page in zip(bells, pages, strict=True):
        end.close()
        its_page.close()


def test_who_is_awake_is_not_rung(bell: Bell, page: WorkerPage, sleepers: Sleepers) -> None:
    assert page.wake_at == NEVER
    sleepers.wake(NEVER - 1)
    assert bell.rings() == []


def test_who_listens_is_told_and_who_does_not_is_not(
    bell: Bell, page: WorkerPage, sleepers: Sleepers
) -> None:
    sleepers.tell(b"first")
    assert not sleepers.is_listening
    page.publish(listens=1)
    sleepers.tell(b"second")
    assert sleepers.is_listening
    assert bell.rings() == [b"second"]


def test_new_pages_and_those_in_the_place_of_others_are_found_at_a_look(
    root: Path, bell: Bell, sleepers: Sleepers
) -> None:
    Path("index.page").rename("kept")  # so that the new one is another file for certain
    with WorkerPage.create(root, "index") as page, WorkerPage.create(root, "reader-0"):
        page.publish(wake_at=5)
        sleepers.wake(9)
        assert bell.rings() == []
        sleepers.look()
        sleepers.wake(9)
        assert bell.rings() == [b""]
        assert sorted(sleeper.slot for sleeper in sleepers) == ["index", "reader-0"]
    Path("index.page").unlink()
    sleepers.look()
    assert [sleeper.slot for sleeper in sleepers] == ["reader-0"]


def test_a_page_that_is_none_is_nobodys(root: Path, sleepers: Sleepers) -> None:
    Path("reader-0.page").write_bytes(b"\xff" * 4096)
    Path("queue-0-of-1.page").write_bytes(b"short")
    sleepers.look()
    assert [sleeper.slot for sleeper in sleepers] == ["index"]


def test_a_folder_that_is_gone_ends_nobody(
    root: Path, page: WorkerPage, sleepers: Sleepers
) -> None:
    page.publish(wake_at=5)
    shutil.rmtree(run_dir(root))
    sleepers.wake(9)
    sleepers.look()
    assert not list(sleepers)


def test_nobody_waits_for_a_bell_that_nobody_answers(root: Path) -> None:
    ringer = Ringer()
    assert not ringer.ring("nobody")
    bell = Bell("index")
    rung = 0
    while ringer.ring("index"):
        rung += 1
        assert rung < 10_000
    while heard := bell.rings():
        assert len(heard) <= RINGS_AT_ONCE
        rung -= len(heard)
    assert not rung
    bell.close()
    assert not ringer.ring("index")
    ringer.close()


def test_a_bell_takes_the_place_of_its_predecessors(root: Path) -> None:
    Bell("index").close()
    bell, ringer = Bell("index"), Ringer()
    assert Path("index.bell").stat().st_mode & 0o077 == 0
    assert ringer.ring("index", b"hello")
    assert bell.rings() == [b"hello"]
    ringer.close()
    bell.close()
