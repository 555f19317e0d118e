"""One request to the node with all its attempts: answered, or lost, then repeated or given up.

A request that was certainly not stored is repeated. One that may have been stored is not, unless
the user says that duplicates do no harm. No sockets and no clock here: the threads that carry
requests report what happened to a `Call`, which alone changes its state, and act on its decisions.
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

from protocol import errors
from protocol.wire.frames import VERSION, refusal_error

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
            raise errors.BadRequest(f"max_attempts is {self.max_attempts!r}", "use 1 or more")
        if not all(isinstance(wait, int | float) and 0 <= wait < inf for wait in waits):
            raise errors.BadRequest("backoff and backoff_max are seconds, at least 0")


Outcome = NodeAnswer | errors.MqError


@dataclass(frozen=True, slots=True)
class RepeatAfter:
    """Try again after `delay` seconds."""

    delay: float


Decision = NodeAnswer | errors.MqError | RepeatAfter
"""The request is done, is given up with this error, or is repeated."""


GOES_ON = (RepeatAfter, errors.NotLoggedIn)
"""Decisions about a call that the I/O thread has to carry on: it may know another way to a node
where users have to log in."""


class Unanswered(Enum):
    """Why a thread that carried a request itself waits no longer."""

    LOST = "the connection was lost"
    LATE = "its time is up"
    CLOSED = "the client was closed"


@dataclass(slots=True, eq=False)
class Call:
    """One request. `deadline` is in seconds of the monotonic clock, for all attempts together.

    `repeatable`: carrying it out twice changes no more than once. `done` is called once with the
    outcome, on the thread that carries the request. `affinity` keeps the pulls of one queue at one
    reader. What follows `done`, and a stream's `fields`, is its state: only this module changes it,
    and the I/O thread gives it an id that stays in all attempts there.
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
    last_error: errors.MqError | None = None
    id: int = 0

    def header(self, number: int, **more: bool) -> dict[str, Any]:
        return {"v": VERSION, "op": self.op, "id": number, **self.fields, **more}

    def was_sent(self, number: int) -> None:
        """An attempt begins, under this id: from now on the node may carry it out."""
        self.id = number
        self.sent = True
        self.attempts += 1

    def finish(self) -> bool:
        """Marks it as ended; returns False when it was already."""
        if self.finished:
            return False
        self.finished = True
        return True

    def answered(self, answer: NodeAnswer, retry: Retry, now: float) -> Decision:
        """The node has answered the attempt."""
        self.sent = False
        if answer.header.get("ok"):
            return answer
        return self.refused(refusal_error(answer.header), retry, now)

    def ended(
        self, outcome: NodeAnswer | Unanswered, where: str, retry: Retry, now: float
    ) -> Decision:
        """What follows on the first attempt, which a thread carried itself, to `where`."""
        self.was_sent(self.id)
        if isinstance(outcome, NodeAnswer):
            return self.answered(outcome, retry, now)
        if outcome is Unanswered.LOST:
            return self.lost(f"the connection to {where} was lost", retry, now)
        if outcome is Unanswered.LATE:
            return self.at_deadline(where)
        return self.when_closed()

    def refused(
        self, error: errors.MqError, retry: Retry, now: float, chance: float | None = None
    ) -> RepeatAfter | errors.MqError:
        """The node has answered with an error, so this attempt has stored nothing."""
        self.last_error = error
        if error.retriable and self.attempts < retry.max_attempts:
            wait_s = float(getattr(error, "retry_after", 0))
            delay = max(_jitter(self.attempts, retry, chance), wait_s)
            if now + delay < self.deadline:
                return RepeatAfter(delay)
        return self._unknown(str(error)) if self.maybe_done else error

    def refused_unsent(
        self, error: errors.MqError, retry: Retry, now: float
    ) -> RepeatAfter | errors.MqError:
        """As `refused`, by a node that has said beforehand that it refuses such calls."""
        self.attempts += 1
        return self.refused(error, retry, now)

    def lost(
        self, why: str, retry: Retry, now: float, chance: float | None = None
    ) -> RepeatAfter | errors.MqError:
        """The connection went away after the request was sent, before its answer."""
        self.sent = False
        self.maybe_done = not self.repeatable
        if self.repeatable or retry.duplicates_ok or self.fields.get("once"):
            delay = _jitter(self.attempts, retry, chance)
            if self.attempts < retry.max_attempts and now + delay < self.deadline:
                return RepeatAfter(delay)
        if self.repeatable:
            return errors.NotConnected(f"{self.op}: {why}", "see keelog health")
        return self._unknown(why)

    def at_deadline(self, where: str) -> errors.MqError:
        """The error when its time is up; `where` names the node or process."""
        if not self.repeatable and (self.sent or self.maybe_done):
            return self._unknown(f"no answer from {where} in time")
        if self.sent:
            before = f"; before that: {self.last_error.reason}" if self.last_error else ""
            return errors.RequestTimeout(
                f"{self.op}: no answer from {where} in time{before}",
                "raise the timeout, see keelog status",
            )
        if self.last_error is not None:
            return self.last_error
        return errors.NotConnected(
            f"{self.op}: {where} was not reached in time",
            "look whether the node is ready: keelog health --wait 10",
        )

    def when_closed(self, failed: bool = False) -> errors.MqError:
        """The error when the client's end leaves it without an answer."""
        if not self.repeatable and (self.sent or self.maybe_done):
            return self.at_deadline("the node before the client was closed")
        if failed:
            return errors.ClientClosed("the client's I/O thread has failed", "report its traceback")
        return errors.ClientClosed()

    def _unknown(self, why: str) -> errors.OutcomeUnknownError:
        return errors.SendTimeout(
            f"{self.op}: {why}; the message may be stored",
            "look for its unique key before you send it again",
        )


