"""The processes of a load: started, set off together, listened to."""

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from keelog.bench.job import LoadJob
from node.supervisor.child_process import command, environment
from protocol.errors import MqError, RequestTimeout

START_S_MAX = 120.0
END_S_MAX = 60.0
_START_DELAY_NS = 100_000_000
"""From the word to go to the first message, so that all processes have heard it."""


class LoadFailed(MqError):
    """A process of the load ended before its time."""


@dataclass(slots=True, eq=False)
class Member:
    """One process."""

    name: str
    process: subprocess.Popen[str]
    generator: float | None = None
    is_done: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(frozen=True, slots=True)
class SecondFigures:
    """The figures of one process for about a second; `start` and `end` in monotonic ns."""

    member: str
    start: int
    end: int
    streams: dict[str, dict[str, Any]]


@dataclass(slots=True)
class Fleet:
    """All of them, as a context: at its end none is left."""

    members: list[Member] = field(default_factory=list)
    _said: "queue.SimpleQueue[tuple[Member, dict[str, Any]]]" = field(
        default_factory=queue.SimpleQueue
    )

    def start(self, jobs: Sequence[LoadJob]) -> list[Member]:
        """Starts a process for each job and returns when all are ready. Raises LoadFailed."""
        begun = [self._start(job) for job in jobs]
        ready: set[int] = set()
        deadline = time.monotonic() + START_S_MAX
        while len(ready) < len(begun):
            try:
                member, said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise RequestTimeout(f"a load process is not ready after {START_S_MAX} s") from None
            self._check(member, said)
            member.generator = said["generator"]
            ready.add(member.pid)
        return begun

    def _start(self, job: LoadJob) -> Member:
        process = subprocess.Popen(
            command("keelog.bench.load_process", ()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            process_group=0,
        )
        member = Member(f"{job.role} {job.number}", process)
        self.members.append(member)
        threading.Thread(target=self._listen, args=(member,), daemon=True).start()
        _send(member, job.line())
        return member

    def _listen(self, member: Member) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            self._said.put((member, json.loads(line)))
        self._said.put((member, {"say": "gone"}))

    def go(self, members: Sequence[Member], start_ns: int | None = None) -> int:
        """Sets them off together; returns the moment, in monotonic ns."""
        start = time.monotonic_ns() + _START_DELAY_NS if start_ns is None else start_ns
        for member in members:
            _send(member, json.dumps({"go": start}))
        return start

    def rows(self, until_ns: int) -> Iterator[SecondFigures]:
        """Yields rows until a moment; returns earlier when all are done. Raises LoadFailed."""
        while not all(member.is_done for member in self.members):
            left = (until_ns - time.monotonic_ns()) / 1e9
            if left <= 0:
                return
            try:
                member, said = self._said.get(timeout=left)
            except queue.Empty:
                return
            self._check(member, said)
            if said["say"] == "done":
                member.is_done = True
            elif said["say"] == "row":
                yield SecondFigures(member.name, said["start"], said["end"], said["streams"])

    def _check(self, member: Member, said: dict[str, Any]) -> None:
        if said["say"] == "failed":
            raise LoadFailed(f"{member.name}: {said['error']}: {said['reason']}", said["hint"])
        if said["say"] == "gone" and not member.is_done:
            raise LoadFailed(f"{member.name} ended with {member.process.wait()}", "see stderr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if not member.is_done:
                member.process.kill()
        for member in self.members:
            member.process.wait(END_S_MAX)
            for pipe in (member.process.stdin, member.process.stdout):
                assert pipe is not None
                pipe.close()


def _send(member: Member, line: str) -> None:
    assert member.process.stdin is not None
    member.process.stdin.write(line + "\n")
    member.process.stdin.flush()
