"""`keelog serve --controller` as a process: a keeper, and the node below it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from keelog.bench.node_process import ANY_DISK
from node.runtime.event_log import FORMAT_VARIABLE
from node.runtime.run_files import (
    FOLLOWING,
    FOLLOWS,
    LEADS,
    ElectedState,
    read_elected,
    read_follow_state,
)
from node.runtime.state_page import RUNNING, LogPage
from node.supervisor.bind import free_ports
from node.supervisor.child_process import command, environment
from protocol.addresses import VIP_DISTANCE

CLUSTER, BROKER = "keels", "keel-e"
STOP_S = 60.0
_PORTS = 8
_LOOK_S = 0.02


class ElectedNode:
    """`keelog serve --controller`, with its keeper. Its output goes to a file beside the store."""

    def __init__(
        self,
        root: Path,
        first: int,
        controllers: str,
        name_servers: str,
        settings: Sequence[str] = (),
    ) -> None:
        """It has ports from `first` on; controllers and name servers as on the command line."""
        self.root = root
        self.endpoint = f"tcp://127.0.0.1:{first}"
        self.remoting = f"127.0.0.1:{first + 3 + VIP_DISTANCE}"
        self.talk = root.with_name(f"{root.name}.log")
        self._command = command("keelog", ["serve", str(root), "--bind", self.endpoint])
        self._command += ["--controller", controllers, "--namesrv", name_servers]
        self._command += ["--cluster", CLUSTER, "--broker-name", BROKER]
        self._command += ["--remoting", self.remoting]
        self._command += ["--ha", f"127.0.0.1:{first + 4 + VIP_DISTANCE}"]
        self._command += ["--restart-limit", "0", "--queue-workers", "1", "--readers", "1"]
        for pair in (*ANY_DISK, *settings):
            self._command += ["-X", pair]
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Starts it and does not wait."""
        with self.talk.open("ab") as talk:
            self._process = subprocess.Popen(
                [*self._command, "--while-pid", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=talk,
                stderr=talk,
                env={**environment(), FORMAT_VARIABLE: "text"},
                process_group=0,
            )

    @property
    def is_running(self) -> bool:
        """Whether its keeper lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the keeper."""
        assert self._process is not None, "not started"
        return self._process.pid

    def state(self) -> ElectedState:
        """What its keeper says."""
        return read_elected(self.root)

    @property
    def leads(self) -> bool:
        """Whether it is the master, and takes messages."""
        if not self.is_running or self.state().role != LEADS:
            return False
        with suppress(OSError), LogPage.open(self.root) as page:
            return page.read().state == RUNNING
        return False

    @property
    def follows(self) -> bool:
        """Whether it copies the master's log."""
        state = self.state()
        is_slave = self.is_running and state.role == FOLLOWS
        return is_slave and read_follow_state(self.root).state == FOLLOWING

    def end(self) -> int:
        """The end of its log on the disk; -1 while that is not known."""
        with suppress(OSError), LogPage.open(self.root) as page:
            return page.read().flushed
        return -1

    def said(self) -> str:
        """All its output."""
        return self.talk.read_text(errors="replace")

    def _all(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            keeper = psutil.Process(self.pid)
            return [keeper, *keeper.children(recursive=True)]
        return []

    def signal(self, number: int) -> None:
        """To the keeper and all below it: SIGSTOP, SIGCONT."""
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the keeper and all below it, as the loss of a machine."""
        # Held first: else one of them would start anew what is killed before it.
        self.signal(signal.SIGSTOP)
        everyone = self._all()
        for process in everyone:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        assert self._process is not None
        self._process.wait(STOP_S)
        psutil.wait_procs(everyone, STOP_S)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None, "not started"
        self._process.terminate()
        return self._process.wait(STOP_S)


def elected_nodes(
    folder: Path, count: int, controllers: str, name_servers: str, settings: Sequence[str]
) -> list[ElectedNode]:
    """Nodes of one group, which are not started yet."""
    first = free_ports(_PORTS * count)
    return [
        ElectedNode(folder / f"node-{at}", first + _PORTS * at, controllers, name_servers, settings)
        for at in range(count)
    ]


def master_of(nodes: Sequence[ElectedNode]) -> ElectedNode | None:
    """The one that leads with the highest epoch, as the nodes say."""
    found = [one for one in nodes if one.leads]
    return max(found, key=lambda one: one.state().epoch, default=None)


def await_true(
    done: Callable[[], bool], what: str, nodes: Sequence[ElectedNode], s: float
) -> float:
    """The seconds until `done()`. Raises AssertionError with what the nodes said."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > s:
            said = [f"{one.root.name}: {one.state()}\n{one.said()[-3000:]}" for one in nodes]
            raise AssertionError(f"{what}: not within {s:.0f} s\n{''.join(said)}")
        time.sleep(_LOOK_S)
    return time.monotonic() - began
