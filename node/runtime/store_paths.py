"""What the paths of a store lead to: its own directory, its own files, or objects at an address.

A process holds the very directory that it opened at its start. After `mv`, `rm -rf` or `umount`
under a running node, the path of its store leads to nothing, or to another store. So before a
process of a node uses a name of its store, it checks here that the name still leads to the
directory that it holds.

A store's own files are regular files alone, of bounded size, and never behind a link. A FIFO in the
place of a file would wait for its other end, a device never ends, and a link leads into another
store. So no link is followed, no open waits, and every read has a bound.

A `RemotePath` is a path of a store at an address, such as an object store, by a listing that is
made once. It has those methods of `pathlib.Path` that the readers of stores call. A change after
the listing shows when bytes are read.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from protocol.errors import NotAStore, StoreDamaged, StoreMoved, StorePermission
from protocol.names import LOCK_FILE

OWNER_HINT = "run as the owner of the store"
MOVED_HINT = "stop the node, then put the directory back, or serve it where it is now"
_REMOVED = " (deleted)"
_Identity = tuple[int, int]

Names = dict[str, int | None]

FLOOR_FILE_BYTES_MAX = 1024
EPOCHS_FILE_BYTES_MAX = 64 << 20
"""Over a million starts of the writer."""
QUEUES_FILE_BYTES_MAX = 512 << 20
"""`tails` and `*.rebuilding`: a line for each of QUEUES_MAX queues of the longest names."""
TOPICS_FILE_BYTES_MAX = 256 << 20
"""Ten times what TOPICS_MAX topics of the longest names take."""
OFFSETS_FILE_BYTES_MAX = 64 << 20
"""Ten times what OFFSETS_MAX offsets take."""
STATS_FILE_BYTES_MAX = 1 << 20
USERS_FILE_BYTES_MAX = 16 << 20
"""Users and access lists: a larger table is not saved."""
JOURNAL_FILE_BYTES_MAX = 4 << 20
"""PARTS_MAX parts of the longest names."""
RUN_FILE_BYTES_MAX = 256 << 10
"""The small JSON files of `keelog/run`."""
SMALL_FILE_BYTES_MAX = 64 << 10
"""All other own files: a line or two of text."""

MOVE_HINT = "move it away, as by: keelog store repair DIR"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a link"),
)
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class HeldStore:
    """An open directory, and the identities (device, inode) of it and of the `lock` in it.

    The owner of the lock keeps that file open, so another file cannot get its identity meanwhile.
    """

    def __init__(self, root: Path, descriptor: int) -> None:
        """Takes over `descriptor`, the open `root`. Raises FileNotFoundError without a `lock`."""
        self.root = root
        self._descriptor = descriptor
        self._lock_path = str(root / LOCK_FILE)
        self._root_id = _identity(os.fstat(descriptor))
        self._lock_id = _identity(os.stat(LOCK_FILE, dir_fd=descriptor))

    @classmethod
    def open(cls, root: Path) -> "HeldStore":
        """Raises NotAStore where there is no directory with a `lock`, StorePermission."""
        try:
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return cls(root, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except PermissionError as error:
            raise no_permission(error, root) from None
        except (FileNotFoundError, NotADirectoryError):
            lock = root / LOCK_FILE
            what = f"{lock} is not there" if root.is_dir() else f"{root} is not a directory"
            raise NotAStore(
                what, "check the path; only keelog serve DIR makes a new store"
            ) from None

    @property
    def identity(self) -> str:
        """The identities as text, for the command line of another process of the node."""
        return ":".join(map(str, (*self._root_id, *self._lock_id)))

    @property
    def place(self) -> Path:
        """A path that leads to the directory wherever it is now; for this process alone."""
        return Path(f"/proc/self/fd/{self._descriptor}")

    def check(self) -> None:
        """Raises StoreMoved when the store's path leads to another directory, or to none."""
        try:
            found = os.stat(self._lock_path)  # noqa: PTH116 (a third of Path.stat; each append)
        except (FileNotFoundError, NotADirectoryError):
            raise self._moved() from None
        if (found.st_dev, found.st_ino) != self._lock_id:
            raise self._moved()

    def _moved(self) -> StoreMoved:
        now = os.readlink(self.place)  # noqa: PTH115 (a Path would lose what follows the name)
        here, there = _identity_at(str(self.root)), _identity_at(now)
        if here == self._root_id:
            return StoreMoved(f"{self._lock_path}: the file was removed or replaced", MOVED_HINT)
        if there == self._root_id:
            what = f"the directory was moved to {now}"
        elif now.endswith(_REMOVED):
            what = "the directory was removed"
        elif now == str(self.root):
            what = "another file system was mounted over it"
        else:
            what = "its file system was unmounted"
        beside = "" if here is None else "; another directory is there now"
        return StoreMoved(f"{self.root}: {what}{beside}", MOVED_HINT)

    def close(self) -> None:
        os.close(self._descriptor)


