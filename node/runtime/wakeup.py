"""Bells: one process of a node wakes another that sleeps until the log has grown.

A bell is a socket in `keelog/run`, the current folder of each process: paths of sockets must be
short. Workers have ZeroMQ sockets. Readers have datagram sockets, because consumers wait for them:
ZeroMQ passes each ring through a thread at either end, and waking those threads took a fifth of a
message's time from its producer to a waiting consumer.

A ring shortens a sleep and nothing else: the state pages are the truth, and a sleeper looks at them
by itself: within some milliseconds while messages flow, less often the longer the log is quiet
(`quiet_sleep_s`). Its page says from which log offset on it wants to be rung (`wake_at`), or that
it listens (`listens`). So a process that is awake, or that rests so that its next batch is larger,
is not rung.
"""

import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

import zmq

from node.runtime import disk
from node.runtime.state_page import NEVER, WAKE_AT, WorkerPage, run_dir, shard_of_slot
from protocol.ids import Queue, shard_of

RINGS_AT_ONCE = 64
RING_BYTES_MAX = 64 * 1024
READER, GATEWAY = "reader-", "gateway-"
READER_SLOTS = (READER, GATEWAY)
"""The prefixes of the slots whose bell is a `DatagramWakeup`: they answer pulls."""
FOLLOWERS_SLOT, WRITER_SLOT = "followers-0", "writer"
"""Their bells are `DatagramWakeup`s too: the first is rung when the log is flushed, the second when
followers have acknowledged what a request waits for."""
RINGS_HIGH_WATER_MARK = 1_000
RECONNECT_MS = 10
SLEEP_S_MAX = 0.5
"""A process looks at the state pages, and gives its heartbeat, at least this often."""
QUIET_SHARE = 32
"""A sleep lasts this part of the time since the log grew last."""
_POLLIN = int(zmq.POLLIN)
_PAGE_SUFFIX = ".page"
_GREW = struct.Struct("<qq")
Context = zmq.Context[zmq.Socket[bytes]]
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


class ZmqWakeup:
    """The sleeper's end. The current folder must be `keelog/run`, and the slot's lock be held."""

    def __init__(self, context: Context, slot: str) -> None:
        """Takes the place of a predecessor's."""
        self.socket = context.socket(zmq.SUB)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, RING_BYTES_MAX),
            (zmq.RCVHWM, RINGS_HIGH_WATER_MARK),
        ):
            self.socket.setsockopt(option, value)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        # An ipc socket is a file, and only its owner may write to it.
        mask = os.umask(0o077)
        try:
            self.socket.bind(_endpoint(slot))
        finally:
            os.umask(mask)

    def rings(self) -> list[bytes]:
        """The messages of the rings since the last look, RINGS_AT_ONCE at most."""
        heard: list[bytes] = []
        # An enum's `&` costs more than the rest of it.
        while len(heard) < RINGS_AT_ONCE and int(self.socket.getsockopt(zmq.EVENTS)) & _POLLIN:
            heard.append(self.socket.recv())
        return heard

    def close(self) -> None:
        """Nobody hears anything from now on."""
        self.socket.close()


class ZmqRinger:
    """The end that rings one sleeper, which may start later. The current folder must be
    `keelog/run`."""

    def __init__(self, context: Context, slot: str) -> None:
        self._socket = context.socket(zmq.PUB)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, RINGS_HIGH_WATER_MARK),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
        ):
            self._socket.setsockopt(option, value)
        self._socket.connect(_endpoint(slot))

    def ring(self, message: bytes = b"") -> None:
        """Never waits: the ring is lost if the sleeper is gone, or too many wait for it already."""
        self._socket.send(message, zmq.NOBLOCK)

    def close(self) -> None:
        """Gives the socket back."""
        self._socket.close()


def _endpoint(slot: str) -> str:
    return f"ipc://{bell_file(slot)}"


class DatagramWakeup:
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

    def rings(self) -> list[bytes]:
        """As `ZmqWakeup.rings`."""
        heard: list[bytes] = []
        with suppress(BlockingIOError):
            while len(heard) < RINGS_AT_ONCE:
                heard.append(self._socket.recv(RING_BYTES_MAX))
        return heard

    def hush(self) -> None:
        """Takes one ring, after `watched` became readable: a further one shows again there."""
        with suppress(BlockingIOError):
            self._socket.recv(RING_BYTES_MAX)

    def close(self) -> None:
        """Nobody hears anything from now on."""
        self._socket.close()


class DatagramRinger:
    """The end that rings one sleeper, which may start later. The current folder must be
    `keelog/run`."""

    def __init__(self, slot: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._file = bell_file(slot)

    def ring(self, message: bytes = b"") -> None:
        """As `ZmqRinger.ring`."""
        with suppress(OSError):
            self._socket.sendto(message, self._file)

    def close(self) -> None:
        """Gives the socket back."""
        self._socket.close()


Ringer = ZmqRinger | DatagramRinger


class Sleeper:
    """One process that may want to be rung: its slot, and its page as it was found."""

    def __init__(self, ringer: Ringer, slot: str, page: WorkerPage, file_number: int) -> None:
        self.ringer = ringer
        self.slot = slot
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

    def close(self) -> None:
        """Gives socket and map back."""
        self.ringer.close()
        self.page.close()


class Waiters:
    """The processes that have a page, of some slots. `look` finds new ones: now and then."""

    def __init__(self, context: Context, root: Path, takes: Callable[[str], bool]) -> None:
        self._context = context
        self._folder = run_dir(root)
        self._root = root
        self._takes = takes
        self._known: dict[str, Sleeper] = {}
        self.look()

    def __iter__(self) -> Iterator[Sleeper]:
        return iter(self._known.values())

    def look(self) -> None:
        """Opens the pages that are new, and those that took the place of others.

        A page that cannot be opened now is tried again later: its owner wakes up by itself, too.
        """
        found = self._listed()
        for slot, sleeper in list(self._known.items()):
            if found.get(slot) != sleeper.file_number:
                self._known.pop(slot).close()
        for slot, number in found.items():
            if slot not in self._known and self._takes(slot):
                # Of ZeroMQ's socket, too: there may be no descriptor for it now.
                with suppress(OSError, zmq.ZMQError):
                    page = WorkerPage.open(self._root, slot)
                    is_datagram = is_reader(slot) or slot == FOLLOWERS_SLOT
                    ringer: Ringer = (
                        DatagramRinger(slot) if is_datagram else ZmqRinger(self._context, slot)
                    )
                    self._known[slot] = Sleeper(ringer, slot, page, number)

    def _listed(self) -> dict[str, int]:
        """The slots that have a page, and the page's file number."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            return {
                entry.name.removesuffix(_PAGE_SUFFIX): entry.inode()
                for entry in entries
                if entry.name.endswith(_PAGE_SUFFIX)
            }
        return {}

    def wake(self, epoch: int, readable: int, grown: Grown = lambda: None) -> None:
        """Rings the sleepers whose `wake_at` the log has reached, with epoch and offset, two i64.

        `grown` returns the queues that the log grew by, or None for any: workers of other queues
        are not rung. It is called only when there is a sleeper to ring.
        """
        for sleeper in self._known.values():
            wake_at = sleeper.page.numbers[WAKE_AT]
            if wake_at > readable or wake_at == sleeper.rung_at:
                continue
            queues = grown()
            if queues is None or sleeper.is_of(queues):
                sleeper.rung_at = wake_at
                sleeper.ringer.ring(_GREW.pack(epoch, readable))

    @property
    def are_listening(self) -> bool:
        """Whether any of them listens."""
        return any(sleeper.page.listens for sleeper in self._known.values())

    def ring_listeners(self) -> None:
        """Rings those that listen."""
        for sleeper in self._known.values():
            if sleeper.page.listens:
                sleeper.ringer.ring()

    def ring_all(self) -> None:
        """Rings each of them, awake or not."""
        for sleeper in self._known.values():
            sleeper.ringer.ring()

    def close(self) -> None:
        """Gives sockets and maps back."""
        for sleeper in self._known.values():
            sleeper.close()
        self._known = {}
