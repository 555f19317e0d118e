"""A cache of a store's open files, read by `pread` or through a read-only map.

No read goes outside a file: a file that shrank, vanished or cannot be opened raises an error that
names it, and the command that shows all damage of its store.
"""

import errno
import mmap
import os
import resource
import shlex
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from node.runtime.disk import NO_RESOURCES
from node.runtime.shortage import FILES_NEEDED, refusal_for
from node.runtime.store_paths import FolderEntry, RemotePath, check_held, no_permission, scan
from protocol.errors import ServiceNotAvailable, StoreDamaged, StoreMoved
from protocol.kernel import loader
from protocol.kernel.loader import Bytes, Ints
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR

FILES_MAX = 256
"""The number of files that a process keeps open, and mapped, by default."""
FILES_SHARE = 4
"""The cache takes a quarter of the descriptors that are left; connections take the rest."""
FILES_MIN = 8

_WINDOW_BYTES = 1 << 20


class FileVanished(StoreDamaged):
    """A file that was there a moment ago is gone: by damage, or by retention."""


def refuse(path: Path, error: OSError, position: int = 0) -> NoReturn:
    """Raises our error for an error of the operating system at `path`.

    Raises StoreMoved if the store that this process holds has moved.
    """
    check_held()
    if isinstance(error, PermissionError):
        raise no_permission(error, path) from None
    if isinstance(error, FileNotFoundError):
        raise FileVanished(str(path), 0, "the file is gone", see_all_damage(path)) from None
    if error.errno in NO_RESOURCES:
        raise refusal_for(error, str(path)) from None
    found = f"cannot be read: {error.strerror}"
    raise StoreDamaged(str(path), position, found, see_all_damage(path)) from None


def list_entries(folder: Path) -> list[FolderEntry]:
    """The entries of a folder, by name; none without the folder. Raises StorePermission."""
    try:
        return scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        refuse(folder, error)


@dataclass(frozen=True, slots=True)
class Run:
    """A read of `count` bytes at `position`, of a file that is `size` bytes long."""

    path: Path
    size: int
    position: int
    count: int


class OpenFile:
    """One open file of known length."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self._map: memoryview | None = None
        try:
            # O_NONBLOCK: the open of a FIFO in the place of a file must not wait for its writer.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            refuse(path, error)
        try:
            # Checked after the open: the name may have led to a file of another store.
            check_held()
            self.check()
        except (StoreMoved, StoreDamaged):
            self.close()
            raise

    def check(self) -> None:
        """Raises StoreDamaged if the file has shrunk: a read through a map would be SIGBUS."""
        found = os.fstat(self._descriptor).st_size
        if found < self.size:
            text = f"has {found} bytes, {self.size} are expected"
            raise StoreDamaged(str(self.path), found, text, see_all_damage(self.path))

    def check_linked(self) -> None:
        """Raises FileVanished if the file was removed or replaced."""
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileVanished(str(self.path), 0, "the file is gone", see_all_damage(self.path))

    def read(self, position: int, count: int) -> bytes:
        """Exactly `count` bytes. Raises StoreDamaged when they are not all there."""
        assert 0 <= position <= position + count <= self.size
        parts = []
        while count:
            try:
                part = os.pread(self._descriptor, count, position)
            except OSError as error:
                refuse(self.path, error, position)
            if not part:
                self.check()
                hint = see_all_damage(self.path)
                raise StoreDamaged(str(self.path), position, "ends here", hint)
            parts.append(part)
            position += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect(self, start: int, end: int) -> None:
        """Announces that [start, end) is read next. Does nothing: the kernel reads ahead itself."""

    def read_pieces(self, position: Ints, count: Ints) -> Bytes:
        """Exactly `count` bytes from each position, joined; needs the compiled kernel.

        Raises StoreDamaged when they are not all there.
        """
        compiled = loader.kernel
        assert compiled is not None
        inside = (position >= 0) & (count >= 0) & (position <= self.size - count)
        assert bool(inside.all())
        data, whole = compiled.read_pieces(self._descriptor, position, count)
        if whole < len(position):
            # Once more, one by one, to raise the error of the piece that failed.
            pairs = zip(position.tolist(), count.tolist(), strict=True)
            data = np.frombuffer(b"".join([self.read(*pair) for pair in pairs]), np.uint8)
        return data

    def check_readable(self) -> None:
        """Reads the file once. Raises StoreDamaged where the disk cannot read.

        Call it before reads through a map, where an unreadable page is SIGBUS.
        """
        position = 0
        try:
            for start, end in data_extents(self._descriptor, 0, self.size):
                for position in range(start, end, _WINDOW_BYTES):
                    self.read(position, min(_WINDOW_BYTES, end - position))
        except OSError as error:
            refuse(self.path, error, position)

    def view(self) -> memoryview:
        """The whole file as a map, valid as long as the view exists; its length is checked."""
        if os.fstat(self._descriptor).st_size < self.size:
            self.check()
        if self._map is None:
            try:
                mapped = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
            except OSError as error:
                refuse(self.path, error)
            self._map = memoryview(mapped)
        return self._map

    def close(self) -> None:
        """Closes the file; a map stays as long as a view of it exists."""
        self._map = None
        os.close(self._descriptor)


def data_extents(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where in [start, stop) the file may hold anything but zeros."""
    while start < stop:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        if begin >= stop:
            return
        end = min(os.lseek(descriptor, begin, os.SEEK_HOLE), stop)
        yield begin, end
        start = end


