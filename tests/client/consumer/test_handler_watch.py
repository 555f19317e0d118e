"""Handlers that take long, without one thread."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from keelog.client.consumer.consumer import HANDLER_S_MAX, SLOW_S, HandlerWatch


class Message(SimpleNamespace):
    topic, queue_id, queue_offset, msg_id = "t", 3, 77, "ID"
    settled, retries = False, 0

    def retry(self) -> None:
        self.settled = True
        self.retries += 1


def test_a_slow_handler_is_reported_once_and_comes_again_after_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, message = HandlerWatch(HANDLER_S_MAX), Message()
    slow: Any = message
    watch.begin(0, slow, 100.0)
    watch.look(100.0 + SLOW_S)
    assert not caplog.records
    for now in (101.0 + SLOW_S, 102.0 + SLOW_S, 100.0 + HANDLER_S_MAX):
        watch.look(now)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.getMessage() == (
        "a handler takes long: t, queue 3, offset 77, message ID for 61 s"
    )
    for now in (101.0 + HANDLER_S_MAX, 102.0 + HANDLER_S_MAX):
        watch.look(now)
    assert message.retries == 1
    assert watch.left() == ["t, queue 3, offset 77, message ID"]
    watch.end(0)
    assert watch.left() == []


def test_without_a_limit_it_is_reported_only() -> None:
    watch, message = HandlerWatch(None), Message()
    slow: Any = message
    watch.begin(0, slow, 0.0)
    watch.look(1e9)
    assert not message.settled
