"""What a supervisor decides: pure functions of what happened, with the clock as a parameter.

Times are seconds of a monotonic clock.
"""

import secrets
import signal
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from node.store.process import (
    DO_NOT_RESTART,
    EXIT_DAMAGED,
    EXIT_DISK_ERROR,
    EXIT_DISK_FULL,
    EXIT_OK,
    FREE_SPACE,
)
from node.store.state_page import LOG_SLOT, queue_slot


class Role(StrEnum):
    """The kinds of process under a supervisor."""

    WRITER = "writer"
    QUEUE = "queue"
    INDEX = "index"
    READER = "reader"


class State(StrEnum):
    """Where a child is in its life. The last seven are without a process."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    BACKING_OFF = "backing_off"
    DISK_FULL = "disk_full"
    GIVEN_UP = "given_up"
    DAMAGED = "damaged"
    REFUSED = "refused"
    STOPPED = "stopped"


READ_ONLY = "read_only"
FULL = "disk_full"
ALIVE = frozenset({State.STARTING, State.RUNNING, State.STOPPING})
TRIED_AGAIN = frozenset({State.BACKING_OFF, State.DISK_FULL})
OUT_OF_SERVICE = frozenset({State.GIVEN_UP, State.DAMAGED, State.REFUSED})
"""The supervisor will not start these again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to try again, and when to stop trying."""

    backoff_s_min: float = 0.1
    backoff_s_max: float = 30.0
    crashes_max: int = 5
    """So many ends within `crash_window_s` are a crash loop; 0: never one."""
    crash_window_s: float = 60.0
    full_disk_s: float = 2.0
    """The pause after an end for lack of room, which counts as no crash."""
    settle_s_max: float = 10.0
    """How long a first start waits for workers that are slow to report."""
    stop_s_max: float = 30.0
    """What has not stopped by then is killed."""


@dataclass(slots=True)
class Child:
    """What the supervisor knows of one process slot."""

    role: Role
    index: int
    state: State = State.WAITING
    pid: int | None = None
    endpoint: str = ""
    local: str = ""
    """Where clients of this machine may connect instead, through all its starts."""
    restarts: int = 0
    restarts_by_reason: dict[str, int] = field(default_factory=dict)
    started_at: float = 0.0
    start_at: float = 0.0
    """When a child that is backing off is due."""
    crashes: list[float] = field(default_factory=list)
    exit_code: int | None = None
    """Of the last end; negative for a signal."""
    was_ready: bool = False
    cause: str = ""
    """Why it ended last; empty when it has been ready since."""
    last_words: str = ""
    """What this run of it has said about its end."""
    recovered: float | None = None
    """The part of its recovery that is done, 0 to 1, while it is at it."""

    @property
    def lacks_room(self) -> bool:
        """Whether it ended for lack of room, and has not been ready since."""
        return self.exit_code == EXIT_DISK_FULL and bool(self.cause)

    @property
    def name(self) -> str:
        """For people: `queue worker 0`."""
        return {
            Role.WRITER: "writer",
            Role.QUEUE: f"queue worker {self.index}",
            Role.INDEX: "index worker",
            Role.READER: f"reader {self.index}",
        }[self.role]

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.state in ALIVE

    @property
    def has_settled(self) -> bool:
        """Whether its first start has come to something, good or bad."""
        return self.was_ready or self.exit_code is not None


def plan_children(queue_workers: int, readers: int, with_index: bool) -> list[Child]:
    """The children of a node: the writer first, then those that follow it."""
    return [
        Child(Role.WRITER, 0),
        *(Child(Role.QUEUE, index) for index in range(queue_workers)),
        *([Child(Role.INDEX, 0)] if with_index else []),
        *(Child(Role.READER, index) for index in range(readers)),
    ]


def name_local_sockets(children: list[Child]) -> None:
    """Gives those that serve clients a local socket each, in Linux's abstract names.

    They are of this start of the node alone: who asks for the routes through a tunnel finds no
    other node under them on its own machine. They are no secret.
    """
    token = secrets.token_hex(8)
    for child in children:
        if child.role in (Role.WRITER, Role.READER):
            child.local = f"ipc://@keelog-{token}-{child.role}-{child.index}"


def page_slot(child: Child, shards: int) -> str:
    """The name of a child's state page."""
    if child.role is Role.WRITER:
        return LOG_SLOT
    if child.role is Role.QUEUE:
        return queue_slot(child.index, shards)
    return f"reader-{child.index}" if child.role is Role.READER else "index"


def backoff_s(crashes: int, limits: Limits) -> float:
    """The pause after the n-th crash in a row: doubled each time, up to a maximum."""
    return min(limits.backoff_s_min * 2.0 ** min(crashes - 1, 30), limits.backoff_s_max)


def note_start(child: Child, pid: int, now: float) -> None:
    """A process was started."""
    if child.exit_code is not None:
        child.restarts += 1
        reason = restart_reason(child.exit_code)
        child.restarts_by_reason[reason] = child.restarts_by_reason.get(reason, 0) + 1
    child.state, child.pid, child.started_at = State.STARTING, pid, now
    child.last_words, child.recovered = "", None


def note_recovery(child: Child, recovered: float) -> None:
    """It recovers, and so takes its time: that is no sign of trouble."""
    child.recovered = recovered