def _jitter(attempts: int, retry: Retry, chance: float | None) -> float:
    ceiling = min(retry.backoff_max, retry.backoff * 2.0 ** min(attempts, 30))
    # Jitter spreads load; it guards nothing.
    return ceiling * (random.random() if chance is None else chance)


def no_waiting_here() -> errors.MqError:
    """The error of a caller on the I/O thread that would wait there for ever."""
    return errors.BadRequest(
        "a done callback runs on the client's I/O thread, which may not wait",
        "send from another thread, or with send_nowait",
    )


class Arrival(Generic[T]):
    """A thread that waits for one outcome: cheaper than a future."""

    __slots__ = ("_arrived", "_outcome")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._outcome: T | errors.MqError | None = None

    def __call__(self, outcome: T | errors.MqError) -> None:
        self._outcome = outcome
        self._arrived.release()

    def wait(self) -> T:
        """Waits for the outcome and returns it. Raises the error that came instead."""
        self._arrived.acquire()
        if isinstance(self._outcome, errors.MqError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


def future_of(call: Call) -> "Future[NodeAnswer]":
    """A future that `done` of the call resolves; it cannot be cancelled."""
    future: Future[NodeAnswer] = Future()
    future.set_running_or_notify_cancel()

    def resolve(outcome: Outcome) -> None:
        if isinstance(outcome, errors.MqError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    call.done = resolve
    return future


class Exchange:
    """The requests under way on one connection, by id."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self.under_way: dict[int, Call] = {}

    def sent(self, call: Call, number: int) -> None:
        call.was_sent(number)
        self.under_way[number] = call

    def answered(
        self, header: dict[str, Any], payload: bytes | memoryview, now: float
    ) -> tuple[Call, Decision] | None:
        """Returns the call that the answer belongs to, and what follows; None without one."""
        call = self.under_way.pop(header.get("id", 0), None)
        if call is None:
            return None
        return call, call.answered(NodeAnswer(header, payload), self._retry, now)

    def goes_on(self, call: Call, change: Mapping[str, Any]) -> None:
        """Yet another answer of the call will come. `change` is what its fields would have to be
        for the rest alone, should that be lost."""
        call.fields, call.sent = {**call.fields, **change}, True
        self.under_way[call.id] = call

    def lost(self, why: str, now: float) -> list[tuple[Call, Decision]]:
        """The connection is gone: returns what follows for each call. Take what came
        before it first."""
        return [(call, call.lost(why, self._retry, now)) for call in self._take_all()]

    def expired(self, now: float, where: str) -> list[tuple[Call, errors.MqError]]:
        """Ends the calls whose time is up. `where` names the node or process."""
        over = [call for call in self.under_way.values() if call.deadline <= now]
        for call in over:
            del self.under_way[call.id]
        return [(call, call.at_deadline(where)) for call in over]

    def closed(self) -> list[tuple[Call, errors.MqError]]:
        return [(call, call.when_closed()) for call in self._take_all()]

    def _take_all(self) -> list[Call]:
        calls = list(self.under_way.values())
        self.under_way.clear()
        return calls
