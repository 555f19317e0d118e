"""Opens a store's own files: regular files alone, of bounded size, and never through a link.

A FIFO in the place of a file would wait for its other end, a device never ends, and a link leads
into another store. So no link is followed, no open waits, and every read has a bound.
"""

import os
import stat
from pathlib import Path
from typing import Any

from node.runtime.remote_path import RemotePath
from protocol.errors import StoreDamaged

FLOOR_FILE_BYTES_MAX = 1024
EPOCHS_FILE_BYTES_MAX = 64 << 20
"""Over a million starts of the writer."""
QUEUES_FILE_BYTES_MAX = 512 << 20
"""`tails` and `*.rebuilding`: a line for each of QUEUES_MAX queues of the longest names."""
TOPICS_FILE_BYTES_MAX = 256 << 20
"""Ten times what TOPICS_MAX topics of the longest names take."""
OFFSETS_FILE_BYTES_MAX = 64 << 20
"""Ten times what OFFSETS_MAX offsets take."""
STATS_FILE_BYTES_MAX = 1 << 20
JOURNAL_FILE_BYTES_MAX = 4 << 20
"""PARTS_MAX parts of the longest names."""
SMALL_FILE_BYTES_MAX = 64 << 10
"""All other own files: a line or two of text."""

MOVE_HINT = "move it away, as by: keelog store repair DIR"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a link"),
)
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class IrregularFile(StoreDamaged):
    """An own file is not a regular file, or longer than its limit."""


def kind_of(mode: int) -> str:
    """The kind of a file that is not regular, in words."""
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), "a device")


def no_file(path: Path) -> str:
    """In words, what is in the place of a file; links to files are allowed there."""
    try:
        mode = path.lstat().st_mode
    except (OSError, AttributeError):  # gone again, or in an object store
        return "is no file"
    where = " that leads to no file" if stat.S_ISLNK(mode) else ""
    return f"is no file, but {kind_of(mode)}{where}"


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file. Raises IrregularFile for anything else, OSError."""
    try:
        descriptor = os.open(path, flags | _OPEN_FLAGS, mode)
    except OSError:
        found = path.lstat().st_mode
        if stat.S_ISREG(found):
            raise
    else:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISREG(found):
            return descriptor
        os.close(descriptor)
    raise IrregularFile(str(path), 0, f"is no file, but {kind_of(found)}", MOVE_HINT)


def check_size(path: Path, size: int, bytes_max: int) -> None:
    """Raises IrregularFile for a file that is longer than any of its kind."""
    if size > bytes_max:
        found = f"has {size} bytes, at most {bytes_max} are expected"
        raise IrregularFile(str(path), 0, found, MOVE_HINT)


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """All of a regular file, or of an object. Raises IrregularFile for anything else and for more,
    OSError."""
    remote: Any = path
    if isinstance(remote, RemotePath):
        check_size(path, remote.stat().st_size, bytes_max)
        return remote.read_bytes()
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        check_size(path, size, bytes_max)
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def is_own_folder(path: Path) -> bool:
    """Whether a folder is there, and no link to one."""
    return path.is_dir() and not path.is_symlink()
