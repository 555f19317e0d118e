"""Lists the queues that have files, `consumequeue/<topic>/<queue id>/`, and opens these."""

from collections.abc import Iterator
from pathlib import Path

from node.store.file_cache import OpenFiles, list_entries
from node.store.log.segment_list import Listing, list_folder
from node.store.queues.files import QueueFiles
from protocol.derived.queue_unit import UNIT_BYTES
from protocol.errors import StoreDamaged, StoreError
from protocol.ids import Queue
from protocol.names import BATCH_QUEUE_DIR, CONSUME_QUEUE_DIR

_ANY_OFFSET = 2**63 - 1


def queue_folder(root: Path, queue: Queue) -> Path:
    """The folder of a queue's files."""
    return root / CONSUME_QUEUE_DIR / queue.topic / str(queue.queue_id)


def list_queues(root: Path) -> dict[Queue, Path]:
    """Every queue that has a folder, sorted. Raises StorePermission."""
    found = {
        Queue(topic.name, int(folder.name)): folder
        for topic in _folders(root / CONSUME_QUEUE_DIR)
        for folder in _folders(topic)
        if folder.name.isascii() and folder.name.isdigit()
    }
    return dict(sorted(found.items()))


def list_topics(root: Path) -> list[str]:
    """Every topic that has a folder, sorted. Raises StorePermission."""
    return sorted(topic.name for topic in _folders(root / CONSUME_QUEUE_DIR))


def list_queue_ids(root: Path, topic: str) -> list[int]:
    """The queues of one topic that have a folder, sorted. Raises StorePermission."""
    names = [folder.name for folder in _folders(root / CONSUME_QUEUE_DIR / topic)]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def refuse_batch_queues(root: Path) -> None:
    """Raises StoreError where a broker keeps queues with one unit for a batch (RocketMQ: BatchCQ).

    Queues with one unit for each message beside them would stop that broker's next start
    (ConsumeQueueStore#queueTypeShouldBe).
    """
    for topic in _folders(root / BATCH_QUEUE_DIR):
        raise StoreError(
            f"{topic} is a queue of batches (BatchCQ), which a node does not have",
            "serve this store with a broker; keelog store dump and export read its messages",
        )


def _folders(parent: Path) -> Iterator[Path]:
    return (entry.path for entry in list_entries(parent) if entry.is_folder)


def open_queue_files(folder: Path, file_bytes: int | None, files: OpenFiles) -> QueueFiles:
    """The files of one queue, of `file_bytes` each; None: of the length that they have.

    Raises StoreDamaged when they do not join, StorePermission.
    """
    listing = list_folder(folder, file_bytes)
    listing.check()
    return QueueFiles(folder, listing, files)


def is_of_removed(files: QueueFiles, horizon: int) -> bool:
    """True for files that hold no unit of a topic's records from log offset `horizon` on.

    A worker removes them whole before it writes the first unit of a new topic of that name. So the
    last unit shows it.
    """
    end = files.end_below(_ANY_OFFSET)
    return end <= files.first or int(files.read(end - 1, 1)["physical_offset"][0]) < horizon


def no_queue_files(folder: Path, file_bytes: int, files: OpenFiles) -> QueueFiles:
    """A queue without files."""
    return QueueFiles(folder, Listing([], file_bytes, []), files)


def find_queue_file_bytes(folders: Iterator[Path], otherwise: int) -> int:
    """The length of a queue file, from the first queue that has one. Raises StoreDamaged."""
    for folder in folders:
        listing = list_folder(folder)
        if listing.file_bytes:
            if listing.file_bytes % UNIT_BYTES:
                found = f"has {listing.file_bytes} bytes, not a multiple of {UNIT_BYTES}"
                where = next((str(path) for _, path in listing.files), str(folder))
                raise StoreDamaged(
                    where, 0, found, "rebuild it with: keelog store rebuild --queues"
                )
            return listing.file_bytes
    return otherwise


def list_strangers(root: Path) -> list[Path]:
    """What is not a folder where only folders of topics and queues belong."""
    base = root / CONSUME_QUEUE_DIR
    parents = (base, *_folders(base))
    return sorted(
        entry.path for parent in parents for entry in list_entries(parent) if not entry.is_folder
    )
