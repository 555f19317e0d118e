"""Wake-ups: one process of a node wakes another that sleeps until the log has grown.

A sleeper has a datagram socket in `keelog/run`, the current folder of each process: paths of
sockets must be short. Consumers and followers wait for some of them, and ZeroMQ would pass each
wake-up through a thread at either end: those took a fifth of a message's time from its producer to
a waiting consumer.

A ring shortens a sleep and nothing else: the state pages are the truth, and a sleeper looks at them
by itself: within some milliseconds while messages flow, less often the longer the log is quiet
(`quiet_sleep_s`). Its page says from which log offset on it wants to be rung (`wake_at`), or that
it listens (`listens`). So a process that is awake, or that rests so that its next batch is larger,
is not rung.
"""

import os
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from node.runtime import disk
from node.runtime.state_page import NEVER, WAKE_AT, WorkerPage, run_dir, shard_of_slot
from protocol.ids import Queue, shard_of

RINGS_AT_ONCE = 64
READER, GATEWAY = "reader-", "gateway-"
READER_SLOTS = (READER, GATEWAY)
"""The prefixes of the slots of processes that answer pulls."""
FOLLOWERS_SLOT, WRITER_SLOT = "followers-0", "writer"
"""The first is rung when the log is flushed, the second when followers have acknowledged what a
request waits for."""
SLEEP_S_MAX = 0.5
"""A process looks at the state pages, and gives its heartbeat, at least this often."""
QUIET_SHARE = 32
"""A sleep lasts this part of the time since the log grew last."""
_PAGE_SUFFIX = ".page"
Grown = Callable[[], Collection[Queue] | None]


def quiet_sleep_s(quiet_s: float, least_s: float) -> float:
    """How long a process sleeps that waits for a ring, `quiet_s` after the log grew last.

    A lost ring makes a message late by this time: `least_s` while messages flow, 30 ms after a
    quiet second, SLEEP_S_MAX in the end. So an idle node hardly ever wakes up.
    """
    return min(max(least_s, quiet_s / QUIET_SHARE), SLEEP_S_MAX)


def is_reader(slot: str) -> bool:
    """Whether a process of this slot answers pulls."""
    return slot.startswith(READER_SLOTS)


def bell_file(slot: str) -> str:
    """The socket of a slot's bell, in `keelog/run`."""
    return f"{slot}.bell"


class Wakeup:
    """The sleeper's end. The current folder must be `keelog/run`, and the slot's lock be held."""

    def __init__(self, slot: str) -> None:
        """Takes the place of a predecessor's."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # A local socket is a file, and only its owner may write to it.
        mask = os.umask(0o077)
        try:
            disk.unlink(Path(bell_file(slot)), missing_ok=True)
            self._socket.bind(bell_file(slot))
        finally:
            os.umask(mask)
        self.watched = self._socket.fileno()
        """The descriptor that is readable when the bell has rung."""

    def hush(self, most: int = 1) -> int:
        """Takes rings, `most` or fewer, and returns how many there were. A further one makes
        `watched` readable again."""
        for count in range(most):
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return count
        return most

    def close(self) -> None:
        self._socket.close()


class Ringer:
    """The end that rings sleepers, which may start later. The current folder must be
    `keelog/run`."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def ring(self, slot: str) -> None:
        """Never waits: the ring is lost if the sleeper is gone, or too many wait for it already."""
        with suppress(OSError):
            self._socket.sendto(b"", bell_file(slot))

    def close(self) -> None:
        self._socket.close()


class Sleeper:
    """One process that may want to be rung: its page as it was found."""

    def __init__(self, slot: str, page: WorkerPage, file_number: int) -> None:
        self.page = page
        self.file_number = file_number
        self.rung_at = NEVER
        """The `wake_at` for which it was rung last: once is enough."""
        self._shard = shard_of_slot(slot)

    def is_of(self, queues: Collection[Queue]) -> bool:
        """Whether it works on one of these queues; a process without a shard works on all."""
        if self._shard is None:
            return True
        number, total = self._shard
        return any(shard_of(queue, total) == number for queue in queues)


class Waiters:
    """The processes that have a page, of some slots. `look` finds new ones: now and then."""

    def __init__(self, root: Path, takes: Callable[[str], bool]) -> None:
        self._folder = run_dir(root)
        self._root = root
        self._takes = takes
        self._ringer = Ringer()
        self.known: dict[str, Sleeper] = {}
        """By slot."""
        self.look()

    def look(self) -> None:
        """Opens the pages that are new, and those that took the place of others.

        A page that cannot be opened now is tried again later: its owner wakes up by itself, too.
        """
        found = self._listed()
        for slot, sleeper in list(self.known.items()):
            if found.get(slot) != sleeper.file_number:
                self.known.pop(slot).page.close()
        for slot, number in found.items():
            if slot not in self.known and self._takes(slot):
                with suppress(OSError):
                    page = WorkerPage.open(self._root, slot)
                    self.known[slot] = Sleeper(slot, page, number)

    def _listed(self) -> dict[str, int]:
        """The slots that have a page, and the page's file number."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            return {
                entry.name.removesuffix(_PAGE_SUFFIX): entry.inode()
                for entry in entries
                if entry.name.endswith(_PAGE_SUFFIX)
            }
        return {}

    def wake(self, readable: int, grown: Grown = lambda: None) -> None:
        """Rings the sleepers whose `wake_at` the log has reached.

        `grown` returns the queues that the log grew by, or None for any: workers of other queues
        are not rung. It is called only when there is a sleeper to ring.
        """
        for slot, sleeper in self.known.items():
            wake_at = sleeper.page.numbers[WAKE_AT]
            if wake_at > readable or wake_at == sleeper.rung_at:
                continue
            queues = grown()
            if queues is None or sleeper.is_of(queues):
                sleeper.rung_at = wake_at
                self._ringer.ring(slot)

    @property
    def are_listening(self) -> bool:
        return any(sleeper.page.listens for sleeper in self.known.values())

    def ring_listeners(self) -> None:
        for slot, sleeper in self.known.items():
            if sleeper.page.listens:
                self._ringer.ring(slot)

    def ring_all(self) -> None:
        """Rings each of them, awake or not."""
        for slot in self.known:
            self._ringer.ring(slot)

    def close(self) -> None:
        self._ringer.close()
        for sleeper in self.known.values():
            sleeper.page.close()
        self.known = {}
