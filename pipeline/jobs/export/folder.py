"""The folder that an export writes: leftovers, locking, and how a version of it is published.

Where files can be renamed, tasks write below `_temporary/`. The next manifest is made durable, then
the files are moved to their places, then it takes the manifest's name: from its first step on a
publication is finished by whoever comes next. Elsewhere (object stores) tasks write files where
they stay, and they count once the manifest names them.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from pipeline.errors import BadOption, ExportMismatch, ExportUnwritable
from pipeline.jobs.export.manifest import MANIFEST, NEXT_MANIFEST, Manifest, parse_manifest
from protocol.errors import StoreLocked

Publish = Literal["rename", "manifest"]

TEMPORARY = "_temporary"
TEMPORARY_SUFFIX = ".tmp"
"""Files that are being written have no `.parquet` at the end: patterns do not find them."""
_OURS = re.compile(r"part-(\d{6,})-\d{5}-\d{4}-[0-9a-f]{12}-[0-9a-f]{12}\.parquet")


@dataclass(frozen=True, slots=True)
class ExportFolder:
    """Where an export is: a path, or a URL that `pyarrow.fs` knows. Plain data, for tasks too."""

    out: str
    publish: Publish

    def open(self) -> "OpenExportFolder":
        """With the file system's client; raises BadOption for a URL that has none."""
        try:
            system, root = (
                (fs.LocalFileSystem(), self.out)
                if not urlsplit(self.out).scheme
                else fs.FileSystem.from_uri(self.out)
            )
        except (pa.ArrowException, ValueError) as error:
            raise BadOption(
                f"{self.out} names no place to write to: {error}",
                "a path, or a URL as s3://bucket/folder",
            ) from None
        return OpenExportFolder(self, system, root.rstrip("/"))

    @classmethod
    def at(cls, out: str, publish: Publish | None = None) -> "ExportFolder":
        """`publish` is found when it is not given: local folders can rename."""
        if not out or "\0" in out:
            raise BadOption(f"{out!r} is no path", "a folder to export into")
        if not urlsplit(out).scheme:
            # Tasks have a working directory of their own.
            out = str(Path(out).absolute())
        is_local = urlsplit(out).scheme in ("", "file")
        return cls(out, publish or ("rename" if is_local else "manifest"))


