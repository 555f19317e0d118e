"""Stops a side while another has its turn: SIGSTOP to all of its processes.

A broker that has just been loaded works on for a while though all is dispatched: it compiles,
collects garbage, warms pages. On a machine of two cores the other side would pay for that. It is
stopped for less than LIMIT_S at a time: clients send heartbeats every 30 s, channels are closed
after 120 s without a word, and the name server forgets a broker after as long.

Whatever ends a turn, they go on. Should this process be killed meanwhile, the kernel kills the
Java processes, and hangs up and continues our node's supervisor (a stopped group that has lost its
parent), which ends its children, also those that still stand, within its limit for each.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from scripts.rivals.proc import cpu_seconds

LIMIT_S = 25.0


@dataclass(slots=True)
class OtherLoad:
    """Processor time of the others while they had no turn, and the length of that time."""

    cpu_s: float = 0.0
    seconds: float = 0.0

    @property
    def cpu_share(self) -> float:
        """Cores."""
        return self.cpu_s / self.seconds if self.seconds else 0.0


@contextmanager
def stopped(pids: Sequence[int], limit_s: float = LIMIT_S) -> Iterator[OtherLoad]:
    """Stops processes, in this order, and lets them go on in the opposite one.

    They go on by themselves after `limit_s`; the `OtherLoad` is complete when the context is left.
    """
    rest, began, before = OtherLoad(), time.monotonic(), cpu_seconds(pids)
    guard = threading.Timer(limit_s, send, (tuple(reversed(pids)), signal.SIGCONT))
    guard.daemon = True
    try:
        send(pids, signal.SIGSTOP)
        guard.start()
        yield rest
    finally:
        guard.cancel()
        rest.cpu_s = cpu_seconds(pids) - before
        rest.seconds = time.monotonic() - began
        send(tuple(reversed(pids)), signal.SIGCONT)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """A signal to each; those that have ended are left out."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
