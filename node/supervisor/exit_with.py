"""Ends a node together with the process that it runs for, a test or a load."""

import logging
import os
import select
import threading

from node.runtime.event_log import fields
from node.runtime.process import StopFlag
from protocol.errors import BadRequest

log = logging.getLogger("keelog.supervisor")


def stop_at_end_of(pid: int, stop: StopFlag) -> None:
    """Sets the flag when process `pid` ends. Raises BadRequest if there is none.

    A process ends with its last thread. `process.die_with_parent` would react to the end of the one
    thread that started us, which may be long before.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError) as error:
        raise BadRequest(f"there is no process {pid}", "the pid of one that runs") from error
    threading.Thread(target=_wait, args=(pid, pidfd, stop), daemon=True).start()


def _wait(pid: int, pidfd: int, stop: StopFlag) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os.close(pidfd)
    log.warning("the process that this node runs for has ended", extra=fields(process_pid=pid))
    stop.set()
