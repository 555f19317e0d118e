"""RocketMQ's Java client in processes: producers and consumers of messages with sequence numbers.

The program is Sequences in tests/interop/java. It writes whole numbers into files, a row for each
outcome of a send and for each message that the consumer was given, before it replies to anybody.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keelog.bench.queue_checks import Ints
from protocol.names import RETRY_PREFIX
from scripts.rivals.rocketmq import Jvm
from tests.interop import probe
from tests.soak.load import ACKNOWLEDGED, ROW, SEEN, read_rows, receipt_files

TOLD = ("broker", *ROW)
"""What a producer writes down for each message; the broker of one that failed is -1."""
GIVEN = ("broker", *SEEN, "times", "outcome", "ns")
"""What a consumer writes down before it replies; `topic` is 2 for the group's retry topic."""
CONSUMED, HANDED_BACK = 0, 1
FOREVER = 2**63 - 1
LIMITLESS = 2**31 - 1
_JAVA = Path(probe.RUN).parent
_QUIET = "-Dprobe.log=ERROR"
"""A warning with its stack for each send that fails would be most of the work."""
QUIET_HEAP = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", _QUIET)
_STOP_S = 120.0
_LOOK_S = 0.1


def java_classes() -> str:
    """The class path of the programs in tests/interop/java, which are built."""
    libraries = (_JAVA / "target" / "cp.txt").read_text().strip()
    return f"{_JAVA}/target/classes:{libraries}"


class JavaClient(Jvm):
    """One process of Sequences."""

    def __init__(self, name: str, home: Path, arguments: list[object]) -> None:
        command = [*QUIET_HEAP, "-cp", java_classes(), "Sequences"]
        super().__init__(name, home, [*command, *map(str, arguments)], talks=True)

    def await_ready(self) -> None:
        """Returns when it sends or consumes. Raises RivalFailed."""
        self.hear()

    def finish(self) -> None:
        """Has it end in order: outcomes are in, offsets committed. Raises RivalFailed."""
        self.tell({"do": "stop"})
        self.hear()
        self.wait(_STOP_S)


class JavaLoad:
    """The producers and consumers of one topic, and the files that they write into `folder`."""

    def __init__(
        self, folder: Path, name_server: str, brokers: tuple[str, ...], producers: int = 0
    ) -> None:
        """`name_server` as for RocketMQ's clients, several joined by `;`. `producers`: how many
        have written files already."""
        folder.mkdir(parents=True, exist_ok=True)
        self.topic, self.group = "sequences", "counters"
        self.retry_topic = f"{RETRY_PREFIX}{self.group}"
        self._folder = folder
        self._shared = [name_server, ",".join(brokers), self.topic]
        self._producers = producers
        self._running: list[JavaClient] = []

    def produce(
        self, producers: int = 2, pause_ms: int = 10, first: int = 0, count: int = FOREVER
    ) -> JavaClient:
        """Starts producers; each sends `count` messages, with numbers from `first` on."""
        self._producers = max(self._producers, producers)
        return self._start("produce", "produce", self._folder, producers, pause_ms, first, count)

    def consume(self, name: str, threads: int = 8, limit: int = LIMITLESS) -> JavaClient:
        """Starts a member of the group; it consumes `limit` messages, and holds the others."""
        path = self._folder / f"{name}.rows"
        return self._start(name, "consume", path, self.group, name, threads, limit)

    def _start(self, name: str, what: str, *arguments: object) -> JavaClient:
        probe.build()
        client = JavaClient(name, self._folder, [what, *self._shared, *arguments])
        self._running.append(client)
        client.await_ready()
        return client

    def kill(self) -> None:
        """Ends all that is left."""
        for client in self._running:
            client.kill()

    def told(self) -> dict[int, Ints]:
        """Rows of TOLD by producer."""
        files = receipt_files(self._folder, self._producers)
        return {number: read_rows(path, TOLD) for number, path in files.items()}

    def given(self) -> Ints:
        """Rows of GIVEN, of all consumers."""
        files = set(self._folder.glob("*.rows")) - set(
            receipt_files(self._folder, self._producers).values()
        )
        return np.concatenate([read_rows(path, GIVEN) for path in sorted(files)] or [_NONE])

    def acknowledged(self) -> Ints:
        """Producer, number and moment of each acknowledged message."""
        parts = [np.zeros((0, 3), np.int64)]
        for producer, rows in self.told().items():
            good = rows[rows[:, TOLD.index("outcome")] == ACKNOWLEDGED]
            who = np.full(len(good), producer)
            numbers, moments = (good[:, TOLD.index(name)] for name in ("number", "ns"))
            parts.append(np.stack([who, numbers, moments], axis=1))
        return np.concatenate(parts)

    def consumed(self) -> Ints:
        """Producer, number and moment of each message that was consumed; repeats too."""
        rows = self.given()
        good = rows[rows[:, GIVEN.index("outcome")] == CONSUMED]
        return np.asarray(good[:, [GIVEN.index(name) for name in ("producer", "number", "ns")]])

    def unconsumed(self) -> Ints:
        """Producer and number of acknowledged messages that nobody has consumed yet."""
        wanted, found = self.acknowledged(), self.consumed()
        left = numbered(wanted)[~np.isin(numbered(wanted), numbered(found))]
        return np.stack(np.divmod(left, _NUMBERS_MAX), axis=1)

    def await_both(self, since_ns: int, timeout_s: float) -> str:
        """Waits until a message is acknowledged and one consumed that came after a moment.

        Returns what is missing after `timeout_s`.
        """

        def left() -> str:
            after = {
                "acknowledged": self.acknowledged()[:, 2] > since_ns,
                "consumed": self.consumed()[:, 2] > since_ns,
            }
            return " nor ".join(name for name, rows in after.items() if not rows.any())

        return _await_none(left, timeout_s)

    def await_all_consumed(self, timeout_s: float) -> str:
        """Waits until all that was acknowledged is consumed; says what is not."""

        def left() -> str:
            rows = self.unconsumed()
            return f"{len(rows)} of all: {rows[:3].tolist()}" if len(rows) else ""

        return _await_none(left, timeout_s)


_NONE = np.zeros((0, len(GIVEN)), np.int64)
_NUMBERS_MAX = 1 << 40


def numbered(rows: Ints) -> Ints:
    """One whole number for producer and number, the first two columns."""
    return np.asarray(rows[:, 0] * _NUMBERS_MAX + rows[:, 1])


def _await_none(left: Callable[[], str], timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while (what := left()) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return what
