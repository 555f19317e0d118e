"""The decisions of a supervisor: pure functions of events, with the clock as a parameter.

Times are seconds of a monotonic clock.
"""

import secrets
import signal
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from node.runtime import process
from node.runtime.shortage import FREE_SPACE, FULL, MORE_TASKS, SHORT, more_of
from node.runtime.state_page import LOG_SLOT, queue_slot
from node.runtime.store_paths import MOVED_HINT
from node.runtime.wakeup import FOLLOWERS_SLOT, GATEWAY, READER

LOOK_S_MAX = 2.0
"""The most that one look adds to the silence of a process: looks come each second."""
STARTING_SILENCES = 3
"""The limits that a starting process may be silent: it waits for locks and other processes."""
COMPUTING_SILENCES = 30
"""The limits that a start may show only processor time: longer is an endless loop."""
READ_ONLY = "read_only"
CONSOLE_SLOT = "console-0"
FAILING_HINT = "see to that cause: the node tries again by itself; reading goes on"


class ChildRole(StrEnum):
    """The kinds of process under a supervisor."""

    WRITER = "writer"
    QUEUE = "queue"
    INDEX = "index"
    READER = "reader"
    GATEWAY = "gateway"
    TASKS = "tasks"
    FOLLOWERS = "followers"
    CONSOLE = "console"


