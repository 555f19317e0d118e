"""The commands that errors about damaged files propose."""

import shlex
from pathlib import Path

from node.runtime.remote_path import RemotePath
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR


def see_all_damage(path: Path | RemotePath) -> str:
    """The command that shows all damage of the store with this file or folder."""
    found = None if isinstance(path, RemotePath) else _store_of(path)
    store = "DIR" if found is None else shlex.quote(str(found))
    return f"see all damage, on the node's machine, with: keelog store verify {store} --deep"


def _store_of(path: Path) -> Path | None:
    """The folder that holds the log; None if it is not there any more."""
    for above in (path, *path.parents):
        # A topic may have the log's name.
        if above.name != CONSUME_QUEUE_DIR and (above / COMMIT_LOG_DIR).is_dir():
            return above
    return None
