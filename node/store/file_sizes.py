"""Finds the sizes of a store's files from those that are there.

A supervisor asks once, for all processes of a node: they must agree, also about files that do not
exist yet. So the sizes of existing files win over the settings, which count only where a file is
missing.

A rebuild asks for those of the derived files. It raises nothing for damaged files, which it
replaces.
"""

import logging
from collections import Counter
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from node.runtime.event_log import fields
from node.runtime.settings import Settings, load_settings
from node.store.file_cache import OpenFiles
from node.store.indexes import IndexFolder, list_index_files
from node.store.log.segments import list_folder
from node.store.queues import find_queue_file_bytes, list_queue_ids, list_topics, queue_folder
from protocol.derived.file_layouts import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    UNIT_BYTES,
    IndexGeometry,
)
from protocol.errors import CorruptError
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, parse_offset_file_name

log = logging.getLogger("keelog.supervisor")

INDEX_FILES_ASKED = 3
"""The number of newest index files that are tried."""


def with_found_sizes(root: Path, pairs: tuple[str, ...]) -> tuple[str, ...]:
    """`pairs`, followed by the sizes of existing files. Raises StorePermission.

    Skips damaged files: the process that owns them reports the damage.
    """
    settings = load_settings(pairs)
    size = list_folder(root / COMMIT_LOG_DIR).file_bytes
    found = {"mapped_file_size_commit_log": size} if size else {}
    found |= {**_queue_size(root), **_index_sizes(root, settings)}
    for name, value in found.items():
        said = getattr(settings, name)
        if said != value and any(name in pair for pair in pairs):
            details = fields(setting=name, value=value, said=said)
            log.warning("a size is as the files of this store have it", extra=details)
    return (*pairs, *(f"{name}={value}" for name, value in found.items()))


def _queue_size(root: Path) -> dict[str, int]:
    try:
        # One after the other: the first one is usually enough, and there may be 10,000.
        folders = (
            queue_folder(root, Queue(topic, queue_id))
            for topic in list_topics(root)
            for queue_id in list_queue_ids(root, topic)
        )
        size = find_queue_file_bytes(folders, 0)
    except CorruptError as error:
        log.warning("the queues' files tell no size", extra=fields(why=error))
        return {}
    return {"mapped_file_size_consume_queue": size} if size else {}


def _index_sizes(root: Path, settings: Settings) -> dict[str, int]:
    with closing(OpenFiles()) as files:
        folder = IndexFolder(root, settings.index_geometry, files)
        for name in islice(reversed(folder.names()), INDEX_FILES_ASKED):
            try:
                folder.open([name])
            except CorruptError as error:
                log.warning("an index file tells no size", extra=fields(why=error))
                continue
            slots, entries = folder.geometry
            return {"max_hash_slot_num": slots, "max_index_num": entries}
    return {}


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
