"""What a supervisor decides: pure functions of what happened, with the clock as a parameter.

Times are seconds of a monotonic clock.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from node.store.process import DO_NOT_RESTART, EXIT_DAMAGED
from node.store.state_page import LOG_SLOT, queue_slot


class Role(StrEnum):
    """The kinds of process under a supervisor."""

    WRITER = "writer"
    QUEUE = "queue"
    INDEX = "index"
    READER = "reader"


class State(StrEnum):
    """Where a child is in its life. The last five are without a process."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    BACKING_OFF = "backing_off"
    GIVEN_UP = "given_up"
    DAMAGED = "damaged"
    REFUSED = "refused"
    STOPPED = "stopped"


ALIVE = frozenset({State.STARTING, State.RUNNING, State.STOPPING})
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
    restarts: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    """When a child that is backing off is due."""
    crashes: list[float] = field(default_factory=list)
    exit_code: int | None = None
    """Of the last end; negative for a signal."""
    was_ready: bool = False

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
    child.state, child.pid, child.started_at = State.STARTING, pid, now


def note_ready(child: Child, endpoint: str) -> None:
    """It says that it accepts work. Its endpoint stays for all later starts."""
    child.endpoint = endpoint or child.endpoint
    child.was_ready = True
    if child.state is State.STARTING:
        child.state = State.RUNNING


def note_exit(child: Child, code: int, now: float, limits: Limits) -> None:
    """It ended. Decides whether and when it is started again."""
    child.pid, child.exit_code = None, code
    if child.state is State.STOPPING:
        child.state = State.STOPPED
    elif code == EXIT_DAMAGED:
        child.state = State.DAMAGED
    elif code in DO_NOT_RESTART:
        child.state = State.REFUSED
    else:
        recent = now - limits.crash_window_s
        child.crashes = [*(moment for moment in child.crashes if moment > recent), now]
        loops = 0 < limits.crashes_max <= len(child.crashes)
        child.state = State.GIVEN_UP if loops else State.BACKING_OFF
        child.start_at = now + backoff_s(len(child.crashes), limits)


def is_due(child: Child, children: list[Child], now: float) -> bool:
    """Whether it is to be started now. The others follow the writer's first start."""
    if child.state is State.BACKING_OFF:
        return now >= child.start_at
    if child.state is not State.WAITING:
        return False
    writer = children[0]
    return child is writer or writer.was_ready or writer.state is State.GIVEN_UP


def next_due(children: list[Child]) -> float | None:
    """When the first child that is backing off is due."""
    due = [child.start_at for child in children if child.state is State.BACKING_OFF]
    return min(due, default=None)


def must_end(children: list[Child]) -> int | None:
    """The exit code of a node whose writer never came up and never will; None: go on."""
    writer = children[0]
    refused = writer.state in (State.DAMAGED, State.REFUSED) and not writer.was_ready
    return writer.exit_code if refused else None


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
