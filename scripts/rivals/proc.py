"""The processes of two sides: what they cost, and how one side rests while the other has its turn.

Costs are seconds of processor time, and memory without the store's pages. Both sides of a
comparison are measured by these functions alone.

A side rests by SIGSTOP to all of its processes. A broker that has just been loaded works on for a
while though all is dispatched: it compiles, collects garbage, warms pages. On a machine of two
cores the other side would pay for that. It is stopped for less than LIMIT_S at a time: clients
send heartbeats every 30 s, channels are closed after 120 s without a word, and the name server
forgets a broker after as long.

Whatever ends a turn, they go on. Should this process be killed meanwhile, the kernel kills the
Java processes, and hangs up and continues our node's supervisor (a stopped group that has lost its
parent), which ends its children, also those that still stand, within its limit for each.
"""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1024 * 1024
_PR_SET_PDEATHSIG = 1
_HEAD_STARTS = b"0123456789abcdef"
"""A mapping's line begins with its address, the lines about it with a capital letter."""
_HEAD_FIELDS = 5
"""Before the path, which may have spaces."""
LIMIT_S = 25.0


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child when this process ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """A process and all below it; those that are alive."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        return [pid, *(child.pid for child in top.children(recursive=True))]
    return []


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of processes, with that of ended children."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def private_mib(pids: Iterable[int], root: Path) -> float:
    """MiB that processes hold together: PSS, without what they have mapped of the store `root`."""
    total_kib = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            total_kib += pss_kib(Path(f"/proc/{pid}/smaps").read_bytes(), os.fsencode(root))
    return total_kib * 1024 / MIB


def pss_kib(smaps: bytes, root: bytes) -> int:
    """The sum of `Pss` over the mappings of an smaps file that are not of files below `root`.

    psutil's `memory_maps` takes three times as much of the processor, beside what is measured.
    """
    below, total, counts = root.rstrip(b"/") + b"/", 0, True
    for line in smaps.splitlines():
        if line[0] in _HEAD_STARTS:
            *_, path = line.split(maxsplit=_HEAD_FIELDS)
            counts = not path.startswith(below)
        elif counts and line.startswith(b"Pss:"):
            total += int(line.split()[1])
    return total


@contextmanager
def read_once(after_s: float, read: Callable[[], float]) -> Iterator[list[float]]:
    """Reads a figure once while the inside runs, if it takes so long; the list then has it."""
    found: list[float] = []
    look = threading.Timer(after_s, lambda: found.append(read()))
    look.start()
    try:
        yield found
    finally:
        look.cancel()
        look.join()


@contextmanager
def repeated(every_s: float, look: Callable[[], object]) -> Iterator[None]:
    """Looks again and again, in a thread, while the inside runs; first after `every_s`."""
    over = threading.Event()

    def look_again() -> None:
        while not over.wait(every_s):
            look()

    thread = threading.Thread(target=look_again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def open_handles(pid: int) -> int:
    """File descriptors of a process; 0 when it is gone."""
    with suppress(psutil.Error):
        return psutil.Process(pid).num_fds()
    return 0


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
