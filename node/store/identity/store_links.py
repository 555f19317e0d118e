"""Links in a store that lead nowhere: a volume that is not mounted is no empty folder."""

from pathlib import Path

from protocol.errors import NotAStore
from protocol.names import COMMIT_LOG_DIR, CONFIG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, KEELOG_DIR

_BESIDE_THE_LOG = (CONSUME_QUEUE_DIR, INDEX_DIR, CONFIG_DIR, KEELOG_DIR)


def check_links(root: Path) -> None:
    """Raises NotAStore for a store, a folder of it or a segment that is a link to nothing.

    Taken for a missing one, the store would look new or cut, and what its other files vouch for
    would be made so too.
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
