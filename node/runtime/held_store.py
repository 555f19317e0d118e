"""The store that a process holds: the very directory that it opened at its start.

After `mv`, `rm -rf` or `umount` under a running node, the path of its store leads to nothing, or
to another store. So before a process of a node uses a name of its store, it checks here that the
name still leads to the directory that it holds.
"""

import os
from pathlib import Path

from protocol.errors import NotAStore, StoreMoved, StorePermission
from protocol.names import LOCK_FILE

MOVED_HINT = "stop the node, then put the directory back, or serve it where it is now"
_REMOVED = " (deleted)"
_Identity = tuple[int, int]


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
            raise StorePermission(
                f"{root}: {error.strerror}", "run as the owner of the store"
            ) from None
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
        """Gives the directory back."""
        os.close(self._descriptor)


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _identity_at(path: str) -> _Identity | None:
    try:
        return _identity(os.stat(path))  # noqa: PTH116
    except OSError:
        return None


_held: HeldStore | None = None


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
