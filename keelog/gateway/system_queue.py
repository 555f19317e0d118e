"""Queues of the system's: read page by page, and what has waited in them delivered.

`WaitingQueue` is one of messages that wait, read as any consumer would. A delivery is a copy at the
message's real place; one without a reply is repeated. So a crash may repeat one, and loses none.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.results import PullResult
from keelog.gateway.sending.stored_properties import copy_of, is_committed
from keelog.gateway.sending.writer_link import FutureSlot, WriterLink
from node.runtime.event_log import fields
from protocol import errors
from protocol.record import codec, encode, waiting

log = logging.getLogger("keelog.tasks")

RETRY_S = 1.0
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
    `max_offset` is the queue's end, as far as the reader knew it. `status` is the pull's,
    RocketMQ's GetMessageStatus; empty where a record was damaged."""

    records: Sequence[codec.Record]
    next_offset: int
    is_end: bool
    max_offset: int
    status: str = ""
    damage: errors.MessageDamaged | None = None


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
    may then see one. Raises what a reader refuses, StoreDamaged."""
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
    except errors.MessageDamaged as damage:
        return QueuePage((), damage.next_offset, False, damage.next_offset, damage=damage)
    records = _records_of(found)
    following = records[-1].head.queue_offset + 1 if records else found.next_begin_offset
    is_end = not records and following == offset
    return QueuePage(records, following, is_end, found.max_offset, found.status)


def _records_of(found: PullResult) -> list[codec.Record]:
    """Raises StoreDamaged for anything but whole records."""
    records: list[codec.Record] = []
    position = 0
    for size in found.sizes.tolist():
        record = codec.decode(found.payload, position)
        if not isinstance(record, codec.Record) or record.size != size:
            raise errors.StoreDamaged("commitlog", position, "a reader sent no record")
        records.append(record)
        position += size
    return records


@dataclass(slots=True, eq=False)
class WaitingQueue:
    """A queue of messages that wait. `_wait_s`: how long a pull is held."""

    _core: ClientCore
    _place: waiting.RealPlace
    _wait_s: float

    async def pull(self, offset: int) -> QueuePage:
        """The next messages, none after a while without one. Raises what a reader refuses,
        StoreDamaged."""
        topic, queue_id = self._place
        found = await read_page(self._core, topic, queue_id, offset, self._wait_s, PATIENCE_MS)
        where = {"topic": topic, "queue": queue_id}
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
        topic, queue_id = self._place
        wanted = {"topic": topic, "queue": queue_id, "offset": _BEYOND, "max_messages": 1}
        wanted["patience_ms"] = PATIENCE_MS
        return (await run(self._core, operations.pull(wanted, 0.0, REQUEST_S))).max_offset


class Delivery(NamedTuple):
    """A message as it waits, where its copy goes, None: nowhere, and the copy's properties.
    `is_inner`: it goes to a topic of the system's, to wait on."""

    record: codec.Record
    place: waiting.RealPlace | None
    properties: bytes
    is_inner: bool = False


async def _failed(
    link: WriterLink, deliveries: Sequence[Delivery]
) -> list[tuple[Delivery, errors.MqError]]:
    """Those that failed, and why, once all have their outcome."""
    slots = [FutureSlot() for _ in deliveries]
    for one, slot in zip(deliveries, slots, strict=True):
        if one.place is None:
            slot(errors.BadRequest("it names no real topic and queue"))
            continue
        copy = copy_of(one.record, one.place, one.properties, link.crc)
        is_inner = one.is_inner or is_committed(one.record)
        link.put(copy, one.place, "", slot, is_inner=is_inner)
    outcomes = zip(deliveries, await asyncio.gather(*(slot.done for slot in slots)), strict=True)
    return [(one, found) for one, found in outcomes if isinstance(found, errors.MqError)]


async def deliver_all(
    link: WriterLink, deliveries: Iterable[Delivery], warn: Callable[[errors.MqError], None]
) -> int:
    """Delivers all of them, as often as it takes; returns how many, without those that no node
    takes: they stay in the log. `warn` hears of what makes it wait."""
    left = list(deliveries)
    count = len(left)
    while left:
        again: list[Delivery] = []
        for one, error in await _failed(link, left):
            place = one.place
            if (
                isinstance(error, errors.BadRequest)
                and place
                and place.queue_id != encode.ANY_QUEUE
            ):
                # The topic has fewer queues than it had.
                again.append(one._replace(place=place._replace(queue_id=encode.ANY_QUEUE)))
            elif isinstance(error, errors.RefusedError):
                # It must not hold up the next ones.
                topic = one.record.properties.get("REAL_TOPIC", "")
                extra = fields(msg_id=one.record.message_id, topic=topic, why=error)
                log.error("a delayed message cannot be delivered", extra=extra)
                count -= 1
            else:
                warn(error)
                again.append(one)
        if len(again) == len(left):
            await asyncio.sleep(RETRY_S)
        left = again
    return count
