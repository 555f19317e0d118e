"""A side of the comparison stands still while the other has its turn."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from scripts.rivals.proc import stopped

pytestmark = pytest.mark.process


@pytest.fixture
def busy() -> Iterator[psutil.Process]:
    """A process that takes what it gets of a processor."""
    with subprocess.Popen(["nice", "sh", "-c", "while :; do :; done"]) as started:
        yield psutil.Process(started.pid)
        started.kill()


def comes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_who_stands_still_takes_nothing_and_goes_on_afterwards(busy: psutil.Process) -> None:
    assert comes_true(lambda: sum(busy.cpu_times()[:2]) > 0.05)
    with stopped([busy.pid]) as rest:
        assert comes_true(lambda: is_stopped(busy))
        time.sleep(0.3)
    assert rest.seconds >= 0.3
    assert rest.cpu_share < 0.2
    assert comes_true(lambda: not is_stopped(busy))


def test_whatever_ends_a_turn_the_others_go_on(busy: psutil.Process) -> None:
    with pytest.raises(KeyboardInterrupt), stopped([busy.pid]):
        assert comes_true(lambda: is_stopped(busy))
        raise KeyboardInterrupt
    assert comes_true(lambda: not is_stopped(busy))


def test_a_turn_that_takes_too_long_does_not_hold_them_back(busy: psutil.Process) -> None:
    # Of a child that was stopped and goes on the kernel tells its parent, once, whenever that asks.
    went_on = os.WCONTINUED | os.WNOHANG
    with stopped([busy.pid], limit_s=0.5):
        assert comes_true(lambda: os.waitid(os.P_PID, busy.pid, went_on) is not None)


def test_a_process_that_has_ended_is_left_out(busy: psutil.Process) -> None:
    busy.kill()
    assert comes_true(lambda: busy.status() == psutil.STATUS_ZOMBIE)
    busy.wait()
    with stopped([busy.pid]) as rest:
        pass
    assert rest.cpu_s == 0
