"""The consumer of threads: a member of a consumer group, made by `Client.consumer`.

`HandlerWatch` warns of a handler that takes long, with the message's place, and has the limit.
"""

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import NoReturn, Self

from keelog.client.consumer.consumer_thread import ConsumerThread
from keelog.client.consumer.queues import GroupMessage
from keelog.client.options import check_seconds
from protocol.errors import BadRequest, RequestTimeout

log = logging.getLogger("keelog.client")

HANDLER_S_MAX = 900.0
"""As RocketMQ's consumeTimeout of 15 minutes (DefaultMQPushConsumer)."""
SLOW_S = 60.0
"""A handler that takes longer is reported, once for each message."""
Handler = Callable[[GroupMessage], object]
WORKERS_MAX = 256
_LOOK_S = 0.5
"""How often `run` looks at its handlers, and at the time of a stop."""


class ConsumerBase:
    """What the consumers of threads and of event loops have in common."""

    def __init__(self, member: ConsumerThread) -> None:
        self._member = member

    @property
    def client_id(self) -> str:
        """The name of this member in its group."""
        return self._member.client_id

    def assignment(self) -> list[tuple[str, int]]:
        """Topic and number of each queue that this member reads now. The group's retry topic is
        one of the topics."""
        return self._member.assignment()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a consumer cannot be pickled or copied: make one in the other process")


class Consumer(ConsumerBase):
    """A member of a consumer group, for any number of threads; a context manager and an iterator.

    The members of a group share the queues of its topics, RocketMQ's own clients among them, and
    take over from one that goes. Messages of a queue come in its order. Each comes at least once:
    the group's place in a queue is before the first message that is not settled, and it is
    committed each second, and at the end. After a crash what came after that place comes again.

    In a loop, a message counts as handled when the next one is asked for; `ack()` says so before,
    `retry()` has it come again later. After a `break`, or an error, the last one comes again.
    """

    def __init__(self, member: ConsumerThread, timeout: float) -> None:
        super().__init__(member)
        self._timeout = timeout
        self._stop_by = math.inf
        # A member that nobody reads for would keep its queues from the others.
        self._finalizer = weakref.finalize(self, member.close_soon)
        member.start()

    def get(self, timeout: float | None = None) -> GroupMessage | None:
        """Waits for a message; None after `timeout` seconds (None: for ever), and after `stop`.

        Settle it with `ack()` or `retry()`. Raises NotAllowed, BadRequest where the node refuses
        the group or its filter.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        return self._member.wait(timeout)

    def __iter__(self) -> Iterator[GroupMessage]:
        while (message := self.get()) is not None:
            yield message
            message.ack()

    def run(
        self, handler: Handler, workers: int = 1, timeout: float | None = HANDLER_S_MAX
    ) -> None:
        """Calls `handler` with each message, in `workers` threads, until `stop` or `close`.

        A message is handled when the handler returns. Where it raises, the error is logged and the
        message comes again, as after `retry()`. A handler that takes a minute is a warning in the
        log, with the message's queue and offset; after `timeout` seconds its message comes again,
        at this member or another one, as after RocketMQ's consumeTimeout. The thread stays with
        its handler. An orderly consumer waits on: the next message must not pass this one. Raises
        what `get` raises.
        """
        check_run(workers, timeout)
        errors: list[BaseException] = []
        watch = HandlerWatch(None if self._member.is_orderly else timeout)

        def work(worker: int) -> None:
            try:
                for message in self:
                    watch.begin(worker, message, time.monotonic())
                    try:
                        handler(message)
                    except Exception:  # noqa: BLE001 (whatever it is: the message comes again)
                        failed(message)
                    finally:
                        watch.end(worker)
            except BaseException as error:  # noqa: BLE001 (the caller of `run` gets it)
                errors.append(error)
                self.stop()

        threads = [
            threading.Thread(
                target=work, args=(number,), name=f"keelog-worker-{number}", daemon=True
            )
            for number in range(workers)
        ]
        try:
            for thread in threads:
                thread.start()
            self._join(threads, watch)
        except BaseException:
            self.stop()
            raise
        if errors:
            raise errors[0]

    def _join(self, threads: list[threading.Thread], watch: "HandlerWatch") -> None:
        """Until all have ended, or the time of a stop is over."""
        for thread in threads:
            while thread.is_alive():
                now = time.monotonic()
                if now >= self._stop_by:
                    for place in watch.left():
                        log.error("left at the stop, the message comes again: %s", place)
                    return
                watch.look(now)
                thread.join(min(_LOOK_S, self._stop_by - now))

    def commit(self, timeout: float | None = None) -> None:
        """Commits what was handled until now, and waits until the gateway has it, which gives it to
        the writer within a moment. With `auto_commit=False` nothing else commits.

        Raises RequestTimeout, ClientClosed.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        done = self._member.begin_commit()
        try:
            done.result(self._timeout if timeout is None else timeout)
        except FutureTimeout:
            done.cancel()
            raise not_committed() from None

    def stop(self, timeout: float | None = None) -> None:
        """Gives out no more messages, so that loops and `run` end; a signal handler may call it.
        What is out may still be settled. `run` waits for its handlers for `timeout` seconds (None:
        for ever); what they are at then is logged, and comes again."""
        if timeout is not None:
            check_seconds("timeout", timeout)
            self._stop_by = time.monotonic() + timeout
        self._member.stop()

    def close(self) -> None:
        """Commits what was handled and leaves the group, so that others take over at once. Messages
        that are not settled come again there. Harmless when repeated."""
        self._finalizer.detach()
        self._member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<keelog consumer {self.client_id}>"


def check_run(workers: object, timeout: object) -> None:
    if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
        raise BadRequest(f"workers is {workers!r}", f"use 1 to {WORKERS_MAX}")
    if timeout is not None:
        check_seconds("timeout", timeout)


def failed(message: GroupMessage) -> None:
    """In an `except`: logs the error of a handler, and has the message come again."""
    log.exception("a handler failed: %s %s comes again", message.topic, message.msg_id)
    if not message.settled:
        message.retry()


def not_committed() -> RequestTimeout:
    return RequestTimeout("commit: the node has not confirmed it in time", "call commit again")


class HandlerWatch:
    """The messages that the handlers of one consumer are at. Times are of a monotonic clock.

    Each worker notes its own; another thread looks.
    """

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s` None: handlers may take for ever."""
        self._limit_s = limit_s
        self._handled: dict[int, _Handled] = {}

    def begin(self, worker: int, message: GroupMessage, now: float) -> None:
        self._handled[worker] = _Handled(message, now)

    def end(self, worker: int) -> None:
        self._handled.pop(worker, None)

    def look(self, now: float) -> None:
        """Reports what takes longer than SLOW_S; what takes longer than the limit comes again."""
        for one in list(self._handled.values()):
            took_s = now - one.began
            if took_s > SLOW_S and not one.is_reported:
                one.is_reported = True
                log.warning("a handler takes long: %s for %.0f s", _place_of(one.message), took_s)
            if self._limit_s is not None and took_s > self._limit_s and not one.message.settled:
                log.error(
                    "a handler is too late, the message comes again: %s", _place_of(one.message)
                )
                try:
                    one.message.retry()
                except BadRequest:
                    continue  # it was settled in this moment

    def left(self) -> list[str]:
        """The places of the messages that handlers are still at."""
        return [_place_of(one.message) for one in list(self._handled.values())]


@dataclass(slots=True)
class _Handled:
    message: GroupMessage
    began: float
    is_reported: bool = False


def _place_of(message: GroupMessage) -> str:
    return (
        f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset}, "
        f"message {message.msg_id}"
    )
