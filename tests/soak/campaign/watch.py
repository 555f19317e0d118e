"""What a node says of its health, held against what becomes of the sends to it.

`Witness` is the account, with the clock as a parameter; `Watch` keeps it beside a running node.
"""

import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from keelog.client.client import connect
from keelog.client.transport.exchange import Retry
from protocol.errors import MqError
from tests.soak.load import ACKNOWLEDGED, Notes

READY_BUT_FAILING_S_MAX = 15.0
"""So long a node may say that it is ready while no send succeeds."""
_LOOK_S = 0.5
_ASK_S = 2.0
_HTTP_TURNS = 8
"""Each so many looks go to the HTTP end too."""
_ONE_ATTEMPT = Retry(max_attempts=1)


class Witness:
    """The longest time that a node said that it is ready while nothing was acknowledged."""

    def __init__(self, now: float) -> None:
        self.last_success = now
        self._ready_since: float | None = None
        self._longest = 0.0

    def sent(self, now: float) -> None:
        """A message was acknowledged."""
        self.last_success = now

    def said(self, now: float, ready: bool) -> None:
        """The node was asked; no answer is as good as `not ready`."""
        if not ready:
            self._ready_since = None
            return
        if self._ready_since is None:
            self._ready_since = now
        self._longest = max(self._longest, now - max(self._ready_since, self.last_success))

    def take_longest(self) -> float:
        """Since the last call. A stretch that goes on counts from its beginning the next time."""
        longest, self._longest = self._longest, 0.0
        return longest


class WatchedNotes(Notes):
    """Rows of a sender, whose successes the witness sees too."""

    def __init__(self, path: Path, witness: Witness) -> None:
        super().__init__(path)
        self._witness = witness

    def add(self, *row: int) -> None:
        """One row."""
        super().add(*row)
        if row[1] == ACKNOWLEDGED:
            self._witness.sent(time.monotonic())


class Watch:
    """A thread that asks the control socket for the node's health twice a second."""

    def __init__(self, endpoint: str, http: str) -> None:
        self.witness = Witness(time.monotonic())
        self.http_failed_s = 0.0
        """How long the HTTP end has not answered, while the control socket did."""
        self._endpoint = endpoint
        self._http = http
        self._http_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more looks."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with connect(self._endpoint, timeout=_ASK_S, retry=_ONE_ATTEMPT) as client:
            turn = 0
            while not self._stop.wait(_LOOK_S):
                ready = answered = False
                with suppress(MqError):
                    ready = client.health().ready
                    answered = True
                self.witness.said(time.monotonic(), ready)
                turn += 1
                if not answered or self.http_failed_s or turn % _HTTP_TURNS == 0:
                    self._look_at_http(answered)

    def _look_at_http(self, node_answers: bool) -> None:
        now = time.monotonic()
        if not node_answers or answers_http(self._http):
            self._http_at, self.http_failed_s = now, 0.0
        else:
            self.http_failed_s = max(now - self._http_at, _LOOK_S)


def answers_http(url: str) -> bool:
    """Whether the HTTP end says that the node lives."""
    with suppress(OSError), urllib.request.urlopen(f"{url}/livez", timeout=_ASK_S) as answer:
        return bool(answer.status == 200)
    return False
