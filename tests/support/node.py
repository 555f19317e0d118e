"""A whole running node, `keelog serve`, for tests: its processes, its client, its end."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from keelog.client.client import Client, connect
from node.runtime.state_page import LogPage, LogState, WorkerPage, WorkerState, queue_slot
from protocol.errors import MqError

START_S = 60.0
"""Two cores that other tests use too: a start may take long without being wrong."""
STOP_S = 60.0
CATCH_UP_S = 60.0
ANY_DISK = ("disk_space_warning_level_ratio=100", "clean_file_forcibly_enable=false")
"""A machine's disk may be 90 % full: that is not what most tests are about."""
SEGMENT_SETTING = "mapped_file_size_commit_log"
SEGMENT_BYTES = 16 * 1024 * 1024
"""Of a new store whose test does not say: the default reserves 1 GiB of disk for each."""
_LOOK_S = 0.02
_ANY_PORT = "tcp://127.0.0.1:0"
_READY = re.compile(r"^ready\b.*?(tcp://[^\s,;]+)")


def wait_until(done: Callable[[], bool], what: str, timeout_s: float = CATCH_UP_S) -> None:
    """Returns when `done()` is true. Fails the test with `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(_LOOK_S)


def _is_segment_size(pair: str) -> bool:
    """Whether a setting is the length of a segment, by our name or by RocketMQ's."""
    name = pair.partition("=")[0].rpartition(".")[2]
    return name.replace("_", "").lower() == SEGMENT_SETTING.replace("_", "")


