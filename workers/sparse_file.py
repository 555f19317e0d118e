"""Files of full length that stay sparse: made whole, written by `pwrite`, zeroed where needed.

A file appears under its name only with its first bytes in it, so that a kill never leaves one that
RocketMQ would misread. Nobody stores through a map of such a file: a full disk must be an error.
"""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from node.runtime import disk
from node.runtime.disk import NO_DESCRIPTORS, sync_dir_if_there, sync_file, write_all
from node.store.file_cache import nonzero_pieces

File = TypeVar("File")


def make_file(path: Path, file_bytes: int, position: int, data: memoryview, temp: Path) -> int:
    """Makes the file with `data` at `position` and returns its descriptor.

    It is filled as `temp` and renamed; where `temp` is on another file system, in place.
    """
    disk.make_dir(path.parent)
    descriptor = _fill(temp, file_bytes, position, data)
    try:
        disk.rename(temp, path)
    except OSError as error:
        os.close(descriptor)
        disk.unlink(temp, missing_ok=True)
        if error.errno != errno.EXDEV:
            raise
        descriptor = _fill(path, file_bytes, position, data)
    return descriptor


def _fill(path: Path, file_bytes: int, position: int, data: memoryview) -> int:
    descriptor = disk.open_file(path, create=True, empty=True)
    try:
        disk.set_length(descriptor, file_bytes)
        write_all(descriptor, data, position)
    except OSError:
        os.close(descriptor)
        disk.unlink(path, missing_ok=True)
        raise
    return descriptor


class Unsynced(Generic[File]):
    """Files and folders changed since the last sync, which may run in a thread of its own."""

    def __init__(self, path_of: Callable[[File], Path]) -> None:
        self._path_of = path_of
        self._guard = threading.Lock()
        self._files: set[File] = set()
        self._folders: set[Path] = set()

    def add(self, file: File) -> None:
        with self._guard:
            self._files.add(file)

    def add_folders(self, *folders: Path) -> None:
        with self._guard:
            self._folders.update(folders)

    def sync(self) -> None:
        """Makes durable what was noted before the call."""
        with self._guard:
            files, self._files = self._files, set()
            folders, self._folders = self._folders, set()
        try:
            for file in files:
                sync_file(self._path_of(file))
            for folder in folders:
                sync_dir_if_there(folder)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:  # nothing was synced, or lost, by that call
                with self._guard:
                    self._files |= files
                    self._folders |= folders
            raise


def zero_from(descriptor: int, start: int, stop: int) -> bool:
    """Makes [start, stop) zero and holes stay holes; returns whether anything was changed."""
    changed = False
    for position, piece in nonzero_pieces(descriptor, start, stop):
        write_all(descriptor, bytes(len(piece)), position)
        changed = True
    return changed
