"""Reads that one thread makes alone: it carries them itself; trouble is for the I/O thread."""

import threading
import time
from typing import Any

import pytest

import keelog
from keelog.client.transport import direct
from protocol.errors import NodeBusy
from tests.support.fake_node import FakeNode

WAIT_S = 60.0


@pytest.fixture
def carried(mq: keelog.Client, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which reads went without the I/O thread, once there is a connection for that."""
    seen: list[bool] = []
    ask = direct.BlockingChannel.ask

    def noted(self: direct.BlockingChannel, *request: Any) -> direct.Reply | None:
        reply = ask(self, *request)
        seen.append(reply is not None)
        return reply

    monkeypatch.setattr(direct.BlockingChannel, "ask", noted)
    deadline = time.monotonic() + WAIT_S
    while not any(seen):
        assert time.monotonic() < deadline, "the connection of its own never came up"
        mq.topics()
    seen.clear()
    return seen


def test_a_lone_read_does_not_change_threads_and_a_busy_node_is_asked_again(
    node: FakeNode, mq: keelog.Client, carried: list[bool]
) -> None:
    mq.create_topic("orders", queues=2)
    node.refuse["offsets"] = [NodeBusy("full")]
    for _ in range(3):
        assert len(mq.offsets("orders")) == 2
    assert carried == [True] * 3


def test_while_one_thread_waits_for_a_message_others_read(
    node: FakeNode, mq: keelog.Client, carried: list[bool]
) -> None:
    mq.create_topic("orders", queues=1)
    found: list[bytes] = []

    def wait() -> None:
        found.extend(one.body for one in mq.pull("orders", 0, 0, wait=30.0).messages)

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + WAIT_S
    while not node.operations("pull"):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert [one.topic for one in mq.topics()] == ["orders"]
    assert carried == [False]
    mq.send("orders", b"here", queue_id=0)
    thread.join(WAIT_S)
    assert found == [b"here"]


def test_closing_ends_a_read_that_waits(
    node: FakeNode, mq: keelog.Client, carried: list[bool]
) -> None:
    mq.create_topic("orders", queues=1)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            mq.pull("orders", 0, 0, wait=30.0)
        except keelog.ClientClosed as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + WAIT_S
    while not node.operations("pull"):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    mq.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert len(caught) == 1


def test_a_read_goes_on_when_its_reader_is_restarted(
    node: FakeNode, mq: keelog.Client, carried: list[bool]
) -> None:
    mq.create_topic("orders", queues=3)
    node.stop_process("reader")
    node.start_process("reader", same_port=False)
    assert len(mq.offsets("orders")) == 3
