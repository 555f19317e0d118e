"""A user is disabled while a Java producer and a Java consumer work: both are told, also of pulls
that wait, and go on by themselves when the user is let in again."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.rivals.proc import die_with_parent
from scripts.rivals.rocketmq import missing
from tests.clients.access.sides import Credentials, LoginSide, broker_with_users, node_with_users
from tests.clients.programs import BUILD_S, CLIENTS
from tests.support.node import wait_until

TOPIC, GROUP, QUEUES = "watched", "watchers", 4
WHO = Credentials("worker", "secret-of-worker")
DISABLED = f"User:{WHO.user} is disabled."
WAITS_S = 15.0
"""So long a broker or a node holds a pull of Java's client that finds nothing."""
GOES_ON_S = 60.0
pytestmark = [
    pytest.mark.access,
    pytest.mark.timeout(300 + BUILD_S),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


class Watched:
    """The lines of a program, with the times at which they came."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append((time.monotonic(), line.strip()))

    def first(self, since: float, *words: str) -> float | None:
        """When the first line with all these words came."""
        lines = list(self._lines)
        return next(
            (at for at, line in lines if at >= since and all(w in line for w in words)), None
        )

    def wait(self, since: float, patience_s: float, *words: str) -> float:
        """How long after `since` it came."""
        wait_until(lambda: self.first(since, *words) is not None, f"no line {words}", patience_s)
        return (self.first(since, *words) or 0.0) - since

    def end(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def watched(command: list[str], home: Path, secret: Path) -> Iterator[Watched]:
    with (home / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            command, cwd=home, stdout=subprocess.PIPE, stderr=stderr, text=True,
            env={**os.environ, "HOME": str(home), "CREDENTIALS_FILE": str(secret)},
            preexec_fn=die_with_parent,
        )  # fmt: skip
        found = Watched(process)
        try:
            yield found
        finally:
            found.end()


@pytest.fixture(params=["broker", "node"])
def login(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoginSide]:
    if request.param == "broker":
        with broker_with_users(tmp_path / "rocketmq") as broker:
            yield broker
    else:
        with node_with_users(tmp_path / "store") as (node, _):
            yield node


def test_who_is_disabled_hears_it_at_the_next_request_and_of_pulls_that_wait(
    login: LoginSide,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    side = request.node.callspec.params["login"]
    program = CLIENTS["java-5.5.0"].build(request.config.cache.mkdir("clients"))
    login.make_user(WHO, {f"Topic:{TOPIC}": "Pub Sub", f"Group:{GROUP}": "Sub"})
    login.create_topic(TOPIC, QUEUES)
    command = [*program.watched, login.side.name_server, TOPIC, GROUP]
    # Messages go to queue 0 alone: the pulls of the others wait.
    whose = ("producer", *(f"queue{number}" for number in range(QUEUES)))
    with watched(command, tmp_path, WHO.file(tmp_path)) as lines:
        lines.wait(0.0, GOES_ON_S, "got")
        time.sleep(1.0)  # the first pulls of all queues are under way
        disabled = time.monotonic()
        login.change_status(WHO, "disable")
        patience = GOES_ON_S if side == "broker" else WAITS_S / 2
        told = {who: lines.wait(disabled, patience, f"refused {who} ", DISABLED) for who in whose}
        enabled = time.monotonic()
        login.change_status(WHO, "enable")
        for word in ("sent", "got"):
            lines.wait(enabled, GOES_ON_S, word)
    with capsys.disabled():
        seconds = ", ".join(f"{who} {after:.2f} s" for who, after in told.items())
        sys.stdout.write(f"\n{side}: refused after {seconds}\n")
