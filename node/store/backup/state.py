"""The small files of a backup: all of `config/`, and the notes of `keelog/` that the log lacks.

Those notes are listed by name: a note that follows from the log (progress, floor, the mark of a
clean stop), and what belongs to one machine's run, is made anew by a restore.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from node.runtime import disk
from node.runtime.regular_file import TOPICS_FILE_BYTES_MAX, read_bounded
from node.store.backup.manifest import state_dir
from node.store.checkpoints import (
    EPOCHS_FILE,
    REMOVED_FILE,
    EpochLine,
    Tails,
    own_dir,
    save_epochs,
    save_tails,
    seal,
)
from node.store.staging_files import list_queries, published_path
from protocol.names import CONFIG_DIR, TOPICS_FILE

Files = dict[str, bytes]
"""Contents by path, relative to the store."""

DURABLE_NOTES = (REMOVED_FILE,)
"""Files below `keelog/` that are copied as they are. `epochs`, `tails` and the records of published
batches are copied too; of those this module knows more than the name."""


def read_state(root: Path) -> Files:
    """The small files, but for the table of topics. Call it before you ask where the log ends.

    So no consumer offset and no note speaks of messages above the backup's end.
    """
    found: Files = {}
    for path in _below(root / CONFIG_DIR):
        _read(root, path, found)
    for query in list_queries(root):
        _read(root, published_path(root, query), found)
    for name in DURABLE_NOTES:
        _read(root, own_dir(root) / name, found)
    return found


def read_topics(root: Path) -> Files:
    """The table of topics. Call it after you asked where the log ends.

    So it has each topic of the messages below that end; a topic without messages does no harm.
    """
    found: Files = {}
    _read(root, root / TOPICS_FILE, found)
    return found


def _below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent) / name for name in sorted(names) if not name.endswith(".new"))


def _read(root: Path, path: Path, found: Files) -> None:
    with suppress(FileNotFoundError):  # it was replaced or removed at this moment, or never made
        found[str(path.relative_to(root))] = read_bounded(path, TOPICS_FILE_BYTES_MAX)


def write_state(
    out: Path,
    number: int,
    store_id: str | None,
    files: Files,
    epochs: list[EpochLine],
    tails: Tails,
) -> int:
    """Writes the folder of a backup's small files, durably; returns how many files it has."""
    folder = state_dir(out, number)
    if folder.exists():  # of a backup that broke off
        disk.remove_tree(folder)
    disk.make_durable_dir(own_dir(folder))
    for name, data in files.items():
        disk.make_durable_dir((folder / name).parent)
        disk.write_atomically(folder / name, data)
    # The next files get the id that `epochs` has: the folder has no lock.
    disk.write_atomically(own_dir(folder) / EPOCHS_FILE, seal("", store_id))
    save_epochs(folder, epochs)
    save_tails(folder, tails)
    return len(files) + 2
