"""How the files of a job become what readers see: written aside, then published at once.

By rename, where files can be renamed: the next manifest is made durable, the files move to their
places, and last the manifest takes its name, so that the next run can finish a publication
that broke off. A folder that is new as a whole needs one rename and no manifest. By manifest, in an
object store: files are written where they stay, and count once the manifest, which is written
last, names them.

While a rebuild writes to an object store, a marker names the attempt that the folder belongs to: a
task of an earlier attempt, or of another job, finds another name in it and writes nothing. The
marker goes after the manifest. Object stores know no locks: of two jobs that write to one folder
the later one has it, and the earlier one fails.
"""

import fcntl
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa
from pyarrow import fs

from keelog.pipeline.errors import BadOption, JobFailed, StoreUnreadable
from keelog.pipeline.stores import object_store
from keelog.pipeline.stores.access import StoreAt, Way, place_of
from keelog.pipeline.stores.object_store import REBUILD_MANIFEST, REBUILD_MARKER
from node.runtime import disk
from protocol.addresses import without_credentials
from protocol.errors import MqError
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR

TEMPORARY = "_temporary"
TEMPORARY_SUFFIX = ".tmp"
"""Files that are being written have no `.parquet` at the end: patterns do not find them."""
_FOLDERS = (TEMPORARY, CONSUME_QUEUE_DIR, INDEX_DIR)
_NAMES = frozenset((*_FOLDERS, REBUILD_MANIFEST, REBUILD_MARKER))
_UNFINISHED = "the same rebuild again: what was left there is replaced"
_FORMAT = "keelog-rebuild"
_FORMAT_VERSION = 1


class OutFolder(ABC):
    """A folder that a job writes, by `pyarrow.fs`. All paths are relative to it.

    Tasks get it too: it opens a client at the first use, and is pickled without it.
    """

    @abstractmethod
    def open_client(self) -> tuple[Any, str]:
        """The file system, and the folder's path in it. Raises BadOption, StoreUnreadable."""

    @abstractmethod
    def refusal(self, path: str, error: Exception) -> MqError:
        """What users see of an error of the file system."""

    @contextmanager
    def naming(self, path: str = "") -> Iterator[None]:
        """Gives what the file system refuses the error that users see."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise self.refusal(path, error) from None

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

    def refusal(self, path: str, error: Exception) -> MqError:
        return StoreUnreadable(
            f"{self.shown}/{path}: {error}",
            "the address, its parameters and credentials; a bucket that may be written",
        )

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> OutFile:
        """One whole object, in place of one that is there. Raises JobFailed, see `check_mine`."""
        digest, count = hashlib.sha256(), 0
        with self.naming(path), self.output(path) as stream:
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