class RunningNode:
    """A node on the folder `root`, as a context: started and ready inside, gone behind it.

    `restart_limit` 0: a test may kill as often as it likes. Leaving the context stops the node
    as SIGTERM does, or kills it when the test has failed already.
    """

    def __init__(
        self,
        root: Path,
        settings: Sequence[str] = (),
        *,
        queue_workers: int = 2,
        readers: int = 2,
        restart_limit: int = 0,
        bind: str = _ANY_PORT,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.root = root
        self._env = {**os.environ, **(env or {})}
        self.queue_workers = queue_workers
        self.readers = readers
        self.endpoint = ""
        self._command = [sys.executable, "-m", "keelog", "serve", str(root)]
        self._command += ["--bind", bind, "--restart-limit", str(restart_limit)]
        # Who kills the tests leaves no node behind.
        self._command += ["--while-pid", str(os.getpid())]
        self._command += ["--queue-workers", str(queue_workers), "--readers", str(readers)]
        chosen = [*ANY_DISK, *settings]
        if not root.exists() and not any(_is_segment_size(pair) for pair in settings):
            chosen.append(f"{SEGMENT_SETTING}={SEGMENT_BYTES}")
        for pair in chosen:
            self._command += ["-X", pair]
        self._process: subprocess.Popen[str] | None = None
        self._talk: threading.Thread | None = None
        self._ready = threading.Event()
        self._stderr: list[str] = []
        self._client: Client | None = None

    # -- start and end ------------------------------------------------------------------------

    def start(self, timeout_s: float = START_S) -> None:
        """Starts it and returns when it has said that it is ready."""
        self.begin()
        assert self._talk is not None
        deadline = time.monotonic() + timeout_s
        while not self._ready.wait(_LOOK_S):
            if not self._talk.is_alive() or time.monotonic() > deadline:
                self.kill_all()
                raise AssertionError(f"the node did not become ready:\n{self.stderr}")

    def begin(self, bind: str = _ANY_PORT) -> None:
        """Starts it and does not wait. On any port, its endpoint is known when it is ready."""
        assert self._process is None, "started already"
        self.endpoint = "" if bind == _ANY_PORT else bind
        if self.endpoint:
            self._command[self._command.index("--bind") + 1] = bind
        self._process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True, env=self._env,
        )  # fmt: skip
        self._talk = threading.Thread(target=self._listen, daemon=True)
        self._talk.start()

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr.append(line)
            found = _READY.search(line)
            if found and not self._ready.is_set():
                self.endpoint = found[1]
                self._ready.set()

    @property
    def stderr(self) -> str:
        """All that the node and its processes have said so far."""
        return "".join(self._stderr)

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the supervisor lives."""
        return self._process is not None and self._process.poll() is None

    def stop(self, timeout_s: float = STOP_S) -> None:
        """SIGTERM, as an operator stops it; the node must end with 0."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGTERM)
        code = self.wait(timeout_s)
        assert code == 0, f"the node ended with {code}:\n{self.stderr}"

    def wait(self, timeout_s: float = STOP_S) -> int:
        """The exit code of a node that ends by itself."""
        assert self._process is not None, "not started"
        self._close_client()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(
                f"the node did not end within {timeout_s:.0f} s:\n{self.stderr}"
            ) from None
        self._finish()
        return code

    def kill_all(self) -> None:
        """SIGKILL to the supervisor and all its children at the same moment."""
        assert self._process is not None, "not started"
        # Each child has a process group of its own. The supervisor is held first: its end would
        # send them SIGTERM, and theirs would have it start new ones.
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGSTOP)
        children = self._children()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S)
        psutil.wait_procs(children, STOP_S)
        self._close_client()
        self._finish()

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _finish(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        assert self._talk is not None
        self._talk.join(STOP_S)
        self._process.stderr.close()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.is_running:
            self._close_client()
        elif kind is None:
            self.stop()
        else:
            self.kill_all()
            sys.stderr.write(f"the node said:\n{self.stderr}\n")

    # -- its processes ------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """One client for the test, closed with the node."""
        if self._client is None:
            self._client = connect(self.endpoint, timeout=30.0)
        return self._client

    def pids(self) -> dict[str, list[int]]:
        """The processes that run, by role and in the order of their index."""
        found: dict[str, list[int]] = {}
        for process in sorted(self.client.status().processes, key=lambda one: one.index or 0):
            if process.pid:
                found.setdefault(process.role, []).append(process.pid)
        return found

    def kill(self, role: str, index: int = 0, number: int = signal.SIGKILL) -> int:
        """Sends one process a signal; answers the pid that it had."""
        for process in self.client.status().processes:
            if process.role == role and (process.index or 0) == index and process.pid:
                os.kill(process.pid, number)
                return process.pid
        raise AssertionError(f"no {role} {index} runs: {self.client.status().raw}")

    def wait_all_run(self, timeout_s: float = START_S) -> None:
        """Returns when every process of the node runs, whoever was killed before."""

        def all_run() -> bool:
            try:
                return all(one.state == "running" for one in self.client.status().processes)
            except MqError:
                return False

        wait_until(all_run, "not every process runs", timeout_s)

    # -- how far it is ------------------------------------------------------------------------

    def log_state(self) -> LogState:
        """What the writer publishes."""
        with LogPage.open(self.root) as page:
            return page.read()

    def worker_states(self) -> dict[str, WorkerState]:
        """What the queue workers and the index worker publish, by slot."""
        slots = [queue_slot(i, self.queue_workers) for i in range(self.queue_workers)] + ["index"]
        states = {}
        for slot in slots:
            with suppress(FileNotFoundError), WorkerPage.open(self.root, slot) as page:
                states[slot] = page.read()
        return states

    def wait_dispatched(self, timeout_s: float = CATCH_UP_S) -> None:
        """Returns when queues and index hold all that the log has."""

        def caught_up() -> bool:
            log, states = self.log_state(), self.worker_states()
            return (
                log.epoch > 0
                and len(states) == self.queue_workers + 1
                and all(s.epoch == log.epoch for s in states.values())
                and all(s.dispatched >= log.readable for s in states.values())
            )

        wait_until(caught_up, f"the workers lag: {self.log_state()}", timeout_s)
