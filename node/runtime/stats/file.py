"""Mapped files of counts, `keelog/run/stats/…`: one writer each, kept over its restarts.

A file is 8-byte numbers in the machine's order, after a header of two: magic with the version of
this layout, and a CRC of what the numbers mean. Each store is one aligned number, never torn. What
is not of this layout is taken as missing by who reads it, and replaced by its owner.
"""

import mmap
import os
from pathlib import Path

from node.runtime import disk
from node.runtime.regular_file import IrregularFile, open_regular
from node.runtime.state_page import run_dir

STATS_DIR = "stats"
STATS_MAGIC = 0x4B45454C4F475301
"""KEELOGS, layout 1."""
PLAUSIBLE_BELOW = 1 << 63
"""No count reaches this."""
_HEADER = 2
_PAGE_BYTES = 4096


def stats_dir(root: Path) -> Path:
    """Where the files are."""
    return run_dir(root) / STATS_DIR


def _file_bytes(count: int) -> int:
    return -(-(_HEADER + count) * 8 // _PAGE_BYTES) * _PAGE_BYTES


class StatsFile:
    """A file in the hands of its one writer."""

    def __init__(self, path: Path, layout: int, count: int) -> None:
        """Opens it, anew and empty where `read_numbers` finds none. Raises OSError."""
        if read_numbers(path, layout, count) is None:
            replace(path, layout, count)
        descriptor = open_regular(path, os.O_RDWR)
        try:
            # A copied store may have holes here, too.
            _write(descriptor, os.pread(descriptor, _file_bytes(count), 0))
            self._map = mmap.mmap(descriptor, _file_bytes(count), access=mmap.ACCESS_WRITE)
        finally:
            os.close(descriptor)
        self._all = memoryview(self._map).cast("Q")
        self.numbers = self._all[_HEADER : _HEADER + count]

    def close(self) -> None:
        """Gives the mapping back; the file stays."""
        self.numbers.release()
        self._all.release()
        self._map.close()


def replace(path: Path, layout: int, count: int) -> None:
    """An empty file, in place of whatever is there. Raises OSError."""
    disk.make_dir(path.parent)
    temporary = path.with_name(path.name + ".new")
    descriptor = open_regular(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        # With a block after every byte: a store into a hole of a full disk ends the process.
        data = bytearray(_file_bytes(count))
        head = memoryview(data).cast("Q")
        head[0], head[1] = STATS_MAGIC, layout
        _write(descriptor, data)
    finally:
        os.close(descriptor)
    temporary.replace(path)


def _write(descriptor: int, data: bytes | bytearray) -> None:
    """The whole file. Raises OSError. Beside the seam to the disk: counts need not be durable."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], written)


def read_numbers(path: Path, layout: int, count: int) -> list[int] | None:
    """The present numbers; None if there is no file of this layout."""
    size = _file_bytes(count)
    try:
        descriptor = open_regular(path)
    except (OSError, IrregularFile):
        return None
    try:
        if os.fstat(descriptor).st_size != size:
            return None
        # Mapped, as a read may tear a number that is being stored.
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as mapped:
            numbers = memoryview(mapped).cast("Q").tolist()
    finally:
        os.close(descriptor)
    if numbers[:_HEADER] != [STATS_MAGIC, layout]:
        return None
    return numbers[_HEADER : _HEADER + count]
