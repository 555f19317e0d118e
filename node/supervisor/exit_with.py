"""Ends a node together with the process that it runs for, a test or a load."""

import logging
import os
import select
import threading
import time

import psutil

from node.runtime.event_log import fields
from node.runtime.process import StopFlag
from node.runtime.shortage import MORE_TASKS, SHORT
from protocol.errors import BadRequest, RefusedError

log = logging.getLogger("keelog.supervisor")

_LOOK_S = 0.1


def stop_at_end_of(pid: int, stop: StopFlag) -> None:
    """Sets the flag when process `pid` ends. Raises BadRequest if there is none, and RefusedError
    where no thread can be started.

    A process ends with its last thread. `process.die_with_parent` would react to the end of the one
    thread that started us, which may be long before.
    """
    try:
        process = psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError) as error:
        raise BadRequest(f"there is no process {pid}", "the pid of one that runs") from error
    try:
        threading.Thread(target=_wait, args=(process, stop), daemon=True).start()
    except RuntimeError as error:
        raise RefusedError(f"{SHORT}: {error}", MORE_TASKS) from error


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it has ended, and was reaped, in this moment
        return True


def _wait(process: psutil.Process, stop: StopFlag) -> None:
    pid = process.pid
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # it has ended; or before Linux 5.3, or forbidden
        while process.is_running() and not _is_zombie(process):
            time.sleep(_LOOK_S)
    else:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if process.is_running():  # not another one, which got its number in between
            poll.poll()
        os.close(pidfd)
    log.warning("the process that this node runs for has ended", extra=fields(process_pid=pid))
    stop.set()
