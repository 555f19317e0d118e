"""The places of a store's folders and of a node's own files in it: made, and checked.

`keelog serve` alone creates a store; no other process does. A dangling link is refused: an
unmounted volume must not count as an empty folder.

Each process opens its own files with `node.runtime.store_paths`. Before a node or a command begins
with a store it checks all places here: it names a FIFO, a device or a link before it changes
anything.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from node.runtime import disk, store_paths
from node.runtime.locks import StoreLock
from node.runtime.state_page import PAGE_BYTES, run_dir
from node.store.checkpoints import QUARANTINE_DIR, own_dir
from protocol import names
from protocol.errors import NotAStore

_ROOT_FOLDERS = (names.CONSUME_QUEUE_DIR, names.INDEX_DIR, names.CONFIG_DIR, names.KEELOG_DIR)
_ROOT_FILES = {
    names.LOCK_FILE: store_paths.SMALL_FILE_BYTES_MAX,
    names.ABORT_FILE: store_paths.SMALL_FILE_BYTES_MAX,
    names.CHECKPOINT_FILE: names.CHECKPOINT_FILE_BYTES,
    f"{names.CHECKPOINT_FILE}.new": names.CHECKPOINT_FILE_BYTES,
    names.TOPICS_FILE: store_paths.TOPICS_FILE_BYTES_MAX,
    f"{names.TOPICS_FILE}.bak": store_paths.TOPICS_FILE_BYTES_MAX,
    f"{names.TOPICS_FILE}.new": store_paths.TOPICS_FILE_BYTES_MAX,
    **{
        f"{table}{end}": store_paths.OFFSETS_FILE_BYTES_MAX
        for table in (
            names.CONSUMER_OFFSETS_FILE,
            names.SUBSCRIPTION_GROUPS_FILE,
            names.DELAY_OFFSETS_FILE,
            names.KV_CONFIG_FILE,
        )
        for end in ("", ".bak", ".new")
    },
}
_OWN_FOLDERS = re.compile(
    r"auth|progress|run|run/stats|staging|quarantine|staging/[^/]+|staging/[^./][^/]*/[0-9]+"
)
_BELLS = re.compile(r"run/[^/]+\.bell")
"""Sockets, which the next owner of their slot replaces."""
_OWN_FILES = tuple(
    (re.compile(pattern), bytes_max)
    for pattern, bytes_max in (
        (r"floor", store_paths.FLOOR_FILE_BYTES_MAX),
        (r"epochs(\.new)?", store_paths.EPOCHS_FILE_BYTES_MAX),
        (
            r"(role|clean|run/right|staging/[^./][^/]*/(published|owner))(\.new)?"
            r"|progress/[^/]+|run/[^/]+\.lock|staging/\.problems/[^/]+",
            store_paths.SMALL_FILE_BYTES_MAX,
        ),
        (
            r"(tails|removed|run/groups|run/[^/]+\.rebuilding)(\.new)?",
            store_paths.QUEUES_FILE_BYTES_MAX,
        ),
        (r"run/members(\.new)?", store_paths.OFFSETS_FILE_BYTES_MAX),
        (
            r"run/(following|master|other_master|elected|sync-state|followers|timers|clock"
            r"|recovered|lowered|control)(\.new)?",
            store_paths.RUN_FILE_BYTES_MAX,
        ),
        (r"auth/users\.json(\.new)?", store_paths.USERS_FILE_BYTES_MAX),
        (r"run/[^/]+\.page", PAGE_BYTES),
        (r"auth/server\.key(_secret)?(\.new)?", store_paths.RUN_FILE_BYTES_MAX),
        (r"run/stats/[^/]+", store_paths.STATS_FILE_BYTES_MAX),
        (r"staging/[^./][^/]*/[0-9]+/journal(\.new)?", store_paths.JOURNAL_FILE_BYTES_MAX),
        (r"staging/[^./][^/]*/[0-9]+/[^/]+", None),
    )
)
_LOCK_HINT = "stop whoever uses the store, then move it away by hand"


def create_store(root: Path) -> None:
    """Creates what is missing of directory, `lock`, `commitlog/` and `keelog/run/`, durably.

    A broker's store gets `keelog/` too. Raises StorePermission, and StoreLocked while a broker runs
    the store: then nothing is created.
    """
    try:
        disk.make_durable_dir(root)
        if not _is_whole(root):
            lock = StoreLock.acquire(root)
            try:
                for folder in (root / names.COMMIT_LOG_DIR, root / names.KEELOG_DIR):
                    disk.make_dir(folder)
                disk.make_dir(run_dir(root))
            finally:
                lock.release()
        run_dir(root).chmod(0o700)
        # Also if they were there already: their creator may have been killed before it synced them.
        disk.sync_dir(root / names.KEELOG_DIR)
        disk.sync_dir(root)
    except PermissionError as error:
        raise store_paths.no_permission(error) from None


def _is_whole(root: Path) -> bool:
    return (root / names.LOCK_FILE).exists() and all(
        folder.is_dir() for folder in (root / names.COMMIT_LOG_DIR, run_dir(root))
    )


def check_links(root: Path) -> None:
    """Raises NotAStore if the store, one of its folders or a segment is a dangling link.

    If it counted as missing, the store would look new or cut, and recovery would make the other
    files agree with that.
    """
    log = root / names.COMMIT_LOG_DIR
    segments = log.iterdir() if log.is_dir() else ()
    for path in (root, log, *(root / name for name in _ROOT_FOLDERS), *segments):
        if path.is_symlink() and not path.exists():
            target = path.readlink()
            raise NotAStore(
                f"{path} is a link to {target}, which is not there",
                f"mount the volume of {target}, then the same command again",
            )


def check_own_files(root: Path) -> None:
    """Raises IrregularFile for the first of `strangers`."""
    for stranger in strangers(root):
        raise stranger


def strangers(root: Path) -> Iterator[store_paths.IrregularFile]:
    """Yields an error for each place of an own file or folder that holds something else.

    Opens no file. Only `keelog/` and `config/` may be links: they may be on volumes of their own.
    Skips what it has no permission to look at: a process that opens it reports that. An object
    store has no such places.
    """
    remote: Any = root
    if isinstance(remote, store_paths.RemotePath):
        return
    for name in (names.CONFIG_DIR, names.KEELOG_DIR):
        path = root / name
        if path.exists() and not path.is_dir():
            yield _stranger(path, "folder", path.stat().st_mode)
    for name, bytes_max in _ROOT_FILES.items():
        yield from _in_place_of(root / name, "file", bytes_max)
    yield from _below(own_dir(root), "")


def _below(folder: Path, above: str) -> Iterator[store_paths.IrregularFile]:
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        place, path = f"{above}{entry.name}", folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        wanted, bytes_max = _wanted(place, "folder" if is_folder else "file")
        is_quick = bytes_max is None and entry.is_file(follow_symlinks=False)
        if wanted == "folder" and is_folder:
            yield from _below(path, f"{place}/") if place != QUARANTINE_DIR else ()
        elif wanted != "file" or not is_quick:
            yield from _in_place_of(path, wanted, bytes_max)


def _wanted(place: str, otherwise: str) -> tuple[str, int | None]:
    """What belongs there, and how long a file may be."""
    if _OWN_FOLDERS.fullmatch(place):
        return "folder", None
    if _BELLS.fullmatch(place):
        return "socket", None
    for pattern, bytes_max in _OWN_FILES:
        if pattern.fullmatch(place):
            return "file", bytes_max
    return otherwise, None


def _in_place_of(
    path: Path, wanted: str, bytes_max: int | None
) -> Iterator[store_paths.IrregularFile]:
    """Of a file, a socket, or a folder, which the path is not."""
    try:
        status = path.lstat()
        is_socket = wanted == "socket" and stat.S_ISSOCK(status.st_mode)
        if wanted == "folder" or not (stat.S_ISREG(status.st_mode) or is_socket):
            yield _stranger(path, wanted, status.st_mode)
        elif bytes_max is not None:
            store_paths.check_size(path, status.st_size, bytes_max)
    except store_paths.IrregularFile as stranger:
        yield stranger
    except OSError:
        return


def _stranger(path: Path, wanted: str, mode: int) -> store_paths.IrregularFile:
    found = "a file" if stat.S_ISREG(mode) else store_paths.kind_of(mode)
    hint = _LOCK_HINT if path.name == names.LOCK_FILE else store_paths.MOVE_HINT
    return store_paths.IrregularFile(str(path), 0, f"is no {wanted}, but {found}", hint)
