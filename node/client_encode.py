"""From what a caller says to an encoded record, ready for a batch."""

from time import time
from typing import Any

from node.client_batch import Entry
from node.client_io import IoThread
from node.client_message import MessageOptions, OutgoingMessage
from node.client_unique_key import UniqueKeys
from protocol.encode import DEFAULT_MAX_MESSAGE_BYTES, encode_message
from protocol.errors import BadRequest
from protocol.message_id import Host
from protocol.wire import PAYLOAD_BYTES_MAX


def outgoing(body: bytes | OutgoingMessage, options: MessageOptions) -> OutgoingMessage:
    """A message from a body and options. Raises BadRequest for options that nobody knows."""
    if isinstance(body, OutgoingMessage):
        return body
    try:
        return OutgoingMessage(body, **options)
    except TypeError as error:
        raise BadRequest(f"a message has no such option: {error}", "see help(keelog)") from None


class Encoder:
    """Encodes for one client, as the node's routes say."""

    def __init__(self, io: IoThread, keys: UniqueKeys, host: Host) -> None:
        self._io = io
        self._keys = keys
        self._host = host

    @property
    def max_message_bytes(self) -> int:
        """The largest body that the node takes."""
        routes = self._io.routes
        return DEFAULT_MAX_MESSAGE_BYTES if routes is None else routes.max_message_bytes

    @property
    def batch_bytes_max(self) -> int:
        """The largest record batch that the node takes."""
        return PAYLOAD_BYTES_MAX

    def entry(
        self, topic: str, body: bytes | OutgoingMessage, options: MessageOptions, slot: Any
    ) -> Entry:
        """The encoded message. Raises IllegalMessage and its kinds, or BadRequest."""
        message = outgoing(body, options)
        routes = self._io.routes
        draft = message.draft(topic, self._keys.next(), int(time() * 1000), self._host)
        record = encode_message(draft, routes is None or routes.crc, self.max_message_bytes)
        return Entry(record, draft.topic, draft.queue_id, message.order_by, draft.unique_key, slot)
