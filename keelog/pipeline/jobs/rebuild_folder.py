"""The folder that a rebuild writes, and how what it wrote comes into its place.

On a file system all is written below a folder of one attempt, `<name>.building/<attempt>`, which
only the driver makes. A task of an attempt that was given up, or switched in, finds the folder
gone, and fails.

In an object store nothing is renamed and objects are whole. Tasks write objects where they stay,
and a manifest publishes them (publication.py). A marker names the attempt that the folder belongs
to: a task of an earlier attempt, or of another job, finds another name in it and writes nothing.
The marker goes after the manifest. Object stores know no locks: of two jobs that write to one
folder the later one has it, and the earlier one fails.
"""

import errno
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from keelog.pipeline.errors import BadOption, JobFailed, StoreUnreadable, log
from keelog.pipeline.jobs.publication import TEMPORARY, OutFolder, try_lock
from keelog.pipeline.stores import object_store
from keelog.pipeline.stores.access import StoreAt, Way, place_of
from keelog.pipeline.stores.object_store import REBUILD_MANIFEST, REBUILD_MARKER
from node.runtime import disk
from node.store.checkpoints import (
    UNFINISHED_DIR,
    WorkerCheckpoint,
    clear_unfinished,
    forget_progress,
    load_epochs,
    load_floor,
    vouch_again,
)
from node.store.condition import INDEX_WORKER, QUEUE_WORKER_PREFIX
from protocol.addresses import without_credentials
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
_FOLDERS = (TEMPORARY, CONSUME_QUEUE_DIR, INDEX_DIR)
_NAMES = frozenset((*_FOLDERS, REBUILD_MANIFEST, REBUILD_MARKER))
_UNFINISHED = "the same rebuild again: what was left there is replaced"
_FORMAT = "keelog-rebuild"
_FORMAT_VERSION = 1


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

    def sync(self) -> None:
        """Makes all files of the attempt durable, and their names."""
        for name in self._folders:
            for path in (self.attempt / name).rglob("*"):
                if path.is_dir():
                    disk.sync_dir(path)
                else:
                    disk.sync_file(path)
            disk.sync_dir(self.attempt / name)

    def switch_in(self, log_end: int) -> None:
        """One rename a folder brings the new files in; the old ones go last.

        As with the worker's rebuild, no progress vouches for a folder while it is exchanged.
        """
        disk.remove_tree(self.attempt / KEYS_DIR)
        if self._out is not None:
            disk.sync_dir(self.attempt)
            disk.rename(self.attempt, self._out)
            disk.sync_dir(self._out.parent)
            self.clear()
            return
        old = self.attempt / _OLD_DIR
        disk.make_dir(old)
        slots = {name: forget_progress(self._root, _WORKERS[name]) for name in self._folders}
        if CONSUME_QUEUE_DIR in self._folders:
            clear_unfinished(self._root)
        for name in self._folders:
            with suppress(FileNotFoundError):
                disk.rename(self._root / name, old / name)
            disk.rename(self.attempt / name, self._root / name)
        disk.sync_dir(self._root)
        epochs = load_epochs(self._root)
        progress = WorkerCheckpoint(
            epochs[-1].epoch if epochs else 0, min(load_floor(self._root), log_end)
        )
        for name in self._folders:
            vouch_again(self._root, slots[name], progress)
        self.clear()


