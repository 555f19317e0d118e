"""Pages of shared numbers: read whole, from one epoch, and never torn."""

import shutil
import threading
from pathlib import Path

import pytest

from node.runtime import state_page
from node.runtime.state_page import (
    RUNNING,
    LogPage,
    LogState,
    PageAbsent,
    WorkerPage,
    WorkerState,
    queue_slot,
    run_dir,
    visible_end,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run_dir(tmp_path).mkdir(parents=True)
    return tmp_path


def test_what_is_published_is_read_by_another_mapping(root: Path) -> None:
    with LogPage.create(root) as page, LogPage.open(root) as other:
        page.begin_epoch(4, appended=2**40, readable=7)
        state = other.read()
        assert (state.epoch, state.appended, state.readable) == (4, 2**40, 7)


def test_a_restarted_process_keeps_its_predecessors_numbers(root: Path) -> None:
    slot = queue_slot(0, 2)
    with WorkerPage.create(root, slot) as page:
        page.begin_epoch(1, dispatched=500, saved=400)
    with WorkerPage.create(root, slot) as page:
        assert page.read().dispatched == 500


def test_a_page_that_is_not_there_is_told(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogPage.open(root)


def test_another_file_is_no_page(root: Path) -> None:
    (run_dir(root) / "log.page").write_bytes(b"\x01" * 4096)
    with pytest.raises(PageAbsent, match="or of others"):
        LogPage.open(root)


def test_numbers_of_two_epochs_are_never_mixed(root: Path) -> None:
    stop = threading.Event()
    with LogPage.create(root) as page, LogPage.open(root) as other:
        page.begin_epoch(1, appended=1, readable=1)

        def replace() -> None:
            epoch = 1
            while not stop.is_set():
                epoch += 1
                page.begin_epoch(epoch, appended=epoch, readable=epoch)

        thread = threading.Thread(target=replace)
        thread.start()
        try:
            for _ in range(20_000):
                state = other.read()
                assert state.epoch == 0 or state.epoch == state.appended == state.readable
        finally:
            stop.set()
            thread.join()


def state(**numbers: int) -> LogState:
    return LogState(*[0] * len(LogState._fields))._replace(**numbers)


def worker(**numbers: int) -> WorkerState:
    return WorkerState(*[0] * len(WorkerState._fields))._replace(**numbers)


def test_units_count_up_to_what_their_worker_dispatched() -> None:
    log = state(epoch=3, epoch_start=100, readable=900)
    assert visible_end(log, worker(epoch=3, dispatched=500)) == 500
    assert visible_end(log, worker(epoch=3, dispatched=950)) == 900
    assert visible_end(log, worker(epoch=2, dispatched=500)) == 100


def test_a_page_of_an_earlier_run_of_the_machine_counts_as_missing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogPage.create(root) as page:
        page.begin_epoch(7, appended=5_000, readable=5_000)
    monkeypatch.setattr(state_page, "_boot_id", lambda: b"the machine was started again")
    with pytest.raises(FileNotFoundError, match="earlier run"):
        LogPage.open(root)
    with LogPage.create(root) as page:
        assert (page.read().epoch, page.read().readable) == (0, 0)


def test_a_copied_page_counts_as_missing(root: Path, tmp_path: Path) -> None:
    with LogPage.create(root) as page:
        page.begin_epoch(7, appended=5_000, readable=5_000)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("copy"))
    with pytest.raises(FileNotFoundError):
        LogPage.open(copy)
    with LogPage.open(root) as page:
        assert page.read().readable == 5_000


def test_an_older_copy_in_its_own_file_ends_the_owner_and_is_not_kept(root: Path) -> None:
    with WorkerPage.create(root, "index") as page:
        page.beat(1_000)
        older = page.path.read_bytes()
        page.publish(state=RUNNING)
        page.beat(1_100)
        with page.path.open("r+b") as file:
            file.write(older)
        with pytest.raises(PageAbsent, match="did not write"):
            page.beat(1_200)
    with WorkerPage.create(root, "index") as again:
        again.beat(1_300)
        again.beat(1_400)
