"""Keeps bytes before anything cuts or overwrites them: `keelog/quarantine/<offset>/`.

A folder holds pieces of the log, each named by its offset, or whole files, and `report.json`, which
gives the reason. The report is written last: a folder without one is of an interrupted attempt, and
is used again. All is durable when a call returns: the caller may then change the store.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from node.runtime import disk
from node.store.checkpoints import QUARANTINE_DIR, own_dir
from protocol.names import offset_file_name

REPORT_FILE = "report.json"


def keep_bytes(
    root: Path, at: int, pieces: Iterable[tuple[int, bytes]], report: Mapping[str, object]
) -> Path:
    """Copies (offset, bytes) pieces; returns the folder. The report gets their size as `bytes`."""
    folder = _free_folder(root, at)
    total = 0
    for offset, data in pieces:
        disk.write_synced(folder / offset_file_name(offset), data)
        total += len(data)
    _report(folder, {**report, "bytes": total})
    return folder


def move_file(root: Path, at: int, path: Path, report: Mapping[str, object]) -> Path:
    """Moves a file of any kind into quarantine; returns its new path."""
    folder = _free_folder(root, at)
    _report(folder, {**report, "moved_from": str(path), "bytes": path.lstat().st_size})
    disk.rename(path, folder / path.name)
    disk.sync_dir(folder)
    disk.sync_dir(path.parent)
    return folder / path.name


def _free_folder(root: Path, at: int) -> Path:
    parent = own_dir(root) / QUARANTINE_DIR
    folder, number = parent / str(at), 0
    while (folder / REPORT_FILE).exists():
        number += 1
        folder = parent / f"{at}.{number}"
    disk.make_dir(folder)
    return folder


def _report(folder: Path, report: Mapping[str, object]) -> None:
    disk.write_atomically(folder / REPORT_FILE, json.dumps(report, indent=1).encode() + b"\n")
    parent = folder.parent
    for above in (parent, parent.parent, parent.parent.parent):
        disk.sync_dir(above)
