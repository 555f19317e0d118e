"""What becomes of the processes and folders of a load when the bench is ended, however it is."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from keelog.cli.failures import ending_in_order
from node.store.checkpoints import is_clean
from tests.support.node import wait_until
from tests.support.seldom import seldom

SMALL = ("-X", "store.mapped_file_size_commit_log=16777216", "-X", "store.max_index_num=20000")
NODE = {"keelog-serve", "keelog-writer", "keelog-queue-0", "keelog-index", "keelog-reader-0"}
LOAD = "keelog.bench.load_process"
END_S = 60.0


@pytest.fixture(autouse=True)
def usual_signals() -> None:
    """As a terminal has them, whatever the tests were started by."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def running(
    words: list[str], folder: Path, count: int
) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """`keelog …` with all processes of its node and so many of its load; nothing outlives it."""
    folder.mkdir()
    command = [sys.executable, "-m", "keelog", *words, *SMALL]
    env = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, env=env, start_new_session=True) as bench:
        found: list[psutil.Process] = []

        def all_run() -> bool:
            found[:] = psutil.Process(bench.pid).children(recursive=True)
            with suppress(psutil.NoSuchProcess):
                load = [one for one in found if LOAD in one.cmdline()]
                return {one.name() for one in found} >= NODE and len(load) == count
            return False

        try:
            wait_until(all_run, "the load does not start")
            yield bench, found
        finally:
            for one in (psutil.Process(bench.pid), *found) if bench.poll() is None else found:
                with suppress(psutil.NoSuchProcess):
                    one.kill()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, *seldom(signal.SIGTERM, signal.SIGHUP)])
def test_a_bench_that_is_ended_by_a_signal_leaves_no_process_and_no_folder(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ["bench", "e2e", "--duration", "10m"]
    with running(words, tmp_path / "tmp", count=2) as (bench, processes):
        bench.send_signal(number)
        # `timeout` and a closing terminal send theirs twice.
        bench.send_signal(number)
        assert bench.wait(END_S) == 130
        # One that was being started at that moment ends by itself, as behind a kill.
        assert psutil.wait_procs(processes, END_S)[1] == []
        assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.process
@pytest.mark.faults
def test_a_bench_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    words = ["bench", "e2e", "--duration", "10m"]
    with running(words, tmp_path / "tmp", count=2) as (bench, processes):
        bench.kill()
        assert psutil.wait_procs(processes, END_S)[1] == []


@pytest.mark.process
def test_the_store_of_a_folder_that_stays_is_closed_in_order_by_a_signal(tmp_path: Path) -> None:
    words = ["bench", "send", "--duration", "10m", "--dir", str(tmp_path / "kept")]
    with running(words, tmp_path / "tmp", count=1) as (bench, _):
        bench.terminate()
        assert bench.wait(END_S) == 130
    assert is_clean(tmp_path / "kept" / "store")


@pytest.mark.process
def test_the_node_of_a_demo_that_is_killed_ends(tmp_path: Path) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-m", "keelog", "demo", "--directory", str(tmp_path), "--no-spark"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as demo,
    ):
        found: list[psutil.Process] = []

        def node_runs() -> bool:
            found[:] = psutil.Process(demo.pid).children(recursive=True)
            with suppress(psutil.NoSuchProcess):  # one has just ended
                return "keelog-writer" in {one.name() for one in found}
            return False

        wait_until(node_runs, "the demo starts no node")
        demo.kill()
    assert psutil.wait_procs(found, END_S)[1] == []


@pytest.mark.process
def test_a_load_process_without_a_bench_ends_and_says_nothing() -> None:
    command = [sys.executable, "-m", LOAD]
    done = subprocess.run(
        command, input="", capture_output=True, text=True, timeout=END_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def interrupted(number: signal.Signals, then: Callable[[], None]) -> bool:
    """Whether a signal interrupts; `then` happens while what it interrupted is put in order."""
    try:
        with ending_in_order():
            try:
                os.kill(os.getpid(), number)
            finally:
                then()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_disturb_what_the_first_has_ended(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    assert interrupted(number, then=lambda: os.kill(os.getpid(), number))
    assert signal.getsignal(number) is before


def test_a_hangup_that_nohup_ignores_ends_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert not interrupted(signal.SIGHUP, then=lambda: None)


def test_a_load_in_a_thread_leaves_the_programs_signals_alone() -> None:
    found = []

    def look() -> None:
        with ending_in_order():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
