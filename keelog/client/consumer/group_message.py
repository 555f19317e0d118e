"""A message as a member of a group gets it: with its acknowledgement."""

from typing import Any, Protocol

from keelog.client.messages import Message
from protocol.errors import BadRequest
from protocol.record.codec import Record
from protocol.record.properties import RETRY_TOPIC

DEAD_LETTER = -1
"""The delay level of a message that is to come no more."""


class Settles(Protocol):
    """What learns how a message ended: the consumer that handed it out."""

    def settle(self, message: "GroupMessage", delay_level: int | None) -> None:
        """None: it was handled; else it is to come again after this delay level."""


class GroupMessage(Message):
    """One message for a group. `ack()` or `retry()` settles it; until then the group's place in its
    queue does not pass it, and it comes again after a crash.

    `topic` is that of the producer, also for a message that comes again; `reconsume_times` counts
    how often it did.
    """

    __slots__ = ("_settles", "attempts", "queue_key", "settled")

    def __init__(self, raw: bytes, record: Record, settles: Settles, queue_key: Any) -> None:
        super().__init__(raw, is_whole=True)
        self._record = record
        self._settles = settles
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
            self._settles.settle(self, None)

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
        self._settles.settle(self, delay_level)
