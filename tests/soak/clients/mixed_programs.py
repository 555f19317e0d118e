"""RocketMQ's Java client in processes: messages of all kinds on one topic, and three groups.

The program is Mixed in tests/interop/java. It writes whole numbers into files, a row for each
message that was sent and for each that a consumer was given, before it replies to anybody.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keelog.bench.queue_checks import Ints
from scripts.rivals.rocketmq import Jvm
from tests.interop import probe
from tests.soak.clients.programs import QUIET_HEAP, java_classes
from tests.soak.load import read_rows

TOPIC = "mixed"
KINDS = ("single", "batch", "level", "timer", "transaction")
"""Of messages; a row has the index."""
TRANSACTION = KINDS.index("transaction")
AT_ONCE = (KINDS.index("single"), KINDS.index("batch"))
"""The kinds whose place is told to the producer: the others wait elsewhere first."""
MIXED_TOLD = ("kind", "number", "outcome", "physical_offset", "ns")
MIXED_GIVEN = ("kind", "number", "physical_offset", "times", "outcome", "ns")
_FATES = 5
_ROLLED_BACK = (2, 4)
"""Of five transactions: at once, and when the broker asks."""
_STOP_S = 120.0


class GroupRule(NamedTuple):
    """How a group behaves: one message of `fails_every` fails, `fails_times` times."""

    name: str
    members: int = 1
    fails_every: int = 0
    fails_times: int = 0
    reconsume_max: int = 16

    @property
    def gives_up(self) -> bool:
        """Whether what fails ends in its dead letters."""
        return self.fails_times > self.reconsume_max

    def fails(self, numbers: Ints) -> Ints:
        """Which of the numbers fail."""
        if not self.fails_every:
            return np.zeros(len(numbers), bool)
        return np.asarray(numbers % self.fails_every == self.fails_every - 1)


GROUPS = (
    GroupRule("steady", members=2),
    GroupRule("retrying", fails_every=10, fails_times=1),
    GroupRule("failing", fails_every=20, fails_times=99, reconsume_max=2),
)


def is_wanted(rows: Ints) -> Ints:
    """Whether messages, by kind and number, are to be seen: not rolled back."""
    is_rolled_back = np.isin(rows[:, 1] % _FATES, _ROLLED_BACK) & (rows[:, 0] == TRANSACTION)
    return np.asarray(~is_rolled_back)


class MixedClient(Jvm):
    """One process of Mixed."""

    def __init__(self, name: str, home: Path, arguments: list[object]) -> None:
        command = [*QUIET_HEAP, "-cp", java_classes(), "Mixed"]
        super().__init__(name, home, [*command, *map(str, arguments)], talks=True)

    def next_step(self) -> None:
        """A producer sends no more, or a process has said that it ends. Raises RivalFailed."""
        self.tell({"do": "go on"})
        self.hear()

    def finish(self) -> None:
        """It ends in order. Raises RivalFailed."""
        self.next_step()
        self.wait(_STOP_S)


class MixedLoad:
    """The producer and the members of all groups, and the files that they write into a folder."""

    def __init__(self, folder: Path, name_server: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name_server = name_server
        self._running: list[MixedClient] = []

    def produce(self, pause_ms: int) -> MixedClient:
        """Starts the producers, one for each kind."""
        return self._start("produce", "produce", self._told_file, pause_ms)

    def consume(self, rule: GroupRule) -> list[MixedClient]:
        """Starts the members of a group."""
        names = [f"{rule.name}-{number}" for number in range(rule.members)]
        fails = rule.fails_every, rule.fails_times, rule.reconsume_max
        return [
            self._start(name, "consume", self._folder / f"{name}.given", rule.name, name, *fails)
            for name in names
        ]

    def _start(self, name: str, what: str, path: Path, *more: object) -> MixedClient:
        probe.build()
        arguments = [what, self._name_server, TOPIC, path, *more]
        client = MixedClient(name, self._folder, arguments)
        self._running.append(client)
        client.hear()
        return client

    def kill(self) -> None:
        """Ends all that is left."""
        for client in self._running:
            client.kill()

    @property
    def _told_file(self) -> Path:
        return self._folder / "told.rows"

    def told(self) -> Ints:
        """Rows of MIXED_TOLD."""
        return read_rows(self._told_file, MIXED_TOLD)

    def given(self) -> Mapping[str, Ints]:
        """Rows of MIXED_GIVEN, by group."""
        return {
            rule.name: np.concatenate(
                [
                    read_rows(self._folder / f"{rule.name}-{number}.given", MIXED_GIVEN)
                    for number in range(rule.members)
                ]
            )
            for rule in GROUPS
        }