class ChildState(StrEnum):
    """The state of a child. Only in those of ALIVE it has a process."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    BACKING_OFF = "backing_off"
    FAILING = "failing"
    DISK_FULL = "disk_full"
    NO_RESOURCES = "no_resources"
    GIVEN_UP = "given_up"
    DAMAGED = "damaged"
    REFUSED = "refused"
    MOVED = "moved"
    STOPPED = "stopped"


ALIVE = frozenset({ChildState.STARTING, ChildState.RUNNING, ChildState.STOPPING})
SHORT_OF = {
    process.EXIT_DISK_FULL: ChildState.DISK_FULL,
    process.EXIT_NO_RESOURCES: ChildState.NO_RESOURCES,
}
"""What a child waits for after an end for want of it, which is not a crash."""
TRIED_AGAIN = frozenset({ChildState.BACKING_OFF, ChildState.FAILING, *SHORT_OF.values()})
OUT_OF_SERVICE = frozenset(
    {ChildState.GIVEN_UP, ChildState.DAMAGED, ChildState.REFUSED, ChildState.MOVED}
)
"""The supervisor will not start these again."""


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """When to try again, and from when on nobody should wait for it."""

    backoff_s_min: float = 0.1
    backoff_s_max: float = 30.0
    crashes_max: int = 5
    """This number of ends in a row is a crash loop; 0: never."""
    crash_window_s: float = 60.0
    """An end belongs to the row of those before it if it comes so soon after its start."""
    full_disk_s: float = 2.0
    """The pause after an end for lack of room or descriptors, which is not a crash."""
    settle_s_max: float = 10.0
    """How long a first start waits for workers that are slow to report."""
    stop_s_max: float = 30.0
    """A process that takes longer to stop is killed."""
    silence_s_max: float = 10.0
    """A process without a sign of life for longer is killed, and started again."""


_COUNTED = {ChildRole.QUEUE: "queue worker", ChildRole.READER: "reader"}
"""Those of which a node may have several, for people."""


@dataclass(slots=True)
class Child:
    """What the supervisor knows of one process slot."""

    role: ChildRole
    index: int
    state: ChildState = ChildState.WAITING
    pid: int | None = None
    endpoint: str = ""
    local: str = ""
    """A local socket for clients of this machine; it stays through all its starts."""
    restarts: int = 0
    restarts_by_reason: dict[str, int] = field(default_factory=dict)
    started_at: float = 0.0
    start_at: float = 0.0
    """When a child that is backing off is due."""
    crashes: int = 0
    """Its ends in a row, but for those for lack of something."""
    exit_code: int | None = None
    """Of the last end; negative for a signal."""
    was_ready: bool = False
    is_failing: bool = False
    """Whether it is in a crash loop; it has not been ready since."""
    cause: str = ""
    """Why it ended last; empty when it has been ready since."""
    last_words: str = ""
    """The reason that this run of it reported for its end."""
    recovered: float | None = None
    """The part of its recovery that is done, 0 to 1, while it recovers."""
    sign: "Sign | None" = None
    """Of the last look at it."""
    silent_s: float = 0.0
    """How long its heartbeat has not moved while it ran."""
    stalled_s: float = 0.0
    """How long it has given no other sign of life either."""
    computing_s: float = 0.0
    """How long it has given none but processor time."""
    is_killed_for_silence: bool = False
    waits_for_disk: bool = False
    """Whether it was silent at the last look because a call to the disk does not return."""

    @property
    def lacks(self) -> ChildState | None:
        """What it ended for lack of; None for another end, or if it has been ready since."""
        return SHORT_OF.get(self.exit_code or 0) if self.cause else None

    @property
    def name(self) -> str:
        """For people: `queue worker 0`."""
        if self.role in _COUNTED:
            return f"{_COUNTED[self.role]} {self.index}"
        return "index worker" if self.role is ChildRole.INDEX else str(self.role)

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    @property
    def has_settled(self) -> bool:
        """True once its first start has succeeded or failed."""
        return self.was_ready or self.exit_code is not None


def plan_children(
    queue_workers: int,
    readers: int,
    with_index: bool,
    with_gateway: bool = False,
    with_followers: bool = False,
    with_tasks: bool = True,
    with_console: bool = False,
) -> list[Child]:
    """The children of a node: the writer first, then those that follow it. Tasks run beside a
    gateway alone."""
    return [
        Child(ChildRole.WRITER, 0),
        *(Child(ChildRole.QUEUE, index) for index in range(queue_workers)),
        *([Child(ChildRole.INDEX, 0)] if with_index else []),
        *(Child(ChildRole.READER, index) for index in range(readers)),
        *([Child(ChildRole.GATEWAY, 0)] if with_gateway else []),
        *([Child(ChildRole.TASKS, 0)] if with_gateway and with_tasks else []),
        *([Child(ChildRole.FOLLOWERS, 0)] if with_followers else []),
        *([Child(ChildRole.CONSOLE, 0)] if with_console else []),
    ]


def new_local_socket() -> str:
    """A local socket with an abstract name of Linux, for a supervisor.

    The names are new at each start: a client that gets the routes through a tunnel must not find
    another node under them on its own machine. They are not secret.
    """
    return f"ipc://@keelog-{secrets.token_hex(8)}"


def name_local_sockets(children: list[Child], supervisor: str) -> None:
    """Gives each child that serves clients a local socket, named after that of the supervisor."""
    for child in children:
        if child.role in (ChildRole.WRITER, ChildRole.READER):
            child.local = f"{supervisor}-{child.role}-{child.index}"


def page_slot(child: Child, shards: int) -> str:
    match child.role:
        case ChildRole.WRITER:
            return LOG_SLOT
        case ChildRole.QUEUE:
            return queue_slot(child.index, shards)
        case ChildRole.FOLLOWERS:
            return FOLLOWERS_SLOT
        case ChildRole.READER:
            return f"{READER}{child.index}"
        case ChildRole.GATEWAY:
            return f"{GATEWAY}{child.index}"
        case ChildRole.CONSOLE:
            return CONSOLE_SLOT
    return "index" if child.role is ChildRole.INDEX else "tasks-0"


def backoff_s(crashes: int, limits: RestartLimits) -> float:
    """The pause after the n-th crash in a row: doubled each time, up to a maximum."""
    return min(limits.backoff_s_min * 2.0 ** min(crashes - 1, 30), limits.backoff_s_max)


def note_start(child: Child, pid: int, now: float) -> None:
    if child.exit_code is not None:
        child.restarts += 1
        reason = "silent" if child.is_killed_for_silence else restart_reason(child.exit_code)
        child.restarts_by_reason[reason] = child.restarts_by_reason.get(reason, 0) + 1
    child.state, child.pid, child.started_at = ChildState.STARTING, pid, now
    child.last_words, child.recovered = "", None
    child.sign, child.silent_s, child.stalled_s, child.computing_s = None, 0.0, 0.0, 0.0
    child.is_killed_for_silence = child.waits_for_disk = False


class Sign(NamedTuple):
    """What moves in a process while it works, at one look."""

    heartbeat_ms: int
    """The last heartbeat in its page."""
    disk_bytes: int
    """Bytes that it has read from the disk and written to it."""
    cpu_s: float
    """Processor time while it starts or resumes, which may take long between two heartbeats; else
    0: an endless loop takes processor time too."""


def note_sign(child: Child, sign: Sign, passed_s: float) -> None:
    """Notes a look, `passed_s` after the last one. A new heartbeat ends a silence."""
    before, child.sign = child.sign, sign
    if before is None or child.state is ChildState.STOPPING:
        return
    # A supervisor that was stopped itself did not see the time between.
    passed_s = min(passed_s, LOOK_S_MAX)
    beats = sign.heartbeat_ms != before.heartbeat_ms or child.state is not ChildState.RUNNING
    child.silent_s = 0.0 if beats else child.silent_s + passed_s
    child.stalled_s = 0.0 if sign != before else child.stalled_s + passed_s
    is_same = sign._replace(cpu_s=0.0) == before._replace(cpu_s=0.0)
    child.computing_s = child.computing_s + passed_s if is_same else 0.0


def is_silent(child: Child, limits: RestartLimits) -> bool:
    """True if clients must not count on it: it gave no heartbeat for half the limit."""
    return child.is_alive and child.silent_s > limits.silence_s_max / 2


def is_stalled(child: Child, limits: RestartLimits) -> bool:
    """True if it must be killed: it gave no sign of life at all."""
    rounds = 1 if child.state is ChildState.RUNNING else STARTING_SILENCES
    is_over = child.stalled_s > limits.silence_s_max * rounds
    computes = child.computing_s > limits.silence_s_max * COMPUTING_SILENCES
    return child.is_alive and (is_over or computes)


def note_recovery(child: Child, recovered: float) -> None:
    """Notes how far it has recovered: a start that recovers may take long."""
    child.recovered, child.computing_s = recovered, 0.0


def note_ready(child: Child, endpoint: str) -> None:
    """Notes that it accepts work. Its endpoint stays for all later starts."""
    child.endpoint = endpoint or child.endpoint
    child.cause, child.recovered = "", None
    child.was_ready, child.is_failing = True, False
    if child.state is ChildState.STARTING:
        child.state = ChildState.RUNNING


def end_of(code: int) -> str:
    """How a process ended, by its exit code: `code 1`, `signal 9`."""
    return f"signal {-code}" if code < 0 else f"code {code}"


def restart_reason(code: int) -> str:
    """The kind of end before a restart, one of a few: `killed`, `crashed`, `disk_full`…"""
    if code < 0:
        return "killed" if -code == signal.SIGKILL else "crashed"
    kinds = {
        process.EXIT_OK: "ended",
        process.EXIT_UNEXPECTED: "unexpected_error",
        process.EXIT_DISK_ERROR: "disk_error",
        **SHORT_OF,
    }
    return str(kinds.get(code, "failed"))


def note_exit(child: Child, code: int, now: float, limits: RestartLimits) -> None:
    """Notes its end, and decides whether and when it is started again."""
    child.pid, child.exit_code, child.recovered, child.is_failing = None, code, None, False
    child.cause = child.last_words or f"it ended with {end_of(code)}"
    if child.state is ChildState.STOPPING:
        child.state = ChildState.STOPPED
    elif code == process.EXIT_DAMAGED:
        child.state = ChildState.DAMAGED
    elif code == process.EXIT_MOVED:
        child.state = ChildState.MOVED
    elif code in process.DO_NOT_RESTART:
        child.state = ChildState.REFUSED
    elif code in process.WAITED_OUT:
        child.state = SHORT_OF[code]
        child.start_at = now + limits.full_disk_s
    else:
        ran_s = now - max(child.started_at, child.start_at)
        child.crashes = 1 + (child.crashes if ran_s <= limits.crash_window_s else 0)
        child.is_failing = 0 < limits.crashes_max <= child.crashes
        child.state = ChildState.FAILING if child.is_failing else ChildState.BACKING_OFF
        if child.is_failing and child.role is ChildRole.WRITER and code == process.EXIT_DISK_ERROR:
            child.state = ChildState.GIVEN_UP  # each try would write to a disk that fails
        child.start_at = now + backoff_s(child.crashes, limits)


def note_moved(children: list[Child], cause: str) -> None:
    """Gives up the children without a process, because the store is not at its path.

    Processes that run find it out themselves, and end or go on with their open files.
    """
    for child in children:
        if not child.is_alive and child.state is not ChildState.STOPPED:
            child.state, child.cause = ChildState.MOVED, cause


def is_due(child: Child, children: list[Child], now: float) -> bool:
    """True if it must be started now. The others follow the writer's first start."""
    if child.state in TRIED_AGAIN:
        return now >= child.start_at
    if child.state is not ChildState.WAITING:
        return False
    writer = children[0]
    no_writer_soon = writer.is_failing or writer.state in SHORT_OF.values()
    return child is writer or writer.was_ready or no_writer_soon


