"""RocketMQ's Java client in a process: transactions of numbered messages, and what became of them.

The program is Transactions in tests/interop/java: of five messages, two are committed at once, one
is rolled back at once, one is committed and one rolled back when the broker asks.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from scripts.rivals.rocketmq import Jvm
from tests.interop import probe
from tests.soak.clients.programs import FOREVER, QUIET_HEAP, java_classes

GROUP = "deciders"
KINDS = 5
_COMMITTED = frozenset((0, 1, 3))
_ASKED = frozenset((3, 4))
"""Kinds that are open until the broker asks."""
_STOP_S = 120.0


class Told(NamedTuple):
    """What the programs of one topic wrote down: numbers, and how often each was asked for."""

    sent: frozenset[int]
    asked: Counter[int]


class Outcome(NamedTuple):
    """The counts of a run."""

    acknowledged: int
    delivered: int
    lost: int
    """Acknowledged, committed by their producer, and not delivered."""
    seen_rolled_back: int
    doubles: int
    """Deliveries beside the first."""
    asked: int
    asked_in_vain: int
    """Questions about what the producer had ended by itself."""
    asked_again: int
    """Further questions about what was answered before."""


class TransactionLoad(NamedTuple):
    """What a process sends. `decides`: it answers what it is asked; else it says "unknown"."""

    threads: int = 4
    pause_ms: int = 5
    first: int = 0
    messages: int = FOREVER
    decides: bool = True


ALWAYS = TransactionLoad()


class JavaTransactions(Jvm):
    """One process of Transactions."""

    def __init__(
        self,
        name: str,
        folder: Path,
        name_server: str,
        topic: str,
        load: TransactionLoad = ALWAYS,
    ) -> None:
        probe.build()
        arguments = [
            name_server, topic, GROUP, folder / f"{name}.told",
            load.threads, load.pause_ms, load.first, load.messages,
            "decides" if load.decides else "waits",
        ]  # fmt: skip
        command = [*QUIET_HEAP, "-cp", java_classes(), "Transactions", *map(str, arguments)]
        super().__init__(name, folder, command, talks=True)
        self.hear()

    def send_no_more(self) -> None:
        """Returns when all that was begun is sent; it still answers questions."""
        self.tell({"do": "send no more"})
        self.hear()

    def finish(self) -> None:
        """It ends in order. Raises RivalFailed."""
        self.tell({"do": "end"})
        self.hear()
        self.wait(_STOP_S)


def told(folder: Path) -> Told:
    """All that the processes of a folder wrote down."""
    sent: set[int] = set()
    asked: Counter[int] = Counter()
    for path in sorted(folder.glob("*.told")):
        for line in path.read_text().splitlines():
            what, _, number = line.partition(" ")
            if what == "sent":
                sent.add(int(number))
            elif what == "asked" and number:
                asked[int(number)] += 1
    return Told(frozenset(sent), asked)


def is_committed(number: int) -> bool:
    """Whether the producer commits a message, at once or when it is asked."""
    return number % KINDS in _COMMITTED


def judged(said: Told, bodies: Iterable[bytes]) -> Outcome:
    """The counts of a run; `bodies` are those of all messages of the topic."""
    delivered = Counter(int(body) for body in bodies)
    wanted = {number for number in said.sent if is_committed(number)}
    own = {number: times for number, times in said.asked.items() if number % KINDS not in _ASKED}
    others = {number: times for number, times in said.asked.items() if number % KINDS in _ASKED}
    return Outcome(
        acknowledged=len(said.sent),
        delivered=len(delivered),
        lost=len(wanted - delivered.keys()),
        seen_rolled_back=sum(not is_committed(number) for number in delivered),
        doubles=sum(delivered.values()) - len(delivered),
        asked=sum(said.asked.values()),
        asked_in_vain=sum(own.values()),
        asked_again=sum(times - 1 for times in others.values()),
    )
