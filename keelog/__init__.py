"""The front door: what users import.

`connect` for a node, `keelog.aio` for the same with asyncio, `keelog.store` for directories,
`keelog.testing` for tests with a real node.

>>> import keelog
>>> with keelog.connect() as client:
...     receipt = client.send("greetings", b"hello", keys="first")
...     message = next(client.tail("greetings", "earliest"))
>>> receipt.status, receipt.queue_offset, message.body, message.keys
('PUT_OK', 0, b'hello', ['first'])

Everything is imported when it is first used: the command line, which is below this package, then
starts without sockets and numpy.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any


def _refuse_hidden_packages(tree: Path) -> None:
    """Raises ImportError where a module of a user hides one of ours, as a program `node.py` does.

    An installed wheel has nothing at the top but `keelog`: only a source tree can be hidden.
    """
    if not (tree / "pyproject.toml").exists():
        return
    for name in ("node", "protocol", "workers"):
        spec = importlib.util.find_spec(name)
        found = spec.origin if spec else None
        if found and not Path(found).resolve().is_relative_to(tree):
            raise ImportError(
                f"{found} hides Keelog's package {name!r}, which a program in a source tree needs: "
                "give the file another name, or install Keelog without -e into an environment"
            )


_refuse_hidden_packages(Path(__file__).resolve().parents[1])

from protocol.names import module_name  # noqa: E402 - its package may be the hidden one

if TYPE_CHECKING:
    from keelog.client.client import Client, connect
    from keelog.client.consumer.consumer import Consumer
    from keelog.client.consumer.options import ConsumerOptions
    from keelog.client.consumer.queues import GroupMessage
    from keelog.client.credentials import credentials_of
    from keelog.client.groups import GroupInfo, GroupMemberInfo, GroupQueue
    from keelog.client.messages import Message, MessageOptions, OutgoingMessage
    from keelog.client.options import (
        BatchOptions,
        CreateTopicOptions,
        FindOptions,
        GetOptions,
        ProducerOptions,
        PullOptions,
        PurgeOptions,
        SeekOptions,
        SendOptions,
    )
    from keelog.client.results import (
        Health,
        NodeStatus,
        PullResult,
        QueueBegin,
        QueueOffsets,
        Receipt,
        TopicCreated,
        TopicDeleted,
        TopicInfo,
        TopicPurged,
    )
    from keelog.client.send.producer import Failure, Producer, SendManyError
    from keelog.client.send.record_batch import BatchReceipt
    from keelog.client.subscription import Follower, TailOptions
    from keelog.client.transport.exchange import Retry
    from keelog.client.transport.routes import Routes
    from protocol.access.credentials import Credentials
    from protocol.errors import (
        BadRequest,
        BodyUnreadable,
        BusyError,
        ClientClosed,
        CodecMissing,
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
        StoreMoved,
        TopicRemoved,
        UnknownOperation,
        UnknownTopic,
    )
    from protocol.ids import Host
    from protocol.record.codec import Record, RecordHead
    from protocol.record.columns import RecordColumns
    from protocol.status import DiskStatus, FoundDamage, HealthCheck, LogStatus, ProcessStatus

    __version__: str

__all__ = [
    "BadRequest", "BatchOptions", "BatchReceipt", "BodyUnreadable", "BusyError", "Client",
    "ClientClosed", "CodecMissing", "Consumer", "ConsumerOptions", "CorruptError",
    "CreateTopicOptions", "Credentials", "DiskStatus", "Failure", "FindOptions", "Follower",
    "ForkedClient", "FoundDamage", "GetOptions", "GroupInfo", "GroupMemberInfo", "GroupMessage",
    "GroupQueue", "Health", "HealthCheck", "Host", "IllegalMessage", "LogStatus", "Message",
    "MessageDamaged", "MessageOptions", "MessageTooLarge", "MqError", "NodeBusy", "NodeStatus",
    "NotAllowed", "NotConnected", "NotFound", "OffsetOutOfRange", "OutcomeUnknownError",
    "OutgoingMessage", "ProcessStatus", "Producer", "ProducerOptions", "PropertiesTooLarge",
    "PullOptions", "PullResult", "PurgeOptions", "QueueBegin", "QueueOffsets", "Receipt", "Record",
    "RecordColumns", "RecordHead", "RefusedError", "RequestTimeout", "Retry", "Routes",
    "SeekOptions", "SendManyError", "SendOptions", "SendTimeout", "ServiceNotAvailable",
    "StoreDamaged", "StoreMoved", "TailOptions", "TopicCreated", "TopicDeleted", "TopicInfo",
    "TopicPurged", "TopicRemoved", "UnknownOperation", "UnknownTopic", "connect", "credentials_of",
]  # fmt: skip

_HOMES = (
    "keelog.client.client",
    "keelog.client.consumer.consumer",
    "keelog.client.consumer.queues",
    "keelog.client.consumer.options",
    "keelog.client.credentials",
    "keelog.client.options",
    "keelog.client.send.record_batch",
    "keelog.client.transport.exchange",
    "keelog.client.send.producer",
    "keelog.client.messages",
    "keelog.client.subscription",
    "keelog.client.results",
    "keelog.client.groups",
    "protocol.errors",
    "protocol.ids",
    "protocol.record.codec",
    "protocol.record.columns",
    "protocol.status",
)
"""The modules of the names above."""


def __getattr__(name: str) -> Any:
    """Imports a name of `__all__` from its home; finds the installed version, 0+unknown in a bare
    source tree."""
    if name == "__version__":
        # Imported here: it brings half of the mail library, and few ask for the version.
        from importlib import metadata

        try:
            return metadata.version("keelog")
        except metadata.PackageNotFoundError:
            return "0+unknown"
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(module_name(home))
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module 'keelog' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names of `__all__`, imported or not: what completion and `help(keelog)` show."""
    return __all__
