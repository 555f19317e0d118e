"""Finds dangling links in a store: an unmounted volume must not count as an empty folder."""

from pathlib import Path

from protocol.errors import NotAStore
from protocol.names import COMMIT_LOG_DIR, CONFIG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, KEELOG_DIR

_BESIDE_THE_LOG = (CONSUME_QUEUE_DIR, INDEX_DIR, CONFIG_DIR, KEELOG_DIR)


def check_links(root: Path) -> None:
    """Raises NotAStore if the store, one of its folders or a segment is a dangling link.

    If it counted as missing, the store would look new or cut, and recovery would make the other
    files agree with that.
    """
    log = root / COMMIT_LOG_DIR
    segments = log.iterdir() if log.is_dir() else ()
    for path in (root, log, *(root / name for name in _BESIDE_THE_LOG), *segments):
        if path.is_symlink() and not path.exists():
            target = path.readlink()
            raise NotAStore(
                f"{path} is a link to {target}, which is not there",
                f"mount the volume of {target}, then the same command again",
            )
