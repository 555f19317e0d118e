"""Hints between the processes of a node: they shorten a sleep, losing them costs latency alone.

A worker sleeps until the writer rings its bell (`node.runtime.wakeup`), and rings the readers that
listen when queues have grown.
"""

from pathlib import Path

import msgpack
import zmq

from node.runtime.state_page import NEVER, WorkerPage
from node.runtime.wakeup import READER_SLOTS, RING_BYTES_MAX, Context, Waiters, ZmqWakeup
from protocol.ids import Queue
from workers.pace import Sleep

HINTED_QUEUES_MAX = 1000
"""More queues than this are sent as an empty list, which means all."""


class WorkerSleep:
    """The worker's sleep: the writer's ring, or the wish to stop, ends it early."""

    def __init__(self, bell: ZmqWakeup, page: WorkerPage, stop_descriptor: int) -> None:
        self._page = page
        self._bell = bell
        self._poller = zmq.Poller()
        self._poller.register(bell.socket, zmq.POLLIN)
        self._poller.register(stop_descriptor, zmq.POLLIN)

    def begin(self, sleep: Sleep) -> None:
        """Has the writer ring when the log reaches `wake_at`: look once more, then `wait`."""
        self._page.publish(wake_at=sleep.wake_at)

    def wait(self, seconds: float) -> None:
        """Sleeps so long at most."""
        events = self._poller.poll(max(1, round(seconds * 1000)))
        self.end()
        if events:
            self._bell.rings()

    def end(self) -> None:
        """Awake: nobody needs to ring."""
        self._page.publish(wake_at=NEVER)

    def close(self) -> None:
        """Gives the bell back."""
        self._bell.close()


class GrowthHints:
    """Tells readers which queues have grown: [shard, number, [[topic, queue], ...]]."""

    def __init__(self, context: Context, root: Path, shard: int, number: int) -> None:
        """`number`: of the last hint that was sent about the shard."""
        self._shard = shard
        self._number = number
        self._readers = Waiters(context, root, lambda slot: slot.startswith(READER_SLOTS))

    @property
    def are_wanted(self) -> bool:
        """Whether any reader listens."""
        return self._readers.is_listening

    def look(self) -> None:
        """Finds readers that are new: now and then."""
        self._readers.look()

    def send(self, grown: set[Queue]) -> int:
        """One hint for all queues that have grown since the last; returns its number. An empty set
        means every queue.

        It counts where nobody listens, too: a reader that begins to listen finds that it missed it.
        """
        self._number += 1
        if self._readers.is_listening:
            queues = sorted(grown) if len(grown) <= HINTED_QUEUES_MAX else []
            message = msgpack.packb([self._shard, self._number, queues])
            if len(message) > RING_BYTES_MAX:
                message = msgpack.packb([self._shard, self._number, []])
            self._readers.tell(message)
        return self._number

    def close(self) -> None:
        """Gives sockets and maps back."""
        self._readers.close()