def no_permission(error: PermissionError, path: Path | str = "") -> StorePermission:
    """Our error for the system's, which names `path`, else the file of the error."""
    return StorePermission(f"{path or error.filename}: {error.strerror}", OWNER_HINT)


_held: HeldStore | None = None


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _identity_at(path: str) -> _Identity | None:
    try:
        return _identity(os.stat(path))  # noqa: PTH116
    except OSError:
        return None


def hold_store(root: Path, identity: str = "") -> HeldStore:
    """Holds a store for all of this process, before it uses any file of it.

    `identity` is that of the store which the supervisor holds. Raises StoreMoved when another
    store, or none, is at `root`; NotAStore, StorePermission.
    """
    global _held
    try:
        held = HeldStore.open(root)
    except NotAStore:
        if not identity:
            raise
        raise StoreMoved(f"{root}: the directory of this node is not there", MOVED_HINT) from None
    if identity not in ("", held.identity):
        held.close()
        raise StoreMoved(f"{root}: another directory is there now", MOVED_HINT)
    _held = held
    return held


def held_store() -> HeldStore | None:
    """The store that this process holds; None in programs that are not processes of a node."""
    return _held


def check_held() -> None:
    """Raises StoreMoved when this process holds a store that is not at its path any more."""
    if _held is not None:
        _held.check()


def is_in_place() -> bool:
    """Whether `check_held` does not raise."""
    try:
        check_held()
    except StoreMoved:
        return False
    return True


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
        return str(self).rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self.root, self.below.rpartition("/")[0], self.snapshot)

    def exists(self) -> bool:
        try:
            self._size()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        return self.below in self._listing.folders

    def is_file(self) -> bool:
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


class IrregularFile(StoreDamaged):
    """An own file is not a regular file, or longer than its limit."""


def kind_of(mode: int) -> str:
    """The kind of a file that is not regular, in words."""
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), "a device")


def irregular(path: Path | str, mode: int) -> IrregularFile:
    """The error for what has a file's name, and this mode."""
    return IrregularFile(str(path), 0, f"is no file, but {kind_of(mode)}", MOVE_HINT)


def no_file(path: Path) -> str:
    """In words, what is in the place of a file; links to files are allowed there."""
    try:
        mode = path.lstat().st_mode
    except (OSError, AttributeError):  # gone again, or in an object store
        return "is no file"
    where = " that leads to no file" if stat.S_ISLNK(mode) else ""
    return f"is no file, but {kind_of(mode)}{where}"


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file. Raises IrregularFile for anything else, OSError."""
    try:
        descriptor = os.open(path, flags | _OPEN_FLAGS, mode)
    except OSError:
        found = path.lstat().st_mode
        if stat.S_ISREG(found):
            raise
    else:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISREG(found):
            return descriptor
        os.close(descriptor)
    raise irregular(path, found)


@contextmanager
def held_open(descriptor: int) -> Iterator[int]:
    """For a block, at whose end it is closed."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check_size(path: Path, size: int, bytes_max: int) -> None:
    """Raises IrregularFile for a file that is longer than any of its kind."""
    if size > bytes_max:
        found = f"has {size} bytes, at most {bytes_max} are expected"
        raise IrregularFile(str(path), 0, found, MOVE_HINT)


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """All of a regular file, or of an object. Raises IrregularFile for anything else and for more,
    OSError."""
    remote: Any = path
    if isinstance(remote, RemotePath):
        check_size(path, remote.stat().st_size, bytes_max)
        return remote.read_bytes()
    with held_open(open_regular(path)) as descriptor:
        size = os.fstat(descriptor).st_size
        check_size(path, size, bytes_max)
        return os.read(descriptor, size)


def is_own_folder(path: Path) -> bool:
    """Whether a folder is there, and no link to one."""
    return path.is_dir() and not path.is_symlink()
