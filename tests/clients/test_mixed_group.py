"""A group of a Java, a Go and a Python member at one node: each is killed, the others take over."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Self

import pytest

from scripts.rivals.rocketmq import missing
from tests.clients.programs import BUILD_S, CLIENTS
from tests.clients.sides import Side, running_node
from tests.support.node import RunningNode, wait_until

TOPIC, GROUP, QUEUES = "shared", "mixed", 8
KEELOG = "keelog"
PYTHON_MEMBERS = ("rocketmq-0.4.4", KEELOG)
"""RocketMQ's C++ client in Python, and our own consumer at the command line."""
PATIENCE_S = 120.0
PAUSE_S = 0.02
ARRIVE_S = 0.5
WAIT_S = 30.0
pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(int(6 * PATIENCE_S) + BUILD_S),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


class MemberProcess:
    """A member of the group in a process of its own, and the bodies that it printed."""

    def __init__(self, command: Sequence[str], home: Path) -> None:
        home.mkdir(exist_ok=True)
        self.bodies: list[str] = []
        with (home / "said").open("ab") as said:
            self._process = subprocess.Popen(
                command, cwd=home, env={**os.environ, "HOME": str(home)}, stdout=subprocess.PIPE,
                stderr=said, text=True, start_new_session=True,
            )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.bodies.append(line.strip())

    def queues_after(self, number: int) -> set[int]:
        """The queues whose messages it got, of those that were sent after message `number`."""
        found = (body.split("/") for body in list(self.bodies))
        return {int(queue) for queue, sent in found if int(sent) > number}

    def kill(self) -> None:
        """SIGKILL; what it had printed is read."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAIT_S)
        self._reading.join(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Feed:
    """Sends numbered messages to all queues in turn, in a thread; a body is QUEUE/NUMBER."""

    def __init__(self, node: RunningNode) -> None:
        self.sent: list[str] = []
        self._client = node.client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        for number in count():
            if self._stop.wait(PAUSE_S):
                return
            body = f"{number % QUEUES}/{number}"
            self._client.send(TOPIC, body.encode(), queue_id=number % QUEUES)
            self.sent.append(body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Sends nothing more."""
        self._stop.set()
        self._thread.join(WAIT_S)

    def __exit__(self, *_: object) -> None:
        self.stop()


def member_command(name: str, builds: Path, side: Side, node: RunningNode) -> Sequence[str]:
    """How a member is started that prints the body of each message, a line each."""
    if name == KEELOG:
        consume = (sys.executable, "-m", "keelog", "consume", TOPIC, "--group", GROUP)
        return (*consume, "--node", node.endpoint, "-f", "%v\\n")
    client = CLIENTS[name]
    if client.missing():
        pytest.skip(client.missing())
    return (*client.build(builds).member, side.name_server, TOPIC, GROUP)


@contextmanager
def members_of(
    started: Mapping[str, Sequence[str]], home: Path
) -> Iterator[dict[str, MemberProcess]]:
    """All members, which are gone afterwards."""
    members: dict[str, MemberProcess] = {}
    try:
        for name, command in started.items():
            members[name] = MemberProcess(command, home / name)
        yield members
    finally:
        for member in members.values():
            member.kill()


def await_shared(members: Mapping[str, MemberProcess], feed: Feed) -> None:
    """Waits until the members share all queues between them, each queue with one of them."""
    shares: dict[str, set[int]] = {}

    def is_shared() -> bool:
        since = len(feed.sent)
        wait_until(lambda: len(feed.sent) > since + 2 * QUEUES, "nothing is sent")
        time.sleep(ARRIVE_S)
        shares.update({name: one.queues_after(since) for name, one in members.items()})
        queues = Counter(queue for name in members for queue in shares[name])
        return queues == Counter(range(QUEUES)) and all(shares[name] for name in members)

    deadline = time.monotonic() + PATIENCE_S
    while not is_shared():
        assert time.monotonic() < deadline, f"the queues are not shared: {shares}"


@pytest.mark.parametrize("python", PYTHON_MEMBERS)
def test_whoever_is_killed_the_others_of_the_group_take_over_and_nothing_is_lost(
    python: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    builds = request.config.cache.mkdir("clients")
    with running_node(tmp_path / "store") as (side, node):
        node.client.create_topic(TOPIC, QUEUES)
        names = ("java-5.5.0", "go-2.1.2", python)
        started = {name: member_command(name, builds, side, node) for name in names}
        got: list[str] = []
        with Feed(node) as feed, members_of(started, tmp_path) as members:
            await_shared(members, feed)
            for name, command in started.items():
                killed = members.pop(name)
                killed.kill()
                got += killed.bodies
                await_shared(members, feed)
                members[name] = MemberProcess(command, tmp_path / name)
                await_shared(members, feed)
            feed.stop()

            def seen() -> set[str]:
                return {*got, *(body for one in members.values() for body in list(one.bodies))}

            wait_until(lambda: seen() >= set(feed.sent), "messages are missing", PATIENCE_S)
            assert seen() == set(feed.sent)
            wait_until(lambda: node.client.groups(GROUP)[0].lag == 0, "it lags", PATIENCE_S)
