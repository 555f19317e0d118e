"""One file of those that together are one run of bytes (RocketMQ: MappedFile)."""

from dataclasses import dataclass
from pathlib import Path

from node.store.file_cache import FileVanished, OpenFile, OpenFiles
from protocol.errors import StoreDamaged


@dataclass(frozen=True, slots=True)
class Segment:
    """`size` bytes from offset `start` on. Positions count from the segment's start."""

    path: Path
    start: int
    size: int
    files: OpenFiles

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.start + self.size

    @property
    def file(self) -> OpenFile:
        """The open file. Raises StoreDamaged, FileVanished, StorePermission."""
        return self.files.get(self.path, self.size)

    def read(self, position: int, count: int) -> bytes:
        """Reads by `pread`: an unreadable page is an error, not the end of the process.

        Raises StoreDamaged, with the offset, FileVanished, StorePermission.
        """
        try:
            return self.file.read(position, count)
        except FileVanished:
            raise
        except StoreDamaged as damage:
            raise StoreDamaged(
                damage.where, self.start + damage.offset, damage.found, damage.hint
            ) from None

    def view(self) -> memoryview:
        """The whole segment as a read-only map, after a check of the file's length."""
        file = self.file
        file.check()
        return file.view()
