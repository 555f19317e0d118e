"""A file that is written under another name and renamed: its name always means a whole file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.runtime.disk import rename, sync_dir, sync_file
from protocol.errors import BadRequest


@contextmanager
def whole_file(out: Path, overwrite: bool) -> Iterator[Path]:
    """The path to write to; it becomes `out` after the block, and goes away when that fails.

    Raises BadRequest when `out` is there and `overwrite` is not.
    """
    if out.exists() and not overwrite:
        raise BadRequest(f"{out} is there already", "another name, or --overwrite")
    partial = out.with_name(f"{out.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        sync_file(partial)
        rename(partial, out)
        sync_dir(out.absolute().parent)
    finally:
        partial.unlink(missing_ok=True)
