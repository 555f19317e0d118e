"""Detects the sizes of a store's derived files from the existing ones, for a rebuild.

It raises nothing for damaged files: a rebuild replaces them.
"""

from collections import Counter
from contextlib import suppress
from pathlib import Path

from node.store.indexes.listing import list_index_files
from protocol.derived.index_entry import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, IndexGeometry
from protocol.derived.queue_unit import UNIT_BYTES
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR, parse_offset_file_name


def found_file_bytes(root: Path, otherwise: int) -> int:
    """The length of most queue files, or `otherwise`: a broker refuses to mix lengths."""
    lengths: Counter[int] = Counter()
    for topic in sorted_entries(root / CONSUME_QUEUE_DIR):
        for path in (path for folder in sorted_entries(topic) for path in sorted_entries(folder)):
            # Another worker may be cutting its queues at this moment.
            with suppress(FileNotFoundError):
                if parse_offset_file_name(path.name) is not None:
                    lengths[path.stat().st_size] += 1
    found = lengths.most_common(1)
    is_usable = found and found[0][0] > 0 and found[0][0] % UNIT_BYTES == 0
    return found[0][0] if is_usable else otherwise


def found_geometry(root: Path, settings: IndexGeometry) -> IndexGeometry:
    """The geometry of a store's index files: that of the settings, unless a full file has another.

    The header of a full file gives the number of entries, and the rest of its length the slots. A
    file that is not full gives neither.
    """
    for entry in list_index_files(root / INDEX_DIR)[:-1]:
        with entry.path.open("rb") as file:
            header = INDEX_HEADER.read(file.read(INDEX_HEADER.size).ljust(INDEX_HEADER.size, b"\0"))
        slots, rest = divmod(
            entry.size - INDEX_HEADER.size - INDEX_ENTRY.size * header.index_count, INDEX_SLOT.size
        )
        if entry.size == settings.file_bytes or rest or not 0 < header.slot_count <= slots:
            continue
        return IndexGeometry(slots, header.index_count)
    return settings


def sorted_entries(folder: Path) -> list[Path]:
    """The paths in a folder, sorted; empty if another worker has just removed it."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
