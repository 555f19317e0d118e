"""A store in an object store, or on whatever else pyarrow.fs reads: listed once, read by ranges.

The store must be at rest: nothing there says where a growing log ends.
"""

import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NoReturn, cast
from urllib.parse import urlencode

import pyarrow as pa
from pyarrow import fs

from keelog.pipeline.errors import BadOption, StoreUnreadable
from keelog.pipeline.stores import planned_store, remote_files
from keelog.pipeline.stores.access import Access, StoreAt
from node.runtime.store_paths import RemotePath, Snapshot, remote_path
from node.store import file_cache, opening
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.errors import NotAStore

GAP_BYTES = 512 << 10
"""About what an object store sends in the time that a request of its own costs."""
OPEN_MAX = 64
"""Objects whose size and address are remembered by one process."""
BLOCK_BYTES = 65_536 - 65_536 % UNIT_BYTES
BLOCKS_MAX = 512
"""Small reads of the driver's bisections come from blocks that it keeps, 32 MiB of them."""
REBUILD_MANIFEST = "_keelog_rebuild.json"
"""Names what a rebuild has put into a folder. Written last: without it the folder is unfinished."""
REBUILD_MARKER = "_keelog_rebuild.building"
"""Beside the manifest while a rebuild runs; alone where one has died."""
_CREDENTIALS = "credentials come from the environment, as its own tools have them"


def open_filesystem(root: str, access: Access) -> tuple[fs.FileSystem, str]:
    """pyarrow's file system for an address, and the path in it; `fs.…` are its own parameters.

    Raises BadOption, StoreUnreadable.
    """
    address = f"{root}?{urlencode(access.fs)}" if access.fs else root
    try:
        return cast(tuple[fs.FileSystem, str], fs.FileSystem.from_uri(address))
    except (pa.ArrowInvalid, pa.ArrowKeyError, ValueError) as error:
        raise BadOption(f"{root}: {error}", "the address and options of pyarrow.fs") from None
    except (OSError, pa.ArrowNotImplementedError) as error:
        raise StoreUnreadable(f"{root}: {error}", _CREDENTIALS) from None


class _Objects:
    """One file system, the threads that wait for it, and the objects opened last."""

    def __init__(self, at: StoreAt) -> None:
        self.at = at
        self.system, self.base = open_filesystem(at.root, at.access)
        self.threads = ThreadPoolExecutor(at.access.in_flight, "keelog-fetch")
        self._lock = Lock()
        self._open: OrderedDict[str, Any] = OrderedDict()

    def read(self, below: str, position: int, count: int) -> bytes:
        """Bytes of an object, fewer at its end. Raises FileVanished, StoreUnreadable."""
        try:
            file = self._file(below)
            left = max(file.size() - position, 0)
            return bytes(file.read_at(min(count, left), position)) if left else b""
        except OSError as error:
            self.refuse(below, error)

    def open(self, below: str) -> BinaryIO:
        """An object, to read from its beginning on."""
        try:
            return cast(BinaryIO, self.system.open_input_file(self._path(below)))
        except OSError as error:
            self.refuse(below, error)

    def snapshot(self) -> Snapshot:
        """Everything that there is. Raises NotAStore, StoreUnreadable."""
        found = Snapshot(self.open)
        selector = fs.FileSelector(self.base, recursive=True)
        try:
            infos = self.system.get_file_info(selector)
        except FileNotFoundError:
            raise NotAStore(f"{self.at.root} does not exist", "check the address") from None
        except OSError as error:
            raise StoreUnreadable(f"{self.at.root}: {error}", _CREDENTIALS) from None
        cut = len(self.base.rstrip("/")) + 1
        for info in infos:
            if info.type == fs.FileType.Directory:
                found.add_folder(info.path[cut:].rstrip("/"))
            elif info.type == fs.FileType.File:
                found.add(info.path[cut:], info.size)
        return found

    def refuse(self, below: str, error: OSError) -> NoReturn:
        """Raises our error for one of the file system."""
        where = str(RemotePath(self.at.root, below))
        if isinstance(error, FileNotFoundError):
            raise file_cache.FileVanished(where, 0, "the object is gone", "load() again") from None
        raise StoreUnreadable(f"{where}: {error}", _CREDENTIALS) from None

    def _path(self, below: str) -> str:
        return f"{self.base.rstrip('/')}/{below}"

    def _file(self, below: str) -> Any:
        with self._lock:
            file = self._open.pop(below, None)
        if file is None:
            file = self.system.open_input_file(self._path(below))
        with self._lock:
            self._open[below] = file
            if len(self._open) > OPEN_MAX:
                # Not closed: another thread may be reading it.
                self._open.popitem(last=False)
        return file


@cache
def _objects(_pid: int, at: StoreAt) -> _Objects:
    """By process: a fork has none of the threads."""
    return _Objects(at)


def object_source(at: StoreAt) -> remote_files.RangeSource:
    """Range reads in threads of the process."""
    objects = _objects(os.getpid(), at)

    def request(path: Path, position: int, count: int) -> remote_files.Pending:
        below = cast(RemotePath, path).below
        return objects.threads.submit(objects.read, below, position, count).result

    return remote_files.RangeSource(at.access.window_bytes, at.access.in_flight, GAP_BYTES, request)


class _BlockFile(remote_files.RemoteFile):
    """Small reads of it come from whole blocks, which are kept."""

    def read(self, position: int, count: int) -> bytes:
        first, last = position // BLOCK_BYTES, (position + count - 1) // BLOCK_BYTES
        if count > BLOCK_BYTES or not count:
            return super().read(position, count)
        data = b"".join(self._block(number) for number in range(first, last + 1))
        start = position - first * BLOCK_BYTES
        return data[start : start + count]

    def _block(self, number: int) -> bytes:
        start = number * BLOCK_BYTES
        blocks = cast(PlanningFiles, self._of).blocks
        key = self.path, number
        data = blocks.pop(key, None)
        if data is None:
            data = super().read(start, min(BLOCK_BYTES, self.size - start))
        blocks[key] = data
        if len(blocks) > BLOCKS_MAX:
            blocks.popitem(last=False)
        return data


class PlanningFiles(remote_files.RemoteFiles):
    """For a driver that bisects in many files."""

    def __init__(self, source: remote_files.RangeSource) -> None:
        super().__init__(source)
        self.blocks: OrderedDict[tuple[Path, int], bytes] = OrderedDict()

    def _open(self, path: Path, size: int) -> file_cache.OpenFile:
        return _BlockFile(path, size, self)


def planning_files(at: StoreAt) -> PlanningFiles:
    """What a driver reads the store through."""
    return PlanningFiles(object_source(at))


def listed_root(at: StoreAt) -> Path:
    """The store's root, with all that is below it. Raises NotAStore, StoreUnreadable."""
    found = _objects(os.getpid(), at).snapshot()
    names = found.folders[""]
    if REBUILD_MARKER in names and REBUILD_MANIFEST not in names:
        raise NotAStore(f"{at.root} is a rebuild that has not finished", "the same rebuild again")
    return remote_path(at.root, found)


class ObjectStore(planned_store.FolderStore):
    """A StoppedStore over a listing that is made once: `refresh` sees nothing new."""

    def _find_root(self) -> Path:
        return listed_root(self.at)

    def _open(self) -> opening.StoppedStore | opening.RunningStore:
        return self._open_resting(planning_files(self.at))

    def refresh(self) -> None:
        """Nothing changes."""
