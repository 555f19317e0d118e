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

from node.runtime import disk
from node.runtime.locks import StoreLock
from node.runtime.state_page import PAGE_BYTES, run_dir
from node.runtime.store_paths import (
    EPOCHS_FILE_BYTES_MAX,
    FLOOR_FILE_BYTES_MAX,
    JOURNAL_FILE_BYTES_MAX,
    MOVE_HINT,
    OFFSETS_FILE_BYTES_MAX,
    QUEUES_FILE_BYTES_MAX,
    RUN_FILE_BYTES_MAX,
    SMALL_FILE_BYTES_MAX,
    STATS_FILE_BYTES_MAX,
    TOPICS_FILE_BYTES_MAX,
    IrregularFile,
    RemotePath,
    check_size,
    kind_of,
)
from node.store.checkpoints import QUARANTINE_DIR, own_dir
from protocol.errors import NotAStore, StorePermission
from protocol.names import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    CHECKPOINT_FILE_BYTES,
    COMMIT_LOG_DIR,
    CONFIG_DIR,
    CONSUME_QUEUE_DIR,
    CONSUMER_OFFSETS_FILE,
    DELAY_OFFSETS_FILE,
    INDEX_DIR,
    KEELOG_DIR,
    KV_CONFIG_FILE,
    LOCK_FILE,
    SUBSCRIPTION_GROUPS_FILE,
    TOPICS_FILE,
)

