"""What a process beside the node under load does first."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess


def obey_the_parent_alone() -> None:
    """Ctrl-C is for the parent, which tells us when to end; when it ends, so does this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "no process of multiprocessing"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
