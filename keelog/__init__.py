"""The front door: what users import.

`connect` for a node, `keelog.aio` for the same with asyncio, `keelog.store` for directories.
"""

from node.client import Client, connect
from node.client_calls import Retry
from node.client_many import Failure, SendManyError
from node.client_message import Message, OutgoingMessage
from node.client_producer import Producer
from node.client_types import (
    Health,
    HealthCheck,
    NodeStatus,
    PullResult,
    QueueOffsets,
    Receipt,
    TopicCreated,
    TopicInfo,
)
from protocol.errors import (
    BadRequest,
    BusyError,
    CorruptError,
    ForkedClient,
    IllegalMessage,
    MessageTooLarge,
    MqError,
    NodeBusy,
    NotAllowed,
    NotConnected,
    NotFound,
    OffsetOutOfRange,
    OutcomeUnknownError,
    PropertiesTooLarge,
    RefusedError,
    RequestTimeout,
    SendTimeout,
    ServiceNotAvailable,
    StoreDamaged,
    UnknownOperation,
    UnknownTopic,
)

__all__ = [
    "BadRequest",
    "BusyError",
    "Client",
    "CorruptError",
    "Failure",
    "ForkedClient",
    "Health",
    "HealthCheck",
    "IllegalMessage",
    "Message",
    "MessageTooLarge",
    "MqError",
    "NodeBusy",
    "NodeStatus",
    "NotAllowed",
    "NotConnected",
    "NotFound",
    "OffsetOutOfRange",
    "OutcomeUnknownError",
    "OutgoingMessage",
    "Producer",
    "PropertiesTooLarge",
    "PullResult",
    "QueueOffsets",
    "Receipt",
    "RefusedError",
    "RequestTimeout",
    "Retry",
    "SendManyError",
    "SendTimeout",
    "ServiceNotAvailable",
    "StoreDamaged",
    "TopicCreated",
    "TopicInfo",
    "UnknownOperation",
    "UnknownTopic",
    "connect",
]
