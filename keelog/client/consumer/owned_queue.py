"""A queue that a member owns, with its messages between their pull and their commit. Plain data.

Messages end in any order. The offset that may be committed is that of the first one that has not
ended: a group never goes on after a message that was not handled. A program gets a message with its
acknowledgement (`GroupMessage`). No sockets, no clock.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from keelog.client.consumer.options import ConsumerSettings
from keelog.client.messages import Message
from protocol.errors import BadRequest, MessageDamaged, StoreDamaged
from protocol.record.codec import Record, decode
from protocol.record.properties import RETRY_TOPIC
from protocol.remoting.bodies import MessageQueue
from protocol.remoting.codes import RequestCode
from protocol.remoting.header_fields import QueueHeader, SearchOffsetHeader
from protocol.remoting.java_json import write_ext

DEAD_LETTER = -1
"""The delay level of a message that is to come no more."""
T = TypeVar("T")
Settle = Callable[["GroupMessage", int | None], None]
"""Tells the consumer how a message ended. None: it was handled; else it is to come again after this
delay level."""


class GroupMessage(Message):
    """One message for a group. `ack()` or `retry()` settles it; until then the group's place in its
    queue does not pass it, and it comes again after a crash.

    `topic` is that of the producer, also for a message that comes again; `reconsume_times` counts
    how often it did.
    """

    __slots__ = ("_settle", "attempts", "queue_key", "settled")

    def __init__(self, raw: bytes, record: Record, settle: Settle, queue_key: Any) -> None:
        super().__init__(raw, is_whole=True)
        self._record = record
        self._settle = settle
        self.queue_key = queue_key
        """The consumer's state of its queue."""
        self.attempts = 0
        """How often an orderly consumer gave it out again."""
        self.settled = False

    def __reduce__(self) -> tuple[type[Message], tuple[bytes]]:
        # In another process nobody can settle it.
        return Message, (self.raw,)

    @property
    def topic(self) -> str:
        """The topic that its producer named."""
        return self.record.properties.get(RETRY_TOPIC) or self.record.topic

    @property
    def reconsume_times(self) -> int:
        """How often it came again."""
        return self.record.head.reconsume_times + self.attempts

    def ack(self) -> None:
        """The message was handled. Does nothing when it is settled already."""
        if not self.settled:
            self.settled = True
            self._settle(self, None)

    def retry(self, delay_level: int = 0) -> None:
        """The message could not be handled: the group gets it again, after a delay that grows with
        each time (10 s, 30 s, 1 min, … by RocketMQ's levels), or after the delay level that is
        named. After too many times it becomes a dead letter, in `%DLQ%` and the group's name;
        DEAD_LETTER (-1) makes it one now. An orderly consumer gives it out again after a second.

        Raises BadRequest when it is settled already.
        """
        if type(delay_level) is not int or delay_level < DEAD_LETTER:
            raise BadRequest(f"delay_level is {delay_level!r}", "use 0, a level, or -1")
        if self.settled:
            raise BadRequest("the message is settled already", "call ack or retry, once")
        self.settled = True
        self._settle(self, delay_level)


class PulledMessage(NamedTuple, Generic[T]):
    """A message with its offset, and the bytes that it costs."""

    offset: int
    size: int
    message: T


class QueueProgress(Generic[T]):
    """How far one queue was pulled, handed out and handled."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.held_bytes = 0
        """Of all messages that have not ended."""
        self._waiting: deque[PulledMessage[T]] = deque()
        self._sizes: dict[int, int] = {}
        self._order: deque[int] = deque()
        self._ended: set[int] = set()

    @property
    def committable(self) -> int:
        """The next offset of the group: all messages before it have ended, or did not match."""
        return self._order[0] if self._order else self.next_offset

    @property
    def held(self) -> int:
        """How many messages have not ended."""
        return len(self._sizes)

    @property
    def span(self) -> int:
        """How far the pulls are ahead of what may be committed. It bounds what comes again after a
        crash, and the memory for messages that have ended before an earlier one."""
        return self.next_offset - self.committable

    @property
    def in_hand(self) -> int:
        """How many messages were handed out and have not ended."""
        return len(self._sizes) - len(self._waiting)

    @property
    def has_waiting(self) -> bool:
        """Whether there is a message to hand out."""
        return bool(self._waiting)

    def take(self, found: list[PulledMessage[T]], next_offset: int) -> None:
        """Takes the messages of a pull, in their order, and where the next one begins."""
        for pulled in found:
            if pulled.offset >= self.next_offset:
                self._waiting.append(pulled)
                self._order.append(pulled.offset)
                self._sizes[pulled.offset] = pulled.size
                self.held_bytes += pulled.size
        self.next_offset = max(self.next_offset, next_offset)

    def hand_out(self) -> T | None:
        """The next message, None without one."""
        return self._waiting.popleft().message if self._waiting else None

    def put_back(self, offset: int, message: T) -> None:
        """A message that was handed out is the next one again."""
        self._waiting.appendleft(PulledMessage(offset, self._sizes[offset], message))

    def end(self, offset: int) -> None:
        """A message that was handed out has ended: it was handled, or comes again by another way.
        Harmless when repeated."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return
        self.held_bytes -= size
        self._ended.add(offset)
        while self._order and self._order[0] in self._ended:
            self._ended.remove(self._order.popleft())


