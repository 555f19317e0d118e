"""Index entries on their way: each range of the log leaves its keys in a file, in log order.

Which entry of which index file a key becomes depends on how many keys come before it, and that
is known when all ranges have been read.
"""

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from node.runtime import disk
from protocol.derived.dispatch_request import DispatchRequests, key_batch
from protocol.derived.file_layouts import KeyBatch

KEY_DTYPE = np.dtype([("key_hash", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
WRITE_KEYS = 1 << 16
READ_KEYS = 1 << 20
"""So many keys of an index file are entered at once: 20 MB, and about 100 MB to sort them."""


OpenKeys = Callable[[str], IO[bytes]]
"""Opens a spilled file by its path."""


class SpilledKeys(NamedTuple):
    """A range's keys: where they are, and how many."""

    path: str
    keys: int


class KeySlice(NamedTuple):
    """Keys [`start`, `stop`) of a spilled file."""

    path: str
    start: int
    stop: int


class KeySpill(ABC):
    """Writes one range's keys. They are there, whole, when `keep` has been called."""

    def __init__(self, with_tags: bool) -> None:
        self._with_tags = with_tags
        self._waiting: list[NDArray[Any]] = []
        self._written = 0
        self.count = 0

    def add(self, requests: DispatchRequests) -> None:
        """Takes the keys of a window's records, as the index worker enters them."""
        keys = key_batch(requests, self._with_tags)
        rows = np.empty(len(keys.key_hash), KEY_DTYPE)
        for name, column in zip(KeyBatch._fields, keys, strict=True):
            rows[name] = column
        self._waiting.append(rows)
        self.count += len(rows)
        if self.count - self._written >= WRITE_KEYS:
            self._write()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for rows in waiting:
            self._put(rows.view(np.uint8).data, self._written * rows.itemsize)
            self._written += len(rows)

    def keep(self) -> None:
        """All keys are there: the file gets its name."""
        self._write()
        self._finish()

    @abstractmethod
    def _put(self, data: memoryview, position: int) -> None:
        """Writes bytes; positions follow each other."""

    @abstractmethod
    def _finish(self) -> None:
        """Nothing more will come."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; one that was not kept counts for nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class FileKeySpill(KeySpill):
    """Into a file, which appears under its name whole."""

    def __init__(self, path: Path, with_tags: bool, syncs: bool = False) -> None:
        super().__init__(with_tags)
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        self._syncs = syncs
        self._descriptor = disk.open_file(self._temporary, create=True, empty=True)

    def _put(self, data: memoryview, position: int) -> None:
        disk.write_all(self._descriptor, data, position)

    def _finish(self) -> None:
        if self._syncs:
            disk.sync_with_length(self._descriptor)
        disk.rename(self._temporary, self._path)

    def close(self) -> None:
        """Closes the file; one that was not kept is removed."""
        os.close(self._descriptor)
        disk.unlink(self._temporary, missing_ok=True)


class StreamKeySpill(KeySpill):
    """Into an object, which is there when its stream is closed."""

    def __init__(self, stream: IO[bytes], with_tags: bool) -> None:
        super().__init__(with_tags)
        self._stream = stream

    def _put(self, data: memoryview, _position: int) -> None:
        self._stream.write(data)

    def _finish(self) -> None:
        self._stream.close()

    def close(self) -> None:
        """What was not kept the attempt's folder takes along."""
        self._stream.close()


def key_slices(spilled: Sequence[SpilledKeys], start: int, stop: int) -> tuple[KeySlice, ...]:
    """The pieces that hold the keys [`start`, `stop`) of all that are `spilled`, in order."""
    pieces: list[KeySlice] = []
    before = 0
    for path, count in spilled:
        low, high = max(start - before, 0), min(stop - before, count)
        if low < high:
            pieces.append(KeySlice(path, low, high))
        before += count
    return tuple(pieces)


def open_keys(path: str) -> IO[bytes]:
    """A spilled file on a file system. Raises OSError."""
    return Path(path).open("rb")


def read_keys(pieces: Sequence[KeySlice], open_file: OpenKeys = open_keys) -> Iterator[KeyBatch]:
    """The keys of the pieces, in order, at most READ_KEYS at once. Raises OSError."""
    for path, start, stop in pieces:
        with open_file(path) as file:
            for first in range(start, stop, READ_KEYS):
                file.seek(first * KEY_DTYPE.itemsize)
                count = min(READ_KEYS, stop - first)
                rows = np.frombuffer(file.read(count * KEY_DTYPE.itemsize), KEY_DTYPE)
                if len(rows) != count:
                    raise OSError(f"{path} ends early")
                yield KeyBatch(
                    rows["key_hash"],
                    rows["physical_offset"].astype(np.int64),
                    rows["store_timestamp"].astype(np.int64),
                )
