"""The small files of a node, checked against the store's id and its log: `store verify`."""

from collections.abc import Iterator
from pathlib import Path

from node.runtime.regular_file import IrregularFile
from node.store.checkpoints import TAILS_FILE, own_dir
from node.store.config.topics_file import unreadable_tables
from node.store.file_cache import OpenFiles
from node.store.identity import own_places, store_id
from node.store.verify.checked_store import CheckedStore
from node.store.verify.findings import NO_START, Finding
from node.store.verify.tails import disagreement

KIND = "foreign_file"


def irregular_findings(root: Path) -> Iterator[Finding]:
    """Yields what a node refuses to start with: a link, a FIFO or the like in the place of one of
    its files, and a table of topics, or the copy that then counts, that makes no sense."""
    tables = (one for one in unreadable_tables(root) if not isinstance(one, IrregularFile))
    for damage in (*own_places.strangers(root), *tables):
        detail = f"{damage.found}: {NO_START}"
        yield Finding("error", KIND, damage.where, 0, detail)


def own_findings(store: CheckedStore) -> Iterator[Finding]:
    """Yields the files of another store: errors where a node would not start, or not publish."""
    needed, spared = store_id.strangers(store.root)
    yield from (Finding("error", KIND, str(path), 0, why) for path, why in needed)
    yield from (Finding("warning", KIND, str(path), 0, why) for path, why in spared)
    tails, epochs = store.condition.tails, store.condition.epochs
    if tails is None:
        return
    files = OpenFiles()
    try:
        removed = store.condition.removed
        found = disagreement(store.root, tails, epochs, store.log.segments, files, removed)
    finally:
        files.close()
    if found is not None:
        path = str(own_dir(store.root) / TAILS_FILE)
        yield Finding("error", KIND, path, tails.last_record, f"is of another log: {found}")
