"""Where a rebuild writes, and how what it wrote comes into its place.

All is written below a folder of one attempt, `<name>.building/<attempt>`, which only the driver
makes. A task of an attempt that was given up, or switched in, finds the folder gone, and fails.
"""

import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from keelog.pipeline.jobs.publication import rename_in, try_lock
from keelog.pipeline.log import log
from node.runtime import disk
from node.store.checkpoints import WorkerCheckpoint, load_epochs, load_floor
from node.store.condition import INDEX_WORKER, QUEUE_WORKER_PREFIX
from node.store.rebuilding import UNFINISHED_DIR, clear_unfinished, forget, vouch
from protocol.errors import StoreLocked
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR

BUILDING_SUFFIX = ".building"
KEYS_DIR = "keys"
_OLD_DIR = "old"
_LOCK_SUFFIX = ".lock"
_NO_LOCKS = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))
"""What file systems say that know no locks, as some mounted buckets do."""
_CLEAR_TRIES = 5
_WORKERS = {CONSUME_QUEUE_DIR: QUEUE_WORKER_PREFIX, INDEX_DIR: INDEX_WORKER}


class Building:
    """One attempt after the other below one folder; the last one is switched in."""

    def __init__(self, root: Path, out: Path | None, folders: Sequence[str]) -> None:
        """`folders` are what is made: consumequeue, index. Without `out` it is for the store."""
        self._root = root
        self._out = out
        self._folders = folders
        in_place = root / UNFINISHED_DIR
        self.base = in_place if out is None else out.with_name(out.name + BUILDING_SUFFIX)
        self.attempt = self.base

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds a new folder against other jobs; a store's own lock does that for a store.

        A file beside it, as NFS has no locks on folders. Raises StoreLocked, OSError.
        """
        if self._out is None:
            yield
            return
        path = self.base.with_name(self.base.name + _LOCK_SUFFIX)
        handle = self._lock(path)
        try:
            yield
        finally:
            disk.unlink(path, missing_ok=True)
            os.close(handle)

    def _lock(self, path: Path) -> int:
        disk.make_dir(path.parent)
        while True:
            handle = disk.open_file(path, create=True)
            try:
                is_held = try_lock(handle)
                with suppress(FileNotFoundError):
                    if is_held and os.path.samestat(os.fstat(handle), path.stat()):
                        return handle
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(handle)
                    raise
                log.warning("%s cannot be locked: run one job at a time into it", self._out)
                return handle
            os.close(handle)
            if not is_held:
                raise StoreLocked.worded(
                    "KEELOG_STORE_LOCKED",
                    f"another job writes to {self._out}",
                    "again when it has ended, or another --out",
                )
            # The job that had it has just ended, and has removed it.

    def begin(self) -> None:
        """Throws away what an earlier attempt left, and makes the folders of a new one."""
        self.clear()
        self.attempt = self.base / uuid.uuid4().hex
        for name in (*self._folders, KEYS_DIR):
            disk.make_dir(self.attempt / name)

    def clear(self) -> None:
        """Removes everything below the folder, and it. Raises OSError."""
        for _ in range(_CLEAR_TRIES):
            # A late task of an earlier attempt may be making a file at this moment.
            with suppress(OSError):
                if self.base.is_dir():
                    disk.remove_tree(self.base)
                return
        disk.remove_tree(self.base)

    def folder(self, name: str) -> Path:
        """A folder of the present attempt."""
        return self.attempt / name

    def sync(self) -> None:
        """Makes all files of the attempt durable, and their names."""
        for name in self._folders:
            for path in self.folder(name).rglob("*"):
                if path.is_dir():
                    disk.sync_dir(path)
                else:
                    disk.sync_file(path)
            disk.sync_dir(self.folder(name))

    def switch_in(self, log_end: int) -> None:
        """One rename a folder brings the new files in; the old ones go last.

        As with the worker's rebuild, no progress vouches for a folder while it is exchanged.
        """
        disk.remove_tree(self.folder(KEYS_DIR))
        if self._out is not None:
            rename_in(self.attempt, self._out)
            self.clear()
            return
        old = self.folder(_OLD_DIR)
        disk.make_dir(old)
        slots = {name: forget(self._root, _WORKERS[name]) for name in self._folders}
        if CONSUME_QUEUE_DIR in self._folders:
            clear_unfinished(self._root)
        for name in self._folders:
            with suppress(FileNotFoundError):
                disk.rename(self._root / name, old / name)
            disk.rename(self.folder(name), self._root / name)
        disk.sync_dir(self._root)
        epochs = load_epochs(self._root)
        progress = WorkerCheckpoint(
            epochs[-1].epoch if epochs else 0, min(load_floor(self._root), log_end)
        )
        for name in self._folders:
            vouch(self._root, slots[name], progress)
        self.clear()
