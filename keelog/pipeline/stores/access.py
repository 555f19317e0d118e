"""Where a store is and how its bytes come here, and where a job reads and writes.

A store is at an address, with the options `fetch.…` and `fs.…`; a job's place is a folder, or an
address in an object store.
"""

import errno
import os
import tempfile
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from keelog.pipeline.errors import BadOption, StoreUnreadable
from keelog.pipeline.node_keys import NodeKeys
from protocol.addresses import with_scheme, without_credentials

WINDOW_BYTES_MAX = 4 << 20
"""What a node gives in one answer."""
OBJECT_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""What pyarrow.fs has file systems for."""


class Way(Enum):
    """How bytes come from a store."""

    FILES = "files"
    NODE = "node"
    OBJECTS = "objects"


class Access(NamedTuple):
    """How bytes are asked for where they are not on a file system; `fs` are pyarrow's own options.

    `in_flight` requests of `window_bytes` at a time; `timeout_ms` for one with all its attempts.
    """

    in_flight: int = 4
    window_bytes: int = WINDOW_BYTES_MAX
    timeout_ms: int = 30_000
    num_retries: int = 10
    retry_interval_ms: int = 100
    fs: tuple[tuple[str, str], ...] = ()
    flushed_only: bool = False
    """Of a folder that a node runs: only what a loss of power cannot take back."""
    keys: NodeKeys | None = None
    """For nodes."""


class StoreAt(NamedTuple):
    """One store to read; `node` is how its rows name it, `root` a folder or an address."""

    node: str
    root: str
    access: Access = Access()

    @property
    def way(self) -> Way:
        scheme = scheme_of(self.root)
        if scheme == "tcp":
            return Way.NODE
        return Way.OBJECTS if scheme else Way.FILES


def scheme_of(root: str) -> str:
    """Returns the part before `://`; empty for a folder."""
    scheme, separator, _ = root.partition("://")
    return scheme.lower() if separator else ""


def parse_address(address: object) -> str:
    """A folder as an absolute path, or an address as it is. Raises BadOption, StoreUnreadable.

    A relative path counts from here; `file:` in front of a folder is allowed. `HOST:PORT` is a
    node, unless there is such a path. An address with credentials is refused as a path, which would
    be shown with them.
    """
    if not isinstance(address, str) or not address or "\0" in address:
        raise BadOption(f"{address!r} is no path", "a path or an address for each store, as text")
    node = with_scheme(address)
    if node != address and not Path(address).exists():
        address = node
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise BadOption(f"{address!r} is no path: {error}", "a path for each store") from None
    has_credentials = parts.scheme == "file" and without_credentials(address) != address
    if parts.scheme in ("", "file") and parts.netloc in ("", "localhost") and not has_credentials:
        return str(Path(unquote(parts.path) if parts.scheme else address).absolute())
    if parts.scheme == "tcp" and (not parts.hostname or not port or parts.path.strip("/")):
        raise BadOption(f"{address!r} is not an address of a node", "tcp://127.0.0.1:7850")
    if parts.scheme == "tcp":
        return f"tcp://{parts.netloc}"
    if parts.scheme in OBJECT_SCHEMES and not (parts.netloc + parts.path).strip("/"):
        raise BadOption(f"{address!r} names no bucket", "s3://bucket/prefix")
    if parts.scheme in OBJECT_SCHEMES and parts.query:
        raise BadOption(
            f"{address!r} has parameters", "options: fs.region, fs.endpoint_override, …"
        )
    if parts.scheme in OBJECT_SCHEMES and "://" in address:
        return address.rstrip("/")
    raise StoreUnreadable(
        f"{address} is on no file system here, no node and no object store",
        f"a folder, tcp://host:port, or {'://…, '.join(OBJECT_SCHEMES)}://…; mount it, or copy it",
    )


def node_name(root: str) -> str:
    """How rows name a store that nobody named: its last part."""
    return without_credentials(root).rstrip("/").rpartition("/")[2] or root


def place_of(address: Path | str) -> StoreAt:
    """A folder with its links followed, or an address; `?name=value` are pyarrow.fs' parameters.

    Raises BadOption, also for a running node, whose files are not at rest; StoreUnreadable.
    """
    if isinstance(address, Path):
        return StoreAt("", str(address.resolve()))
    access = Access()
    if scheme_of(address) in OBJECT_SCHEMES:
        address, _, parameters = address.partition("?")
        access = Access(fs=tuple(sorted(parse_qsl(parameters, keep_blank_values=True))))
    at = StoreAt("", parse_address(address), access)
    if at.way is Way.NODE:
        raise BadOption(
            f"{address} is a node that runs: rebuild and audit need a store at rest",
            "its folder, when it has stopped; a copy of it; or keelog store verify there",
        )
    return at._replace(root=str(Path(at.root).resolve())) if at.way is Way.FILES else at


def check_can_make(folder: Path) -> None:
    """Raises OSError unless files can be written into a folder, which need not be there yet."""
    found = next(above for above in (folder, *folder.absolute().parents) if above.exists())
    _check_can_add(found)


def check_can_write(file: Path) -> None:
    """Raises OSError unless a file can be written; it is not touched."""
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not file.exists():
        _check_can_add(file.parent)
    elif not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))


def _check_can_add(folder: Path) -> None:
    try:
        # It has no name, where the file system can do that: nobody sees it come and go.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
