"""A queue that a member owns, and what of it is under way. Plain data, and where it begins."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from keelog.client.consumer.group_message import GroupMessage, Settles
from keelog.client.consumer.options import ConsumerSettings
from keelog.client.consumer.queue_progress import PulledMessage, QueueProgress
from protocol.errors import MessageDamaged, StoreDamaged
from protocol.record.codec import Record, decode
from protocol.remoting.bodies import MessageQueue
from protocol.remoting.codes import RequestCode
from protocol.remoting.header_fields import QueueHeader, SearchOffsetHeader
from protocol.remoting.java_json import write_ext

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


class PullRoom(NamedTuple):
    """How many messages, and bytes of them, there is room for."""

    messages: int
    size: int


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


class StartRequest(NamedTuple):
    """What to ask the node for the first offset of a group in a queue."""

    code: int
    ext: Mapping[str, str]


def first_place(settings: ConsumerSettings, queue: MessageQueue) -> int | StartRequest:
    """Where a group without a place begins, or whom to ask
    (RocketMQ: RebalancePushImpl#computePullFromWhereWithException)."""
    is_retry = queue.topic == settings.retry_topic
    end = StartRequest(RequestCode.GET_MAX_OFFSET, write_ext(QueueHeader(queue.topic, queue[2])))
    if settings.start == "earliest":
        return 0
    if settings.start == "latest":
        return 0 if is_retry else end
    if is_retry:
        return end
    wanted = SearchOffsetHeader(queue.topic, queue.queue_id, settings.start_ms)
    return StartRequest(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, write_ext(wanted))


def pulled_messages(
    body: bytes, owned: OwnedQueue, settles: Settles
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
        message = GroupMessage(raw, record, settles, key)
        found.append(PulledMessage(record.head.queue_offset, record.size, message))
        position += record.size
    return found
