"""Where a job reads and writes: a folder, or an address in an object store."""

import errno
import os
import tempfile
from pathlib import Path
from urllib.parse import parse_qsl

from keelog.pipeline.errors import BadOption
from keelog.pipeline.stores.access import (
    OBJECT_SCHEMES,
    Access,
    StoreAt,
    Way,
    parse_address,
    scheme_of,
)


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
