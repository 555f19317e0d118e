"""Queue files below a folder that is being made: units put at their places by `pwrite`."""

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.runtime import disk
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.derived.queue_build import filler_units
from protocol.ids import Queue
from protocol.names import offset_file_name

OPEN_FILES_MAX = 512
_FILLERS_AT_ONCE = 1 << 16


class UnitFiles:
    """Writes units of any queue. The same units may be written again, also by two at once."""

    def __init__(self, folder: Path, file_bytes: int, syncs: bool = False) -> None:
        """`folder` must be there. `syncs`: what was written is durable when `close` returns."""
        self._folder = folder
        self._file_bytes = file_bytes
        self._syncs = syncs
        self._open: OrderedDict[Path, int] = OrderedDict()

    def write(self, queue: Queue, start: int, units: NDArray[Any]) -> None:
        """Puts units from number `start` on. Raises OSError, also when `folder` has gone."""
        position = start * UNIT_BYTES
        view = units.view(np.uint8).data
        while len(view):
            base = position - position % self._file_bytes
            part = view[: base + self._file_bytes - position]
            disk.write_all(self._descriptor(queue, base), part, position - base)
            view, position = view[len(part) :], position + len(part)

    def fill(self, queue: Queue, first: int) -> None:
        """Puts the filler units before the queue's first one into the file that holds it."""
        start = first - first % (self._file_bytes // UNIT_BYTES)
        while start < first:
            count = min(_FILLERS_AT_ONCE, first - start)
            self.write(queue, start, filler_units(count))
            start += count

    def close(self) -> None:
        """Closes all files."""
        while self._open:
            self._end(self._open.popitem()[1])

    def _descriptor(self, queue: Queue, base: int) -> int:
        folder = self._folder / queue.topic / str(queue.queue_id)
        path = folder / offset_file_name(base)
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        try:
            descriptor = disk.open_file(path, create=True)
        except FileNotFoundError:
            # Never the folder of all: a late task of an earlier attempt must not bring it back.
            for part in (folder.parent, folder):
                make_one(part)
            descriptor = disk.open_file(path, create=True)
        if os.fstat(descriptor).st_size != self._file_bytes:
            disk.set_length(descriptor, self._file_bytes)
        self._open[path] = descriptor
        if len(self._open) > OPEN_FILES_MAX:
            self._end(self._open.popitem(last=False)[1])
        return descriptor

    def _end(self, descriptor: int) -> None:
        try:
            if self._syncs:
                disk.sync_with_length(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def whole_file(temporary: Path, target: Path, syncs: bool) -> Iterator[int]:
    """Gives the descriptor of a new file, which gets its name when the caller has filled it."""
    descriptor = disk.open_file(temporary, create=True, empty=True)
    try:
        yield descriptor
        if syncs:
            disk.sync_with_length(descriptor)
        disk.rename(temporary, target)
    finally:
        os.close(descriptor)
        disk.unlink(temporary, missing_ok=True)


def make_one(folder: Path) -> None:
    """Makes a folder, not those above it; another task may make it at this moment."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(disk.FOLDER_MODE)