def nonzero_pieces(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of pieces of [start, stop), of _WINDOW_BYTES at most, that hold anything
    but zeros."""
    # All are found before any is read: reading ahead makes holes data.
    for begin, end in list(data_extents(descriptor, start, stop)):
        for position in range(begin, end, _WINDOW_BYTES):
            found = os.pread(descriptor, min(_WINDOW_BYTES, end - position), position)
            if any(found):
                yield position, found


class OpenFiles:
    """An LRU cache of open files.

    `maps`: whether files may be mapped. A process that must survive a file that shrinks may not.
    """

    gap_bytes = 4096
    """A smaller gap between two runs is read too: that is cheaper than a second call."""

    def __init__(self, limit: int = FILES_MAX, maps: bool = True) -> None:
        self.maps = maps
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = min(limit, max((soft - FILES_NEEDED) // FILES_SHARE, FILES_MIN))
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()

    def get(self, path: Path, size: int) -> OpenFile:
        """The file, opened if it is not.

        Raises StoreDamaged, FileVanished, StoreMoved, StorePermission.
        """
        file = self._files.get(path)
        if file is not None and file.size == size:
            self._files.move_to_end(path)
            return file
        self.forget(path)
        while len(self._files) >= self._limit:
            self._files.popitem(last=False)[1].close()
        while True:
            try:
                file = self._open(path, size)
            except ServiceNotAvailable:
                if not self._files:
                    raise
                # No descriptor is free: close one of ours.
                self._files.popitem(last=False)[1].close()
            else:
                break
        self._files[path] = file
        return file

    @property
    def joins_pieces(self) -> bool:
        """True if `OpenFile.read_pieces` is the best way to read many small pieces."""
        return loader.kernel is not None

    def read_runs(self, runs: Sequence[Run]) -> list[bytes]:
        """The bytes of each run. Raises as `get` and `OpenFile.read` do."""
        return [self.get(run.path, run.size).read(run.position, run.count) for run in runs]

    def _open(self, path: Path, size: int) -> OpenFile:
        return OpenFile(path, size)

    def forget(self, path: Path) -> None:
        """Closes one file, if it is open: its path may name another one now."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def see_all_damage(path: Path | RemotePath) -> str:
    """The command that shows all damage of the store with this file or folder."""
    found = None if isinstance(path, RemotePath) else _store_with(path)
    store = "DIR" if found is None else shlex.quote(str(found))
    return f"see all damage, on the node's machine, with: keelog store verify {store} --deep"


def _store_with(path: Path) -> Path | None:
    """The folder that holds the log; None if it is not there any more."""
    for above in (path, *path.parents):
        # A topic may have the log's name.
        if above.name != CONSUME_QUEUE_DIR and (above / COMMIT_LOG_DIR).is_dir():
            return above
    return None
