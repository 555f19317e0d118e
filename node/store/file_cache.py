"""Open files of a store, bounded in number: read by `pread`, or through a read-only map.

Whoever reads here never reads outside a file: one that shrank, vanished or may not be opened gives
a typed error that names it.
"""

import errno
import mmap
import os
import resource
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from node.runtime.descriptors import FILES_NEEDED
from node.runtime.disk import NO_RESOURCES
from node.runtime.held_store import check_held
from node.runtime.shortage import refusal_for
from protocol.errors import ServiceNotAvailable, StoreDamaged, StoreMoved, StorePermission
from protocol.kernel import loader
from protocol.kernel.loader import Bytes, Ints

FILES_MAX = 256
"""How many files one process keeps open, and mapped, unless it is told otherwise."""
FILES_SHARE = 4
"""Of the descriptors that a process has left a quarter is for the store, the rest for connections.
"""
FILES_MIN = 8

_WINDOW_BYTES = 1 << 20
_OWNER_HINT = "run as the owner of the store"
_VERIFY_HINT = "see what is left with: keelog store verify"


class FileVanished(StoreDamaged):
    """A file that was there a moment ago: damage, or the work of retention."""


def refuse(path: Path, error: OSError, position: int = 0) -> NoReturn:
    """Raises the error of ours that an operating system's error, met there, stands for.

    StoreMoved when the store that this process holds is not there any more.
    """
    check_held()
    if isinstance(error, PermissionError):
        raise StorePermission(f"{path}: {error.strerror}", _OWNER_HINT) from None
    if isinstance(error, FileNotFoundError):
        raise FileVanished(str(path), 0, "the file is gone", _VERIFY_HINT) from None
    if error.errno in NO_RESOURCES:
        raise refusal_for(error, str(path)) from None
    found = f"cannot be read: {error.strerror}"
    raise StoreDamaged(str(path), position, found, _VERIFY_HINT) from None


@dataclass(frozen=True, slots=True)
class Run:
    """`count` bytes of a file that is `size` bytes long."""

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
            # O_NONBLOCK: a FIFO that has come in the place of a file is no wait for its other end.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            refuse(path, error)
        try:
            # After it was opened: what a name led to before that may have been another store's.
            check_held()
            self.check()
        except (StoreMoved, StoreDamaged):
            self.close()
            raise

    def check(self) -> None:
        """Raises StoreDamaged when the file is shorter than it was: a map of it would kill us."""
        found = os.fstat(self._descriptor).st_size
        if found < self.size:
            raise StoreDamaged(
                str(self.path), found, f"has {found} bytes, {self.size} are expected", _VERIFY_HINT
            )

    def check_linked(self) -> None:
        """Raises FileVanished when its name stands for another file by now, or for none."""
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileVanished(str(self.path), 0, "the file is gone", _VERIFY_HINT)

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
                raise StoreDamaged(str(self.path), position, "ends here", _VERIFY_HINT)
            parts.append(part)
            position += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect(self, start: int, end: int) -> None:
        """These bytes will be read next, in order. Here the kernel reads ahead by itself."""

    def read_pieces(self, position: Ints, count: Ints) -> Bytes:
        """Exactly `count` bytes from each position, joined; the compiled kernel must be there.

        Raises StoreDamaged when they are not all there.
        """
        compiled = loader.active()
        assert compiled is not None
        inside = (position >= 0) & (count >= 0) & (position <= self.size - count)
        assert bool(inside.all())
        data, whole = compiled.read_pieces(self._descriptor, position, count)
        if whole < len(position):
            # The same again, one by one, for the error that says what is wrong.
            pairs = zip(position.tolist(), count.tolist(), strict=True)
            data = np.frombuffer(b"".join([self.read(*pair) for pair in pairs]), np.uint8)
        return data

    def check_readable(self) -> None:
        """Reads all that was ever written. Raises StoreDamaged for what the disk cannot read.

        Whoever maps the file next finds it in memory: through a map an unreadable page is SIGBUS.
        """
        position = 0
        while True:
            try:
                start = os.lseek(self._descriptor, position, os.SEEK_DATA)
                end = min(os.lseek(self._descriptor, start, os.SEEK_HOLE), self.size)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                refuse(self.path, error, position)
            for position in range(start, end, _WINDOW_BYTES):
                self.read(position, min(_WINDOW_BYTES, end - position))
            position = max(end, start + 1)

    def view(self) -> memoryview:
        """The whole file, mapped; valid as long as anybody holds it. See `check`."""
        if self._map is None:
            try:
                mapped = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
            except OSError as error:
                refuse(self.path, error)
            self._map = memoryview(mapped)
        return self._map

    def close(self) -> None:
        """Closes the file; a map lives on while somebody holds a view of it."""
        self._map = None
        os.close(self._descriptor)


class OpenFiles:
    """The files opened last; the one not used for longest is closed for the next.

    `maps` says whether files may be mapped: nobody does who must survive a file that shrinks.
    """

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
                # No descriptor is free but those of our own.
                self._files.popitem(last=False)[1].close()
            else:
                break
        self._files[path] = file
        return file

    @property
    def joins_pieces(self) -> bool:
        """Whether many small pieces are best read by `OpenFile.read_pieces`."""
        return loader.active() is not None

    gap_bytes = 4096
    """A smaller gap between two runs of bytes is read along: cheaper than a call of its own."""

    def read_runs(self, runs: Sequence[Run]) -> list[bytes]:
        """Exactly these bytes. Raises what `get` and `OpenFile.read` raise."""
        return [self.get(run.path, run.size).read(run.position, run.count) for run in runs]

    def _open(self, path: Path, size: int) -> OpenFile:
        return OpenFile(path, size)

    def forget(self, path: Path) -> None:
        """Closes one file, if it is open: its path may name another one now."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Closes all."""
        for file in self._files.values():
            file.close()
        self._files.clear()
