"""How the files of a job become what readers see: written aside, then published at once.

By rename, where files can be renamed: the next manifest is made durable, the files move to their
places, and last the manifest takes its name, so that the next run can finish a publication
that broke off. A folder that is new as a whole needs one rename and no manifest. By manifest, in an
object store: files are written where they stay, and count once the manifest, which is written
last, names them.
"""

import fcntl
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

from pyarrow import fs

from node.runtime import disk

TEMPORARY = "_temporary"
TEMPORARY_SUFFIX = ".tmp"
"""Files that are being written have no `.parquet` at the end: patterns do not find them."""


class OutFolder(ABC):
    """A folder that a job writes, by `pyarrow.fs`. All paths are relative to it.

    Tasks get it too: it opens a client at the first use, and is pickled without it.
    """

    @abstractmethod
    def open_client(self) -> tuple[Any, str]:
        """The file system, and the folder's path in it. Raises BadOption, StoreUnreadable."""

    @abstractmethod
    def naming(self, path: str = "") -> AbstractContextManager[None]:
        """Gives what the file system refuses the error that users see."""

    @cached_property
    def _client(self) -> tuple[Any, str]:
        return self.open_client()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_client"}

    @property
    def system(self) -> Any:
        """The client of the file system."""
        return self._client[0]

    @property
    def root(self) -> str:
        """The folder, as the file system names it."""
        return self._client[1].rstrip("/")

    @property
    def syncs(self) -> bool:
        """Elsewhere an object is durable, and there as a whole, once it is closed."""
        return isinstance(self.system, fs.LocalFileSystem)

    def place(self, path: str) -> str:
        """The file system's own name for a path."""
        return f"{self.root}/{path}"

    def create(self, path: str) -> IO[bytes]:
        """A stream into a new file. Raises OSError."""
        place = self.place(path)
        try:
            stream = self.system.open_output_stream(place)
        except FileNotFoundError:
            # Some file systems want the folders first.
            self.system.create_dir(place.rpartition("/")[0], recursive=True)
            stream = self.system.open_output_stream(place)
        return cast(IO[bytes], stream)

    def input(self, path: str) -> IO[bytes]:
        """A file to seek and read in. Raises OSError, as its reads do."""
        return cast(IO[bytes], self.system.open_input_file(self.place(path)))

    def read(self, path: str) -> bytes | None:
        """A small file; None where there is none."""
        with self.naming(path):
            try:
                with self.input(path) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def put(self, path: str, data: bytes) -> None:
        """Replaces a small file as a whole, and durably."""
        with self.naming(path):
            written = f"{path}{TEMPORARY_SUFFIX}" if self.syncs else path
            with self.create(written) as file:
                file.write(data)
            if self.syncs:
                self.sync_file(written)
                self._rename(written, path)

    def sync_file(self, path: str) -> None:
        """Makes a closed file durable, where closing does not."""
        if self.syncs:
            disk.sync_file(Path(self.place(path)))

    def names(self) -> set[str]:
        """What lies directly in the folder; nothing, where it does not exist."""
        return {info.base_name for info in self._infos(recursive=False)}

    def files(self) -> Iterator[tuple[str, int]]:
        """Path and size of each file in the folder and below it."""
        for info in self._infos(recursive=True):
            if info.type == fs.FileType.File:
                yield info.path[len(self.root) + 1 :], info.size

    def remove_file(self, path: str) -> None:
        """Removes a file that is there."""
        with self.naming(path):
            self.system.delete_file(self.place(path))

    def remove_folder(self, path: str) -> None:
        """Removes all that lies below a path, if anything does."""
        with self.naming(path):
            if self.system.get_file_info(self.place(path)).type == fs.FileType.Directory:
                self.system.delete_dir(self.place(path))

    def move_in(self, moves: Iterable[tuple[str, str, int]], manifest: str, name: str) -> str:
        """Makes the moves that are left, then gives the file `manifest` its `name`.

        A move is where a file is written, where it is published, and its bytes. Returns "", or the
        first target that is neither there nor to be moved: the manifest then keeps its name.
        """
        with self.naming():
            folders = set()
            for written, published, size in moves:
                source, target = self.place(written), self.place(published)
                folder = target.rpartition("/")[0]
                folders |= {folder, folder.rpartition("/")[0]}
                if self.system.get_file_info(source).type == fs.FileType.File:
                    self.system.create_dir(folder, recursive=True)
                    self.system.move(source, target)
                elif self.system.get_file_info(target).size != size:
                    return target
            if self.syncs:
                for folder in sorted(folders | {self.root}):
                    disk.sync_dir(Path(folder))
            self._rename(manifest, name)
            return ""

    def _rename(self, old: str, new: str) -> None:
        self.system.move(self.place(old), self.place(new))
        if self.syncs:
            disk.sync_dir(Path(self.root))

    def _infos(self, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(self.root, allow_not_found=True, recursive=recursive)
        with self.naming():
            return cast(list[Any], self.system.get_file_info(selector))


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder; False while another job holds it. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
