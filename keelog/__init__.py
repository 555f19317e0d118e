"""The front door: what users import.

`connect` for a node, `keelog.aio` for the same with asyncio, `keelog.store` for directories.
Everything is imported when it is first used: the command line, which is below this package, then
starts without sockets and numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from node.client import Client, connect
    from node.client_batch_receipt import BatchReceipt
    from node.client_calls import Retry
    from node.client_many import Failure, SendManyError
    from node.client_message import Message, OutgoingMessage
    from node.client_producer import Producer
    from node.client_pull import PullResult
    from node.client_types import (
        Health,
        HealthCheck,
        NodeStatus,
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
        MessageDamaged,
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
    "BatchReceipt",
    "BusyError",
    "Client",
    "CorruptError",
    "Failure",
    "ForkedClient",
    "Health",
    "HealthCheck",
    "IllegalMessage",
    "Message",
    "MessageDamaged",
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

_HOMES = (
    "node.client",
    "node.client_batches",
    "node.client_calls",
    "node.client_many",
    "node.client_message",
    "node.client_producer",
    "node.client_types",
    "protocol.errors",
)
"""Where the names above are."""


def __getattr__(name: str) -> Any:
    """Imports a name of `__all__` from its home."""
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module 'keelog' has no attribute {name!r}")
