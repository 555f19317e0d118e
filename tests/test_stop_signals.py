"""A test that ignores signals, as a supervisor does at its end, leaves none of it to the next."""

import signal

import pytest

from node.runtime.process import ignore_stop_signals

pytestmark = pytest.mark.xdist_group("stop_signals")


def test_a_supervisors_end_ignores_sigterm() -> None:
    ignore_stop_signals()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_the_next_test_does_not() -> None:
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