def next_due(children: list[Child]) -> float | None:
    """When the first child that is backing off is due."""
    due = [child.start_at for child in children if child.state in TRIED_AGAIN]
    return min(due, default=None)


def must_end(children: list[Child]) -> int | None:
    """The exit code of a node that must end: its writer was never ready and will not be, or no
    process was. None: go on."""
    writer = children[0]
    if writer.was_ready:
        return None
    if writer.state is ChildState.MOVED:
        return process.EXIT_USAGE
    if writer.state in (ChildState.DAMAGED, ChildState.REFUSED):
        return writer.exit_code
    return process.EXIT_FAILED if nothing_runs(children) else None


def hint_of_end(children: list[Child], is_memory_limited: bool) -> str:
    """What to try where no process came up, by the way in which they ended.

    `is_memory_limited`: the address space is, which ends processes before they can say a word.
    """
    causes = " ".join(child.cause for child in children)
    codes = {child.exit_code for child in children}
    if "thread" in causes:
        return MORE_TASKS
    is_speechless = is_memory_limited and not any(child.last_words for child in children)
    if -signal.SIGKILL in codes or "memory" in causes.lower() or is_speechless:
        return "give them more memory (ulimit -v, MemoryMax); see what they said above"
    if -signal.SIGABRT in codes or -signal.SIGSYS in codes:
        return "see what they said above; a filter of system calls may forbid what they need"
    if process.EXIT_DISK_ERROR in codes:
        return "see to that file or its disk; what they said above has more"
    return "see what they said above"


