"""Decides about requests: answered, lost, expired or closed -> done, repeated or given up.

A request that was certainly not stored is repeated. One that may have been stored is not, unless
the user says that duplicates do no harm. No sockets and no clock here: the threads that carry
requests report what happened, and act on the decisions. Only this module writes a request's fields.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keelog.client.transport.request import Call, NodeAnswer, Retry
from protocol.errors import (
    ClientClosed,
    MqError,
    NotConnected,
    OutcomeUnknownError,
    RequestTimeout,
    SendTimeout,
)
from protocol.wire.frames import refusal_error


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
