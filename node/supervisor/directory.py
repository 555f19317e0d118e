"""Checks the directory of a node: may it be a store, and do processes still use it?"""

import fcntl
import logging
import os
import shlex
import time
from contextlib import suppress
from pathlib import Path

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.regular_file import open_regular
from node.runtime.state_page import run_dir
from node.runtime.wakeup import READER_SLOTS
from node.store.identity.places import check_links, check_own_files
from protocol.errors import NotAStore, StoreLocked, StorePermission
from protocol.names import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    COMMIT_LOG_DIR,
    CONFIG_DIR,
    CONSUME_QUEUE_DIR,
    INDEX_DIR,
    KEELOG_DIR,
    LOCK_FILE,
)

log = logging.getLogger("keelog.supervisor")

_OF_A_STORE = frozenset(
    {
        *(COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, CONFIG_DIR, KEELOG_DIR),
        *(CHECKPOINT_FILE, ABORT_FILE, LOCK_FILE),
    }
)
_MARKS = frozenset({COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, CHECKPOINT_FILE, ABORT_FILE, KEELOG_DIR})
"""A directory with one of these is a store."""
_IN_EMPTY_FILE_SYSTEMS = frozenset({"lost+found"})
_OTHERS_MAY_ENTER, _OTHERS_MAY_READ = 0o011, 0o044
_COUNTED_SLOTS = ("queue-", *READER_SLOTS)
ORPHANS_S_MAX = 10.0
_RETRY_S = 0.05


def open_directory(root: Path) -> None:
    """Makes a missing directory. Raises NotAStore for one that is neither a store nor empty.

    Raises IrregularFile for anything else in the place of an own file, and StorePermission. When it
    raises, nothing was changed.
    """
    try:
        check_links(root)
        if root.exists() and not root.is_dir():
            raise NotAStore(f"{root} is a file", "name a directory")
        disk.make_durable_dir(root)
        names = {path.name for path in root.iterdir()} - _IN_EMPTY_FILE_SYSTEMS
        log = root / COMMIT_LOG_DIR
        if log.exists() and not log.is_dir():
            raise NotAStore(f"{log} is a file", "name the directory of a store")
    except PermissionError as error:
        where = error.filename or root
        raise StorePermission(
            f"{where}: {error.strerror}", "run as the owner of the store"
        ) from None
    except NotADirectoryError as error:
        raise NotAStore(f"{error.filename}: {error.strerror}", "name a directory") from None
    # `index` and `config` alone may be anybody's; a `lock` alone is a start that was killed.
    marks = names & _MARKS if names - {LOCK_FILE, KEELOG_DIR} else names & _OF_A_STORE
    if not run_dir(root).is_dir():
        # Not any folder of our name: a checkout of this project has one too.
        marks -= {KEELOG_DIR}
    if names and not marks:
        raise NotAStore(
            f"{root} holds other things than a store ({min(names)[:40]!a})",
            "name an empty directory, or one that holds commitlog/",
        )
    check_own_files(root)


def warn_if_open_to_others(root: Path) -> None:
    """Logs a warning if users other than the owner may read the store.

    What Keelog makes is closed to them; files of a broker, or of an earlier version, may not be.
    """
    found = open_to_others(root)
    if found is not None:
        close = f"chmod -R go= {shlex.quote(str(root))}"
        log.warning("other users may read the store", extra=fields(path=found, close=close))


def open_to_others(root: Path) -> Path | None:
    """The first file or folder of a store that other users may read; None without one.

    In a folder that they may not enter they can read nothing, whatever its mode.
    """
    is_closed = not root.stat().st_mode & _OTHERS_MAY_ENTER
    for path in sorted(root / name for name in _OF_A_STORE):
        if is_closed and not path.is_symlink():
            continue
        with suppress(FileNotFoundError):
            if path.stat().st_mode & _OTHERS_MAY_READ:
                return path
    return None


def wait_for_orphans(root: Path, wait_s: float = ORPHANS_S_MAX) -> None:
    """Waits for the processes of a killed supervisor to end; they hold locks of their slots.

    Raises StoreLocked if one does not.
    """
    deadline = time.monotonic() + wait_s
    for path in sorted(run_dir(root).glob("*.lock")):
        while not _is_free(path):
            if time.monotonic() >= deadline:
                raise StoreLocked(
                    f"{path} is held by a process of an earlier node",
                    "stop that process; reading commands need no lock",
                )
            time.sleep(_RETRY_S)


def remove_old_pages(root: Path, slots: set[str]) -> None:
    """Removes the pages of queue workers and readers that this node does not have.

    The writer reads all pages when it stops; the pid in an old page may be of another process.
    """
    for path in run_dir(root).glob("*.page"):
        if path.stem.startswith(_COUNTED_SLOTS) and path.stem not in slots:
            disk.unlink(path, missing_ok=True)


def _is_free(path: Path) -> bool:
    try:
        descriptor = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
