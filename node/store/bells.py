"""Bells: how one process of a node wakes another that sleeps, and how the sleeper says when.

A bell is a datagram socket in `keelog/run`, where each process goes first: paths of sockets must be
short. A ring shortens a sleep and nothing else: what is true stands in the state pages, and who
sleeps looks there by itself within some milliseconds.

A sleeper's page says from which log offset on it wants to be rung (`wake_at`), or that it listens
(`listens`). So nobody pays for waking who is awake, or who rests so that its next batch is larger.
"""

import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from node.store import disk
from node.store.state_page import NEVER, WorkerPage, run_dir, shard_of_slot
from protocol.errors import StoreDamaged
from protocol.ids import Queue, shard_of

RINGS_AT_ONCE = 64
RING_BYTES_MAX = 64 * 1024
_PAGE_SUFFIX = ".page"
Grown = Callable[[], Collection[Queue] | None]


class Bell:
    """The sleeper's end. The current folder must be `keelog/run`, and the slot's lock be held."""

    def __init__(self, slot: str) -> None:
        """Takes the place of a predecessor's."""
        path = f"{slot}.bell"
        disk.unlink(Path(path), missing_ok=True)
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_UNIX, kind)
        mask = os.umask(0o077)
        try:
            self._socket.bind(path)
        finally:
            os.umask(mask)

    def fileno(self) -> int:
        """For polling: readable when somebody has rung."""
        return self._socket.fileno()

    def rings(self) -> list[bytes]:
        """What was sent with each ring since the last look; RINGS_AT_ONCE at most."""
        heard: list[bytes] = []
        with suppress(BlockingIOError):
            while len(heard) < RINGS_AT_ONCE:
                heard.append(self._socket.recv(RING_BYTES_MAX))
        return heard

    def close(self) -> None:
        """Nobody hears anything from now on; the name stays for the successor."""
        self._socket.close()


class Ringer:
    """The other end. The current folder must be `keelog/run`."""

    def __init__(self) -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_UNIX, kind)

    def ring(self, slot: str, message: bytes = b"") -> bool:
        """Never waits. False: nobody is there, or as much is waiting for it as the system keeps
        (net.unix.max_dgram_qlen), so that it wakes up anyway."""
        try:
            self._socket.sendto(message, f"{slot}.bell")
        except OSError:
            # Whatever it is, it costs a few ms of sleep, and must not end who appends.
            return False
        return True

    def close(self) -> None:
        """Gives the socket back."""
        self._socket.close()


class Sleeper:
    """One process that may want to be rung: its slot, and its page as it was found."""

    def __init__(self, slot: str, page: WorkerPage, file_number: int) -> None:
        self.slot = slot
        self.page = page
        self.file_number = file_number
        self.rung_at = NEVER
        """The `wake_at` for which it was rung last: once is enough."""
        self._shard = shard_of_slot(slot)

    def is_of(self, queues: Collection[Queue]) -> bool:
        """Whether one of these queues is its own; all are of who has no shard."""
        if self._shard is None:
            return True
        number, total = self._shard
        return any(shard_of(queue, total) == number for queue in queues)


def _any_queue() -> None:
    return None


class Sleepers:
    """The processes that have a page, of some slots. `look` finds new ones: now and then."""

    def __init__(self, root: Path, takes: Callable[[str], bool]) -> None:
        self._folder = run_dir(root)
        self._root = root
        self._takes = takes
        self._known: dict[str, Sleeper] = {}
        self._ringer = Ringer()
        self.look()

    def __iter__(self) -> Iterator[Sleeper]:
        return iter(self._known.values())

    def look(self) -> None:
        """Opens the pages that are new, and those that took the place of others.

        A page that cannot be opened now is looked at again: its owner wakes up by itself meanwhile.
        """
        found = self._listed()
        for slot, sleeper in list(self._known.items()):
            if found.get(slot) != sleeper.file_number:
                self._known.pop(slot).page.close()
        for slot, number in found.items():
            if slot not in self._known and self._takes(slot):
                with suppress(OSError, StoreDamaged):
                    page = WorkerPage.open(self._root, slot)
                    self._known[slot] = Sleeper(slot, page, number)

    def _listed(self) -> dict[str, int]:
        """The slots that have a page, and the page's file number."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            return {
                entry.name.removesuffix(_PAGE_SUFFIX): entry.inode()
                for entry in entries
                if entry.name.endswith(_PAGE_SUFFIX)
            }
        return {}

    def wake(self, readable: int, grown: Grown = _any_queue) -> None:
        """Rings those who sleep until the log reaches here.

        `grown` answers the queues that the log grew by, None for any: the workers of others need
        not hurry. It is asked when somebody sleeps.
        """
        for sleeper in self._known.values():
            wake_at = sleeper.page.wake_at
            if wake_at > readable or wake_at == sleeper.rung_at:
                continue
            queues = grown()
            if queues is None or sleeper.is_of(queues):
                sleeper.rung_at = wake_at
                self._ringer.ring(sleeper.slot)

    @property
    def is_listening(self) -> bool:
        """Whether any of them wants to be told of every change."""
        return any(sleeper.page.listens for sleeper in self._known.values())

    def tell(self, message: bytes) -> None:
        """Rings those who listen."""
        for sleeper in self._known.values():
            if sleeper.page.listens:
                self._ringer.ring(sleeper.slot, message)

    def ring_all(self) -> None:
        """Rings each of them, awake or not."""
        for sleeper in self._known.values():
            self._ringer.ring(sleeper.slot)

    def close(self) -> None:
        """Gives socket and maps back."""
        self._ringer.close()
        for sleeper in self._known.values():
            sleeper.page.close()
        self._known = {}
