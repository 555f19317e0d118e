"""One request to the node with all its attempts: answered, or lost, then repeated or given up.

A request that was certainly not stored is repeated. One that may have been stored is not, unless
the user says that duplicates do no harm. No sockets and no clock here: the threads that carry
requests report what happened, and act on the decisions. Only this module writes a request's fields.
A caller waits for the answer by an `Arrival`, or a future.
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
from protocol.wire.frames import refusal_error

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
    jitter). `once` repeats sends whose outcome is unknown, and asks the node to store each unique
    key once; its `idempotent_window` has to be longer than the call's timeout. `duplicates_ok`
    repeats them without asking: a message may then be stored twice, with the same unique key.
    `max_attempts=1` repeats nothing, so that the order of sends is kept even when the node is busy.
    """

    max_attempts: int = 5
    backoff: float = 0.05
    backoff_max: float = 1.0
    duplicates_ok: bool = False
    once: bool = False

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

    `repeatable`: carrying it out twice changes no more than once. `done` is called once with the
    outcome, on the thread that carries the request. `affinity` keeps the pulls of one queue at one
    reader. Only `client.transport.exchange` writes what follows `done`, and a stream's `fields`.
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


def no_waiting_here() -> MqError:
    """The error of a caller on the I/O thread that would wait there for ever."""
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
        """Waits for the outcome and returns it. Raises the error that came instead."""
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


@dataclass(frozen=True, slots=True)
class RepeatAfter:
    """Try again after `delay` seconds."""

    delay: float


Decision = NodeAnswer | MqError | RepeatAfter
"""The request is done, is given up with this error, or is repeated."""


class Exchange:
    """The requests under way on one connection, by id."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self.under_way: dict[int, Call] = {}

    def sent(self, call: Call, number: int) -> None:
        """An attempt of the call begins, under this id: from now on the node may carry it out."""
        call.id = number
        call.sent = True
        call.attempts += 1
        self.under_way[number] = call

    def answered(
        self, header: dict[str, Any], payload: bytes | memoryview, now: float
    ) -> tuple[Call, Decision] | None:
        """Returns the call that the answer belongs to, and what follows; None without one."""
        call = self.under_way.pop(header.get("id", 0), None)
        if call is None:
            return None
        call.sent = False
        if header.get("ok"):
            return call, NodeAnswer(header, payload)
        return call, refused(call, refusal_error(header), self._retry, now)

    def goes_on(self, call: Call, change: Mapping[str, Any]) -> None:
        """Puts a call that has yet another answer back under way. `change` is what its fields would
        have to be for the rest alone, should that be lost."""
        call.fields = {**call.fields, **change}
        call.sent = True
        self.under_way[call.id] = call

    def lost(self, why: str, now: float) -> list[tuple[Call, Decision]]:
        """The connection is gone: returns what follows for each call. Take what came
        before it first."""
        calls = list(self.under_way.values())
        self.under_way.clear()
        return [(call, lost(call, why, self._retry, now)) for call in calls]

    def expired(self, now: float, where: str) -> list[tuple[Call, MqError]]:
        """Ends the calls whose time is up. `where` names the node or process."""
        over = [call for call in self.under_way.values() if call.deadline <= now]
        for call in over:
            del self.under_way[call.id]
        return [(call, at_deadline(call, where)) for call in over]

    def closed(self) -> list[tuple[Call, MqError]]:
        """Ends all calls, with the client."""
        calls = list(self.under_way.values())
        self.under_way.clear()
        return [(call, when_closed(call, failed=False)) for call in calls]


def begin(call: Call, number: int) -> None:
    """Gives the call the id that it keeps in all its attempts."""
    call.id = number


def finish(call: Call) -> bool:
    """Marks the call as ended; returns False when it was already."""
    if call.finished:
        return False
    call.finished = True
    return True


def refused(
    call: Call, error: MqError, retry: Retry, now: float, chance: float | None = None
) -> RepeatAfter | MqError:
    """The node has answered with an error, so this attempt has stored nothing."""
    call.last_error = error
    if error.retriable and call.attempts < retry.max_attempts:
        delay = max(_jitter(call.attempts, retry, chance), float(getattr(error, "retry_after", 0)))
        if now + delay < call.deadline:
            return RepeatAfter(delay)
    return _unknown(call, str(error)) if call.maybe_done else error


def refused_unsent(call: Call, error: MqError, retry: Retry, now: float) -> RepeatAfter | MqError:
    """As `refused`, by a node that has said beforehand that it refuses such calls."""
    call.attempts += 1
    return refused(call, error, retry, now)


def lost(
    call: Call, why: str, retry: Retry, now: float, chance: float | None = None
) -> RepeatAfter | MqError:
    """The connection went away after the request was sent, before its answer."""
    call.sent = False
    call.maybe_done = not call.repeatable
    if call.repeatable or retry.duplicates_ok or call.fields.get("once"):
        delay = _jitter(call.attempts, retry, chance)
        if call.attempts < retry.max_attempts and now + delay < call.deadline:
            return RepeatAfter(delay)
    if call.repeatable:
        return NotConnected(f"{call.op}: {why}", "see keelog health")
    return _unknown(call, why)


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


def _unknown(call: Call, why: str) -> OutcomeUnknownError:
    return SendTimeout(
        f"{call.op}: {why}; the message may be stored",
        "look for its unique key before you send it again",
    )


def _jitter(attempts: int, retry: Retry, chance: float | None) -> float:
    ceiling = min(retry.backoff_max, retry.backoff * 2.0 ** min(attempts, 30))
    # Jitter spreads load; it guards nothing.
    return ceiling * (random.random() if chance is None else chance)
