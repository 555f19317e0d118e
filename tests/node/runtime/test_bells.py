"""Bells: who wants to be woken is, once, and nobody else; without a listener it does no harm."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.state_page import NEVER, WorkerPage, run_dir
from node.runtime.wakeup import Waiters, Wakeup
from protocol.ids import Queue, shard_of
from tests.support.single_process import is_readable

ALL = ("index", "queue-0-of-1", "reader-0")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_dir(tmp_path).mkdir(parents=True)
    monkeypatch.chdir(run_dir(tmp_path))
    return tmp_path


@pytest.fixture
def bell(root: Path) -> Iterator[Wakeup]:
    bell = Wakeup("index")
    yield bell
    bell.close()


@pytest.fixture
def page(root: Path) -> Iterator[WorkerPage]:
    with WorkerPage.create(root, "index") as page:
        yield page


@pytest.fixture
def sleepers(root: Path, page: WorkerPage, bell: Wakeup) -> Iterator[Waiters]:
    sleepers = Waiters(root, lambda slot: slot in ALL)
    yield sleepers
    sleepers.close()


def test_a_sleeper_is_rung_once_when_the_log_has_come_so_far(
    bell: Wakeup, page: WorkerPage, sleepers: Waiters
) -> None:
    page.publish(wake_at=100)
    sleepers.wake(99)
    sleepers.wake(100)
    sleepers.wake(250)
    assert bell.hush(9) == 1
    page.publish(wake_at=251)
    sleepers.wake(300)
    assert bell.hush(9) == 1


def test_of_the_workers_that_sleep_those_are_rung_whose_queues_grew(
    root: Path, bell: Wakeup, page: WorkerPage
) -> None:
    grown = Queue("orders", 3)
    number = shard_of(grown, 2)
    bells = [Wakeup(f"queue-{i}-of-2") for i in range(2)]
    pages = [WorkerPage.create(root, f"queue-{i}-of-2") for i in range(2)]
    sleepers = Waiters(root, lambda slot: True)
    for its_page in (*pages, page):
        its_page.publish(wake_at=10)
    sleepers.wake(10, lambda: {grown})
    assert [one.hush(9) for one in (bells[number], bells[1 - number], bell)] == [1, 0, 1]
    sleepers.wake(11, lambda: None)
    assert [one.hush(9) for one in (bells[number], bells[1 - number], bell)] == [0, 1, 0]
    sleepers.close()
    for end, its_page in zip(bells, pages, strict=True):
        end.close()
        its_page.close()


def test_who_is_awake_is_not_rung(bell: Wakeup, page: WorkerPage, sleepers: Waiters) -> None:
    assert page.wake_at == NEVER
    sleepers.wake(NEVER - 1)
    assert bell.hush(9) == 0


def test_who_listens_is_rung_and_who_does_not_is_not(
    bell: Wakeup, page: WorkerPage, sleepers: Waiters
) -> None:
    sleepers.ring_listeners()
    assert not sleepers.are_listening
    assert bell.hush(9) == 0
    page.publish(listens=1)
    sleepers.ring_listeners()
    assert sleepers.are_listening
    assert is_readable(bell.watched, 0)
    assert bell.hush(9) == 1


def test_new_pages_and_those_in_the_place_of_others_are_found_at_a_look(
    root: Path, bell: Wakeup, sleepers: Waiters
) -> None:
    Path("index.page").rename("kept")  # so that the new one is another file for certain
    with WorkerPage.create(root, "index") as page, WorkerPage.create(root, "reader-0"):
        page.publish(wake_at=5)
        sleepers.wake(9)
        assert bell.hush(9) == 0
        sleepers.look()
        sleepers.wake(9)
        assert bell.hush(9) == 1
        assert sorted(sleepers.known) == ["index", "reader-0"]
    Path("index.page").unlink()
    sleepers.look()
    assert list(sleepers.known) == ["reader-0"]


def test_a_page_that_is_none_is_nobodys(root: Path, sleepers: Waiters) -> None:
    Path("reader-0.page").write_bytes(b"\xff" * 4096)
    Path("queue-0-of-1.page").write_bytes(b"short")
    sleepers.look()
    assert list(sleepers.known) == ["index"]


def test_a_folder_that_is_gone_ends_nobody(root: Path, page: WorkerPage, sleepers: Waiters) -> None:
    page.publish(wake_at=5)
    shutil.rmtree(run_dir(root))
    sleepers.wake(9)
    sleepers.look()
    assert not sleepers.known
