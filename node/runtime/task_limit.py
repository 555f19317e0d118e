"""The tasks of a node, processes and threads: how many it needs, and whether it may start them.

The kernel refuses tasks for several reasons: pids.max of a cgroup (TasksMax, --pids-limit),
RLIMIT_NPROC (ulimit -u), a filter of system calls. ZeroMQ aborts its process then, so each one
tries first whether it may start as many.
"""

import logging
import threading

from node.runtime.event_log import fields
from node.runtime.shortage import MORE_TASKS, SHORT
from protocol.errors import ServiceNotAvailable

log = logging.getLogger("keelog.process")

TASKS_OF_SUPERVISOR = 6
TASKS_OF_CHILD = 5
"""The most that a process has as a rule, its threads for some work included."""
_STACK_BYTES = 64 * 1024
"""Of a thread that only waits."""


def begin_if_possible(thread: threading.Thread) -> None:
    """For a thread that makes something faster: without it a process goes on, and tries again."""
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("not done for now", extra=fields(what=thread.name, why=error))


def tasks_needed(children: int) -> int:
    """Of a node with this number of processes below its supervisor."""
    return TASKS_OF_SUPERVISOR + TASKS_OF_CHILD * children


def check_task_limit(needed: int, whom: str) -> None:
    """Starts that number of threads for a moment. Raises ServiceNotAvailable where that fails.

    `whom`: who needs them, for people.
    """
    over = threading.Event()
    started: list[threading.Thread] = []
    before = threading.stack_size(_STACK_BYTES)
    try:
        for _ in range(needed):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError) as error:
        raise ServiceNotAvailable(
            f"{SHORT}: {whom} needs {needed} tasks (processes and threads), "
            f"only {len(started)} more can be started here: {error}",
            MORE_TASKS,
        ) from None
    finally:
        threading.stack_size(before)
        over.set()
        for thread in started:
            thread.join()
