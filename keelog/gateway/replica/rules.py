"""The replies of a replica's gateway that differ: as those of a broker that is a slave.

Messages and changes are the master's. Pulls are served where `slave_read_enable` says so, and each
sends the consumer back to the master (PullMessageProcessor#rejectRequest).
"""

from collections.abc import Callable, Mapping
from typing import Any

from keelog.gateway.connection import Reply, Request
from node.runtime.settings import Settings
from protocol.errors import NodeFollows
from protocol.remoting.codes import RequestCode, ResponseCode

_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.RECALL_MESSAGE,
)
_CHANGES = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_BUSY = "[REJECTREQUEST]system busy, start flow control for a while"

Handle = Callable[[Request], Any]


def as_slave(handlers: Mapping[int, Handle], settings: Settings) -> dict[int, Handle]:
    """The handlers of a node that follows, made of those of a master; of any other node, the same.

    Topics are changed by the writer's process, which refuses that by itself.
    """
    if not settings.follow:
        return dict(handlers)

    def refuse(request: Request) -> Reply:
        raise NodeFollows(
            f"this node follows {settings.follow} and takes no request {request.header.code}",
            "send it to the master",
        )

    changed: dict[int, Handle] = {**handlers, **dict.fromkeys((*_SENDS, *_CHANGES), refuse)}
    changed[RequestCode.END_TRANSACTION] = _no_end
    if not settings.slave_read_enable:
        changed.update(dict.fromkeys(_PULLS, _no_pull))
    return changed


def _no_end(_: Request) -> Reply:
    """As EndTransactionProcessor of a slave."""
    text = "Message store is slave mode, so end transaction is forbidden. "
    return Reply(ResponseCode.SLAVE_NOT_AVAILABLE, remark=text)


def _no_pull(_: Request) -> Reply:
    return Reply(ResponseCode.SYSTEM_BUSY, remark=_BUSY)
