"""Which derived files a repair is making anew: a repair that was killed then goes on there."""

import json
from pathlib import Path

from node.runtime import disk
from node.runtime.regular_file import SMALL_FILE_BYTES_MAX, IrregularFile, read_bounded
from node.runtime.state_page import run_dir

_NOTE = "repair.rebuilding"


def save_rebuilding(root: Path, folders: list[str]) -> None:
    """Notes the folders before they are thrown away; none removes the note. Durable."""
    path = run_dir(root) / _NOTE
    disk.make_dir(path.parent)
    if folders:
        disk.write_atomically(path, json.dumps(folders).encode())
    else:
        disk.unlink(path, missing_ok=True)
        disk.sync_dir(path.parent)


def load_rebuilding(root: Path) -> list[str]:
    """The folders of a repair that did not come to its end."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _NOTE, SMALL_FILE_BYTES_MAX))
    except (FileNotFoundError, NotADirectoryError, IrregularFile, ValueError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []
