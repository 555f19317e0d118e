"""Which queues may have grown: what queue workers announce, and what their pages say when a hint
was lost.

A hint is msgpack [number, dispatched, [[topic, queue id], ...]]; an empty list stands for every
queue. Each worker also counts its hints in its page, so that a lost one is missed.
"""

from pathlib import Path
from typing import NamedTuple

import msgpack
import zmq

from node.store.state_page import LogPage, WorkerPage, queue_slot
from protocol.errors import StoreDamaged
from protocol.ids import Queue

GRACE_S = 0.002
"""How long a hint may be under way before it counts as lost."""
HINT_BYTES_MAX = 1 << 20
HINTS_AT_ONCE = 64
HINTS_HIGH_WATER_MARK = 256
"""Hints that wait while nobody listens; those beyond are lost, which is noticed."""
RECONNECT_MS = 20


class News(NamedTuple):
    """Where to look: single queues, and shards of which every queue may have grown."""

    queues: set[Queue]
    shards: set[int]

    def __bool__(self) -> bool:
        return bool(self.queues or self.shards)


class HintCount:
    """The hints of one worker, counted: which have come and whether one is missing. No I/O."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._differs_since: float | None = None

    def forget(self) -> None:
        """Nobody listened for a while: the next comparison finds that something is missing."""
        self._number = None
        self._differs_since = float("-inf")

    def receive(self, message: bytes) -> list[Queue] | None:
        """The queues that a hint names; None for all, which a gap in the numbers means too."""
        found = _parse(message)
        if found is None:
            return None
        number, queues = found
        follows = self._number is not None and number == self._number + 1
        self._number = number
        return queues if follows and queues else None

    def is_up_to_date(self, published: int) -> bool:
        """Whether every hint that the worker sent has come."""
        return published == self._number

    def is_missing(self, published: int, now: float) -> bool:
        """Whether a hint is lost, as the worker sent `published` of them; True once for each."""
        if published == self._number:
            self._differs_since = None
            return False
        if self._differs_since is None:
            self._differs_since = now
        if now - self._differs_since < GRACE_S:
            return False
        self._number = published
        self._differs_since = None
        return True


def _parse(message: bytes) -> tuple[int, list[Queue]] | None:
    try:
        number, _, named = msgpack.unpackb(message, max_ext_len=0)
        queues = [Queue(str(topic), int(queue_id)) for topic, queue_id in named]
        return int(number), queues
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return None


class HintSockets:
    """One subscription for each shard. They are read only while somebody waits."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", poller: zmq.Poller, shards: int
    ) -> None:
        """Connects relative to keelog/run, where the process must be. Workers may come later."""
        self._poller = poller
        self._counts = [HintCount() for _ in range(shards)]
        self._sockets: list[zmq.Socket[bytes]] = []
        self._listens = False
        for shard in range(shards):
            socket = context.socket(zmq.SUB)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, HINT_BYTES_MAX)
            socket.setsockopt(zmq.RCVHWM, HINTS_HIGH_WATER_MARK)
            socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(f"ipc://{queue_slot(shard, shards)}.ipc")
            self._sockets.append(socket)

    def listen(self, wanted: bool) -> None:
        """Whether hints wake the poller. What came while nobody listened counts as lost."""
        if wanted == self._listens:
            return
        self._listens = wanted
        for socket, count in zip(self._sockets, self._counts, strict=True):
            if wanted:
                count.forget()
                self._poller.register(socket, zmq.POLLIN)
            else:
                self._poller.unregister(socket)

    def collect(self, published: list[int], now: float) -> News:
        """What has come, and what is missing of the hints that the workers have sent."""
        news = News(set(), set())
        for shard, (socket, count) in enumerate(zip(self._sockets, self._counts, strict=True)):
            for _ in range(HINTS_AT_ONCE):
                try:
                    message = socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                queues = count.receive(message)
                if queues is None:
                    news.shards.add(shard)
                else:
                    news.queues.update(queues)
            if count.is_missing(published[shard], now):
                news.shards.add(shard)
        return news

    def are_up_to_date(self, published: list[int]) -> bool:
        """Whether every hint that the workers have sent has come."""
        return all(
            count.is_up_to_date(number)
            for count, number in zip(self._counts, published, strict=True)
        )

    def close(self) -> None:
        """Closes the sockets."""
        for socket in self._sockets:
            socket.close(0)


class Pages:
    """The pages of writer and queue workers, for what the open store does not tell."""

    def __init__(self, root: Path, shards: int) -> None:
        self._root = root
        self._log: LogPage | None = None
        self._workers: list[WorkerPage | None] = [None] * shards
        self._files: dict[Path, int] = {}

    def epoch(self) -> int:
        """The log's epoch, 0 while it is not known."""
        if self._log is None:
            try:
                self._log = LogPage.open(self._root)
                self._files[self._log.path] = _file_number(self._log.path)
            except (FileNotFoundError, StoreDamaged):
                return 0
        return self._log.read().epoch

    def hints(self) -> list[int]:
        """How many hints each queue worker has sent."""
        return [self._hints_of(shard) for shard in range(len(self._workers))]

    def _hints_of(self, shard: int) -> int:
        page = self._workers[shard]
        if page is None:
            slot = queue_slot(shard, len(self._workers))
            try:
                page = self._workers[shard] = WorkerPage.open(self._root, slot)
                self._files[page.path] = _file_number(page.path)
            except (FileNotFoundError, StoreDamaged):
                return 0
        return page.read().hints

    def are_replaced(self) -> bool:
        """Whether the folder holds other pages than those mapped here: `keelog/run` was emptied."""
        return any(_file_number(path) not in (0, number) for path, number in self._files.items())

    def close(self) -> None:
        """Gives the maps back."""
        for page in (self._log, *self._workers):
            if page is not None:
                page.close()
        self._log, self._workers = None, [None] * len(self._workers)
        self._files = {}


def _file_number(path: Path) -> int:
    """The inode; 0 when there is no such file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
