"""`keelog` and `python -m keelog`: begins a command so that Ctrl-C always ends it quietly.

The imports of a command take a moment, in which an interrupt would print their traceback.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def main() -> int:
    """Imports the command line, then runs it. An interrupt that is ignored stays ignored."""
    # Where nobody says otherwise, numpy's linear algebra, which we never use, starts a thread for
    # each processor: a third of what a command costs before it does anything.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    usual = signal.default_int_handler
    if signal.getsignal(signal.SIGINT) is usual:
        signal.signal(signal.SIGINT, _end)
    from keelog.cli.main import main as run_command

    try:
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, usual)
        return run_command()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
