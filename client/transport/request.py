"""One request to the node with all its attempts, and the rules for repeating it.

What was certainly not stored is repeated; what may have been stored is not, unless the user says
that duplicates do no harm. No sockets and no clock here: the I/O thread acts on the decisions.
"""

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any, Generic, TypeVar

from protocol.errors import (
    BadRequest,
    ClientClosed,
    MqError,
    NotConnected,
    OutcomeUnknownError,
    RequestTimeout,
    SendTimeout,
)

T = TypeVar("T")


class NodeRole(Enum):
    """Which process of the node answers."""

    CONTROL = "control"
    WRITER = "writer"
    READER = "reader"


@dataclass(slots=True)
class NodeAnswer:
    """A good answer: its header, and the payload frame (empty when there was none).

    A large payload is the memory that it came in, as a memoryview.
    """

    header: dict[str, Any]
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a request is repeated; the call's timeout caps it all.

    The wait before attempt n is random in [0, min(backoff_max, backoff * 2**n)] seconds (full
    jitter). `duplicates_ok` repeats sends whose outcome is unknown: a message may then be stored
    twice, with the same unique key. `max_attempts=1` repeats nothing, so that the order of sends
    is kept even when the node is busy.
    """

    max_attempts: int = 5
    backoff: float = 0.05
    backoff_max: float = 1.0
    duplicates_ok: bool = False

    def __post_init__(self) -> None:
        waits = self.backoff, self.backoff_max
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise BadRequest(f"max_attempts is {self.max_attempts!r}", "use 1 or more")
        if not all(isinstance(wait, int | float) and 0 <= wait < inf for wait in waits):
            raise BadRequest("backoff and backoff_max are seconds, at least 0")


Outcome = NodeAnswer | MqError


@dataclass(slots=True, eq=False)
class Call:
    """One request. `deadline` is in seconds of the monotonic clock, for all attempts together.

    `repeatable` says that carrying it out twice changes no more than once. `done` is called once,
    on the I/O thread. `affinity` keeps the pulls of one queue at one reader.
    """

    role: NodeRole
    op: str
    fields: Mapping[str, Any]
    deadline: float
    payload: bytes | memoryview | None = None
    repeatable: bool = True
    affinity: int = 0
    done: Callable[[Outcome], None] = field(default=lambda outcome: None)
    attempts: int = 0
    sent: bool = False
    maybe_done: bool = False
    finished: bool = False
    last_error: MqError | None = None
    id: int = 0


@dataclass(frozen=True, slots=True)
class RepeatAfter:
    """Try again in so many seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The caller gets this error."""

    error: MqError


def after_refusal(
    call: Call, error: MqError, retry: Retry, now: float, chance: float | None = None
) -> RepeatAfter | GiveUp:
    """What to do when the node has answered with an error: nothing was stored by this attempt."""
    if error.retriable and call.attempts < retry.max_attempts:
        delay = max(_jitter(call.attempts, retry, chance), float(getattr(error, "retry_after", 0)))
        if now + delay < call.deadline:
            return RepeatAfter(delay)
    return GiveUp(_unknown(call, str(error)) if call.maybe_done else error)


def after_loss(
    call: Call, why: str, retry: Retry, now: float, chance: float | None = None
) -> RepeatAfter | GiveUp:
    """What to do when the connection went away after the request was sent, before its answer."""
    if call.repeatable or retry.duplicates_ok:
        delay = _jitter(call.attempts, retry, chance)
        if call.attempts < retry.max_attempts and now + delay < call.deadline:
            return RepeatAfter(delay)
    if call.repeatable:
        return GiveUp(NotConnected(f"{call.op}: {why}", "see keelog health"))
    return GiveUp(_unknown(call, why))


def at_deadline(call: Call, where: str) -> MqError:
    """The error of a call whose time is up; `where` names the node or process."""
    if not call.repeatable and (call.sent or call.maybe_done):
        return _unknown(call, f"no answer from {where} in time")
    if call.sent:
        before = f"; before that: {call.last_error.reason}" if call.last_error else ""
        return RequestTimeout(
            f"{call.op}: no answer from {where} in time{before}",
            "raise the timeout, see keelog status",
        )
    if call.last_error is not None:
        return call.last_error
    return NotConnected(
        f"{call.op}: {where} was not reached in time",
        "look whether the node is ready: keelog health --wait 10",
    )


def when_closed(call: Call, failed: bool) -> MqError:
    """The error of a call that the client's end leaves without an answer."""
    if not call.repeatable and (call.sent or call.maybe_done):
        return at_deadline(call, "the node before the client was closed")
    if failed:
        return ClientClosed("the client's I/O thread has failed", "report its traceback")
    return ClientClosed()


def no_waiting_here() -> MqError:
    """The error of who would wait on the I/O thread, for ever."""
    return BadRequest(
        "a done callback runs on the client's I/O thread, which may not wait",
        "send from another thread, or with send_nowait",
    )


class Arrival(Generic[T]):
    """A thread that waits for one outcome: cheaper than a future."""

    __slots__ = ("_arrived", "_outcome")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._outcome: T | MqError | None = None

    def __call__(self, outcome: T | MqError) -> None:
        self._outcome = outcome
        self._arrived.release()

    def wait(self) -> T:
        """What came. Raises the error that came instead."""
        self._arrived.acquire()
        if isinstance(self._outcome, MqError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


def future_of(call: Call) -> "Future[NodeAnswer]":
    """A future that `done` of the call resolves; it cannot be cancelled."""
    future: Future[NodeAnswer] = Future()
    future.set_running_or_notify_cancel()

    def resolve(outcome: Outcome) -> None:
        if isinstance(outcome, MqError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    call.done = resolve
    return future


def _unknown(call: Call, why: str) -> OutcomeUnknownError:
    return SendTimeout(
        f"{call.op}: {why}; the message may be stored",
        "look for its unique key before you send it again",
    )


def _jitter(attempts: int, retry: Retry, chance: float | None) -> float:
    ceiling = min(retry.backoff_max, retry.backoff * 2.0 ** min(attempts, 30))
    # Jitter spreads load; it guards nothing.
    return ceiling * (random.random() if chance is None else chance)
