"""Who owns a store: `flock` and a record lock on byte 0 of `<root>/lock`.

RocketMQ takes the record lock and knows nothing of `flock`; the record lock is taken as an
open-file-description lock, which excludes RocketMQ's both ways and stays when another descriptor
of the file is closed.
"""

import errno
import fcntl
import os
import struct
import time
from pathlib import Path
from typing import Self

from protocol.errors import StoreLocked, StorePermission
from protocol.names import LOCK_FILE

_F_OFD_SETLK = 37
_LOCK_BYTE_0 = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_LOCK_TEXT = b"lock"
_RETRY_S = 0.05


class FileLock:
    """A held lock of one file; it ends with `release` or with the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, flock: bool = True, record: bool = True, wait_s: float = 0.0) -> Self:
        """Takes the lock, trying for `wait_s` seconds. Raises StoreLocked, StorePermission."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except PermissionError as error:
            raise StorePermission(
                f"{path}: {error.strerror}", "run as the owner of the store"
            ) from None
        deadline = time.monotonic() + wait_s
        while True:
            try:
                if flock:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if record:
                    fcntl.fcntl(descriptor, _F_OFD_SETLK, _LOCK_BYTE_0)
                return cls(path, descriptor)
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES} or time.monotonic() >= deadline:
                    os.close(descriptor)
                    if error.errno not in {errno.EAGAIN, errno.EACCES}:
                        raise
                    break
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            time.sleep(_RETRY_S)
        raise StoreLocked(
            f"{path} is held by another process",
            "stop the node or broker that owns it; reading commands need no lock",
        )

    def release(self) -> None:
        """Gives the lock back; the file stays, as RocketMQ leaves it."""
        os.close(self._descriptor)


class StoreLock(FileLock):
    """The lock of a whole store."""

    @classmethod
    def acquire(
        cls, root: Path, flock: bool = True, record: bool = True, wait_s: float = 0.0
    ) -> "StoreLock":
        """Both locks of `<root>/lock`, or one of them. Raises StoreLocked, StorePermission."""
        lock = cls.take(root / LOCK_FILE, flock, record, wait_s)
        if os.fstat(lock._descriptor).st_size == 0:
            os.pwrite(lock._descriptor, _LOCK_TEXT, 0)
        return lock
