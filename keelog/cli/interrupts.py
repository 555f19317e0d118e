"""Signals that end a command that has started processes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_USUAL = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP interrupt as Ctrl-C does, so that processes end and temporary
    folders go. Later signals of these three are ignored, so that they do not disturb that.

    A signal that is ignored, as SIGHUP by nohup, stays so. Other threads than the main one get no
    signals: nothing is changed in them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    all_three = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.getsignal(one) for one in all_three}
    ours = [one for one, handler in before.items() if handler in _USUAL]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    for one in ours:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, before[one])
