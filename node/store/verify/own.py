"""Our own small files, held against the store's id and against its log."""

from collections.abc import Iterator

from node.store.checkpoints import TAILS_FILE, own_dir
from node.store.file_cache import OpenFiles
from node.store.identity.store_id import strangers
from node.store.verify.checked_store import CheckedStore
from node.store.verify.findings import Finding
from node.store.verify.tails import disagreement

KIND = "foreign_file"


def own_findings(store: CheckedStore) -> Iterator[Finding]:
    """Files of another store: an error where a node would not start, or not publish a batch."""
    needed, spared = strangers(store.root)
    yield from (Finding("error", KIND, str(path), 0, why) for path, why in needed)
    yield from (Finding("warning", KIND, str(path), 0, why) for path, why in spared)
    tails, epochs = store.condition.tails, store.condition.epochs
    if tails is None:
        return
    files = OpenFiles()
    try:
        found = disagreement(store.root, tails, epochs, store.log.segments, files)
    finally:
        files.close()
    if found is not None:
        path = str(own_dir(store.root) / TAILS_FILE)
        yield Finding("error", KIND, path, tails.last_record, f"is of another log: {found}")
