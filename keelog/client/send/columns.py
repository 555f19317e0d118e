"""Messages that differ in body and keys alone, gathered as columns until they are encoded.

To take one is to append to a list; `Encoder` encodes all of them in one pass of the
kernel. What does not fit in here is an `EncodedMessage`, encoded by itself (`client.send.encode`).
"""

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter, is_
from typing import Any, NamedTuple

from keelog.client.messages import Body, MessageOptions, OutgoingMessage
from keelog.client.send.record_mould import keys_property, record_mould
from keelog.client.transport.routes import Routes
from protocol.kernel import loader
from protocol.names import QUEUE_ID_MAX
from protocol.record.encode import ANY_QUEUE
from protocol.record.properties import PROPERTIES_BYTES_MAX

COLUMN_OPTIONS = {"tags", "keys", "queue_id"}
NOT_TAKEN = -1
_COLUMN_FIELDS = {"topic", "body", "properties", *COLUMN_OPTIONS}
_OTHERS = [field for field in fields(OutgoingMessage) if field.name not in _COLUMN_FIELDS]
_NOTHING = [field.default for field in _OTHERS]
_other_fields = attrgetter(*(field.name for field in _OTHERS))
_KEYS_TYPES = {str, list, tuple}


class MessageKind(NamedTuple):
    """The common part of messages in the same columns. The two sizes are of an empty message."""

    topic: str
    tags: str
    queue_id: int
    crc: bool
    body_max: int
    record_bytes: int
    properties_bytes: int


def kind_of(topic: str, options: MessageOptions, routes: Routes) -> MessageKind | None:
    """None where each message has to be encoded by itself, be it only for its error."""
    if not options.keys() <= COLUMN_OPTIONS or loader.active() is None:
        return None
    tags, queue_id = options.get("tags") or "", options.get("queue_id")
    if queue_id is None:
        queue_id = ANY_QUEUE
    elif type(queue_id) is not int or not 0 <= queue_id <= QUEUE_ID_MAX:
        return None
    if type(topic) is not str or type(tags) is not str:
        return None
    mould = record_mould(topic, tags, routes.crc)
    if mould is None:
        return None
    return MessageKind(
        topic, tags, queue_id, routes.crc, routes.max_message_bytes,
        mould.record_bytes, mould.properties_bytes,
    )  # fmt: skip


def plain_parts(topic: str, message: OutgoingMessage) -> tuple[str, bytes, MessageOptions] | None:
    """Topic, body and options of a message that has no more than columns take; None for others,
    be it only for their error: a message is stricter with types than options are."""
    tags, keys, queue_id = message.tags, message.keys, message.queue_id
    is_plain = (
        all(map(is_, _other_fields(message), _NOTHING))
        and type(message.body) is bytes
        and type(topic) is str
        and type(keys) in _KEYS_TYPES
        and type(message.properties) is dict
        and not message.properties
    )
    if not is_plain:
        return None
    options: MessageOptions = {"keys": keys}
    if tags is not None:
        if type(tags) is not str:
            return None
        options["tags"] = tags
    if queue_id is not None:
        options["queue_id"] = queue_id
    own = topic if message.topic in (None, "") else message.topic
    return own, message.body, options  # type: ignore[return-value]


class MessageBatch:
    """Messages of one kind, in their order. Not safe for threads."""

    __slots__ = (
        "_all_options", "_body_max", "_options", "_record_bytes", "_topic",
        "bodies", "bytes", "bytes_max", "keys", "kind",
    )  # fmt: skip

    def __init__(self, kind: MessageKind, options: MessageOptions, bytes_max: int) -> None:
        """`options` are those that `kind` was made from. `bytes_max`: of all records, but a first
        one always has room."""
        self.kind = kind
        self.bodies: list[bytes] = []
        self.keys: list[str | Sequence[str]] = []
        self.bytes = 0
        self.bytes_max = bytes_max
        self._topic, self._body_max, self._record_bytes = (
            kind.topic,
            kind.body_max,
            kind.record_bytes,
        )
        self._all_options = options
        self._options: dict[str, Any] = {**options}
        self._options.pop("keys", None)

    def emptied(self) -> "MessageBatch":
        """New ones for the same kind."""
        return MessageBatch(self.kind, self._all_options, self.bytes_max)

    def take(self, topic: str, body: Body | OutgoingMessage, options: MessageOptions) -> int:
        """The row that the message has now, or NOT_TAKEN: another kind, no room, or not right."""
        if topic != self._topic or type(body) is not bytes or len(body) > self._body_max:
            return NOT_TAKEN
        size = self._record_bytes + len(body)
        keys: str | Sequence[str] = ""
        if options != self._options:
            found = self._keys_of(options)
            if found is None:
                return NOT_TAKEN
            keys, keys_bytes = found
            size += keys_bytes
        bodies = self.bodies
        if bodies and self.bytes + size > self.bytes_max:
            return NOT_TAKEN
        row = len(bodies)
        if keys:
            self.keys.extend([""] * (row - len(self.keys)))
            self.keys.append(keys)
        self.bytes += size
        bodies.append(body)
        return row

    def _keys_of(self, options: MessageOptions) -> tuple[str | Sequence[str], int] | None:
        """The keys of a message of this kind, and the bytes of their property; else None."""
        rest: dict[str, Any] = {**options}
        keys = rest.pop("keys", None)
        if rest != self._options:
            return None
        try:
            found = keys_property(keys)
        except TypeError:
            return None
        if found is None or self.kind.properties_bytes + len(found) > PROPERTIES_BYTES_MAX:
            return None
        # A list may change before it is encoded.
        return keys if isinstance(keys, str) else tuple(keys), len(found)

    def all_keys(self) -> list[str | Sequence[str]] | None:
        """The keys of each message; None where none has any."""
        if not self.keys:
            return None
        return self.keys + [""] * (len(self.bodies) - len(self.keys))
