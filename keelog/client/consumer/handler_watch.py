"""Handlers that take long: a warning with the message's place, and a limit."""

import logging
from dataclasses import dataclass

from keelog.client.consumer.group_message import GroupMessage
from protocol.errors import BadRequest

log = logging.getLogger("keelog.client")

HANDLER_S_MAX = 900.0
"""As RocketMQ's consumeTimeout of 15 minutes (DefaultMQPushConsumer)."""
SLOW_S = 60.0
"""A handler that takes longer is reported, once for each message."""


@dataclass(slots=True)
class _Handled:
    message: GroupMessage
    began: float
    is_reported: bool = False


class HandlerWatch:
    """The messages that the handlers of one consumer are at. Times are of a monotonic clock.

    Each worker notes its own; another thread looks.
    """

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s` None: handlers may take for ever."""
        self._limit_s = limit_s
        self._handled: dict[int, _Handled] = {}

    def begin(self, worker: int, message: GroupMessage, now: float) -> None:
        """A worker begins with a message."""
        self._handled[worker] = _Handled(message, now)

    def end(self, worker: int) -> None:
        """It is done with it."""
        self._handled.pop(worker, None)

    def look(self, now: float) -> None:
        """Reports what takes longer than SLOW_S; what takes longer than the limit comes again."""
        for one in list(self._handled.values()):
            took_s = now - one.began
            if took_s > SLOW_S and not one.is_reported:
                one.is_reported = True
                log.warning("a handler takes long: %s for %.0f s", _place(one.message), took_s)
            if self._limit_s is not None and took_s > self._limit_s and not one.message.settled:
                log.error("a handler is too late, the message comes again: %s", _place(one.message))
                try:
                    one.message.retry()
                except BadRequest:
                    continue  # it was settled in this moment

    def left(self) -> list[str]:
        """The places of the messages that handlers are still at."""
        return [_place(one.message) for one in list(self._handled.values())]


def _place(message: GroupMessage) -> str:
    return (
        f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset}, "
        f"message {message.msg_id}"
    )
