"""A recording `os` for the storage seam: real files in a fast folder, and what a disk may have.

Each call is made for real and noted in the model (`tests/crash/disk_model.py`). Before any of them
the power can fail, any sync can answer EIO, and a hook runs in the middle of a sync.
"""

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from node.runtime import disk
from tests.crash.disk_model import Rename, SimDir, SimFile, walk

Tree = dict[str, bytes | None]
"""Files and folders (None) of an image by path below the simulated disk's root."""

NEVER = 1 << 60


class Stopped(BaseException):
    """The process ends here: by a power loss or a kill. Nobody may catch it and go on."""


class SimDisk:
    """Stands in for `os` in `node/runtime/disk.py`. One root folder, which holds the stores.

    `stop_at`: the number of the call that is not made any more. A write that is stopped may have
    been made in part.
    """

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root
        self.tree = SimDir()
        self.calls = 0
        self.stop_at = NEVER
        self.on_sync: Callable[[], None] | None = None
        """Runs once, in the middle of the next sync of a file: other threads go on meanwhile."""
        self.sync_fails: Callable[[], bool] = lambda: False
        self.lies = False
        """Syncs answer that all is well, and make nothing durable."""
        self.on_write: Callable[[str, int, bytes], None] | None = None
        self.renames: list[Rename] = []
        self.last_call = ""
        self._random = random.Random(seed)
        self._nodes: dict[int, SimFile | SimDir] = {}
        """By the real inode number: descriptors are found by it, whoever closes them."""
        self._paths: dict[int, str] = {}
        self._opened: dict[int, int] = {}
        self._made: set[str] = set()
        """Folders that were made through the seam."""
        self._lock = threading.RLock()
        root.mkdir(parents=True, exist_ok=True)
        self._nodes[root.stat().st_ino] = self.tree

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # -- the calls ----------------------------------------------------------------------------

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        """Notes a file that it makes or empties."""
        with self._lock:
            path = Path(path)
            changes = flags & os.O_TRUNC or (flags & os.O_CREAT and not path.exists())
            if changes:
                self._begin("open", path)
            is_new = not path.exists()
            descriptor = os.open(path, flags, mode)
            inode = os.fstat(descriptor).st_ino
            self._opened[descriptor] = inode
            node = self._adopt(path, inode, is_new)
            if flags & os.O_TRUNC and isinstance(node, SimFile):
                node.set_length(0)
            return descriptor

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        """All of it, but where the process ends in the middle."""
        with self._lock:
            node, data = self._file(descriptor), bytes(data)
            path = self._paths[os.fstat(descriptor).st_ino]
            if self.on_write is not None:
                self.on_write(path, position, data)
            try:
                self._begin("pwrite", path)
            except Stopped:
                data = data[: self._random.choice([0, 1, len(data) // 2, len(data) - 1])]
                os.pwrite(descriptor, data, position)
                node.write(position, data)
                raise
            node.write(position, data)
            return os.pwrite(descriptor, data, position)

    def posix_fallocate(self, descriptor: int, offset: int, size: int) -> None:
        """Only the length is modelled: blocks that were never written read as zeros."""
        with self._lock:
            node = self._file(descriptor)
            self._begin("fallocate", descriptor)
            os.posix_fallocate(descriptor, offset, size)
            node.set_length(max(len(node.live), offset + size))

    def ftruncate(self, descriptor: int, size: int) -> None:
        """A length, and no blocks."""
        with self._lock:
            node = self._file(descriptor)
            self._begin("ftruncate", descriptor)
            os.ftruncate(descriptor, size)
            node.set_length(size)

    def fdatasync(self, descriptor: int) -> None:
        """Raises OSError (EIO) when `sync_fails` says so."""
        node = self._nodes[os.fstat(descriptor).st_ino]
        with self._lock:
            self._begin("sync", descriptor)
            if isinstance(node, SimDir):
                self._sync_folder(node)
                return
            begun = node.begin_sync()
        hook, self.on_sync = self.on_sync, None
        if hook is not None:
            hook()
        with self._lock:
            if self.lies:
                return
            fails = self.sync_fails()
            node.end_sync(begun, not fails)
            if fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    fsync = fdatasync

    def replace(self, old: Path, new: Path) -> None:
        """Old name or new one."""
        with self._lock:
            self._begin("rename", new)
            (source, old_name), (target, new_name) = self._place(old), self._place(new)
            os.replace(old, new)  # noqa: PTH105
            node = source.live[old_name]
            target.change(new_name, node)
            source.change(old_name, None)
            self.renames.append(Rename(source, old_name, target, new_name, node))
            self._paths[new.stat().st_ino] = str(new.relative_to(self.root))

    def link(self, old: Path, new: Path) -> None:
        """A second name."""
        with self._lock:
            self._begin("link", new)
            (source, old_name), (target, new_name) = self._place(old), self._place(new)
            os.link(old, new)
            target.change(new_name, source.live[old_name])

    def unlink(self, path: Path) -> None:
        """May be undone by a power loss."""
        with self._lock:
            if not Path(path).exists():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._begin("unlink", path)
            folder, name = self._place(Path(path))
            os.unlink(path)  # noqa: PTH108
            folder.change(name, None)

    def rmdir(self, path: Path) -> None:
        """As `unlink`."""
        with self._lock:
            self._begin("rmdir", path)
            folder, name = self._place(Path(path))
            os.rmdir(path)  # noqa: PTH106
            folder.change(name, None)

    def makedirs(self, path: Path, mode: int = 0o777, exist_ok: bool = False) -> None:
        """One call for each folder that is made."""
        with self._lock:
            missing = [part for part in (path, *path.parents) if not part.exists()]
            if not missing and not (exist_ok and path.is_dir()):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            for part in reversed(missing):
                self._begin("mkdir", part)
                os.mkdir(part, mode)  # noqa: PTH102
                folder, name = self._place(part)
                made = SimDir()
                folder.change(name, made)
                self._nodes[part.stat().st_ino] = made
                self._made.add(str(part.relative_to(self.root)))

    # -- the model ----------------------------------------------------------------------------

    def _begin(self, what: str, where: object) -> None:
        self.calls += 1
        self.last_call = f"{what} {where}"
        if self.calls >= self.stop_at:
            raise Stopped(f"at call {self.calls}: {self.last_call}")

    def _sync_folder(self, folder: SimDir) -> None:
        folder.sync()
        self.renames = [rename for rename in self.renames if rename.target is not folder]

    def _file(self, descriptor: int) -> SimFile:
        node = self._nodes[os.fstat(descriptor).st_ino]
        assert isinstance(node, SimFile)
        return node

    def _place(self, path: Path) -> tuple[SimDir, str]:
        *folders, name = path.relative_to(self.root).parts
        folder = self.tree
        for part in folders:
            if part not in folder.live:  # made beside the seam, by a test: it is durable
                folder.live[part] = SimDir()
            node = folder.live[part]
            assert isinstance(node, SimDir)
            folder = node
        return folder, name

    def _adopt(self, path: Path, inode: int, is_new: bool) -> SimFile | SimDir:
        """The node of an opened path. What was made beside the seam counts as durable."""
        if path == self.root:
            return self.tree
        folder, name = self._place(path)
        node = folder.live.get(name)
        if node is None:
            node = SimDir() if path.is_dir() else SimFile(b"" if is_new else path.read_bytes())
            if is_new:
                folder.change(name, node)
            else:
                folder.live[name] = node
        self._nodes[inode] = node
        self._paths[inode] = str(path.relative_to(self.root))
        return node

    def files(self) -> Iterator[tuple[str, SimFile]]:
        """Every file that is there or may be, with its paths."""
        for path, _, _, node in walk(self.tree):
            if isinstance(node, SimFile):
                yield path, node

    # -- between two processes ----------------------------------------------------------------

    def abandon(self) -> None:
        """The process is gone: what it had open is closed. Files and cache stay."""
        for descriptor, inode in self._opened.items():
            with suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    os.close(descriptor)
        self._opened.clear()
        self.stop_at = NEVER
        self.on_sync = None
        self.sync_fails = lambda: False

    def evict_lost_pages(self, rnd: random.Random) -> None:
        """The cache may forget pages whose write-back failed: then the disk's content is read."""
        for path, file in self.files():
            for number in file.lost_pages():
                if rnd.random() < 0.5:
                    file.evict(number, rnd.randrange(len(file.pages[number].versions) + 1))
                    real = self.root / path
                    if real.exists():
                        real.write_bytes(file.live)

    def restart_from(self, tree: Mapping[str, bytes | None]) -> None:
        """The machine comes up again after a power loss that left `tree`; all of it is durable."""
        self.abandon()
        for child in self.root.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        self._build(tree)

    def restart_among_others(self, tree: Mapping[str, bytes | None]) -> None:
        """As `restart_from`, but what was made beside the seam, by a test, stays as it is."""
        self.abandon()
        for path, _, _, node in reversed(list(walk(self.tree))):
            real = self.root / path
            if isinstance(node, SimFile):
                real.unlink(missing_ok=True)
            elif path in self._made and path not in tree and real.is_dir():
                shutil.rmtree(real)
        self._build(tree)

    def _build(self, tree: Mapping[str, bytes | None]) -> None:
        self.tree = SimDir()
        self._nodes = {self.root.stat().st_ino: self.tree}
        self._paths.clear()
        self.renames.clear()
        for path, content in sorted(tree.items()):
            real = self.root / path
            folder, name = self._place(real)
            if content is None:
                real.mkdir(exist_ok=True)
                folder.live[name] = SimDir()
            else:
                real.write_bytes(content)
                folder.live[name] = SimFile(content)
            self._nodes[real.stat().st_ino] = folder.live[name]


@contextmanager
def in_place_of_os(sim: object) -> Iterator[None]:
    """The product's code changes files through `sim`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "os", sim)
        yield
