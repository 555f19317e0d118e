"""Sets the clock of a node under load by up to a day either way, round after round.

In each round some messages are sent: of delay levels, with delays, with times, cancelled ones,
handed back ones, halves of transactions, and keys that come twice. Now and then a process, or the
whole node, is killed with SIGKILL, or a replica is promoted whose clock is another one. At the end
every message is accounted for: none lost, none early, none later than a minute, no cancelled one,
and twice only those that a kill repeated.

    python -m tests.soak.clocks.run --rounds 2000 --seed 1

Exit codes: 0 everything is accounted for, 1 something is not, 2 usage. It needs a C compiler.
"""

import argparse
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

from keelog.replication.roles import promote
from node.runtime.run_files import read_follow_state
from node.runtime.settings import load_settings
from tests.soak.clocks.account import Clock, ClockStep, Figures, Kind, judge
from tests.soak.clocks.traffic import OUTAGE, RETRIED, TOPIC, Traffic
from tests.soak.command import run_soak, soak_parser
from tests.support.clock.shifted_clock import ShiftedClock
from tests.support.follower import HA, followers_place
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, remoting_place

DAY_S = 86_400.0
ROUND_S = 0.5
"""At least, with its sends a second or so."""
SET_SHARE = 0.4
"""Of the rounds in which the clock is set, and of these in which it is set again, and so on."""
SET_AGAIN_S = 0.4
"""At most, between two of a round: some of them nobody but the tasks sees."""
DRAIN_S = 90.0
REUSE_AFTER_S = 30.0
KILLED = ("tasks", "writer", "gateway", "reader", "node")
SETTINGS = (
    REMOTING,
    HA,
    "message_delay_level=1s 3s 2s",
    "recall_message_enable=true",
    "idempotent_window=5",
    "transaction_time_out=1000",
    "transaction_check_interval=1000",
    "transaction_check_max=100",
    "file_reserved_time=1000",
)


class ClockRun:
    """One run, in a folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._random = random.Random(options.seed)
        self._shifted = ShiftedClock(folder / "clock")
        self._clock = Clock(time.time() - time.monotonic(), [ClockStep(0.0, 0.0)])
        self._kills: list[float] = []
        self._figures = Figures()
        self._node = self._node_at(folder / "store-0")

    def _node_at(self, root: Path, *more: str) -> RunningNode:
        settings = (*SETTINGS, *more)
        return RunningNode(root, settings, queue_workers=1, readers=1, env=self._shifted.env)

    def run(self) -> Figures:
        """Raises AssertionError where a node does not come back."""
        self._node.start()
        for topic in (TOPIC, RETRIED):
            self._node.client.create_topic(topic, 1)
        traffic = Traffic(self._node, self._shifted, self._options.seed)
        try:
            while self._figures.rounds < self._options.rounds:
                self._rounds(traffic)
                done = self._figures.rounds
                if done % self._options.promote_every == 0 and done < self._options.rounds:
                    self._promote(traffic)
            end_s = self._drain(traffic)
        finally:
            traffic.close()
            self._node.kill_all()
        judge(traffic.sent, traffic.came, self._clock, self._kills, end_s, self._figures)
        return self._figures

    def _rounds(self, traffic: Traffic) -> None:
        """Until the node is another one, a replica shall be promoted, or the end."""
        node = self._node
        with traffic.connect() as client:
            while node is self._node:
                began = time.monotonic()
                while self._random.random() < SET_SHARE:
                    self._set(self._random.choice((0.0, self._random.uniform(-DAY_S, DAY_S))))
                    time.sleep(self._random.uniform(0.0, SET_AGAIN_S))
                with suppress(*OUTAGE):
                    traffic.send_some(client)
                self._figures.rounds += 1
                done = self._figures.rounds
                if done % self._options.kill_every == 0:
                    self._kill(traffic)
                if done % self._options.promote_every == 0 or done >= self._options.rounds:
                    return
                self._options.tell(f"round {done}")
                time.sleep(max(0.0, began + ROUND_S - time.monotonic()))

    def _set(self, shift_s: float) -> None:
        self._shifted.set(seconds=shift_s)
        self._clock.steps.append(ClockStep(time.monotonic(), shift_s))

    def _kill(self, traffic: Traffic) -> None:
        what = self._random.choice(KILLED)
        self._figures.kills[what] += 1
        self._note_kill(traffic)
        if what != "node":
            with suppress(*OUTAGE):
                self._node.kill(what)
            return
        root = self._node.root
        self._node.kill_all()
        self._go_on(traffic, self._node_at(root))

    def _go_on(self, traffic: Traffic, node: RunningNode) -> None:
        node.start()
        self._note_kill(traffic)
        self._node = traffic.node = node

    def _note_kill(self, traffic: Traffic) -> None:
        self._kills.append(time.monotonic())
        traffic.reuse_from_s = time.monotonic() + REUSE_AFTER_S

    def _promote(self, traffic: Traffic) -> None:
        """A replica becomes the master, after a kill of the old one."""
        master, root = self._node, self._folder / f"store-{self._figures.promotions + 1}"
        master.wait_all_run()
        host, port = followers_place(master)
        remoting = ":".join(map(str, remoting_place(master.stderr)))
        replica = self._node_at(root, f"follow={host}:{port}", f"follow_remoting={remoting}")
        with replica:
            end = master.log_state().appended
            wait_until(lambda: replica.log_state().flushed >= end, "the log is not copied")
            wait_until(lambda: read_follow_state(root).metadata_ms > 0, "no tables are copied")
            wait_until(
                lambda: replica.log_state().flushed == master.log_state().appended, "it is late"
            )
            self._note_kill(traffic)
            master.kill_all()
        self._set(self._random.uniform(-DAY_S, DAY_S))
        promote(root, load_settings([one for one in SETTINGS if not one.startswith("serve.")]))
        self._figures.promotions += 1
        self._go_on(traffic, self._node_at(root))

    def _drain(self, traffic: Traffic) -> float:
        """Returns when all came, or nothing more is to come; and from when on all was due."""
        self._node.wait_all_run()
        ahead = max(0.0, *(one.shift_s for one in self._clock.steps))
        self._set(ahead)
        end_s = time.monotonic()
        late_s = end_s + DRAIN_S

        def is_open() -> bool:
            open_ones = (
                one.acked_s is not None and one.kind is not Kind.CANCELLED
                for name, one in list(traffic.sent.items())
                if name not in traffic.came
            )
            return any(open_ones)

        while is_open() and time.monotonic() < late_s:
            time.sleep(0.2)
        time.sleep(3.0)
        return end_s


def main(arguments: list[str] | None = None) -> int:
    """Runs it; returns the exit code."""
    parser = soak_parser(__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=2000, help="how often the clock may be set (default 2000)")
    add("--kill-every", type=int, default=50, help="rounds between two kills (default 50)")
    add("--promote-every", type=int, default=250, help="between two promotions (default 250)")
    options = parser.parse_args(arguments)
    return run_soak(options, "clocks", lambda folder: ClockRun(folder, options).run())


if __name__ == "__main__":
    sys.exit(main())