Progress = QueueProgress[GroupMessage]


@dataclass(slots=True, eq=False)
class OwnedQueue:
    """`progress` is None until it is known where the group is in the queue.

    `not_before`: when the next request for it may go. `committed`: what the node has.
    `to_commit`: what it is to have, where not all that was handled is committed by itself.
    """

    queue: MessageQueue
    progress: Progress | None = None
    not_before: float = 0.0
    committed: int | None = None
    to_commit: int | None = None
    known_at: int | None = None
    """The log offset of the last message that was pulled: a topic that was removed later has other
    places."""
    locked_until: float = 0.0
    is_starting: bool = False
    is_pulling: bool = False
    is_committing: bool = False
    is_ready: bool = False
    """Whether it is in the line of those with a message to hand out."""
    is_dropped: bool = False
    damage: MessageDamaged | None = None
    """The damaged message at which it stops, where it shall: what comes before it is handed out."""

    def begin(self, offset: int) -> None:
        """The group goes on at this offset; what was held of the queue does not count any more."""
        self.progress, self.known_at = QueueProgress(offset), None
        self.is_starting = self.is_pulling = False
        self.damage = None

    def place(self, auto_commit: bool) -> int | None:
        """What the node is to have; None while there is nothing to say."""
        if self.progress is None or not auto_commit:
            return self.to_commit
        return self.progress.committable


class QueueKey(NamedTuple):
    """The state of a message's queue when it was pulled."""

    owned: OwnedQueue
    progress: Progress

    @property
    def counts(self) -> bool:
        """Whether the queue is still owned, and has not been set elsewhere."""
        return not self.owned.is_dropped and self.owned.progress is self.progress


class ReturningMessage(NamedTuple):
    """A message on its way back: to the node with a delay level, or to this member (None)."""

    message: GroupMessage
    delay_level: int | None
    not_before: float


class CommitWait(NamedTuple):
    """A caller of `commit`, and the places that the node is to have then."""

    places: dict[OwnedQueue, int]
    done: "Future[None]"

    def is_over(self) -> bool:
        """Whether the node has them all. That of a queue that was given up was sent then."""
        return all(
            owned.is_dropped or (owned.committed is not None and owned.committed >= place)
            for owned, place in self.places.items()
        )


def first_place(
    settings: ConsumerSettings, queue: MessageQueue
) -> int | tuple[int, Mapping[str, str]]:
    """Where a group without a place begins, or the code and fields of the request that asks
    (RocketMQ: RebalancePushImpl#computePullFromWhereWithException)."""
    is_retry = queue.topic == settings.retry_topic
    end = RequestCode.GET_MAX_OFFSET, write_ext(QueueHeader(queue.topic, queue[2]))
    if settings.start == "earliest":
        return 0
    if settings.start == "latest":
        return 0 if is_retry else end
    if is_retry:
        return end
    wanted = SearchOffsetHeader(queue.topic, queue.queue_id, settings.start_ms)
    return RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, write_ext(wanted)


def pulled_messages(
    body: bytes, owned: OwnedQueue, settle: Settle
) -> list[PulledMessage[GroupMessage]]:
    """The messages of an answer, each verified. Raises StoreDamaged."""
    assert owned.progress is not None
    found: list[PulledMessage[GroupMessage]] = []
    key, position = QueueKey(owned, owned.progress), 0
    while position < len(body):
        record = decode(body, position)
        if not isinstance(record, Record):
            raise StoreDamaged(str(owned.queue), position, "the answer to a pull holds no record")
        raw = body[position : position + record.size]
        message = GroupMessage(raw, record, settle, key)
        found.append(PulledMessage(record.head.queue_offset, record.size, message))
        position += record.size
    return found
