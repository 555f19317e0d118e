"""The storage seam: every call that changes a file or folder of a store is made here.

So the tests can play through what a power loss may leave: they put a recording `os` into this
module (a test checks that no other module of `node/` and `workers/` writes). Files that need not
survive a power loss are written elsewhere: state pages, locks, pipes.

Functions that make, rename, remove or open a file by its name first check that the store is still
in its place (`node.runtime.store_paths`), and raise StoreMoved.
"""

import ctypes
import errno
import itertools
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from node.runtime.event_log import fields
from node.runtime.store_paths import check_held, held_open, held_store, irregular

log = logging.getLogger("keelog.disk")

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a write without room on the disk; the same write may succeed later."""
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of opening alone, never of a call on an open file."""
NO_RESOURCES = NO_DESCRIPTORS | {errno.ENOMEM}
"""Errors of opening and mapping at RLIMIT_NOFILE, fs.file-max or vm.max_map_count, or without
memory. The disk is not the cause; the same call may succeed later."""
PASSING = DISK_FULL | NO_RESOURCES

_NO_COPY_CALL = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
_COPY_BYTES = 1 << 20
_NO_RESERVE_CALL = frozenset(
    {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF, errno.EPERM, errno.ENODEV}
)
_MOUNTS = Path("/proc/self/mountinfo")
_said_of: set[int] = set()
"""The devices of which the log has said that they cannot reserve space."""

FOLDER_MODE = 0o700
"""Messages are for the user of the node alone."""
_FILE_MODE = 0o600
_TEMPORARY_SUFFIX = ".new"


@contextmanager
def if_room() -> Iterator[None]:
    """For a block that may be left undone: it ends, with a warning, at an error for which the disk
    is full or no descriptor is free."""
    try:
        yield
    except OSError as error:
        if not is_passing(error):
            raise


def is_passing(error: OSError) -> bool:
    """Whether the disk is full or no descriptor is free; the log has a warning then.

    For a loop, where a `with` of `if_room` would cost each turn more than its pages do.
    """
    if error.errno not in PASSING:
        return False
    log.warning("not done for now", extra=fields(file=error.filename, why=error.strerror))
    return True


def open_file(path: Path, create: bool = False, empty: bool = False, own: bool = False) -> int:
    """A descriptor to read and write with; `empty` truncates the file. `own`: no link is followed.

    Only its owner may read a new file; an existing one keeps its mode.
    """
    check_held()
    flags = os.O_RDWR | os.O_CLOEXEC
    flags |= os.O_NOFOLLOW if own else 0
    flags |= os.O_CREAT if create else 0
    flags |= os.O_TRUNC if empty else 0
    return os.open(path, flags, _FILE_MODE)


def open_log(path: Path) -> int:
    """A descriptor whose writes go to the end of a file, whoever else writes there; a new file is
    its owner's alone. No link is followed."""
    check_held()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, _FILE_MODE)


class _naming:  # noqa: N801  (reads as a verb; a generator would cost more than the write)
    """Puts the file's name into the errors of calls that know only its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            _name(error, self._descriptor)


def _name(error: OSError, descriptor: int) -> None:
    if error.filename is None:
        with suppress(OSError):
            error.filename = str(Path(f"/proc/self/fd/{descriptor}").readlink())


def write_all(descriptor: int, data: memoryview | bytes | bytearray, position: int) -> None:
    """`pwrite` until all is written. Raises OSError; a part may be written then."""
    try:  # a `with` that does nothing would cost as much as all else here
        written = os.pwrite(descriptor, data, position) if len(data) else 0
    except OSError as error:
        _name(error, descriptor)
        raise
    if written == len(data):
        return
    with _naming(descriptor):
        view, position = memoryview(data)[written:], position + written
        while len(view):
            written = os.pwrite(descriptor, view, position)
            view, position = view[written:], position + written


def copy_range(source: int, target: int, start: int, count: int) -> None:
    """Copies bytes to the same place of another file. Raises OSError; a part may be copied then.

    A file system that can shares the blocks, or copies them without this process.
    """
    with _naming(target):
        while count > 0:
            try:
                done = os.copy_file_range(source, target, count, start, start)
            except OSError as error:
                if error.errno not in _NO_COPY_CALL:
                    raise
                data = os.pread(source, min(count, _COPY_BYTES), start)
                write_all(target, data, start)
                done = len(data)
            if not done:
                raise OSError(errno.EIO, f"the file that is copied ends at {start}")
            start, count = start + done, count - done


def allocate(descriptor: int, size: int) -> None:
    """Gives a file this length, with a block after every byte. Raises OSError (ENOSPC).

    Where the file system cannot reserve blocks, it only looks whether there is room now, and the
    added bytes are a hole: the C library would write all of them in its place, without a word.
    """
    with _naming(descriptor):
        if not _can_reserve(descriptor):
            _make_hole(descriptor, size)
            return
        os.posix_fallocate(descriptor, 0, size)


def _can_reserve(descriptor: int) -> bool:
    """Tries it for the first byte."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call(descriptor, 0, 0, 1) == 0 or ctypes.get_errno() not in _NO_RESERVE_CALL


def _make_hole(descriptor: int, size: int) -> None:
    status, space = os.fstat(descriptor), os.fstatvfs(descriptor)
    if space.f_bavail * space.f_frsize < size - status.st_blocks * 512:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if status.st_dev not in _said_of:
        _said_of.add(status.st_dev)
        log.warning(
            "this file system cannot reserve space: a full disk shows late, at a write",
            extra=fields(file_system=file_system(status) or "unknown"),
        )
    if status.st_size < size:
        os.ftruncate(descriptor, size)


