"""One request to the node with all its attempts, its answer, and how its caller waits for it.

`client.transport.exchange` decides what becomes of it.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any, Generic, TypeVar

from protocol.errors import BadRequest, MqError

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