class OutFile(NamedTuple):
    """One object; `path` is relative to the folder, `sha256` in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RebuildManifest:
    """A finished rebuild: of the records in [`log_start`, `log_end`) of `source`.

    `figures`: records, queues, units and so on, as `RebuildResult` has them.
    """

    source: str
    log_start: int
    log_end: int
    figures: Mapping[str, object]
    files: Sequence[OutFile]
    updated_at: int = 0

    def to_json(self) -> bytes:
        """Returns the object's bytes: the format's name first, and the time in ms."""
        document = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "updated_at": time.time_ns() // 1_000_000,
            "source": self.source,
            "log": {"start": self.log_start, "end": self.log_end},
            "figures": dict(self.figures),
            "files": [file._asdict() for file in self.files],
        }
        return json.dumps(document, ensure_ascii=False, indent=1).encode()


def parse_manifest(data: bytes, where: str) -> RebuildManifest:
    """Raises JobFailed unless it is a whole manifest of this format version."""
    try:
        found: dict[str, Any] = json.loads(data)
        if (found["format"], found["format_version"]) != (_FORMAT, _FORMAT_VERSION):
            raise JobFailed(
                f"{where} is of format {found['format']} {found['format_version']}, not {_FORMAT}"
                f" {_FORMAT_VERSION}",
                "the release of Keelog that wrote it, or another folder",
            )
        return RebuildManifest(
            source=found["source"],
            log_start=found["log"]["start"],
            log_end=found["log"]["end"],
            figures=found["figures"],
            files=tuple(OutFile(**file) for file in found["files"]),
            updated_at=found["updated_at"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise JobFailed(
            f"{where} is no manifest of a rebuild: {error!r}", "the same rebuild again"
        ) from None


class ObjectFolder(OutFolder):
    """Where a rebuild writes in an object store, for one attempt.

    Methods raise StoreUnreadable for what the object store refuses.
    """

    def __init__(self, at: StoreAt, attempt: str = "") -> None:
        self._at = at
        self.attempt = attempt
        self.shown = without_credentials(at.root)
        """The address, for people."""
        self.keys = f"{TEMPORARY}/{attempt}"
        """Where ranges leave their keys, below the folder."""

    def open_client(self) -> tuple[Any, str]:
        return object_store.open_filesystem(self._at.root, self._at.access)

    @contextmanager
    def naming(self, path: str = "") -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise StoreUnreadable(
                f"{self.shown}/{path}: {error}",
                "the address, its parameters and credentials; a bucket that may be written",
            ) from None

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> OutFile:
        """One whole object, in place of one that is there. Raises JobFailed, see `check_mine`."""
        self.check_mine()
        digest, count = hashlib.sha256(), 0
        with self.naming(path), self.create(path) as stream:
            for chunk in chunks:
                stream.write(chunk)
                digest.update(chunk)
                count += len(chunk)
        return OutFile(path, count, digest.hexdigest())

    def output(self, path: str) -> IO[bytes]:
        """A stream into a new object. Raises JobFailed, see `check_mine`."""
        self.check_mine()
        with self.naming(path):
            return self.create(path)

    def check_mine(self) -> None:
        """Raises JobFailed when the folder belongs to another attempt, or to none."""
        if self.read(REBUILD_MARKER) != self.attempt.encode():
            raise JobFailed(
                f"{self.shown} was taken by another job, or this one was given up",
                "one job at a time, or another --out for each",
            )

    def begin(self) -> None:
        """Makes the folder this attempt's, and removes what an unfinished one has left.

        Raises BadOption for a folder with a finished rebuild, or with anything of others.
        """
        names = self.names()
        if REBUILD_MANIFEST in names:
            try:
                self.manifest()
            except JobFailed:
                pass  # one that breaks off was being written when its job died
            else:
                raise BadOption(f"{self.shown} holds a rebuild", "another --out, or remove it")
        strange = sorted(names - _NAMES) or ([] if REBUILD_MARKER in names else sorted(names))
        if strange:
            raise BadOption(
                f"{self.shown} is not empty, and no rebuild has left {strange[0]} there",
                "an address below which nothing is",
            )
        self.put(REBUILD_MARKER, self.attempt.encode())
        if REBUILD_MANIFEST in names:
            self.remove_file(REBUILD_MANIFEST)
        for name in _FOLDERS:
            self.remove_folder(name)

    def publish(self, manifest: RebuildManifest) -> None:
        """Makes it a finished rebuild, if it holds just what the manifest names, else JobFailed."""
        self.remove_folder(TEMPORARY)
        found = {path: size for path, size in self.files() if path != REBUILD_MARKER}
        expected = {file.path: file.bytes for file in manifest.files}
        odd = sorted(path for path in found | expected if found.get(path) != expected.get(path))
        if odd:
            raise JobFailed(
                f"{self.shown}/{odd[0]} has {found.get(odd[0], 'no')} bytes, not"
                f" {expected.get(odd[0], 'no')}; {len(odd)} files differ",
                "one job at a time, then the same again",
            )
        self.check_mine()
        self.put(REBUILD_MANIFEST, manifest.to_json())
        self.remove_file(REBUILD_MARKER)

    def manifest(self) -> RebuildManifest:
        """Raises JobFailed for a folder that is not finished."""
        data = self.read(REBUILD_MANIFEST)
        if data is None:
            raise JobFailed(f"{self.shown} holds no finished rebuild", _UNFINISHED)
        return parse_manifest(data, f"{self.shown}/{REBUILD_MANIFEST}")


def read_rebuild(out: str) -> RebuildManifest:
    """What a rebuild has put into an object store. Raises JobFailed while it is not finished.

    Also BadOption, StoreUnreadable.
    """
    at = place_of(out)
    if at.way is not Way.OBJECTS:
        raise BadOption(f"{out} is a folder, which has no manifest", "an address: s3://bucket/x")
    return ObjectFolder(at).manifest()