def nothing_runs(children: list[Child]) -> bool:
    """True if every process fails, or is out of service, before any of them was ready."""
    return not any(child.was_ready for child in children) and all(
        child.is_failing or child.state in OUT_OF_SERVICE for child in children
    )


class Refusal(NamedTuple):
    """Why a node takes no appends and will not soon: `reason` is read_only, disk_full,
    no_resources or another_master."""

    reason: str
    cause: str
    hint: str


def refusal_of_appends(writer: Child, store: Path | str = "DIR") -> Refusal | None:
    """Why appends are refused; None while the writer runs, or will in a moment.

    The hint names the `store`."""
    if writer.state in OUT_OF_SERVICE:
        hint = "restart the node when that is fixed; reading goes on"
        if writer.state is ChildState.DAMAGED:
            hint = f"on the node's machine: keelog store verify {store} --deep; reading goes on"
        if writer.state is ChildState.MOVED:
            hint = MOVED_HINT
        return Refusal(READ_ONLY, f"the writer is {writer.state}: {writer.cause}", hint)
    if writer.is_failing:
        return Refusal(READ_ONLY, f"the writer is failing: {writer.cause}", FAILING_HINT)
    if writer.lacks is ChildState.DISK_FULL:
        return Refusal(FULL, writer.cause.removeprefix(f"{FULL}: "), FREE_SPACE)
    if writer.lacks is ChildState.NO_RESOURCES:
        return Refusal(SHORT, writer.cause.removeprefix(f"{SHORT}: "), more_of(writer.cause))
    return None


def silence(children: list[Child], limits: RestartLimits) -> str:
    """The silent processes in words, for status, health and the log; empty without one."""
    return ", ".join(
        f"{child.name} gave no heartbeat for {child.silent_s:.0f} s"
        f"{', a call to the disk does not return' if child.waits_for_disk else ''}"
        for child in children
        if is_silent(child, limits)
    )


ASKED_FOR = frozenset({ChildRole.GATEWAY, ChildRole.TASKS, ChildRole.FOLLOWERS})
"""A node has these only where an option asks for them."""


def serves_what_was_asked_for(children: list[Child]) -> bool:
    """True if the writer and at least one reader run, and each process of ASKED_FOR."""
    running = {child.role for child in children if child.state is ChildState.RUNNING}
    asked = {child.role for child in children if child.role in ASKED_FOR}
    return running >= {ChildRole.WRITER, ChildRole.READER, *asked}


def has_settled(children: list[Child], now: float, limits: RestartLimits) -> bool:
    """True if the first start is over: every child came up or failed, or had time enough. Nobody
    waits for the console: no client needs it."""
    awaited = [child for child in children if child.role is not ChildRole.CONSOLE]
    waited = [now - child.started_at for child in awaited if child.is_alive]
    return all(child.has_settled for child in awaited) or (
        all(child.state is not ChildState.WAITING for child in awaited)
        and min(waited, default=0.0) > limits.settle_s_max
    )


def state_line(children: list[Child]) -> str:
    """The state of the node in a line, for a service manager."""
    writer = children[0]
    refused = refusal_of_appends(writer)
    if refused is not None:
        return f"{refused.reason}: {refused.cause}"
    if writer.recovered is not None:
        return f"the writer is recovering, {writer.recovered:.0%} done"
    others = [
        f"{child.name} {child.state}" for child in children if child.state is not ChildState.RUNNING
    ]
    others += [f"{child.name} silent" for child in children if child.silent_s > LOOK_S_MAX]
    return ", ".join(others) or "all processes run"


def summary(children: list[Child]) -> str:
    """For the ready line: `writer tcp://…, 2 queue workers, index worker, 1 reader`."""
    parts = [f"writer {children[0].endpoint}"]
    for role in list(ChildRole)[1:]:
        running = [
            child for child in children if child.role is role and child.state is ChildState.RUNNING
        ]
        if role in _COUNTED:
            parts.append(f"{len(running)} {_COUNTED[role]}{'' if len(running) == 1 else 's'}")
        else:
            parts += [child.name for child in running]
    return ", ".join(parts)
