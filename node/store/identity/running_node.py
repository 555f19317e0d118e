"""Finds out who runs a store, without taking a lock.

A process that tries a lock holds it for a moment, and a node that starts just then would end with
"locked". So this asks the kernel about record locks (F_OFD_GETLK), and finds a `flock` in
/proc/locks.
"""

import os
from enum import Enum
from pathlib import Path

from node.runtime.locks import record_lock_of
from node.runtime.regular_file import open_regular
from node.store.file_cache import refuse
from protocol.names import LOCK_FILE

_OF_A_DESCRIPTION = -1
"""The pid that the kernel reports for a lock of an open file description."""
_LOCKS = Path("/proc/locks")


class Owner(Enum):
    """The holder of `<root>/lock`."""

    NOBODY = "nobody"
    WRITER = "writer"
    """A Keelog writer, or a command that changes the store: it holds the record lock."""
    SUPERVISOR = "supervisor"
    """A node whose writer does not run at this moment."""
    BROKER = "broker"
    """A RocketMQ broker: its lock belongs to a process."""


def find_owner(root: Path) -> Owner:
    """The owner of the store in `root`, as this machine sees it. Raises StorePermission.

    Of a node in another container only the writer's lock can be seen.
    """
    path = root / LOCK_FILE
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return Owner.NOBODY
    except OSError as error:
        refuse(path, error)
    try:
        pid = record_lock_of(descriptor)
        if pid is not None:
            return Owner.WRITER if pid == _OF_A_DESCRIPTION else Owner.BROKER
        return Owner.SUPERVISOR if _is_flocked(os.fstat(descriptor)) else Owner.NOBODY
    finally:
        os.close(descriptor)


def _is_flocked(status: os.stat_result) -> bool:
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    wanted = f"{major:02x}:{minor:02x}:{status.st_ino}"
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return False  # a container may hide it
    return any("FLOCK" in line and wanted in line.split() for line in lines)
