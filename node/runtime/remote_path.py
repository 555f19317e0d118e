"""Paths of a store at an address, such as an object store, by a listing that is made once.

A `RemotePath` has those methods of `pathlib.Path` that the readers of stores call. A change after
the listing shows when bytes are read.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from node.runtime.held_store import check_held

Names = dict[str, int | None]


class Snapshot:
    """Every file below a folder, by its folder: name and size; None for a folder.

    `open` gives a file to read from its beginning on, by its path below the root.
    """

    def __init__(self, open_file: Callable[[str], BinaryIO]) -> None:
        self.open = open_file
        self.folders: dict[str, Names] = {"": {}}

    def add(self, below: str, size: int) -> None:
        """A file, by its path below the root."""
        folder, _, name = below.rpartition("/")
        self.add_folder(folder)
        self.folders[folder][name] = size

    def add_folder(self, below: str) -> None:
        """A folder, perhaps without files, and those that it is in."""
        while below not in self.folders:
            self.folders[below] = {}
            below, _, name = below.rpartition("/")
            self.folders.setdefault(below, {})[name] = None
            if not below:
                return

    def size(self, below: str) -> int | None:
        """Of a file; None for a folder. Raises FileNotFoundError."""
        folder, _, name = below.rpartition("/")
        if not below:
            return None
        try:
            return self.folders[folder][name]
        except KeyError:
            raise FileNotFoundError(below) from None


class RemotePath:
    """`below` a root that is an address, `scheme://…`."""

    def __init__(self, root: str, below: str = "", snapshot: Snapshot | None = None) -> None:
        self.root = root
        self.below = below
        self.snapshot = snapshot

    def __str__(self) -> str:
        return f"{self.root.rstrip('/')}/{self.below}" if self.below else self.root

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __hash__(self) -> int:
        return hash((self.root, self.below))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemotePath):
            return NotImplemented
        return (self.root, self.below) == (other.root, other.below)

    def __lt__(self, other: "RemotePath") -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: str) -> "RemotePath":
        below = f"{self.below}/{name}" if self.below else name
        return RemotePath(self.root, below, self.snapshot)

    @property
    def name(self) -> str:
        """The last part."""
        return str(self).rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        """The folder that it is in."""
        return RemotePath(self.root, self.below.rpartition("/")[0], self.snapshot)

    def exists(self) -> bool:
        """Whether the listing has it."""
        try:
            self._size()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.below in self._listing.folders

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self.exists() and not self.is_dir()

    def is_symlink(self) -> bool:
        """False: a listing has no links."""
        return False

    def stat(self) -> os.stat_result:
        """Its size alone. Raises FileNotFoundError."""
        return os.stat_result((0, 0, 0, 0, 0, 0, self._size() or 0, 0, 0, 0))

    def iterdir(self) -> Iterator["RemotePath"]:
        """The entries of the folder. Raises FileNotFoundError."""
        names = self._listing.folders.get(self.below)
        if names is None:
            raise FileNotFoundError(str(self))
        return (self / name for name in sorted(names))

    def read_bytes(self) -> bytes:
        """The whole of a small file. Raises FileNotFoundError, OSError."""
        with self.open() as file:
            return file.read()

    def open(self, mode: str = "rb") -> BinaryIO:
        """A file, to read from its beginning on. Raises FileNotFoundError, OSError."""
        assert mode == "rb"
        self._size()
        return self._listing.open(self.below)

    @property
    def _listing(self) -> Snapshot:
        assert self.snapshot is not None, f"{self} was not listed"
        return self.snapshot

    def _size(self) -> int | None:
        return self._listing.size(self.below)


def remote_path(root: str, snapshot: Snapshot | None = None) -> Path:
    """The root of a store at an address, as the readers of stores take it."""
    return cast(Path, RemotePath(root, "", snapshot))


def path_in(root: str, text: str) -> Path:
    """The path that `text` writes in full, of the store in `root`: here, or at an address."""
    if "://" not in root:
        return Path(text)
    return cast(Path, RemotePath(root, text.removeprefix(root).lstrip("/")))


class FolderEntry(NamedTuple):
    """Something in a folder; `size` is that of a file.

    Neither file nor folder: a FIFO, a socket, a device, a link that leads nowhere.
    """

    name: str
    path: Path
    is_file: bool
    size: int
    is_folder: bool


def scan(folder: Path) -> list[FolderEntry]:
    """The entries of a folder, sorted by name. Raises OSError, StoreMoved.

    Another process may delete a file meanwhile: that one is missing then, and no other.
    """
    remote: Any = folder
    if isinstance(remote, RemotePath):
        return [
            FolderEntry(
                path.name, cast(Path, path), path.is_file(), path.stat().st_size, path.is_dir()
            )
            for path in remote.iterdir()
        ]
    check_held()
    with os.scandir(folder) as entries:
        return sorted(found for entry in entries if (found := _look_at(entry)) is not None)


def _look_at(entry: "os.DirEntry[str]") -> FolderEntry | None:
    """None for one that was deleted since it was listed."""
    is_file = entry.is_file()
    try:
        size = entry.stat().st_size if is_file else 0
    except FileNotFoundError:
        return None
    return FolderEntry(entry.name, Path(entry.path), is_file, size, entry.is_dir())
