"""What can go wrong, named by what the caller will do about it.

Four families: `RefusedError` (do not repeat it as it is), `BusyError` (repeat it later),
`CorruptError` (stop and look), `OutcomeUnknownError` (it may or may not have happened).
Codes are RocketMQ's response codes, so that its users recognise them.
"""

import shlex
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from protocol.addresses import without_credentials


class MqError(Exception):
    """Anything that Keelog raises on purpose.

    `code` is RocketMQ's response code, `status` its PutMessageStatus where one fits,
    `hint` one sentence that says what to try. Neither shows credentials of addresses in them.
    `condition` names the error for Spark's users. Only the text of an error survives the way
    through Spark, so the text then shows condition and hint too; else it is the reason alone.
    """

    code: ClassVar[int] = 1
    status: ClassVar[str] = "UNKNOWN_ERROR"
    retriable: ClassVar[bool] = False
    condition: str = ""

    def __init__(self, reason: str, hint: str = "") -> None:
        self.reason = without_credentials(reason)
        self.hint = without_credentials(hint)
        super().__init__(self.reason)

    @classmethod
    def worded(cls, condition: str, reason: str, hint: str = "") -> Self:
        """Returns an error of this kind for Spark from its text; what the kind adds is not set."""
        error = cls.__new__(cls)
        MqError.__init__(error, reason, hint)
        error.condition = condition
        return error

    def __str__(self) -> str:
        if not self.condition:
            return self.reason
        tail = f". Try: {self.hint}" if self.hint else ""
        return f"[{self.condition}] {self.reason}{tail}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own way calls the class with `args`, which are not those that it was made of.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[MqError], args: tuple[Any, ...], fields: dict[str, Any]) -> MqError:
    """An error as it came from another process."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class RefusedError(MqError):
    """The request can never succeed as it is; nothing was changed."""

    code = 13
    status = "MESSAGE_ILLEGAL"


class BusyError(MqError):
    """Nothing was done; the same request may succeed later."""

    code = 2
    status = "SYSTEM_BUSY"
    retriable = True


class CorruptError(MqError):
    """Bytes on disk are not what they must be.

    `where` is the file, `offset` the byte position (log offset for the CommitLog), `found`
    what stands there.
    """

    code = 1
    status = "STORE_DAMAGED"

    def __init__(self, where: str, offset: int, found: str, hint: str = "") -> None:
        super().__init__(f"{where}, offset {offset}: {found}", hint)
        self.where = where
        self.offset = offset
        self.found = found


class OutcomeUnknownError(MqError):
    """The request may have been carried out: repeat it only where a duplicate does no harm.

    Of a send, `topic` and `unique_key` name the message: look it up, and if it is not there send it
    again with the same unique key. Of a batch `unique_keys` has those of all messages, in their
    order, and `unique_key` is empty.
    """

    def __init__(
        self, reason: str, hint: str = "", topic: str = "", unique_keys: Sequence[str] = ()
    ) -> None:
        self.topic = topic
        self.unique_keys = unique_keys
        self._plain = reason
        if self.unique_key:
            reason += f" (topic {topic}, unique key {self.unique_key})"
            names = shlex.quote(topic), shlex.quote(self.unique_key)
            hint = "keelog msg get --topic {} --unique-key {}".format(*names)
        elif unique_keys:
            reason += f" ({len(unique_keys)} messages of topic {topic})"
            hint = "look each of the error's unique_keys up before you send again"
        super().__init__(reason, hint)

    @property
    def unique_key(self) -> str:
        """Of the message, if it is one."""
        return self.unique_keys[0] if len(self.unique_keys) == 1 else ""

    def about(self, topic: str, unique_keys: Sequence[str]) -> Self:
        """The same error, of these messages."""
        return type(self)(self._plain, self.hint, topic, unique_keys)

    def of_row(self, row: int) -> Self:
        """The error of one message of the batch."""
        return (
            self if len(self.unique_keys) < 2 else self.about(self.topic, (self.unique_keys[row],))
        )


class BadRequest(RefusedError):
    """The request is not of the protocol's form, or a value is out of its range."""

    code = 29
    status = "INVALID_PARAMETER"


class UnknownOperation(RefusedError):
    """This node does not know the operation or the protocol version."""

    code = 3
    status = "REQUEST_CODE_NOT_SUPPORTED"


class IllegalMessage(RefusedError):
    """The message breaks a rule of the store (names, sizes, flags)."""


class MessageTooLarge(IllegalMessage):
    """A body over `maxMessageSize`, or a record that fits into no segment."""


class PropertiesTooLarge(IllegalMessage):
    """Properties over 32,767 bytes."""

    status = "PROPERTIES_SIZE_EXCEEDED"


