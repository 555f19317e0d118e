"""The lock of a store: `flock` and a record lock on byte 0 of `<root>/lock`.

RocketMQ takes the record lock and knows nothing of `flock`; the record lock is taken as an
open-file-description lock, which excludes RocketMQ's both ways and stays when another descriptor
of the file is closed.
"""

import errno
import fcntl
import os
import stat
import struct
import time
from pathlib import Path
from typing import Self

from node.runtime.store_paths import check_held, held_open, no_permission, open_regular
from protocol.errors import NotAStore, StoreError, StoreLocked
from protocol.names import LOCK_FILE

_F_OFD_GETLK, _F_OFD_SETLK = 36, 37
_LOCK = struct.Struct("hhqqi4x")
_LOCK_BYTE_0 = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_NO_LOCKS = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EPERM})
_LOCK_TEXT = b"lock"
_RETRY_S = 0.05


class FileLock:
    """A held lock of one file; it ends with `release` or with the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(
        cls,
        path: Path,
        flock: bool = True,
        record: bool = True,
        wait_s: float = 0.0,
        create: bool = True,
    ) -> Self:
        """Takes the lock, trying for `wait_s` seconds. Raises StoreLocked, StorePermission, and
        StoreError where the system lacks such locks.

        Without `create` a missing file is NotAStore.
        """
        check_held()
        try:
            flags = os.O_RDWR | (os.O_CREAT if create else 0)
            descriptor = open_regular(path, flags, 0o600)
        except FileNotFoundError:
            if create:
                raise
            raise NotAStore(
                f"{path} is not there, and only keelog serve makes it", "check the path"
            ) from None
        except PermissionError as error:
            raise no_permission(error, path) from None
        _close_to_readers(descriptor)
        deadline = time.monotonic() + wait_s
        try:
            is_taken = _is_taken(path, descriptor, flock, record)
            while not is_taken and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
                is_taken = _is_taken(path, descriptor, flock, record)
        except BaseException:
            os.close(descriptor)
            raise
        if is_taken:
            return cls(path, descriptor)
        with held_open(descriptor):
            pid = holder_of(descriptor)
        raise StoreLocked(
            f"{path} is held by another process{'' if pid is None else f', {pid}'}",
            "stop the node or broker that owns it; reading commands need no lock",
        )

    def release(self) -> None:
        """Gives the lock back; the file stays, as RocketMQ leaves it."""
        os.close(self._descriptor)


def record_lock_of(descriptor: int) -> int | None:
    """The pid with which the kernel names the holder of byte 0, -1 for a FileLock; None when it is
    free. Nothing is taken, and it sees holders in other containers, where pids say nothing."""
    try:
        answer = fcntl.fcntl(descriptor, _F_OFD_GETLK, _LOCK_BYTE_0)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None  # this file system has no such locks, so nobody holds one
        raise
    kind, _, _, _, pid = _LOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(pid)


def holder_of(descriptor: int) -> int | None:
    """The pid of the process that has one of the locks of a file; None where that is not known: it
    is of another container, or the system does not list locks."""
    pid = record_lock_of(descriptor)
    if pid is not None and pid > 0:
        return pid
    flocked = flock_of(os.fstat(descriptor))
    return flocked if flocked else None


def flock_of(status: os.stat_result) -> int | None:
    """The pid of the process that has a `flock` on a file, 0 in another container; None without
    one, or where the system does not list locks."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        listed = Path("/proc/locks").read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in listed:  # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
        _, *words = line.split()
        if words[0] == "FLOCK" and words[4] == f"{device}:{status.st_ino}":
            return max(int(words[3]), 0)
    return None


def _is_taken(path: Path, descriptor: int, flock: bool, record: bool) -> bool:
    """Tries once; False where another has it. Raises StoreError where the system lacks locks."""
    try:
        if flock:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if record:
            fcntl.fcntl(descriptor, _F_OFD_SETLK, _LOCK_BYTE_0)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise StoreError(
                f"{path} cannot be locked: its file system, or this system, has no "
                f"open-file-description locks (Linux 3.15): {error.strerror}",
                "put the store on a local file system, of a kernel that has them",
            ) from None
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False
    return True


def _close_to_readers(descriptor: int) -> None:
    """Takes reading from those who may not write: `flock` needs no more than a reader's descriptor,
    so they could keep the owner out."""
    status = os.fstat(descriptor)
    readers = ~status.st_mode << 1 & status.st_mode & 0o044
    if readers and status.st_uid == os.geteuid():
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~readers)


class StoreLock(FileLock):
    @classmethod
    def acquire(
        cls,
        root: Path,
        flock: bool = True,
        record: bool = True,
        wait_s: float = 0.0,
        create: bool = True,
    ) -> "StoreLock":
        """Both locks of `<root>/lock`, or one of them. Raises what `take` does."""
        lock = cls.take(root / LOCK_FILE, flock, record, wait_s, create)
        if os.fstat(lock._descriptor).st_size == 0:
            os.pwrite(lock._descriptor, _LOCK_TEXT, 0)
        return lock