_ROOT_FOLDERS = (CONSUME_QUEUE_DIR, INDEX_DIR, CONFIG_DIR, KEELOG_DIR)
_ROOT_FILES = {
    LOCK_FILE: SMALL_FILE_BYTES_MAX,
    ABORT_FILE: SMALL_FILE_BYTES_MAX,
    CHECKPOINT_FILE: CHECKPOINT_FILE_BYTES,
    f"{CHECKPOINT_FILE}.new": CHECKPOINT_FILE_BYTES,
    TOPICS_FILE: TOPICS_FILE_BYTES_MAX,
    f"{TOPICS_FILE}.bak": TOPICS_FILE_BYTES_MAX,
    f"{TOPICS_FILE}.new": TOPICS_FILE_BYTES_MAX,
    **{
        f"{table}{end}": OFFSETS_FILE_BYTES_MAX
        for table in (
            CONSUMER_OFFSETS_FILE,
            SUBSCRIPTION_GROUPS_FILE,
            DELAY_OFFSETS_FILE,
            KV_CONFIG_FILE,
        )
        for end in ("", ".bak", ".new")
    },
}
_OWN_FOLDERS = re.compile(
    r"progress|run|run/stats|staging|quarantine|staging/[^/]+|staging/[^./][^/]*/[0-9]+"
)
_BELLS = re.compile(r"run/[^/]+\.bell")
"""Sockets, which the next owner of their slot replaces."""
_OWN_FILES = (
    (re.compile(r"floor"), FLOOR_FILE_BYTES_MAX),
    (re.compile(r"epochs(\.new)?"), EPOCHS_FILE_BYTES_MAX),
    (re.compile(r"role(\.new)?"), SMALL_FILE_BYTES_MAX),
    (re.compile(r"(tails|removed)(\.new)?|run/[^/]+\.rebuilding(\.new)?"), QUEUES_FILE_BYTES_MAX),
    (re.compile(r"run/members(\.new)?"), OFFSETS_FILE_BYTES_MAX),
    (re.compile(r"run/groups(\.new)?"), QUEUES_FILE_BYTES_MAX),
    (
        re.compile(
            r"run/(following|master|other_master|elected|sync-state|followers|timers|clock"
            r"|recovered|lowered)(\.new)?"
        ),
        RUN_FILE_BYTES_MAX,
    ),
    (re.compile(r"clean(\.new)?|progress/[^/]+|run/[^/]+\.lock"), SMALL_FILE_BYTES_MAX),
    (re.compile(r"run/right(\.new)?"), SMALL_FILE_BYTES_MAX),
    (re.compile(r"run/[^/]+\.page"), PAGE_BYTES),
    (re.compile(r"run/stats/[^/]+"), STATS_FILE_BYTES_MAX),
    (re.compile(r"staging/[^./][^/]*/published(\.new)?"), SMALL_FILE_BYTES_MAX),
    (re.compile(r"staging/\.problems/[^/]+"), SMALL_FILE_BYTES_MAX),
    (re.compile(r"staging/[^./][^/]*/[0-9]+/journal(\.new)?"), JOURNAL_FILE_BYTES_MAX),
    (re.compile(r"staging/[^./][^/]*/[0-9]+/[^/]+"), None),
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
                for folder in (root / COMMIT_LOG_DIR, root / KEELOG_DIR):
                    disk.make_dir(folder)
                disk.make_dir(run_dir(root))
            finally:
                lock.release()
        run_dir(root).chmod(0o700)
        # Also if they were there already: their creator may have been killed before it synced them.
        disk.sync_dir(root / KEELOG_DIR)
        disk.sync_dir(root)
    except PermissionError as error:
        raise StorePermission(
            f"{error.filename}: {error.strerror}", "run as the owner of the store"
        ) from None


def _is_whole(root: Path) -> bool:
    return (root / LOCK_FILE).exists() and all(
        folder.is_dir() for folder in (root / COMMIT_LOG_DIR, run_dir(root))
    )


def check_links(root: Path) -> None:
    """Raises NotAStore if the store, one of its folders or a segment is a dangling link.

    If it counted as missing, the store would look new or cut, and recovery would make the other
    files agree with that.
    """
    log = root / COMMIT_LOG_DIR
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


def strangers(root: Path) -> Iterator[IrregularFile]:
    """Yields an error for each place of an own file or folder that holds something else.

    Opens no file. Only `keelog/` and `config/` may be links: they may be on volumes of their own.
    Skips what it has no permission to look at: a process that opens it reports that. An object
    store has no such places.
    """
    remote: Any = root
    if isinstance(remote, RemotePath):
        return
    for name in (CONFIG_DIR, KEELOG_DIR):
        path = root / name
        if path.exists() and not path.is_dir():
            yield _stranger(path, "folder", path.stat().st_mode)
    for name, bytes_max in _ROOT_FILES.items():
        yield from _in_place_of_file(root / name, bytes_max)
    yield from _below(own_dir(root), "")


def _below(folder: Path, above: str) -> Iterator[IrregularFile]:
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        place, path = f"{above}{entry.name}", folder / entry.name
        wanted, bytes_max = _wanted(place)
        if wanted == "file" or (wanted == "any" and not entry.is_dir(follow_symlinks=False)):
            is_quick = bytes_max is None and entry.is_file(follow_symlinks=False)
            yield from () if is_quick else _in_place_of_file(path, bytes_max)
        elif wanted == "bell":
            yield from _in_place_of_file(path, None, bell=True)
        elif not entry.is_dir(follow_symlinks=False):
            yield from _in_place_of_folder(path)
        elif place != QUARANTINE_DIR:
            yield from _below(path, f"{place}/")


def _wanted(place: str) -> tuple[str, int | None]:
    if _OWN_FOLDERS.fullmatch(place):
        return "folder", None
    if _BELLS.fullmatch(place):
        return "bell", None
    for pattern, bytes_max in _OWN_FILES:
        if pattern.fullmatch(place):
            return "file", bytes_max
    return "any", None


def _in_place_of_file(
    path: Path, bytes_max: int | None, bell: bool = False
) -> Iterator[IrregularFile]:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) and not (bell and stat.S_ISSOCK(status.st_mode)):
            yield _stranger(path, "socket" if bell else "file", status.st_mode)
        elif bytes_max is not None:
            check_size(path, status.st_size, bytes_max)
    except IrregularFile as stranger:
        yield stranger
    except OSError:
        return


def _in_place_of_folder(path: Path) -> Iterator[IrregularFile]:
    try:
        yield _stranger(path, "folder", path.lstat().st_mode)
    except OSError:
        return


def _stranger(path: Path, wanted: str, mode: int) -> IrregularFile:
    found = "a file" if stat.S_ISREG(mode) else kind_of(mode)
    hint = _LOCK_HINT if path.name == LOCK_FILE else MOVE_HINT
    return IrregularFile(str(path), 0, f"is no {wanted}, but {found}", hint)
