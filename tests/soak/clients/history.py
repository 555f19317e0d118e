"""One server under Java's producers and consumers, killed again and again, and what came of it."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.soak.clients.check import (
    Repeats,
    check_committed,
    check_given,
    check_stored,
    committed_of,
    read_kept,
)
from tests.soak.clients.programs import JavaLoad
from tests.soak.clients.servers import BROKER, KilledServer

GOES_ON_S = 90.0
"""How long after a kill a message may take to be acknowledged, and one to be consumed."""
DRAIN_S = 180.0
SETTLE_S = 6.0
"""Longer than every delay level in use: what waits is delivered."""
PAUSE_S = (0.3, 2.0)
"""Between the first sign of life and the next kill."""


@dataclass(slots=True)
class Figures(Repeats):
    """What a history found."""

    kills: Counter[str] = field(default_factory=Counter)
    gap_s_max: float = 0.0
    """The longest without an acknowledgement."""
    offset_checks: int = 0
    seconds: float = 0.0

    @property
    def repeats(self) -> int:
        """All that a consumer saw more than once, whatever the cause."""
        return self.sent_twice + self.delivered_twice + self.retried_twice + self.given_again


class History:
    """Kills a server `kills` times, its kinds in turn; begins no kill after `seconds`."""

    def __init__(
        self, server: KilledServer, folder: Path, kills: int, seconds: float,
        rnd: random.Random,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._server, self._kills, self._rnd, self._tell = server, kills, rnd, tell
        self._seconds = seconds
        self._load = JavaLoad(folder / "clients", server.name_server, (BROKER,))
        self._figures = Figures(kills=server.kills, faults=server.faults)

    def run(self) -> Figures:
        """All of it. A fault ends it."""
        began = time.monotonic()
        try:
            self._server.start()
            self._run()
        finally:
            self._load.kill()
            self._server.close()
        figures = self._figures
        figures.faults = list(dict.fromkeys(figures.faults))
        figures.seconds = time.monotonic() - began
        return figures

    def _run(self) -> None:
        producers = self._load.produce()
        # The topic exists before anybody asks for its route.
        consumers = [self._load.consume(name) for name in ("one", "two")]
        self._await_going_on("at the start")
        number, end = 0, time.monotonic() + self._seconds
        while number < self._kills and not self._figures.faults and time.monotonic() < end:
            time.sleep(self._rnd.uniform(*PAUSE_S))
            kind = self._server.kinds[number % len(self._server.kinds)]
            self._server.kill(kind)
            self._await_going_on(f"after kill {number}, of {kind}")
            self._check_committed()
            number += 1
        producers.finish()
        self._tell("all is sent")
        if left := self._load.await_all_consumed(DRAIN_S):
            self._figures.faults.append(f"not consumed within {DRAIN_S:.0f} s: {left}")
        time.sleep(SETTLE_S)
        for consumer in consumers:
            consumer.finish()
        self._check_committed()
        self._server.stop()
        self._check()

    def _await_going_on(self, when: str) -> None:
        if left := self._load.await_both(time.monotonic_ns(), GOES_ON_S):
            self._figures.faults.append(f"{when} nothing is {left} for {GOES_ON_S:.0f} s")

    def _check_committed(self) -> None:
        committed = committed_of(self._server.place, self._load)
        self._figures.faults += check_committed(committed, self._load.given())
        self._figures.offset_checks += len(committed)

    def _check(self) -> None:
        kept = {0: read_kept(self._server.root, self._server.settings, self._load)}
        check_stored(self._load, kept, self._figures)
        check_given(self._load, kept, self._figures)
        moments = np.sort(self._load.acknowledged()[:, 2])
        self._figures.gap_s_max = float(np.diff(moments).max()) / 1e9 if len(moments) > 1 else 0.0


def shown(name: str, figures: Figures) -> str:
    """For people: the counts, and of what repeats how many for a kill."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(figures.kills.items()))
    kills = max(1, figures.kills.total())
    lines = [
        f"{name}: {figures.kills.total()} kills in {figures.seconds:.0f} s ({kinds})",
        f"  {figures.acknowledged:,} acknowledged, lost {figures.lost};"
        f" {figures.consumed:,} consumed, {figures.unconsumed} acknowledged ones never;"
        f" {figures.offset_checks} committed offsets looked at;"
        f" longest gap {figures.gap_s_max:.1f} s",
        f"  repeats: {figures.repeats} ({figures.repeats / kills:.1f} a kill): sent twice"
        f" {figures.sent_twice}, delivered twice {figures.delivered_twice}, retried twice"
        f" {figures.retried_twice}, given again {figures.given_again}",
        *(f"  LOST: {fault}" for fault in figures.faults),
    ]
    return "\n".join(lines)
