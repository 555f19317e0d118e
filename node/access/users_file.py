"""`keelog/auth/users.json`: users and access lists, with their secrets, in one file.

The folder and the file are their owner's alone. A file that others could have read or written is
refused: its secrets would be no secrets. The owner of the store's lock writes it, all others read.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.store_paths import USERS_FILE_BYTES_MAX, check_held, check_size, held_open
from protocol.access.users import EMPTY, AccessTable, read_table, table_json
from protocol.errors import NotAllowed, StoreDamaged, StoreError
from protocol.names import KEELOG_DIR

AUTH_DIR = "auth"
USERS_FILE = "users.json"
_RESTORE_HINT = "mend it, or move it away and make the users anew: keelog user create NAME"
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class UnsafeUsers(StoreError):
    """The file of users, or its folder, is a link, another user's, or open to others."""


class Stamp(NamedTuple):
    """By which folder and file are known to be those that were read. A change of a mode or an owner
    shows too."""

    folder: tuple[int, int]
    file: tuple[int, int, int, int]


def auth_dir(root: Path) -> Path:
    """The folder of a store's users."""
    return root / KEELOG_DIR / AUTH_DIR


def users_path(root: Path) -> Path:
    """The file of a store's users."""
    return auth_dir(root) / USERS_FILE


def stamp_of(root: Path) -> Stamp | None:
    """Of the file as it is now; None without one. Raises OSError."""
    path = users_path(root)
    try:
        folder, file = path.parent.lstat(), path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    times = file.st_mtime_ns, file.st_ctime_ns
    return Stamp((folder.st_ino, folder.st_ctime_ns), (file.st_ino, *times, file.st_size))


def read_users(root: Path) -> tuple[AccessTable, Stamp | None]:
    """The table, and the stamp of the file that it was read from; an empty one without a file.

    Raises UnsafeUsers for a link, for another owner and for wider modes, StoreDamaged for bytes
    that are not a table, StoreMoved, OSError.
    """
    check_held()
    path = users_path(root)
    # Before the file is read: one that is replaced meanwhile is read once more.
    stamp = stamp_of(root)
    try:
        _check_safe(path.parent, path.parent.lstat(), root, is_folder=True)
        _check_safe(path, path.lstat(), root)
        descriptor = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        return EMPTY, None
    with held_open(descriptor):
        status = os.fstat(descriptor)
        _check_safe(path, status, root)
        check_size(path, status.st_size, USERS_FILE_BYTES_MAX)
        data = os.read(descriptor, status.st_size)
    try:
        return read_table(data), stamp
    except ValueError as error:
        raise StoreDamaged(str(path), 0, str(error), _RESTORE_HINT) from None


def write_users(root: Path, table: AccessTable) -> None:
    """Replaces the file, durably: after a crash it holds the old table or the new one.

    Raises NotAllowed for a table that is too large, UnsafeUsers, OSError.
    """
    data, path = table_json(table), users_path(root)
    if len(data) > USERS_FILE_BYTES_MAX:
        raise NotAllowed(
            f"users and lists would take {len(data)} bytes, {USERS_FILE_BYTES_MAX} are allowed",
            "name several resources by one prefix: Topic:orders*",
        )
    disk.make_durable_dir(path.parent)
    _check_safe(path.parent, path.parent.lstat(), root, is_folder=True)
    # One that is there already would keep its mode, which may be wider.
    disk.unlink(disk.temporary_of(path), missing_ok=True)
    disk.write_atomically(path, data)


def _check_safe(path: Path, status: os.stat_result, root: Path, is_folder: bool = False) -> None:
    """Raises UnsafeUsers."""
    is_kind = stat.S_ISDIR if is_folder else stat.S_ISREG
    if not is_kind(status.st_mode):
        found = "a link" if stat.S_ISLNK(status.st_mode) else "something else"
        what = "folder" if is_folder else "file"
        raise UnsafeUsers(f"{path} is not a {what}, but {found}", f"look at it: ls -ld {path}")
    me = os.geteuid()
    owners = {me} if me else {me, root.stat().st_uid}
    if status.st_uid not in owners:
        raise UnsafeUsers(
            f"{path} belongs to the user with the number {status.st_uid}",
            f"chown it to the user of the node, after a look at what it says: {path}",
        )
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        wanted = "700" if is_folder else "600"
        raise UnsafeUsers(
            f"others may use {path} (mode {mode:04o}), and it holds secrets",
            f"chmod {wanted} {path}  and, if others could read it, change the secrets",
        )
