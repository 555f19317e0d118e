"""The folder that an export writes: its manifest, leftovers, locking, and how a version appears.

One JSON file, replaced as a whole, says what an export holds and how far it is. Readers that want
all of a version and nothing else take the files that it names.

Where files can be renamed, tasks write below `_temporary/`, and their files move to their places;
elsewhere tasks write files where they stay (publication.py).
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from keelog.pipeline.errors import BadOption, ExportMismatch, ExportUnwritable
from keelog.pipeline.jobs.publication import TEMPORARY, TEMPORARY_SUFFIX, OutFolder, try_lock
from protocol.errors import StoreLocked

MANIFEST = "_keelog_manifest.json"
NEXT_MANIFEST = "_keelog_manifest.next.json"
"""The manifest to be, while its files are moved to their places."""
FORMAT = "keelog-export"
FORMAT_VERSION = 1
Publish = Literal["rename", "manifest"]
_OURS = re.compile(r"part-(\d{6,})-\d{5}-\d{4}-[0-9a-f]{12}-[0-9a-f]{12}\.parquet")


class ExportedFile(NamedTuple):
    """One Parquet file; `path` is relative to the export, offsets are log offsets in bytes."""

    path: str
    rows: int
    bytes: int
    first_offset: int
    last_offset: int
    version: int = 0


class LastExported(NamedTuple):
    """The last record that was exported: a store that has another one there is another store."""

    physical_offset: int
    size: int
    store_timestamp: int
    body_crc: int


@dataclass(frozen=True, slots=True)
class ExportPosition:
    """How far one store is exported.

    `log_end`: every record below this log offset, when everything is exported. `queues`: by topic
    and queue id the offset below which everything is, when queues are chosen.
    """

    log_end: int | None = None
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    tail: LastExported | None = None

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Where a queue goes on; 0 for one that is new."""
        return self.queues.get(topic, {}).get(str(queue_id), 0)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of an export. `selection` is the same in every run of it."""

    version: int
    updated_at: int
    schema: str
    selection: Mapping[str, Any]
    stores: Mapping[str, ExportPosition]
    files: tuple[ExportedFile, ...]

    def to_json(self) -> bytes:
        """Returns the file's bytes, with the format's name first."""
        document = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        document["stores"] = {
            node: asdict(at) | {"tail": at.tail._asdict() if at.tail else None}
            for node, at in sorted(self.stores.items())
        }
        document["files"] = [file._asdict() for file in self.files]
        return json.dumps(document, ensure_ascii=False, indent=1).encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Raises ExportMismatch unless it is a manifest of this format version."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT or found["format_version"] != FORMAT_VERSION:
            raise ExportMismatch(
                f"{where} is of format {found['format']} {found['format_version']}, not {FORMAT}"
                f" {FORMAT_VERSION}",
                "the release of Keelog that wrote it, or another folder",
            )
        stores = {
            node: ExportPosition(
                at["log_end"], at["queues"], LastExported(**at["tail"]) if at["tail"] else None
            )
            for node, at in found["stores"].items()
        }
        files = tuple(ExportedFile(**file) for file in found["files"])
        of_run = {name: found[name] for name in ("version", "updated_at", "schema", "selection")}
        return Manifest(**of_run, stores=stores, files=files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportMismatch(
            f"{where} is no manifest of an export: {error!r}", "another folder, or remove this one"
        ) from None


class ExportFolder(OutFolder):
    """Where an export is: a path, or a URL that `pyarrow.fs` knows.

    Methods raise ExportUnwritable for what the file system refuses.
    """

    def __init__(self, out: str, publish: Publish | None = None) -> None:
        """`publish` is found when it is not given: local folders can rename. Raises BadOption."""
        if not out or "\0" in out:
            raise BadOption(f"{out!r} is no path", "a folder to export into")
        scheme = urlsplit(out).scheme
        # Tasks have a working directory of their own.
        self.out = out if scheme else str(Path(out).absolute())
        self.how = publish or ("rename" if scheme in ("", "file") else "manifest")

    def open_client(self) -> tuple[Any, str]:
        if not urlsplit(self.out).scheme:
            return fs.LocalFileSystem(), self.out
        try:
            return cast(tuple[Any, str], fs.FileSystem.from_uri(self.out))
        except (pa.ArrowException, ValueError) as error:
            raise BadOption(
                f"{self.out} names no place to write to: {error}",
                "a path, or a URL as s3://bucket/folder",
            ) from None

    @contextmanager
    def naming(self, path: str = "") -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise ExportUnwritable(
                f"{self.out} cannot be written: {error}",
                "df -h, and the folder's owner and permissions",
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder and holds it against other exports of this machine.

        Object stores know no locks: there it is the caller's to run one at a time. Raises
        StoreLocked.
        """
        with self.naming():
            self.system.create_dir(self.root, recursive=True)
            handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY) if self.syncs else None
        if handle is None:
            yield
            return
        try:
            if not try_lock(handle):
                raise StoreLocked.worded(
                    "KEELOG_EXPORT_BUSY",
                    f"another export writes to {self.out}",
                    "again when it has ended",
                )
            yield
        finally:
            os.close(handle)

    def manifest(self, name: str = MANIFEST) -> Manifest | None:
        """The manifest, or None where none is. Raises ExportMismatch."""
        data = self.read(name)
        return None if data is None else parse_manifest(data, self.place(name))

    def clean(self) -> Manifest | None:
        """Finishes a publication that was begun, removes what else a dead run left.

        The manifest as it is then. Raises ExportMismatch for a folder with anything of others.
        """
        begun = self.manifest(NEXT_MANIFEST)
        if begun is not None:
            self._carry_out(begun)
        manifest = self.manifest()
        if manifest is None:
            self._check_empty()
        else:
            self._remove_unnamed(manifest)
        self.remove_folder(TEMPORARY)
        return manifest

    def publish(self, manifest: Manifest) -> None:
        """Makes the files of this version, and with them the manifest, what readers see."""
        if self.how == "manifest":
            self.put(MANIFEST, manifest.to_json())
            return
        self.put(NEXT_MANIFEST, manifest.to_json())
        self._carry_out(manifest)

    def _carry_out(self, manifest: Manifest) -> None:
        """Moves what is not moved yet; then the next manifest is the manifest."""
        moves = [
            (temporary_path(file.path), file.path, file.bytes)
            for file in manifest.files
            if file.version == manifest.version
        ]
        odd = self.move_in(moves, NEXT_MANIFEST, MANIFEST)
        if odd:
            raise ExportMismatch(
                f"{odd} is missing, or has another length than {NEXT_MANIFEST} says",
                "another folder: this one was changed by somebody else",
            )

    def _check_empty(self) -> None:
        """A first run that died leaves these names and no others."""
        left = {TEMPORARY, f"{NEXT_MANIFEST}{TEMPORARY_SUFFIX}", f"{MANIFEST}{TEMPORARY_SUFFIX}"}
        for found in sorted(self.names() - left):
            raise ExportMismatch(
                f"{self.out} has no {MANIFEST} and is not empty: it holds {found}",
                "a new folder",
            )

    def _remove_unnamed(self, manifest: Manifest) -> None:
        """Removes files that a run of the next version left, which died before its manifest."""
        named = {file.path for file in manifest.files}
        for path, _ in self.files():
            found = _OURS.fullmatch(path.rpartition("/")[2])
            if found is None or int(found[1]) != manifest.version + 1 or path in named:
                continue
            self.remove_file(path)


def file_name(version: int, part: int, number: int, run: str, attempt: str) -> str:
    """The name of a data file: no two attempts of any run have the same."""
    return f"part-{version:06d}-{part:05d}-{number:04d}-{run}-{attempt}.parquet"


def temporary_path(path: str) -> str:
    """Where a file is written before it is moved to its place."""
    return f"{TEMPORARY}/{path.rpartition('/')[2]}{TEMPORARY_SUFFIX}"