def note_ready(child: Child, endpoint: str) -> None:
    """It says that it accepts work. Its endpoint stays for all later starts."""
    child.endpoint = endpoint or child.endpoint
    child.cause, child.recovered = "", None
    child.was_ready = True
    if child.state is State.STARTING:
        child.state = State.RUNNING


def note_last_words(child: Child, reason: str) -> None:
    """It says why it is about to end."""
    child.last_words = reason


def end_of(code: int) -> str:
    """How a process ended, by its exit code: `code 1`, `signal 9`."""
    return f"signal {-code}" if code < 0 else f"code {code}"


def restart_reason(code: int) -> str:
    """The kind of end that a restart follows, one of few: `killed`, `crashed`, `disk_full`…"""
    if code < 0:
        return "killed" if -code == signal.SIGKILL else "crashed"
    return {EXIT_OK: "ended", EXIT_DISK_FULL: "disk_full", EXIT_DISK_ERROR: "disk_error"}.get(
        code, "failed"
    )


def note_exit(child: Child, code: int, now: float, limits: Limits) -> None:
    """It ended. Decides whether and when it is started again."""
    child.pid, child.exit_code, child.recovered = None, code, None
    child.cause = child.last_words or f"it ended with {end_of(code)}"
    if child.state is State.STOPPING:
        child.state = State.STOPPED
    elif code == EXIT_DAMAGED:
        child.state = State.DAMAGED
    elif code in DO_NOT_RESTART:
        child.state = State.REFUSED
    elif code == EXIT_DISK_FULL:
        child.state = State.DISK_FULL
        child.start_at = now + limits.full_disk_s
    else:
        recent = now - limits.crash_window_s
        child.crashes = [*(moment for moment in child.crashes if moment > recent), now]
        loops = 0 < limits.crashes_max <= len(child.crashes)
        child.state = State.GIVEN_UP if loops else State.BACKING_OFF
        child.start_at = now + backoff_s(len(child.crashes), limits)


def is_due(child: Child, children: list[Child], now: float) -> bool:
    """Whether it is to be started now. The others follow the writer's first start."""
    if child.state in TRIED_AGAIN:
        return now >= child.start_at
    if child.state is not State.WAITING:
        return False
    writer = children[0]
    no_writer_soon = writer.state in (State.GIVEN_UP, State.DISK_FULL)
    return child is writer or writer.was_ready or no_writer_soon


def next_due(children: list[Child]) -> float | None:
    """When the first child that is backing off is due."""
    due = [child.start_at for child in children if child.state in TRIED_AGAIN]
    return min(due, default=None)


def must_end(children: list[Child]) -> int | None:
    """The exit code of a node whose writer never came up and never will; None: go on."""
    writer = children[0]
    refused = writer.state in (State.DAMAGED, State.REFUSED) and not writer.was_ready
    return writer.exit_code if refused else None


class Refusal(NamedTuple):
    """Why a node takes no appends and will not soon: `reason` is read_only or disk_full."""

    reason: str
    cause: str
    hint: str


def refusal_of_appends(writer: Child) -> Refusal | None:
    """None while the writer runs, or is expected to in a moment."""
    if writer.state in OUT_OF_SERVICE:
        hint = "restart the node when that is mended; reading goes on"
        if writer.state is State.DAMAGED:
            hint = "keelog store verify DIR --deep; reading goes on"
        return Refusal(READ_ONLY, f"the writer is {writer.state}: {writer.cause}", hint)
    if writer.lacks_room:
        return Refusal(FULL, writer.cause.removeprefix(f"{FULL}: "), FREE_SPACE)
    return None


def takes_appends_and_reads(children: list[Child]) -> bool:
    """Whether the writer and at least one reader run."""
    running = {child.role for child in children if child.state is State.RUNNING}
    return Role.WRITER in running and Role.READER in running


def has_settled(children: list[Child], now: float, limits: Limits) -> bool:
    """Whether a first start is over: every child came up or failed, or had time enough."""
    waited = [now - child.started_at for child in children if child.is_alive]
    return all(child.has_settled for child in children) or (
        all(child.state is not State.WAITING for child in children)
        and min(waited, default=0.0) > limits.settle_s_max
    )


def state_line(children: list[Child]) -> str:
    """For a service manager: what is out of the ordinary, or that nothing is."""
    writer = children[0]
    refused = refusal_of_appends(writer)
    if refused is not None:
        return f"{refused.reason}: {refused.cause}"
    if writer.recovered is not None:
        return f"the writer is recovering, {writer.recovered:.0%} done"
    others = [
        f"{child.name} {child.state}" for child in children if child.state is not State.RUNNING
    ]
    return ", ".join(others) or "all processes run"


def summary(children: list[Child]) -> str:
    """For the ready line: `writer tcp://…, 2 queue workers, index worker, 1 reader`."""
    counts = dict.fromkeys(Role, 0)
    for child in children:
        counts[child.role] += child.state is State.RUNNING
    parts = [f"writer {children[0].endpoint}"]
    for role, text in ((Role.QUEUE, "queue worker"), (Role.INDEX, ""), (Role.READER, "reader")):
        count = counts[role]
        if role is Role.INDEX:
            parts += ["index worker"] if count else []
        else:
            parts.append(f"{count} {text}{'' if count == 1 else 's'}")
    return ", ".join(parts)