def file_system(status: os.stat_result) -> str:
    """The kind of file system of a file or folder, empty where it is not known."""
    wanted = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        mounts = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    found = [
        line.partition(" - ")[2].split(" ", 1)[0]
        for line in mounts
        if line.split(" ", 3)[2] == wanted
    ]
    return found[-1] if found else ""


def set_length(descriptor: int, size: int) -> None:
    """Gives a file this length; added bytes are a hole."""
    os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Makes an open file's bytes durable. The first error is final: a second sync may lie."""
    with _naming(descriptor):
        os.fdatasync(descriptor)


def sync_with_length(descriptor: int) -> None:
    """As `sync`, and the length, blocks and times too."""
    with _naming(descriptor):
        os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Makes a file's bytes durable. A file that was removed meanwhile needs nothing."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    with suppress(FileNotFoundError), held_open(os.open(path, flags)) as descriptor:
        os.fdatasync(descriptor)


@contextmanager
def open_dir(path: Path) -> Iterator[int]:
    """A folder's descriptor. Opened before a rename that is to be synced, it keeps a lack of
    descriptors from coming between the two."""
    check_held()
    with held_open(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        yield descriptor


def sync_dir(path: Path) -> None:
    """Makes the names in a folder durable."""
    with open_dir(path) as descriptor:
        os.fsync(descriptor)


def sync_dir_if_there(path: Path) -> None:
    """As `sync_dir`; a folder that was removed meanwhile needs nothing."""
    with suppress(FileNotFoundError):
        sync_dir(path)


def rename(old: Path, new: Path) -> None:
    """Renames a file, and replaces one of the new name. Atomic; durable by `sync_dir`."""
    check_held()
    os.replace(old, new)


def link(old: Path, new: Path) -> None:
    """A second name for a file."""
    check_held()
    os.link(old, new)


def unlink(path: Path, missing_ok: bool = False) -> None:
    """Takes a file's name away. Durable by `sync_dir`."""
    check_held()
    try:
        os.unlink(path)
    except FileNotFoundError:
        if not missing_ok:
            raise


def make_dir(path: Path, exist_ok: bool = True) -> None:
    """Makes a folder and those above it, their owner's alone. Durable by `sync_dir` of its parent.

    Folders that are there keep their modes. A process of a node makes none above its store's.
    """
    held = held_store()
    if held is not None and path.is_relative_to(held.root):
        held.check()
        if not held.root.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(held.root))
    # The system call's wrapper gives the mode to the last folder only, so each one is made here.
    missing = [*itertools.takewhile(lambda part: not part.exists(), path.parents)]
    for folder in reversed(missing):
        os.makedirs(folder, FOLDER_MODE, exist_ok=True)
    os.makedirs(path, FOLDER_MODE, exist_ok)


def make_durable_dir(path: Path) -> None:
    """Makes a folder and those above it, and makes their names durable.

    It syncs the name of an existing folder too: its maker may have been killed before doing so.
    """
    missing = [part for part in (path, *path.parents) if not part.exists()]
    make_dir(path)
    for part in missing or [path]:
        with suppress(PermissionError):  # a folder above may be closed to us: it was not made now
            sync_dir(part.parent)


def remove_dir(path: Path) -> None:
    """Removes an empty folder."""
    check_held()
    os.rmdir(path)


def remove_tree(path: Path) -> None:
    check_held()
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(Path(folder) / name)
        for name in folders:
            os.rmdir(Path(folder) / name)
    os.rmdir(path)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a whole file and makes its bytes, not its name, durable."""
    with held_open(open_file(path, create=True, empty=True, own=True)) as descriptor:
        write_all(descriptor, data, 0)
        sync_with_length(descriptor)


def write_with_backup(path: Path, data: bytes) -> None:
    """As `write_atomically`, and the old content stays as `.bak`. Makes the folder."""
    make_durable_dir(path.parent)
    if path.exists():
        backup = backup_of(path)
        unlink(backup, missing_ok=True)
        link(path, backup)
        sync_dir(path.parent)
    write_atomically(path, data)


def backup_of(path: Path) -> Path:
    """The version before, as a broker names it."""
    return path.with_name(path.name + ".bak")


def temporary_of(path: Path) -> Path:
    """What is written before it takes the name of a file."""
    return path.with_name(path.name + _TEMPORARY_SUFFIX)


def write_atomically(path: Path, data: bytes) -> None:
    """Old or new, never a mixture: temporary file, sync, rename, sync of the folder.

    Raises OSError; the old content stays then, and the temporary file is removed if possible.
    """
    temporary = temporary_of(path)
    with open_dir(path.parent) as folder:
        try:
            write_synced(temporary, data)
        except OSError:
            with suppress(OSError):
                unlink(temporary)
            raise
        rename(temporary, path)
        sync_with_length(folder)


def replace_unsynced(path: Path, data: bytes) -> None:
    """Old or new for every reader, but not after a power loss: for files that only a running node
    needs. Raises OSError; IrregularFile for a folder in its place."""
    temporary = temporary_of(path)
    try:
        with held_open(open_file(temporary, create=True, empty=True, own=True)) as descriptor:
            write_all(descriptor, data, 0)
        rename(temporary, path)
    except IsADirectoryError as error:
        place = str(error.filename2 or error.filename)
        raise irregular(place, stat.S_IFDIR) from None