class UnknownTopic(RefusedError):
    """No such topic, and it is not to be made."""

    code = 17
    status = "TOPIC_NOT_EXIST"


class NotAllowed(RefusedError):
    """A reserved name, a topic without the permission, a feature that is not there."""

    code = 16
    status = "NO_PERMISSION"


class NotLoggedIn(NotAllowed):
    """A request of nobody that is known, where users have to log in.

    `local`: the local socket of the node's supervisor, where the client seems to be of the same
    machine: the node's own user needs no login there. Empty elsewhere.
    """

    local: str | None = None


class SuperUserOnly(NotAllowed):
    """A change of users that makes a Super user, and is not asked for by one."""

    code = 1


class NotFound(RefusedError):
    """Nothing is stored under this offset, id or key."""

    code = 22
    status = "QUERY_NOT_FOUND"


class OffsetOutOfRange(RefusedError):
    """The queue offset is outside [`earliest`, `latest`]."""

    code = 21
    status = "PULL_OFFSET_MOVED"

    def __init__(self, reason: str, hint: str = "", earliest: int = 0, latest: int = 0) -> None:
        super().__init__(reason, hint)
        self.earliest = earliest
        self.latest = latest


class TopicRemoved(OffsetOutOfRange):
    """A place in a topic that was removed since: its offset counts messages that are gone.

    A topic of the name that was made anew begins at 0. `generation` is that of the new one.
    """

    def __init__(self, reason: str, hint: str = "", generation: int = 0) -> None:
        super().__init__(reason, hint)
        self.generation = generation


class NodeFollows(RefusedError):
    """The node is a replica: its messages come from its master alone."""

    code = 14
    status = "SERVICE_NOT_AVAILABLE"


class ClientClosed(RefusedError):
    """This client, or producer, is closed: it sends nothing any more, however often it is asked."""

    code = 14
    status = "SERVICE_NOT_AVAILABLE"

    def __init__(self, reason: str = "the client is closed", hint: str = "connect again") -> None:
        super().__init__(reason, hint)


class NodeBusy(BusyError):
    """Refused before anything was stored; `retry_after` is in seconds."""

    retry_after = 0.1


class ServiceNotAvailable(BusyError):
    """The node cannot take appends now (`disk_full`, stopping, recovering)."""

    code = 14
    status = "SERVICE_NOT_AVAILABLE"


class NotConnected(BusyError):
    """The node was not reached; nothing was sent."""

    code = 14
    status = "SERVICE_NOT_AVAILABLE"


class SendTimeout(OutcomeUnknownError):
    """No answer came before the deadline: the message may be stored."""

    code = 10
    status = "OUTCOME_UNKNOWN"


class RequestTimeout(BusyError):
    """A question that changes nothing had no answer before the deadline."""

    code = 14
    status = "TIMEOUT"


class StoreDamaged(CorruptError):
    """The store itself is damaged: a record, a segment, a file of ours."""


class MessageDamaged(StoreDamaged):
    """One message of a queue cannot be handed out: its record or its queue unit is damaged.

    `queue_offset` is its number in the queue, `next_offset` where the queue goes on after it:
    it is passed over by asking for that, and never otherwise.
    """

    def __init__(
        self,
        where: str,
        offset: int,
        found: str,
        hint: str = "",
        queue_offset: int = 0,
        next_offset: int = 0,
    ) -> None:
        super().__init__(where, offset, found, hint)
        self.queue_offset = queue_offset
        self.next_offset = next_offset


class BodyUnreadable(CorruptError):
    """A record is whole, but the body that its producer compressed cannot be unpacked: its stream
    is broken, or becomes too large. `raw_body` has it as stored."""

    def __init__(self, where: str, offset: int, found: str, hint: str = "") -> None:
        hint = hint or "its stored bytes are in raw_body, and printed with --raw-body"
        super().__init__(where, offset, found, hint)


class CodecMissing(RefusedError):
    """A body is compressed by what is not installed here, or not known; the hint says what to
    install. Nothing is wrong with the message: `raw_body` has it as stored."""


class StoreError(RefusedError):
    """The directory cannot be opened as a store."""

    code = 14
    status = "SERVICE_NOT_AVAILABLE"


class NotAStore(StoreError):
    """The path is a file, does not exist, or holds no store."""


class StoreMoved(StoreError):
    """The directory of a running node is not at its path any more; `reason` says what is so."""


class BackupRefused(StoreError):
    """A backup cannot go on in this folder, or cannot be restored: it is of another store, of a log
    that went another way since, or not whole."""


class StoreLocked(BusyError):
    """Another process owns the store."""

    code = 14
    status = "SERVICE_NOT_AVAILABLE"


class StorePermission(StoreError):
    """The operating system refuses access to a file of the store."""


class ForkedClient(RuntimeError):
    """A client was used in a process that was forked after `connect`."""
