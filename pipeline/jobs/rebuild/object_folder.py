"""The folder of a rebuild in an object store, where nothing is renamed and objects are whole.

Tasks write objects where they stay. A marker names the attempt that the folder belongs to: a task
that lags behind another attempt, or another job, finds another name in it and writes nothing. The
manifest comes last, then the marker goes. Object stores know no locks: of two jobs that write to
one folder the later one has it, and the earlier one fails.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import pyarrow as pa
from pyarrow import fs

from pipeline.errors import BadOption, JobFailed, StoreUnreadable
from pipeline.jobs.locations import place_of
from pipeline.stores import object_store
from pipeline.stores.access import StoreAt, Way
from pipeline.stores.rebuild_manifest import (
    MANIFEST,
    MARKER,
    OutFile,
    RebuildManifest,
    parse_manifest,
)
from protocol.addresses import without_credentials
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR

TEMPORARY = "_temporary"
_FOLDERS = (TEMPORARY, CONSUME_QUEUE_DIR, INDEX_DIR)
_NAMES = frozenset((*_FOLDERS, MANIFEST, MARKER))
_UNFINISHED = "the same rebuild again: what was left there is replaced"


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """Where a rebuild writes, and the attempt's name. Plain data, for tasks too."""

    at: StoreAt
    attempt: str = ""

    @property
    def shown(self) -> str:
        """The address, for people."""
        return without_credentials(self.at.root)

    @property
    def keys(self) -> str:
        """Where ranges leave their keys, below the folder."""
        return f"{TEMPORARY}/{self.attempt}"

    def open(self) -> "OpenTargetFolder":
        """With a client of its own. Raises BadOption, StoreUnreadable."""
        system, root = object_store.open_filesystem(self.at.root, self.at.access)
        return OpenTargetFolder(self, system, root.rstrip("/"))


class OpenTargetFolder:
    """The same with its client. All paths are relative to the folder.

    Methods raise StoreUnreadable for what the object store refuses.
    """

    def __init__(self, folder: ObjectFolder, system: Any, root: str) -> None:
        self.folder = folder
        self._system = system
        self._root = root

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> OutFile:
        """One whole object, in place of one that is there. Raises JobFailed, see `check_mine`."""
        self.check_mine()
        digest, count = hashlib.sha256(), 0
        with self._naming(path), self._create(path) as stream:
            for chunk in chunks:
                stream.write(chunk)
                digest.update(chunk)
                count += len(chunk)
        return OutFile(path, count, digest.hexdigest())

    def output(self, path: str) -> IO[bytes]:
        """A stream into a new object. Raises JobFailed, see `check_mine`."""
        self.check_mine()
        with self._naming(path):
            return self._create(path)

    def input(self, path: str) -> IO[bytes]:
        """An object to seek and read in. Raises OSError, as its reads do."""
        return cast(IO[bytes], self._system.open_input_file(self._place(path)))

    def check_mine(self) -> None:
        """Raises JobFailed when the folder belongs to another attempt, or to none."""
        if self._read(MARKER) != self.folder.attempt.encode():
            raise JobFailed(
                f"{self.folder.shown} was taken by another job, or this one was given up",
                "one job at a time, or another --out for each",
            )

    def begin(self) -> None:
        """Makes the folder this attempt's, and removes what an unfinished one has left.

        Raises BadOption for a folder with a finished rebuild, or with anything of others.
        """
        names = self._names()
        if MANIFEST in names and self._is_finished():
            raise BadOption(f"{self.folder.shown} holds a rebuild", "another --out, or remove it")
        strange = sorted(names - _NAMES) or ([] if MARKER in names else sorted(names))
        if strange:
            raise BadOption(
                f"{self.folder.shown} is not empty, and no rebuild has left {strange[0]} there",
                "an address below which nothing is",
            )
        with self._naming(MARKER), self._create(MARKER) as stream:
            stream.write(self.folder.attempt.encode())
        if MANIFEST in names:
            self._remove(MANIFEST)
        for name in _FOLDERS:
            if name in names:
                self._remove(name)

    def publish(self, manifest: RebuildManifest) -> None:
        """Makes it a finished rebuild, if it holds just what the manifest names, else JobFailed."""
        if TEMPORARY in self._names():
            self._remove(TEMPORARY)
        found = {path: size for path, size in self._files() if path != MARKER}
        expected = {file.path: file.bytes for file in manifest.files}
        odd = sorted(path for path in found | expected if found.get(path) != expected.get(path))
        if odd:
            raise JobFailed(
                f"{self.folder.shown}/{odd[0]} has {found.get(odd[0], 'no')} bytes, not"
                f" {expected.get(odd[0], 'no')}; {len(odd)} files differ",
                "one job at a time, then the same again",
            )
        self.write(MANIFEST, [manifest.to_json()])
        self._remove(MARKER)

    def manifest(self) -> RebuildManifest:
        """Raises JobFailed for a folder that is not finished."""
        data = self._read(MANIFEST)
        if data is None:
            raise JobFailed(f"{self.folder.shown} holds no finished rebuild", _UNFINISHED)
        return parse_manifest(data, f"{self.folder.shown}/{MANIFEST}")

    def _is_finished(self) -> bool:
        """A manifest that breaks off was being written when its job died."""
        try:
            self.manifest()
        except JobFailed:
            return False
        return True

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _create(self, path: str) -> IO[bytes]:
        place = self._place(path)
        try:
            stream = self._system.open_output_stream(place)
        except FileNotFoundError:
            # Some file systems want the folders first.
            self._system.create_dir(place.rpartition("/")[0], recursive=True)
            stream = self._system.open_output_stream(place)
        return cast(IO[bytes], stream)

    def _read(self, path: str) -> bytes | None:
        """A small object; None without it."""
        with self._naming(path):
            try:
                with self.input(path) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def _remove(self, path: str) -> None:
        with self._naming(path):
            if path in _FOLDERS:
                self._system.delete_dir(self._place(path))
            else:
                self._system.delete_file(self._place(path))

    def _names(self) -> set[str]:
        selector = fs.FileSelector(self._root, allow_not_found=True)
        with self._naming(""):
            return {info.base_name for info in self._system.get_file_info(selector)}

    def _files(self) -> Iterator[tuple[str, int]]:
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=True)
        with self._naming(""):
            for info in self._system.get_file_info(selector):
                if info.type == fs.FileType.File:
                    yield info.path[len(self._root) + 1 :], info.size

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise StoreUnreadable(
                f"{self.folder.shown}/{path}: {error}",
                "the address, its parameters and credentials; a bucket that may be written",
            ) from None


def read_rebuild(out: str) -> RebuildManifest:
    """What a rebuild has put into an object store. Raises JobFailed while it is not finished.

    Also BadOption, StoreUnreadable.
    """
    at = place_of(out)
    if at.way is not Way.OBJECTS:
        raise BadOption(f"{out} is a folder, which has no manifest", "an address: s3://bucket/x")
    return ObjectFolder(at).open().manifest()
