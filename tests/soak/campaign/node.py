"""The node of a campaign: as small as can be, and what an operator sees of it."""

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from keelog.bench.node_process import ANY_DISK, Node
from keelog.client.client import Client, connect
from keelog.client.results import NodeStatus
from keelog.client.transport.exchange import Retry
from node.supervisor.bind import free_ports
from protocol.errors import MqError
from tests.soak.harness import LARGE_PULLS, OFTEN_SAVED, SMALL_FILES

SILENCE_S = 2
"""`node.silence_limit_s`: rounds with a silent process are short."""
STOP_S_MAX = 45.0
START_S_MAX = 180.0
"""On a machine that does other things too."""
_ASK_S = 2.0
_LOOK_S = 0.1
_ENDED_FOR_GOOD = ("failing", "given_up", "damaged", "refused")
_CAUSE = re.compile(r"^cause: (.+)$", re.MULTILINE)
_HEAD = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)


class Refusal(NamedTuple):
    """The node is out of service, at least in part: `cause` is what it names.

    Empty for a node that has ended, or was killed, without a word.
    """

    cause: str
    is_running: bool


class CampaignNode(Node):
    """`keelog serve` with small files, one queue worker and one reader."""

    def __init__(
        self, root: Path, talk: Path, pairs: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self.pairs = (*SMALL_FILES, *OFTEN_SAVED, *LARGE_PULLS, *pairs)
        more = f"node.silence_limit_s={SILENCE_S}"
        super().__init__(root, [*self.pairs, more], queue_workers=1, readers=1, env=env)
        self.talk = talk
        self.http = f"http://127.0.0.1:{free_ports(1)}"
        self._command += ["--http", self.http.removeprefix("http://")]
        self.starts = 0
        self.mark = 0
        """Where in its talk this round began: causes named before it are none of it."""
        self._client: Client | None = None

    def begin(self) -> None:
        """Starts it."""
        self.starts += 1
        super().begin()

    def move_to(self, root: Path) -> None:
        """The next start is on that folder."""
        self._command[self._command.index(str(self.root))] = str(root)
        self.root = root

    def close(self) -> None:
        """Kills what is left of it."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self.kill()
            self.kill_orphans()

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Of the supervisor; None while it runs."""
        return None if self._process is None else self._process.poll()

    def victims(self) -> dict[str, int]:
        """The processes by role, the supervisor among them."""
        return {"supervisor": self.pid, **{role: child.pid for role, child in self.children()}}

    def client(self) -> Client:
        """To the control socket, for questions. Raises MqError while nobody listens."""
        if self._client is None:
            self._client = connect(self.endpoint, timeout=_ASK_S, retry=Retry(max_attempts=1))
        return self._client

    def status(self) -> NodeStatus | None:
        """None when nobody answers."""
        with suppress(MqError):
            return self.client().status()
        return None

    def refusal(self, status: NodeStatus | None) -> Refusal | None:
        """Why it is out of service, if it is."""
        if not self.is_running:
            causes = _CAUSE.findall(self.talk_since(max(self.mark, self._talk_start)))
            return Refusal(causes[-1] if causes else "", is_running=False)
        if status is None:
            return None
        if status.mode != "normal":
            return Refusal(f"{status.mode}: {status.cause or ''}", is_running=True)
        for one in status.processes:
            if one.state in _ENDED_FOR_GOOD:
                return Refusal(f"{one.role} {one.state}: {one.cause or ''}", is_running=True)
        return None

    def stop_or_kill(self) -> str:
        """As an operator stops it; how it ended when that was not in order."""
        if not self.is_running:
            return ""
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"did not stop within {STOP_S_MAX:.0f} s"
        return "" if code == 0 else f"ended with {code}"

    def kill_orphans(self) -> None:
        """Processes on this store that have outlived their supervisor."""
        for process in psutil.process_iter(["cmdline", "ppid"]):
            words = process.info["cmdline"] or ()
            orphan = "-m" in words and str(self.root) in words and process.info["ppid"] != self.pid
            if orphan and process.pid != self.pid:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def await_start(self, timeout_s: float = START_S_MAX) -> bool:
        """Whether it became ready; False when it ended or takes too long."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.is_running:
            if re.search(r"^ready ", self.said(), re.MULTILINE):
                return True
            time.sleep(_LOOK_S)
        return False

    def talk_bytes(self) -> int:
        """How much it has said, in all its starts."""
        return self.talk.stat().st_size if self.talk.exists() else 0

    def talk_since(self, place: int) -> str:
        """What it has said after that place."""
        with self.talk.open("rb") as file:
            file.seek(place)
            return file.read().decode(errors="replace")


def tracebacks(text: str) -> int:
    """How many exceptions nobody caught: a chain is one, and what Python ignores is none."""
    lines = text.splitlines()
    count = 0
    for number, line in enumerate(lines):
        if not _HEAD.match(line):
            continue
        before = [one for one in lines[max(0, number - 2) : number] if one]
        chained = before and before[-1].startswith(("During handling of", "The above exception"))
        ignored = before and before[-1].startswith("Exception ignored")
        count += not (chained or ignored)
    return count


def pairs_of(on_tmpfs: bool, flush: str) -> tuple[str, ...]:
    """A small disk of its own fills up as any; the machine's is not what a campaign is about."""
    disk = ("clean_resource_interval=1000",) if on_tmpfs else ANY_DISK
    return (*disk, f"flush_disk_type={flush}")
