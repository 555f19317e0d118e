"""Lists `index/` and opens nothing: the open of a FIFO would wait for its writer."""

from pathlib import Path

from node.runtime.regular_file import MOVE_HINT, no_file
from node.runtime.remote_path import FolderEntry
from node.store.file_cache import list_entries
from protocol.errors import StoreDamaged
from protocol.names import is_index_file_name


def list_index_names(folder: Path) -> list[FolderEntry]:
    """All entries with the name of an index file, oldest first; none without the folder.

    Raises StorePermission.
    """
    return [entry for entry in list_entries(folder) if is_index_file_name(entry.name)]


def list_index_files(folder: Path) -> list[FolderEntry]:
    """The entries that are files. Raises StorePermission."""
    return [entry for entry in list_index_names(folder) if entry.is_file]


def check_index_names(folder: Path) -> list[FolderEntry]:
    """The files, for their worker. Raises StorePermission, StoreDamaged for any other entry."""
    found = list_index_names(folder)
    for entry in found:
        if not entry.is_file:
            raise StoreDamaged(str(entry.path), 0, no_file(entry.path), MOVE_HINT)
    return found
