"""A queue of the system's as a reader gives it: records in order, page by page.

`WaitingQueue` is one of messages that wait, read as any consumer would.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.results import PullResult
from keelog.gateway.tasks.delivery import RETRY_S
from node.runtime.event_log import fields
from protocol.errors import MessageDamaged, StoreDamaged
from protocol.record.codec import Record, decode
from protocol.record.waiting import RealPlace

log = logging.getLogger("keelog.tasks")

PAGE_BYTES_MAX = 256 * 1024
PAGE_MESSAGES_MAX = 1_000
REQUEST_S = 10.0
WAIT_S_MAX = 30.0
"""How long a reader holds a pull of a queue without messages, if `long_polling_ms_max` lets it."""
PATIENCE_MS = 100
"""How late a message may be seen: delays are longer, and a reader that followed the log for these
queues would read all that producers send to others."""
_BEYOND = 1 << 62
"""An offset after the end of any queue."""
_HELD = ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE")
"""The outcomes for which a reader holds a pull."""


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


class WaitingQueue:
    """A queue of the system's. `wait_s`: how long a pull is held."""

    def __init__(self, core: ClientCore, place: RealPlace, wait_s: float) -> None:
        self._core = core
        self._place = place
        self._wait_s = wait_s

    async def pull(self, offset: int) -> QueuePage:
        """The next messages, none after a while without one. Raises what a reader refuses,
        StoreDamaged."""
        place = self._place
        found = await read_page(
            self._core, place.topic, place.queue_id, offset, self._wait_s, PATIENCE_MS
        )
        where = {"topic": place.topic, "queue": place.queue_id}
        if found.damage is not None:
            extra = fields(**where, why=found.damage)
            log.error("a delayed message is damaged, and not delivered", extra=extra)
        elif not found.records:
            if found.next_offset != offset:
                # Retention took the messages in between, or the offset is of another log.
                extra = fields(**where, before=offset, now=found.next_offset)
                log.warning("a queue of delayed messages goes on elsewhere", extra=extra)
            elif self._wait_s < RETRY_S or found.status not in _HELD:
                await asyncio.sleep(RETRY_S)
        return found

    async def end(self) -> int:
        """Where the queue ends now. Raises what a reader refuses."""
        wanted = {
            "topic": self._place.topic,
            "queue": self._place.queue_id,
            "offset": _BEYOND,
            "max_messages": 1,
            "patience_ms": PATIENCE_MS,
        }
        return (await run(self._core, operations.pull(wanted, 0.0, REQUEST_S))).max_offset