class OpenExportFolder:
    """The same with its client. All paths are relative to the folder."""

    def __init__(self, folder: ExportFolder, system: Any, root: str) -> None:
        self.folder = folder
        self.system = system
        self.root = root
        self._syncs = isinstance(system, fs.LocalFileSystem)

    def place(self, path: str) -> str:
        """The file system's own name for a path."""
        return f"{self.root}/{path}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder and holds it against other exports of this machine.

        Object stores know no locks: there it is the caller's to run one at a time. Raises
        StoreLocked, ExportUnwritable.
        """
        with writing(self.folder.out):
            self.system.create_dir(self.root, recursive=True)
            handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY) if self._syncs else None
        if handle is None:
            yield
            return
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreLocked.worded(
                    "KEELOG_EXPORT_BUSY",
                    f"another export writes to {self.folder.out}",
                    "again when it has ended",
                ) from None
            yield
        finally:
            os.close(handle)

    def manifest(self, name: str = MANIFEST) -> Manifest | None:
        """The manifest, or None where none is. Raises ExportMismatch."""
        with writing(self.folder.out):
            if self.system.get_file_info(self.place(name)).type == fs.FileType.NotFound:
                return None
            with self.system.open_input_stream(self.place(name)) as file:
                data = file.read()
        return parse_manifest(data, self.place(name))

    def clean(self) -> Manifest | None:
        """Finishes a publication that was begun, removes what else a dead run left.

        The manifest as it is then. Raises ExportMismatch for a folder with anything of others.
        """
        begun = self.manifest(NEXT_MANIFEST)
        if begun is not None:
            self._carry_out(begun)
        manifest = self.manifest()
        with writing(self.folder.out):
            if manifest is None:
                self._check_empty()
            else:
                self._remove_unnamed(manifest)
            self.remove_temporary()
        return manifest

    def _check_empty(self) -> None:
        """A first run that died leaves these names and no others."""
        left = (TEMPORARY, f"{NEXT_MANIFEST}{TEMPORARY_SUFFIX}", f"{MANIFEST}{TEMPORARY_SUFFIX}")
        for found in self._list():
            if found not in left:
                raise ExportMismatch(
                    f"{self.folder.out} has no {MANIFEST} and is not empty: it holds {found}",
                    "a new folder",
                )

    def create_file(self, path: str) -> IO[bytes]:
        """A stream into a new file; folders above it are made."""
        place = self.place(path)
        self.system.create_dir(place.rpartition("/")[0], recursive=True)
        stream: IO[bytes] = self.system.open_output_stream(place)
        return stream

    def sync_file(self, path: str) -> None:
        """Makes a closed file durable, where closing does not."""
        if self._syncs:
            _sync(self.place(path))

    def publish(self, manifest: Manifest) -> None:
        """Makes the files of this version, and with them the manifest, what readers see."""
        with writing(self.folder.out):
            if self.folder.publish == "manifest":
                self._write(MANIFEST, manifest)
                return
            self._write(NEXT_MANIFEST, manifest)
        self._carry_out(manifest)

    def remove_temporary(self) -> None:
        """Everything below `_temporary/`."""
        if self.system.get_file_info(self.place(TEMPORARY)).type == fs.FileType.Directory:
            self.system.delete_dir(self.place(TEMPORARY))

    def _carry_out(self, manifest: Manifest) -> None:
        """Moves what is not moved yet; then the next manifest is the manifest."""
        with writing(self.folder.out):
            folders = set()
            for file in manifest.files:
                if file.version != manifest.version:
                    continue
                source, target = self.place(temporary_path(file.path)), self.place(file.path)
                folder = target.rpartition("/")[0]
                folders.add(folder)
                if self.system.get_file_info(source).type == fs.FileType.File:
                    self.system.create_dir(folder, recursive=True)
                    self.system.move(source, target)
                elif self.system.get_file_info(target).size != file.bytes:
                    raise ExportMismatch(
                        f"{target} is missing, or has another length than {NEXT_MANIFEST} says",
                        "another folder: this one was changed by somebody else",
                    )
            self._sync_folders(folders)
            self.system.move(self.place(NEXT_MANIFEST), self.place(MANIFEST))
            self._sync_folders(set())

    def _sync_folders(self, folders: set[str]) -> None:
        if not self._syncs:
            return
        above = {folder.rpartition("/")[0] for folder in folders}
        for folder in sorted(folders | above | {self.root}):
            _sync(folder)

    def _write(self, name: str, manifest: Manifest) -> None:
        if not self._syncs:
            # An object is there as a whole, or not at all.
            with self.system.open_output_stream(self.place(name)) as file:
                file.write(manifest.to_json())
            return
        partial = f"{name}{TEMPORARY_SUFFIX}"
        with self.system.open_output_stream(self.place(partial)) as file:
            file.write(manifest.to_json())
        _sync(self.place(partial))
        self.system.move(self.place(partial), self.place(name))
        _sync(self.root)

    def _remove_unnamed(self, manifest: Manifest) -> None:
        """Files of a run that died before its manifest: of the next version, and not named."""
        named = {file.path for file in manifest.files}
        for info in self.system.get_file_info(fs.FileSelector(self.root, recursive=True)):
            found = _OURS.fullmatch(info.base_name)
            if found is None or int(found[1]) != manifest.version + 1:
                continue
            if info.path[len(self.root) + 1 :] not in named:
                self.system.delete_file(info.path)

    def _list(self) -> list[str]:
        selector = fs.FileSelector(self.root, allow_not_found=True)
        return sorted(info.base_name for info in self.system.get_file_info(selector))


def file_name(version: int, part: int, number: int, run: str, attempt: str) -> str:
    """The name of a data file: no two attempts of any run have the same."""
    return f"part-{version:06d}-{part:05d}-{number:04d}-{run}-{attempt}.parquet"


def temporary_path(path: str) -> str:
    """Where a file is written before it is moved to its place."""
    return f"{TEMPORARY}/{path.rpartition('/')[2]}{TEMPORARY_SUFFIX}"


@contextmanager
def writing(out: str) -> Iterator[None]:
    """Errors of the file system become ExportUnwritable."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise ExportUnwritable(
            f"{out} cannot be written: {error}", "df -h, and the folder's owner and permissions"
        ) from None


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
