"""Finds the sizes of a store's files, once, for all processes of a node.

The processes must agree, also about files that do not exist yet. So the sizes of existing files win
over the settings, which count only where a file is missing.
"""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from node.runtime.event_log import fields
from node.runtime.settings import Settings, load_settings
from node.store.file_cache import OpenFiles
from node.store.indexes.reader import IndexFolder
from node.store.log.segment_list import list_folder
from node.store.queues.listing import (
    find_queue_file_bytes,
    list_queue_ids,
    list_topics,
    queue_folder,
)
from protocol.errors import CorruptError
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR

log = logging.getLogger("keelog.supervisor")

INDEX_FILES_ASKED = 3
"""The number of newest index files that are tried."""


def with_found_sizes(root: Path, pairs: tuple[str, ...]) -> tuple[str, ...]:
    """`pairs`, followed by the sizes of existing files. Raises StorePermission.

    Skips damaged files: the process that owns them reports the damage.
    """
    settings = load_settings(pairs)
    found = {**_log_size(root), **_queue_size(root), **_index_sizes(root, settings)}
    for name, value in found.items():
        said = getattr(settings, name)
        if said != value and any(name in pair for pair in pairs):
            details = fields(setting=name, value=value, said=said)
            log.warning("a size is as the files of this store have it", extra=details)
    return (*pairs, *(f"{name}={value}" for name, value in found.items()))


def _log_size(root: Path) -> dict[str, int]:
    size = list_folder(root / COMMIT_LOG_DIR).file_bytes
    return {"mapped_file_size_commit_log": size} if size else {}


def _queue_size(root: Path) -> dict[str, int]:
    try:
        size = find_queue_file_bytes(_queue_folders(root), 0)
    except CorruptError as error:
        log.warning("the queues' files tell no size", extra=fields(why=error))
        return {}
    return {"mapped_file_size_consume_queue": size} if size else {}


def _queue_folders(root: Path) -> Iterator[Path]:
    """Yields one after the other: the first one is usually enough, and there may be 10,000."""
    for topic in list_topics(root):
        for queue_id in list_queue_ids(root, topic):
            yield queue_folder(root, Queue(topic, queue_id))


def _index_sizes(root: Path, settings: Settings) -> dict[str, int]:
    files = OpenFiles()
    try:
        folder = IndexFolder(root, settings.index_geometry, files)
        for name in islice(reversed(folder.names()), INDEX_FILES_ASKED):
            try:
                folder.open([name])
            except CorruptError as error:
                log.warning("an index file tells no size", extra=fields(why=error))
                continue
            slots, entries = folder.geometry
            return {"max_hash_slot_num": slots, "max_index_num": entries}
    finally:
        files.close()
    return {}
