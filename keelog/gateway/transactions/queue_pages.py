"""A queue of the system's as a reader gives it: records in order, page by page."""

from collections.abc import Sequence
from typing import NamedTuple

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.results import PullResult
from protocol.errors import MessageDamaged, StoreDamaged
from protocol.record.codec import Record, decode

PAGE_BYTES_MAX = 256 * 1024
PAGE_MESSAGES_MAX = 1_000
REQUEST_S = 10.0


class QueuePage(NamedTuple):
    """Some records, and the offset after them. `is_end`: the queue has no more for now.

    `max_offset` is the queue's end, as far as the reader knew it.
    `status` is the pull's, RocketMQ's GetMessageStatus; empty where a record was damaged.
    """

    records: Sequence[Record]
    next_offset: int
    is_end: bool
    max_offset: int
    status: str = ""
    damage: MessageDamaged | None = None


async def read_page(
    core: ClientCore,
    topic: str,
    queue_id: int,
    offset: int,
    wait_s: float = 0.0,
    patience_ms: int = 0,
) -> QueuePage:
    """The records of a queue from an offset on; those that are damaged or gone are passed over.

    `wait_s`: how long a reader holds the pull of a queue without more; `patience_ms`: how late it
    may then see one. Raises what a reader refuses, StoreDamaged.
    """
    wanted = {
        "topic": topic,
        "queue": queue_id,
        "offset": offset,
        "max_messages": PAGE_MESSAGES_MAX,
        "max_bytes": PAGE_BYTES_MAX,
        "patience_ms": patience_ms,
    }
    try:
        found = await run(core, operations.pull(wanted, wait_s, REQUEST_S + 2 * wait_s))
    except MessageDamaged as damage:
        return QueuePage((), damage.next_offset, False, damage.next_offset, damage=damage)
    records = _records_of(found)
    following = records[-1].head.queue_offset + 1 if records else found.next_begin_offset
    is_end = not records and following == offset
    return QueuePage(records, following, is_end, found.max_offset, found.status)


def _records_of(found: PullResult) -> list[Record]:
    """Raises StoreDamaged for anything but whole records."""
    records: list[Record] = []
    position = 0
    for size in found.sizes.tolist():
        record = decode(found.payload, position)
        if not isinstance(record, Record) or record.size != size:
            raise StoreDamaged("commitlog", position, "a reader sent no record")
        records.append(record)
        position += size
    return records
