"""Whose a public key is: the users of a node, from `keelog/auth/users.json`, and their keys.

A process looks at the file once a second, and takes it over whole. A file that cannot be used, or
is gone, changes nothing: nobody comes in by a file that is broken, and the log says so once.
"""

import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from node.access.curve import CurveGate, auth_dir, server_keys
from node.runtime.event_log import fields
from node.runtime.store_paths import held_open
from protocol.access.key_files import BadKey, check_secret_file

log = logging.getLogger("keelog.access")

USERS_FILE = "users.json"
USERS_FILE_BYTES_MAX = 16 * 1024 * 1024
LOOK_EVERY_S = 1.0
_ENABLED = "enable"


def gate_of(root: Path) -> CurveGate:
    """What the servers of a node with keys ask of clients.

    Raises BadKey where the keys are gone, or may be known to others, OSError.
    """
    keys = server_keys(root)
    if keys is None:
        raise BadKey(f"{auth_dir(root)} has no keys any more", f"keelog key init {root}")
    return CurveGate(keys, KnownKeys(root))


class KnownKeys:
    """The keys of the users who are enabled. A `UserOfKey`, for one thread."""

    def __init__(self, root: Path) -> None:
        self._path = auth_dir(root) / USERS_FILE
        self._names: Mapping[str, str] = {}
        self._stamp: tuple[int, ...] = ()
        self._look_at = 0.0
        self._problem = ""

    def __call__(self, key: str) -> str | None:
        """The name of the user whose key it is, as the file was within the last second."""
        now = monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._look()
        return self._names.get(key)

    def _look(self) -> None:
        try:
            found = self._path.lstat()
            stamp = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._stamp:
                self._names, self._stamp = _read(self._path), stamp
            self._problem = ""
        except FileNotFoundError as error:
            if self._stamp:
                self._keep(error)
        except (BadKey, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._keep(error)

    def _keep(self, problem: Exception) -> None:
        """The keys stay as they were."""
        if str(problem) != self._problem:
            self._problem = str(problem)
            log.warning("the users stay as they were", extra=fields(why=problem))


def _read(path: Path) -> dict[str, str]:
    """Names by keys. Raises BadKey for a file that others could read, OSError, and the errors of
    JSON that says something else."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with held_open(os.open(path, flags)) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > USERS_FILE_BYTES_MAX:
            raise BadKey(f"{path} is not a file of users", "move it away")
        check_secret_file(found.st_mode, found.st_uid, os.geteuid(), str(path))
        rows = json.loads(os.read(descriptor, found.st_size))["users"]
    return {
        str(key): str(row["name"])
        for row in rows
        if row["status"] == _ENABLED
        for key in row["public_keys"]
    }
