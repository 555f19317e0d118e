"""A message reaches who waits for it soon, whatever the queue workers are doing meanwhile.

Waiting pulls are answered from the log, or after the workers' news; each change from the one to
the other is a moment in which a message could be missed.
"""

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from keelog.client import subscription
from keelog.client.client import connect
from keelog.client.operations import WAIT_S_MAX
from node.reader.tail_cache import RETRY_S, TAIL_RECORDS_MAX, TURN_RECORDS_MAX
from protocol.errors import ClientClosed
from tests.support.node import RunningNode, wait_until
from tests.support.seldom import seldom

pytestmark = pytest.mark.process

LATE_S = WAIT_S_MAX / 2
"""A pull whose message was missed is answered when its time is up."""
QUEUES = 8


@pytest.fixture(autouse=True)
def long_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is late is told from what a busy machine does slowly."""
    monkeypatch.setattr(subscription, "WAIT_S", WAIT_S_MAX)


class Traffic:
    """Lone messages to a topic, each with its number, and a follower that gets them."""

    def __init__(self, node: RunningNode) -> None:
        self.sent = 0
        self.got: list[int] = []
        self._sender = node.client
        self._sender.create_topic("T", QUEUES)
        self._follower = connect(node.endpoint, timeout=60.0)
        self._thread = threading.Thread(target=self._follow)

    def _follow(self) -> None:
        with suppress(ClientClosed):
            for message in self._follower.tail("T", "earliest"):
                self.got.append(int(message.body))

    def send(self) -> None:
        """The next message: ten in a row go to one queue."""
        self._sender.send("T", b"%d" % self.sent, queue_id=self.sent // 10 % QUEUES)
        self.sent += 1

    def expect_all(self) -> None:
        """Nothing is sent that would wake the follower again."""
        wait_until(lambda: len(self.got) == self.sent, f"all of {self.sent}", LATE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._follower.close()
        self._thread.join()


@pytest.mark.parametrize("rounds", [8, *seldom(30)])
def test_a_message_is_not_missed_when_the_log_is_followed_again(
    tmp_path: Path, rounds: int
) -> None:
    with (
        RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node,
        Traffic(node) as traffic,
    ):
        producer = node.client.producer()
        for _ in range(rounds):
            # So many at once are left to the queue worker.
            producer.send_many("others", [b"x"] * 2 * TURN_RECORDS_MAX)
            end = time.monotonic() + 1.5 * RETRY_S
            while time.monotonic() < end:
                traffic.send()
            traffic.expect_all()
    assert sorted(traffic.got) == list(range(traffic.sent))


@pytest.mark.parametrize("rounds", [2, *seldom(6)])
def test_queue_workers_that_stand_still_make_nothing_later_than_that(
    tmp_path: Path, rounds: int
) -> None:
    chance = random.Random(1)
    with (
        RunningNode(tmp_path / "store", queue_workers=2, readers=1) as node,
        Traffic(node) as traffic,
    ):
        workers = node.pids()["queue"]
        for _ in range(rounds):
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in workers:
                    os.kill(pid, number)
                for _ in range(chance.randrange(2 * TAIL_RECORDS_MAX)):
                    traffic.send()
            traffic.expect_all()
    assert sorted(traffic.got) == list(range(traffic.sent))
