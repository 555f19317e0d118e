"""Creates a store, for `keelog serve` alone: no other process does."""

from pathlib import Path

from node.runtime import disk
from node.runtime.locks import StoreLock
from node.runtime.state_page import run_dir
from protocol.errors import NotAStore, StorePermission
from protocol.names import COMMIT_LOG_DIR, KEELOG_DIR, LOCK_FILE


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


def check_created(root: Path) -> None:
    """Raises NotAStore, which names what is missing, unless `create_store` made the store."""
    for path in (root, root / LOCK_FILE, root / COMMIT_LOG_DIR, run_dir(root)):
        if not path.exists():
            raise NotAStore(
                f"{path} is not there, and only keelog serve makes it",
                "check the path; keelog serve DIR makes a new store, or takes over a broker's",
            )


def _is_whole(root: Path) -> bool:
    return (root / LOCK_FILE).exists() and all(
        folder.is_dir() for folder in (root / COMMIT_LOG_DIR, run_dir(root))
    )
